//! Tests of reading ahead: registered chunks are read in small batches, and a chunk that fails does not delay
//! the others.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::warm::{IsCurrent, ReadError, Reader, Warmer};

/// Records the ids that it reads. Fails for a text with "bad" and panics for a text with "worse".
#[derive(Default)]
struct RecordingReader {
    read: Mutex<Vec<String>>,
    batches: AtomicUsize,
}

impl Reader for RecordingReader {
    fn read(&self, chunks: &[Arc<Chunk>], _: IsCurrent) -> Result<Vec<Vec<f32>>, ReadError> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        if chunks.iter().any(|chunk| chunk.text.contains("bad")) {
            return Err(ReadError { reason: "a bad chunk".to_owned() });
        }
        assert!(chunks.iter().all(|chunk| !chunk.text.contains("worse")), "a panic of the reader");
        self.read.lock().expect("no panic").extend(chunks.iter().map(|chunk| chunk.id.clone()));
        // "Harbour" and "Hafen" mean the same.
        let vector =
            |chunk: &Arc<Chunk>| vec![1.0, if chunk.text.to_lowercase().contains("ha") { 9.0 } else { 0.0 }];
        Ok(chunks.iter().map(vector).collect())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn stop(&self) {}
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn registered_chunks_are_read_ahead_and_again_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = Registry::open(&settings(folder.path())).expect("a new one");
    let reader = Arc::new(RecordingReader::default());
    let warmer = Warmer::start(&registry, Arc::<RecordingReader>::clone(&reader)).expect("a thread");
    let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    write(&registry, names.iter().map(|id| put(id, "good")).collect());
    let progress = block_on(registry.settled(&names, soon()));
    assert_eq!(progress, Progress { registered: 10, warm: 10, queued: 0, failed: 0 });
    assert_eq!(*reader.read.lock().expect("no panic"), names, "in the order of registration");
    assert!(reader.batches.load(Ordering::SeqCst) >= 3, "in small batches");
    write(&registry, vec![put("1", "good again")]);
    assert_eq!(block_on(registry.settled(&["1"], soon())).warm, 1);
    drop((warmer, registry));

    let registry = Registry::open(&settings(folder.path())).expect("it is there");
    assert_eq!(registry.progress().queued, 10);
    let late = block_on(registry.settled(&names, Instant::now() + Duration::from_millis(5)));
    assert_eq!(late.queued, 10, "nothing is read before a warmer starts, and the deadline is kept");
    let warmer = Warmer::start(&registry, Arc::new(RecordingReader::default())).expect("a thread");
    assert_eq!(block_on(registry.settled(&names, soon())).warm, 10);
    drop(warmer);
    write(&registry, vec![put("late", "good")]);
    assert_eq!(
        block_on(registry.settled(&["late"], soon())).queued,
        1,
        "callers do not wait for a warmer that has stopped"
    );
}

#[test]
fn a_chunk_that_cannot_be_read_does_not_delay_the_others() {
    assert_other_chunks_are_read("bad");
}

#[test]
fn a_chunk_that_makes_the_reader_panic_does_not_delay_the_others() {
    assert_other_chunks_are_read("worse");
}

fn assert_other_chunks_are_read(text: &str) {
    let registry = in_memory();
    let _warmer = Warmer::start(&registry, Arc::new(RecordingReader::default())).expect("a thread");
    write(&registry, vec![put("a", "good"), put("b", text), put("c", "good")]);
    let progress = block_on(registry.settled(&["a", "b", "c"], soon()));
    assert_eq!(progress, Progress { registered: 3, warm: 2, queued: 0, failed: 1 });
}

/// Reads a chunk with the text "endless" until it is no longer current.
#[derive(Default)]
struct Endless(AtomicUsize);

impl Reader for Endless {
    fn read(&self, chunks: &[Arc<Chunk>], is_current: IsCurrent) -> Result<Vec<Vec<f32>>, ReadError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if chunks.iter().any(|chunk| chunk.text == "endless") {
            let until = soon();
            while is_current() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Err(ReadError { reason: "stopped".to_owned() });
        }
        Ok(Vec::new())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn stop(&self) {}
}

#[test]
fn reading_stops_when_a_chunk_is_deleted_or_changed() {
    for (name, change) in [("deleted", delete("a")), ("changed", put("a", "short"))] {
        let (registry, reader) = (in_memory(), Arc::new(Endless::default()));
        let _warmer = Warmer::start(&registry, Arc::<Endless>::clone(&reader)).expect("a thread");
        write(&registry, vec![put("a", "endless")]);
        let until = soon();
        while reader.0.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < until, "{name}: the read never started");
            std::thread::yield_now();
        }
        write(&registry, vec![change, put("b", "short")]);
        let ids = ["a", "b"];
        let progress = block_on(registry.settled(&ids, soon()));
        assert_eq!((progress.queued, progress.failed), (0, 0), "{name}");
        assert_eq!(progress.warm, progress.registered, "{name}");
    }
}

#[test]
fn chunks_are_found_by_words_and_by_meaning() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = Registry::open(&settings(folder.path())).expect("a new one");
    let warmer = Warmer::start(&registry, Arc::new(RecordingReader::default())).expect("a thread");
    write(
        &registry,
        vec![put("en", "the harbour"), put("de", "der Hafen"), put("other", "a tide, a harbour of words")],
    );
    let ids = ["en", "de", "other"];
    block_on(registry.settled(&ids, soon()));
    assert!(registry.has_vectors());
    let found = |registry: &Registry, query: &str, limit: usize| -> Vec<(String, bool)> {
        let hits = registry.search_by_meaning(query, &[1.0, 9.0], limit, usize::MAX).expect("an index");
        hits.into_iter().map(|hit| (hit.chunk.id.clone(), hit.bm25 > 0.0)).collect()
    };
    let all = found(&registry, "harbour", 9);
    assert_eq!(all.len(), 3);
    assert!(all.contains(&("de".to_owned(), false)) && all.contains(&("en".to_owned(), true)), "{all:?}");
    assert_eq!(found(&registry, "nothing", 2).len(), 2, "by meaning alone");
    assert_eq!(registry.search("nothing", 9, usize::MAX).expect("an index"), []);

    write(&registry, vec![Change::Delete("de".to_owned())]);
    assert!(found(&registry, "nothing", 9).iter().all(|(id, _)| id != "de"), "it was deleted");
    write(&registry, vec![put("en", "a new text")]);
    block_on(registry.settled(&ids, soon()));
    assert_eq!(found(&registry, "nothing", 1)[0].0, "other", "its vector is that of the new text");
    drop((warmer, registry));
}
