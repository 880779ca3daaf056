//! Tests of the registry through its public API: writing, reading, listing, searching and deleting chunks,
//! and refusing damaged folders.

mod follow;
mod warm;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use thresher_core::domain::Kind;

use super::*;

fn settings(dir: &std::path::Path) -> RegistrySettings {
    RegistrySettings { dir: dir.into(), ..RegistrySettings::default() }
}

fn in_memory() -> Registry {
    Registry::open(&settings("".as_ref())).expect("a registry in memory")
}

/// A registry in memory that reads every chunk from its index.
fn without_cache() -> Registry {
    let limits = RegistryLimits { cache_bytes_max: 0, ..RegistryLimits::default() };
    Registry::open_within(&settings("".as_ref()), limits).expect("a registry in memory")
}

fn chunk(id: &str, text: &str) -> Chunk {
    Chunk::new(id, text)
}

fn put_with_metadata(id: &str, text: &str, metadata: Value) -> Change {
    Change::Put(Arc::new(Chunk { metadata: Some(metadata.to_string()), ..chunk(id, text) }))
}

fn put(id: &str, text: &str) -> Change {
    Change::Put(Arc::new(chunk(id, text)))
}

fn delete(id: &str) -> Change {
    Change::Delete(id.to_owned())
}

/// Writes changes and returns their outcomes, separated by spaces.
#[track_caller]
fn write(registry: &Registry, changes: Vec<Change>) -> String {
    let outcomes = block_on(registry.write(changes)).expect("the writer writes");
    outcomes.into_iter().map(Outcome::name).collect::<Vec<_>>().join(" ")
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(work)
}

fn ids(chunks: &[Arc<Chunk>]) -> String {
    chunks.iter().map(|chunk| &*chunk.id).collect::<Vec<_>>().join(" ")
}

fn search_ids(registry: &Registry, query: &str) -> BTreeSet<String> {
    let hits = registry.search(query, 100, usize::MAX).expect("an index");
    hits.into_iter().map(|hit| hit.chunk.id.clone()).collect()
}

/// Whether any file below a folder has these bytes.
fn has_bytes(dir: &std::path::Path, bytes: &[u8]) -> bool {
    let entries: Vec<_> =
        std::fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.path()).collect();
    entries.iter().any(|path| {
        if path.is_dir() {
            return has_bytes(path, bytes);
        }
        // A file may go in the meantime.
        std::fs::read(path).unwrap_or_default().windows(bytes.len()).any(|found| found == bytes)
    })
}

#[test]
fn deleted_and_replaced_texts_are_gone_from_the_files_soon() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = RegistryLimits { purge_delay: Duration::from_millis(20), ..RegistryLimits::default() };
    let settings = settings(folder.path());
    // Random words, which the store of documents cannot shorten.
    let registry = Registry::open_within(&settings, limits).expect("a registry");
    let secret = put_with_metadata("a", "zebrasecret42", json!({"note": "zebranote43"}));
    write(&registry, vec![secret, put("b", "ebboldtext44"), put("c", "tide")]);
    assert!(has_bytes(folder.path(), b"zebrasecret42"));
    write(&registry, vec![delete("a"), put("b", "moon")]);
    let gone = |text: &str| !has_bytes(folder.path(), text.as_bytes());
    let until = Instant::now() + Duration::from_secs(20);
    while !(gone("zebrasecret42") && gone("zebranote43") && gone("ebboldtext44")) {
        assert!(Instant::now() < until, "deleted texts stay in the files");
        std::thread::sleep(Duration::from_millis(20));
    }
    let found = search_ids(&registry, "tide moon");
    assert_eq!(found, BTreeSet::from(["b".to_owned(), "c".to_owned()]));
    assert_eq!(write(&registry, vec![put("c", "tide"), put("d", "sun")]), "unchanged created");
    // What was deleted just before the daemon stopped goes after the next start.
    write(&registry, vec![delete("d"), put("d", "zebrasecret42"), delete("d")]);
    write(&registry, vec![put("e", "zebrasecret42")]);
    write(&registry, vec![delete("e")]);
    drop(registry);
    let registry = Registry::open_within(&settings, limits).expect("a registry");
    while !gone("zebrasecret42") {
        assert!(Instant::now() < until, "deleted texts stay in the files");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(registry.progress().registered, 2);
}

