//! Tests of registries that share a log: changes of one reach all others, also when the log is down, trimmed,
//! lost or damaged.

use super::*;
use crate::log::memory::MemoryLog;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime")
}

/// Opens a registry that follows `log`, in memory or in a folder that another registry has just closed.
fn follower(log: &MemoryLog, dir: &std::path::Path) -> Registry {
    let registry = reopened(dir);
    registry.follow(Arc::new(log.clone()));
    registry
}

fn reopened(dir: &std::path::Path) -> Registry {
    loop {
        match Registry::open(&settings(dir)) {
            Ok(registry) => return registry,
            Err(RegistryError::InUse { .. }) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn all(registry: &Registry) -> String {
    let chunks = registry.list(None, 1_000, usize::MAX).expect("a page").chunks;
    chunks.iter().map(|chunk| format!("{}={}", chunk.id, chunk.text)).collect::<Vec<_>>().join(" ")
}

async fn eventually_has(registry: &Registry, expect: &str) {
    for _ in 0..6_000 {
        if all(registry) == expect {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain: {} is not {expect}", all(registry));
}

async fn outcomes(registry: &Registry, changes: Vec<Change>) -> String {
    let outcomes = registry.write(changes).await.expect("the log answers");
    outcomes.into_iter().map(Outcome::name).collect::<Vec<_>>().join(" ")
}

#[test]
fn changes_of_one_registry_reach_all_others() {
    let memory = "".as_ref();
    runtime().block_on(async {
        let log = MemoryLog::default();
        let (one, two) = (follower(&log, memory), follower(&log, memory));
        assert_eq!(outcomes(&one, vec![put("a", "1"), put("b", "1")]).await, "created created");
        assert_eq!(all(&one), "a=1 b=1", "the writer reads its own write");
        assert_eq!(
            outcomes(&two, vec![put("a", "1"), put("b", "2")]).await,
            "unchanged updated",
            "the outcomes count the other registry's chunks"
        );
        assert_eq!(
            outcomes(&one, vec![delete("a"), delete("a"), put("b", "2")]).await,
            "deleted unknown unchanged"
        );
        assert_eq!(log.len(), 3, "changes without effect are not written to the log");
        eventually_has(&two, "b=2").await;
        let late = follower(&log, memory);
        eventually_has(&late, "b=2").await;
        assert_eq!(late.search("2", 9, 99).expect("an index").len(), 1);
        let writers = (0..20).map(|n| {
            let registry = if n % 2 == 0 { &one } else { &two };
            registry.write(vec![put("x", &n.to_string()), put(&format!("y{n}"), "1")])
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("the log answers");
        }
        let end = all(&two);
        eventually_has(&one, &end).await;
        eventually_has(&late, &end).await;
    });
}

#[test]
fn a_registry_that_was_closed_catches_up_from_its_position() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = "".as_ref();
    runtime().block_on(async {
        let log = MemoryLog::default();
        let one = follower(&log, memory);
        let away = follower(&log, folder.path());
        outcomes(&away, vec![put("a", "1"), put("b", "1"), put("c", "1")]).await;
        drop(away);
        outcomes(&one, vec![put("a", "2"), delete("b")]).await;
        outcomes(&one, vec![put("d", "1")]).await;
        let back = follower(&log, folder.path());
        eventually_has(&back, "a=2 c=1 d=1").await;
        drop(back);

        outcomes(&one, vec![delete("a"), put("e", "1")]).await;
        outcomes(&one, vec![put("e", "2"), put("b", "3")]).await;
        log.trim(1);
        let back = follower(&log, folder.path());
        eventually_has(&back, "b=3 c=1 d=1 e=2").await;
        assert_eq!(outcomes(&back, vec![put("f", "1")]).await, "created");
        eventually_has(&one, "b=3 c=1 d=1 e=2 f=1").await;
    });
}

#[test]
fn chunks_from_before_the_log_are_published_to_it_and_again_after_it_was_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = Registry::open(&settings(folder.path())).expect("a new one");
    write(&alone, vec![put("a", "mine"), put("b", "mine")]);
    drop(alone);
    runtime().block_on(async {
        let log = MemoryLog::default();
        let one = follower(&log, "".as_ref());
        outcomes(&one, vec![put("b", "theirs"), put("c", "theirs")]).await;
        let joined = follower(&log, folder.path());
        let both = "a=mine b=theirs c=theirs";
        eventually_has(&joined, both).await;
        eventually_has(&one, both).await;
        log.lose(false);
        eventually_has(&joined, both).await;
        outcomes(&one, vec![put("d", "new")]).await;
        eventually_has(&joined, &format!("{both} d=new")).await;
        while log.ids() != ["a", "b", "c", "d"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn while_the_log_is_down_writes_fail_and_reads_work() {
    runtime().block_on(async {
        let log = MemoryLog::default();
        let one = follower(&log, "".as_ref());
        outcomes(&one, vec![put("a", "1")]).await;
        log.set_down(true);
        let refused = one.write(vec![put("b", "1")]).await.expect_err("it is down");
        assert!(matches!(refused, RegistryError::Log(_)), "{refused:?}");
        assert_eq!(all(&one), "a=1");
        let two = follower(&log, "".as_ref());
        log.set_down(false);
        eventually_has(&two, "a=1").await;
        assert_eq!(outcomes(&one, vec![put("b", "1")]).await, "created");
    });
}

/// Creates a folder with a registry to which `changes` were written without a log.
fn folder_without_log(changes: Vec<Change>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(&Registry::open(&settings(folder.path())).expect("it opens"), changes);
    folder
}

/// Starts to write `changes` while the log's pages wait, and lets the pages continue, so that the write
/// finishes.
async fn write_around_adoption(log: &MemoryLog, registry: &Arc<Registry>, changes: Vec<Change>) {
    let writer = tokio::spawn({
        let registry = Arc::clone(registry);
        async move { registry.write(changes).await }
    });
    // Long enough for a writer that wrongly does not wait to make the test fail. A writer that waits passes
    // under any load.
    tokio::time::sleep(Duration::from_millis(100)).await;
    log.hold_pages(false);
    writer.await.expect("no panic").expect("the log answers");
}

#[test]
fn a_chunk_deleted_while_an_empty_log_is_adopted_stays_deleted() {
    let folder = folder_without_log(vec![put("a", "1"), put("b", "1")]);
    runtime().block_on(async {
        let log = MemoryLog::default();
        log.hold_pages(true);
        let one = Arc::new(follower(&log, folder.path()));
        write_around_adoption(&log, &one, vec![delete("a")]).await;
        outcomes(&one, vec![put("c", "1")]).await;
        assert_eq!((&*all(&one), log.ids().join(" ")), ("b=1 c=1", "b c".to_owned()));
    });
}

#[test]
fn a_chunk_deleted_while_a_lost_log_is_adopted_stays_deleted() {
    for clock_set_back in [false, true] {
        runtime().block_on(async {
            let log = MemoryLog::default();
            let one = Arc::new(follower(&log, "".as_ref()));
            for n in 0..9 {
                outcomes(&one, vec![put("a", &n.to_string()), put("b", "1")]).await;
            }
            log.hold_pages(true);
            log.lose(clock_set_back);
            write_around_adoption(&log, &one, vec![delete("a")]).await;
            assert_eq!(all(&one), "b=1", "the writer sees its own deletion");
            outcomes(&one, vec![put("c", "1")]).await;
            assert_eq!((&*all(&one), log.ids().join(" ")), ("b=1 c=1", "b c".to_owned()));
        });
    }
}

#[test]
fn batches_that_wait_for_the_log_are_bounded() {
    runtime().block_on(async {
        let log = MemoryLog::default();
        log.hold_pages(true);
        let one = Arc::new(follower(&log, "".as_ref()));
        let writers: Vec<_> = (0..100)
            .map(|n| {
                let one = Arc::clone(&one);
                tokio::spawn(async move { one.write(vec![put(&n.to_string(), "1")]).await })
            })
            .collect();
        while writers.iter().filter(|writer| writer.is_finished()).count() < 36 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        log.hold_pages(false);
        let mut refused = 0;
        for writer in writers {
            if let Err(error) = writer.await.expect("no panic") {
                assert!(matches!(error, RegistryError::Overloaded), "{error:?}");
                refused += 1;
            }
        }
        assert_eq!((refused, one.progress().registered), (36, 64));
    });
}

#[test]
fn an_empty_log_that_is_lost_is_adopted_again() {
    runtime().block_on(async {
        let log = MemoryLog::default();
        let one = follower(&log, "".as_ref());
        outcomes(&one, vec![delete("a")]).await;
        // A follower cannot detect this, because the log had no entries to lose.
        log.lose(true);
        assert_eq!(outcomes(&one, vec![put("a", "1"), put("b", "1")]).await, "created created");
        assert_eq!(all(&one), "a=1 b=1");
    });
}

#[test]
fn an_interrupted_adoption_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let log = MemoryLog::default();
        let one = follower(&log, "".as_ref());
        outcomes(&one, (0..8).map(|n| put(&n.to_string(), "1")).collect()).await;
        log.fail_page_after(2);
        log.hold_pages(true);
        let late = follower(&log, folder.path());
        tokio::time::sleep(Duration::from_millis(50)).await;
        // These are deleted between the page that fails and the next attempt.
        let deleted = one.write(vec![delete("0"), delete("4")]);
        log.hold_pages(false);
        while !log.page_has_failed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        deleted.await.expect("the log answers");
        let left = "1=1 2=1 3=1 5=1 6=1 7=1";
        eventually_has(&late, left).await;
        assert_eq!(outcomes(&late, vec![put("8", "1")]).await, "created");
        assert_eq!(all(&late), format!("{left} 8=1"));
    });
}

#[test]
fn a_chunk_that_is_damaged_in_the_log_is_kept_and_published_again() {
    let folder = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let log = MemoryLog::default();
        let one = follower(&log, "".as_ref());
        let away = follower(&log, folder.path());
        outcomes(&away, vec![put("a", "1"), put("b", "1"), put("c", "1")]).await;
        drop(away);
        outcomes(&one, vec![delete("b")]).await;
        outcomes(&one, vec![put("d", "1")]).await;
        log.damage("a");
        log.damage("d");
        log.trim(1);
        let back = follower(&log, folder.path());
        eventually_has(&back, "a=1 c=1").await;
        let late = follower(&log, "".as_ref());
        eventually_has(&late, "a=1 c=1").await;
        assert_eq!(all(&one), "a=1 c=1 d=1");
    });
}

#[test]
fn chunks_registered_without_the_log_are_published_when_it_is_followed_again() {
    let folder = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let log = MemoryLog::default();
        let other = follower(&log, "".as_ref());
        let one = follower(&log, folder.path());
        outcomes(&one, vec![put("a", "1")]).await;
        drop(one);
        let unfollowed = reopened(folder.path());
        assert_eq!(outcomes(&unfollowed, vec![put("b", "1")]).await, "created");
        drop(unfollowed);
        let one = follower(&log, folder.path());
        assert_eq!(outcomes(&one, vec![put("c", "1")]).await, "created");
        eventually_has(&other, "a=1 b=1 c=1").await;
        drop(one);

        // Without the log nothing was changed, so the position stays stored, and a chunk that was deleted
        // meanwhile does not come back.
        let unfollowed = reopened(folder.path());
        assert_eq!(outcomes(&unfollowed, vec![put("b", "1")]).await, "unchanged");
        drop(unfollowed);
        outcomes(&other, vec![delete("b")]).await;
        let one = follower(&log, folder.path());
        eventually_has(&one, "a=1 c=1").await;
        assert_eq!(log.ids(), ["a", "c"]);
    });
}

#[test]
fn chunks_that_a_log_lost_with_its_last_entries_are_published_again() {
    runtime().block_on(async {
        let log = MemoryLog::default();
        let (one, two) = (follower(&log, "".as_ref()), follower(&log, "".as_ref()));
        outcomes(&one, vec![put("a", "1"), put("b", "1")]).await;
        outcomes(&one, vec![put("c", "1")]).await;
        eventually_has(&two, "a=1 b=1 c=1").await;
        // The server was restored from a copy without the last entry.
        log.rewind(1);
        while log.ids() != ["a", "b", "c"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(outcomes(&two, vec![delete("a"), put("d", "1")]).await, "deleted created");
        for registry in [&one, &two] {
            eventually_has(registry, "b=1 c=1 d=1").await;
        }
    });
}

#[test]
fn chunks_registered_while_a_log_is_adopted_win_over_older_ones() {
    let folder = folder_without_log(vec![put("a", "old"), put("b", "old")]);
    runtime().block_on(async {
        let log = MemoryLog::default();
        let one = follower(&log, "".as_ref());
        outcomes(&one, vec![put("c", "1")]).await;
        log.hold_publishing(true);
        let joined = follower(&log, folder.path());
        // It has read all pages and is about to publish its own chunks.
        while log.waiting_count() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        log.append(vec![put("a", "new")]);
        log.hold_publishing(false);
        for registry in [&one, &joined] {
            eventually_has(registry, "a=new b=old c=1").await;
        }
        assert_eq!(outcomes(&joined, vec![put("a", "new")]).await, "unchanged");
    });
}

#[test]
fn the_limit_on_chunks_holds_for_concurrent_batches() {
    runtime().block_on(async {
        let log = MemoryLog::default();
        let bounded = RegistrySettings { chunk_count_max: 10, ..settings("".as_ref()) };
        let one = Registry::open(&bounded).expect("in memory");
        one.follow(Arc::new(log.clone()));
        let batch = |n: usize| (0..4).map(|m| put(&format!("{n}-{m}"), "1")).collect();
        let written = futures_util::future::join_all((0..8).map(|n| one.write(batch(n)))).await;
        let all: Vec<_> =
            written.into_iter().flat_map(|outcomes| outcomes.expect("the log answers")).collect();
        let created = all.iter().filter(|outcome| **outcome == Outcome::Created).count();
        assert_eq!((created, one.progress().registered, all.len()), (10, 10, 32));
        assert_eq!(outcomes(&one, vec![delete("0-0")]).await.len(), 7);
    });
}

#[test]
fn a_missing_folder_is_an_error_at_once_and_the_change_reaches_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    runtime().block_on(async {
        let log = MemoryLog::default();
        let (dir, away) = (folder.path().join("registry"), folder.path().join("away"));
        let (one, other) = (follower(&log, &dir), follower(&log, "".as_ref()));
        outcomes(&one, vec![put("a", "1")]).await;
        std::fs::rename(&dir, &away).expect("it moves");
        for id in ["b", "c"] {
            let error = one.write(vec![put(id, "1")]).await.expect_err("nothing can be written");
            assert!(matches!(error, RegistryError::Write(_)), "{error:?}");
        }
        assert_eq!(all(&one), "a=1");
        assert_eq!(log.ids()[..2], ["a", "b"]);
        let all = log.ids().iter().map(|id| format!("{id}=1")).collect::<Vec<_>>().join(" ");
        eventually_has(&other, &all).await;
        std::fs::rename(&away, &dir).expect("it moves back");
        eventually_has(&one, &all).await;
    });
}
