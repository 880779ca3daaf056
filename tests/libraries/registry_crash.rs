//! The registry in a process that is killed while it writes, and on a full disk: a batch that was
//! acknowledged is there afterwards, and a batch that was refused is not. The process that is killed is a
//! child process of the test.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use thresher_core::domain::Chunk;
use thresher_registry::{Change, Registry, RegistrySettings};

use crate::support::child::child_process;
use crate::support::mount::Mount;

/// Gives the child process its directory. Without it the child's test does nothing.
const FOLDER: &str = "THRESHER_TEST_REGISTRY_DIR";
const KILLS: u64 = 24;

fn open(dir: &Path) -> Registry {
    let settings = RegistrySettings { dir: dir.into(), ..RegistrySettings::default() };
    Registry::open(&settings).expect("a registry")
}

/// A batch of changes: five new chunks, one chunk that every batch changes, and one that the next batch
/// deletes.
fn batch(round: usize) -> Vec<Change> {
    let chunk = |id: String| {
        let metadata = Some(format!("{{\"round\":{round}}}"));
        Change::Put(Arc::new(Chunk { metadata, ..Chunk::new(id, format!("round {round} ")) }))
    };
    let mut changes: Vec<_> = (0..5).map(|n| chunk(format!("{round:06}-{n}"))).collect();
    changes.extend([chunk("last".to_owned()), chunk(format!("until {}", round + 1))]);
    changes.push(Change::Delete(format!("until {round}")));
    changes
}

/// The ids that are registered after so many batches, sorted.
fn after(rounds: usize) -> Vec<String> {
    let ids = (0..rounds).flat_map(|round| (0..5).map(move |n| format!("{round:06}-{n}")));
    ids.chain((rounds > 0).then(|| ["last".to_owned(), format!("until {rounds}")]).into_iter().flatten())
        .collect()
}

/// The number of batches in the registry. Asserts that each is there as a whole: the list of chunks, the
/// search and the chunk that every batch changes must agree.
fn rounds(registry: &Registry) -> usize {
    let registered = registry.progress().registered;
    let rounds = registered.saturating_sub(2) / 5;
    let page = registry.list(None, registered + 1, usize::MAX).expect("readable");
    assert_eq!(page.chunks.iter().map(|chunk| chunk.id.clone()).collect::<Vec<_>>(), after(rounds));
    let found = registry.search("round", registered + 1, usize::MAX).expect("an index");
    assert_eq!(found.len(), registered);
    if let Some(last) = rounds.checked_sub(1) {
        let changed = registry.get(&["last"]).expect("readable").remove(0).expect("listed");
        assert_eq!(changed.text, format!("round {last} "));
    }
    rounds
}

/// Registers batch after batch, and prints the number of each batch that was acknowledged.
#[test]
#[ignore = "a child process that another test starts"]
fn child() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    let registry = open(Path::new(&dir));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let first = rounds(&registry);
    for round in first..first + 100_000 {
        runtime.block_on(registry.write(batch(round))).expect("written");
        println!("acknowledged {round}");
    }
}

#[test]
fn an_acknowledged_batch_survives_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("registry");
    let mut acknowledged = None;
    for kill in 0..KILLS {
        let mut child = child_process(module_path!(), "child")
            .env(FOLDER, &dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("this binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        // The child is at work. The kill then hits another point of its work in every round.
        lines.find(|line| line.starts_with("acknowledged")).expect("the child registers a batch");
        std::thread::sleep(Duration::from_millis(20 + 37 * (kill % 8)));
        child.kill().expect("SIGKILL");
        let last = lines.filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<usize>().ok()).last();
        child.wait().expect("a child");
        acknowledged = last.or(acknowledged);

        // A kill in the middle of replacing a file leaves such a temporary file. Whether this kill did
        // depends on chance.
        std::fs::write(dir.join(".tmpA1b2C3"), "half").expect("a file");
        let rounds = rounds(&open(&dir));
        let left =
            std::fs::read_dir(&dir).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with(".tmp")).collect();
        assert!(left.is_empty(), "{left:?} are left");
        assert!(
            acknowledged.is_none_or(|last| rounds > last),
            "{acknowledged:?} was acknowledged, {rounds} batches are there"
        );
    }
}

#[test]
fn a_batch_that_a_full_disk_refuses_is_not_registered_and_a_later_one_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "size=4m") else { return };
    let (dir, filler) = (at.join("registry"), at.join("filler"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let registry = open(&dir);
    let write = |round| runtime.block_on(registry.write(batch(round)));
    write(0).expect("the disk has space");
    // Another file fills the disk.
    let _ = std::fs::write(&filler, vec![0; 4 << 20]);
    for _ in 0..3 {
        let refused = write(1).expect_err("the disk is full").to_string();
        assert!(refused.contains("the registry could not be written"), "{refused}");
        assert_eq!(rounds(&registry), 1, "the first batch can still be read");
    }
    std::fs::remove_file(filler).expect("the filler");
    write(1).expect("the disk has space again");
    assert_eq!(rounds(&registry), 2);
    drop(registry);
    assert_eq!(rounds(&open(&dir)), 2);
}