#[test]
fn each_change_has_an_outcome() {
    let registry = in_memory();
    let check = |changes, expect: &str| assert_eq!(write(&registry, changes), expect);
    check(vec![put("a", "tide"), put("b", "moon")], "created created");
    check(vec![put("a", "tide"), put("b", "sun")], "unchanged updated");
    check(
        vec![delete("a"), delete("a"), put("a", "ebb"), put("a", "flood")],
        "deleted unknown created updated",
    );
    check(vec![put_with_metadata("a", "flood", json!({"x": 1}))], "updated");
    check(vec![delete("none")], "unknown");
    check(vec![], "");
    let found = registry.get(&["b", "none", "a"]).expect("readable");
    let texts: Vec<_> = found.iter().map(|chunk| chunk.as_ref().map(|chunk| &*chunk.text)).collect();
    assert_eq!(texts, [Some("sun"), None, Some("flood")]);
    assert_eq!(registry.missing(&["b", "none", "a", ""]), [1, 3]);
}

#[test]
fn the_kind_of_a_chunk_is_stored() {
    let registry = without_cache();
    let of_kind = |kind| Change::Put(Arc::new(Chunk { kind, ..chunk("a", "mia: hello") }));
    let stored = || registry.get(&["a"]).expect("readable")[0].as_ref().expect("registered").kind;
    let kinds = [Kind::Auto, Kind::Prose, Kind::Markdown, Kind::Code, Kind::Json, Kind::Table];
    let kinds = kinds.into_iter().chain([Kind::Log, Kind::Chat, Kind::Html]);
    for (index, kind) in kinds.enumerate() {
        let expect = if index == 0 { "created unchanged" } else { "updated unchanged" };
        assert_eq!(write(&registry, vec![of_kind(kind), of_kind(kind)]), expect, "{kind:?}");
        assert_eq!(stored(), kind);
        let changes = [of_kind(kind)];
        assert_eq!(log::decode_changes(&log::encode_changes(&changes)).expect("intact"), changes);
    }
}

#[test]
fn a_full_registry_takes_changes_but_no_more_chunks() {
    let settings = RegistrySettings { chunk_count_max: 2, ..settings("".as_ref()) };
    let registry = Registry::open(&settings).expect("in memory");
    let check = |changes, expect: &str| assert_eq!(write(&registry, changes), expect);
    check(vec![put("a", "1"), put("b", "1"), put("c", "1")], "created created full");
    check(vec![put("a", "2"), delete("b"), put("c", "1")], "updated deleted created");
    check(vec![put("d", "1")], "full");
}

#[test]
fn a_new_version_is_never_hidden_by_an_old_one() {
    for registry in [in_memory(), without_cache()] {
        for version in 0..20 {
            let text = format!("version {version}");
            write(&registry, vec![put("a", &text), put("b", &text)]);
            let found = registry.get(&["a", "b"]).expect("readable");
            assert!(found.iter().flatten().all(|chunk| chunk.text == text) && found.len() == 2);
            assert_eq!(
                registry.search("version", 9, usize::MAX).expect("readable").len(),
                2,
                "old ones are gone"
            );
        }
    }
}

#[test]
fn pages_are_in_the_order_of_ids() {
    let registry = in_memory();
    write(&registry, (0..10).rev().map(|n| put(&format!("{n:02}"), "text")).collect());
    let check = |after, limit, expect: &str, next: Option<&str>| {
        let page = registry.list(after, limit, usize::MAX).expect("a page");
        assert_eq!((&*ids(&page.chunks), page.next.as_deref()), (expect, next), "{after:?}");
    };
    check(None, 3, "00 01 02", Some("02"));
    check(Some("02"), 3, "03 04 05", Some("05"));
    check(Some("06"), 3, "07 08 09", None);
    check(Some("0"), 1, "00", Some("00"));
    check(Some("09"), 3, "", None);
}

