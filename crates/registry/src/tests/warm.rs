//! Reading ahead: what is registered is read, in small pieces, and nothing holds up the rest.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::warm::{Reader, Wanted, Warmer};

/// Notes what it is given; fails where the text says so.
#[derive(Default)]
struct Notes {
    read: Mutex<Vec<String>>,
    pieces: AtomicUsize,
}

impl Reader for Notes {
    fn read(&self, chunks: &[Arc<Chunk>], _: Wanted) -> Result<(), String> {
        self.pieces.fetch_add(1, Ordering::SeqCst);
        if chunks.iter().any(|chunk| chunk.text.contains("bad")) {
            return Err("a bad one".to_owned());
        }
        assert!(chunks.iter().all(|chunk| !chunk.text.contains("worse")), "a panic of the reader");
        self.read.lock().expect("no panic").extend(chunks.iter().map(|chunk| chunk.id.clone()));
        Ok(())
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
    let notes = Arc::new(Notes::default());
    let warmer = Warmer::start(&registry, Arc::<Notes>::clone(&notes)).expect("a thread");
    let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    write(&registry, names.iter().map(|id| put(id, "good")).collect());
    let progress = block_on(registry.settled(&names, soon()));
    assert_eq!(progress, Progress { registered: 10, warm: 10, queued: 0, failed: 0 });
    assert_eq!(*notes.read.lock().expect("no panic"), names, "in the order in which they came");
    assert!(notes.pieces.load(Ordering::SeqCst) >= 3, "in small pieces");
    write(&registry, vec![put("1", "good again")]);
    assert_eq!(block_on(registry.settled(&["1"], soon())).warm, 1);
    drop((warmer, registry));

    let registry = Registry::open(&settings(folder.path())).expect("it is there");
    assert_eq!(registry.progress().queued, 10);
    let late = block_on(registry.settled(&names, Instant::now() + Duration::from_millis(5)));
    assert_eq!(late.queued, 10, "nobody reads yet, the deadline is kept");
    let warmer = Warmer::start(&registry, Arc::new(Notes::default())).expect("a thread");
    assert_eq!(block_on(registry.settled(&names, soon())).warm, 10);
    drop(warmer);
    write(&registry, vec![put("late", "good")]);
    assert_eq!(
        block_on(registry.settled(&["late"], soon())).queued,
        1,
        "nobody waits for a warmer that is gone"
    );
}

#[test]
fn a_chunk_that_cannot_be_read_does_not_hold_up_the_others() {
    the_others_are_read("bad");
}

#[test]
fn a_chunk_that_makes_the_reader_panic_does_not_hold_up_the_others() {
    the_others_are_read("worse");
}

fn the_others_are_read(text: &str) {
    let registry = in_memory();
    let _warmer = Warmer::start(&registry, Arc::new(Notes::default())).expect("a thread");
    write(&registry, vec![put("a", "good"), put("b", text), put("c", "good")]);
    let progress = block_on(registry.settled(&["a", "b", "c"], soon()));
    assert_eq!(progress, Progress { registered: 3, warm: 2, queued: 0, failed: 1 });
}

/// Reads until nobody wants it.
#[derive(Default)]
struct Endless(AtomicUsize);

impl Reader for Endless {
    fn read(&self, chunks: &[Arc<Chunk>], wanted: Wanted) -> Result<(), String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if chunks.iter().any(|chunk| chunk.text == "endless") {
            let until = soon();
            while wanted() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Err("stopped".to_owned());
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn stop(&self) {}
}

#[test]
fn what_is_deleted_or_changed_while_it_is_read_is_read_no_further() {
    for (name, change) in [("deleted", delete("a")), ("changed", put("a", "short"))] {
        let (registry, reader) = (in_memory(), Arc::new(Endless::default()));
        let _warmer = Warmer::start(&registry, Arc::<Endless>::clone(&reader)).expect("a thread");
        write(&registry, vec![put("a", "endless")]);
        let until = soon();
        while reader.0.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < until, "{name}: it never began");
            std::thread::yield_now();
        }
        write(&registry, vec![change, put("b", "short")]);
        let ids = ["a", "b"];
        let progress = block_on(registry.settled(&ids, soon()));
        assert_eq!((progress.queued, progress.failed), (0, 0), "{name}");
        assert_eq!(progress.warm, progress.registered, "{name}");
    }
}