#[test]
fn pages_and_search_results_are_bounded_in_bytes() {
    let registry = in_memory();
    let text = format!("tide {}", "x".repeat(95));
    write(&registry, (0..20).map(|n| put(&format!("{n:02}"), &text)).collect());
    let check = |after, bytes_max, expect: &str, next: Option<&str>| {
        let page = registry.list(after, 5, bytes_max).expect("a page");
        assert_eq!((&*ids(&page.chunks), page.next.as_deref()), (expect, next), "{bytes_max}");
    };
    check(None, 1_000, "00 01 02 03 04", Some("04"));
    check(None, 250, "00 01 02", Some("02"));
    check(None, 1, "00", Some("00"));
    check(Some("16"), 250, "17 18 19", None);
    check(Some("17"), 1, "18", Some("18"));
    assert_eq!(registry.search("tide", 9, 900).expect("an index").len(), 9);
    let error = registry.search("tide", 9, 899).expect_err("over the limit");
    assert!(matches!(error, RegistryError::FoundTooLong { bytes_max: 899 }), "{error:?}");
}

#[test]
fn search_finds_words_in_texts_and_titles() {
    let registry = in_memory();
    let titled = Chunk { title: Some("Estuaries".to_owned()), ..chunk("title", "Where rivers end.") };
    write(
        &registry,
        vec![
            put("tide", "The tide is high. The tide is low."),
            put("moon", "The moon makes the tide."),
            put("de", "Die Flut kommt über die Küste."),
            put("zh", "潮汐由月球引力引起。"),
            Change::Put(Arc::new(titled)),
        ],
    );
    let check = |query: &str, expect: &[&str]| {
        let hits = registry.search(query, 10, usize::MAX).expect("an index");
        assert_eq!(hits.iter().map(|hit| &*hit.chunk.id).collect::<Vec<_>>(), expect, "{query}");
        assert!(hits.windows(2).all(|pair| pair[0].bm25 >= pair[1].bm25));
    };
    check("Tide?", &["tide", "moon"]);
    check("tide moon", &["moon", "tide"]);
    check("estuaries", &["title"]);
    check("kuste FLUT", &["de"]);
    check("月球", &["zh"]);
    check("nothing of this", &[]);
    check("?!", &[]);
    check("", &[]);
    assert_eq!(registry.search("the", 0, usize::MAX).expect("an index"), []);
}

#[test]
fn the_prefilter_keeps_the_best_of_the_given_ids() {
    let registry = in_memory();
    let texts = ["sun", "tide", "rain", "tide tide moon", "snow", "moon"];
    write(&registry, texts.iter().enumerate().map(|(n, text)| put(&n.to_string(), text)).collect());
    let check = |ids: &[&str], keep, expect: &[usize]| {
        assert_eq!(
            registry.prefilter("the tide and the moon", ids, keep).expect("an index"),
            expect,
            "{ids:?}"
        );
    };
    check(&["0", "1", "2", "3", "4", "5"], 3, &[1, 3, 5]);
    check(&["0", "1", "2", "3", "4", "5"], 5, &[0, 1, 2, 3, 5]);
    check(&["4", "2", "0"], 2, &[0, 1]);
    check(&["5", "0"], 9, &[0, 1]);
    check(&[], 9, &[]);
}

#[test]
fn chunks_on_disk_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("deep/registry");
    let registry = Registry::open(&settings(&dir)).expect("a new one");
    write(&registry, vec![put_with_metadata("a", "tide", json!({"n": 1})), put("b", "moon")]);
    write(&registry, vec![delete("b"), put("c", "sun")]);
    assert!(matches!(Registry::open(&settings(&dir)), Err(RegistryError::InUse { .. })), "locked");
    drop(registry);
    let registry = Registry::open(&settings(&dir)).expect("it is there");
    assert_eq!(ids(&registry.list(None, 9, usize::MAX).expect("a page").chunks), "a c");
    assert_eq!(registry.progress(), Progress { registered: 2, warm: 0, queued: 2, failed: 0 });
    let found = registry.get(&["a"]).expect("readable").remove(0).expect("registered");
    assert_eq!((&*found.text, found.metadata.as_deref()), ("tide", Some("{\"n\":1}")));
    assert_eq!(write(&registry, vec![put("c", "sun")]), "unchanged");
}

#[test]
fn a_damaged_folder_is_refused_with_a_reason() {
    type Damage = fn(&std::path::Path);
    let files = |dir: &std::path::Path, ending: &str| -> Vec<PathBuf> {
        let paths = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
    };
    let check = |name: &str, damage: &dyn Fn(&std::path::Path), expect: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let registry = Registry::open(&settings(folder.path())).expect("a new one");
        write(&registry, vec![put("a", "tide")]);
        drop(registry);
        damage(folder.path());
        let message = match Registry::open(&settings(folder.path())) {
            Ok(registry) => panic!("{name}: opened with {:?}", registry.progress()),
            Err(error) => error.to_string(),
        };
        assert!(message.contains(expect), "{name}: {message}");
        assert!(message.contains(&folder.path().display().to_string()), "{name}: {message}");
    };
    let no_meta: Damage = |dir| std::fs::remove_file(dir.join("meta.json")).expect("it was there");
    check("no meta.json", &no_meta, "no meta.json; restore the folder from a backup");
    let half: Damage = |dir| std::fs::write(dir.join("meta.json"), "{\"segm").expect("writable");
    check("half a meta.json", &half, "is damaged");
    let no_store = |dir: &std::path::Path| {
        files(dir, ".store").iter().for_each(|f| std::fs::remove_file(f).expect("it was there"))
    };
    check("no store", &no_store, "is damaged");
    let flipped = |dir: &std::path::Path| {
        let path = files(dir, ".store").remove(0);
        let mut bytes = std::fs::read(&path).expect("readable");
        bytes[3] ^= 1;
        let mut permissions = std::fs::metadata(&path).expect("a file").permissions();
        #[allow(clippy::permissions_set_readonly_false, reason = "a file of a test")]
        permissions.set_readonly(false);
        std::fs::set_permissions(&path, permissions).expect("ours");
        std::fs::write(&path, bytes).expect("writable");
    };
    check("a bit", &flipped, "do not match their checksums");
    let other: Damage = |dir| {
        let meta = std::fs::read_to_string(dir.join("meta.json")).expect("readable");
        std::fs::write(dir.join("meta.json"), meta.replace(analyzer::NAME, "thresher_words_0"))
            .expect("writable");
    };
    check("another version", &other, "another version of thresher");
}

#[test]
fn a_path_that_is_no_folder_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("writable");
    for dir in [file.clone(), file.join("below")] {
        let error = Registry::open(&settings(&dir)).err().expect("no folder").to_string();
        assert!(error.contains("(registry.dir) cannot be written"), "{error}");
    }
}

#[test]
fn batches_of_concurrent_callers_are_all_written() {
    let registry = Arc::new(in_memory());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let callers: Vec<_> = (0..32)
        .map(|caller| {
            let registry = Arc::clone(&registry);
            runtime.spawn(async move {
                for round in 0..4 {
                    let batch = (0..5).map(|n| put(&format!("{caller}-{round}-{n}"), "text")).collect();
                    assert_eq!(registry.write(batch).await.expect("written"), vec![Outcome::Created; 5]);
                    assert!(
                        registry.missing(&[format!("{caller}-{round}-4")]).is_empty(),
                        "read your writes"
                    );
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| runtime.block_on(caller).expect("no panic"));
    assert_eq!(registry.progress().registered, 32 * 4 * 5);
    assert_eq!(registry.search("text", 1_000, usize::MAX).expect("an index").len(), 640);
}
