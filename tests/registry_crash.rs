//! A process that is killed while it registers, and a disk without room: what it was told is registered is there
//! afterwards, and what was refused is not.
//! The child is this test binary, told by its environment what to do.

#[path = "support/mount.rs"]
mod mount;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use thresher_core::domain::Chunk;
use thresher_registry::{Change, Registry, RegistrySettings};

use self::mount::Mount;

/// Names the folder for the child; without it the child's test does nothing.
const FOLDER: &str = "THRESHER_TEST_REGISTRY_DIR";
const KILLS: u64 = 24;

fn open(dir: &Path) -> Registry {
    let settings = RegistrySettings { dir: dir.into(), ..RegistrySettings::default() };
    Registry::open(&settings).expect("a registry")
}

/// Five chunks that stay, one that every batch changes, one that the next batch takes away.
fn batch(round: usize) -> Vec<Change> {
    let chunk = |id: String| {
        let metadata = Some(format!("{{\"round\":{round}}}"));
        Change::Put(Arc::new(Chunk { id, title: None, text: format!("round {round} "), metadata }))
    };
    let mut changes: Vec<_> = (0..5).map(|n| chunk(format!("{round:06}-{n}"))).collect();
    changes.extend([chunk("last".to_owned()), chunk(format!("until {}", round + 1))]);
    changes.push(Change::Delete(format!("until {round}")));
    changes
}

/// What there is after so many batches, in the order of ids.
fn after(rounds: usize) -> Vec<String> {
    let ids = (0..rounds).flat_map(|round| (0..5).map(move |n| format!("{round:06}-{n}")));
    ids.chain((rounds > 0).then(|| ["last".to_owned(), format!("until {rounds}")]).into_iter().flatten())
        .collect()
}

/// Batches that are there, whole: what is listed, what is found, and what the changed one holds agree.
fn rounds(registry: &Registry) -> usize {
    let registered = registry.progress().registered;
    let rounds = registered.saturating_sub(2) / 5;
    let page = registry.list(None, registered + 1, usize::MAX, None).expect("readable");
    assert_eq!(page.chunks.iter().map(|chunk| chunk.id.clone()).collect::<Vec<_>>(), after(rounds));
    let found = registry.search("round", None, registered + 1, usize::MAX).expect("an index");
    assert_eq!(found.len(), registered);
    if let Some(last) = rounds.checked_sub(1) {
        let changed = registry.get(&["last"]).expect("readable").remove(0).expect("listed");
        assert_eq!(changed.text, format!("round {last} "));
    }
    rounds
}

/// Registers batch after batch, and says which of them it was told are there.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    let registry = open(Path::new(&dir));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let first = rounds(&registry);
    for round in first..first + 100_000 {
        runtime.block_on(registry.write(batch(round))).expect("written");
        println!("told {round}");
    }
}

#[test]
fn what_was_told_to_be_registered_outlives_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("registry");
    let mut told = None;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--nocapture", "--test-threads", "1"])
            .env(FOLDER, &dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("this binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        // Into its work, and then at no particular point of it.
        lines.find(|line| line.starts_with("told")).expect("it registers");
        std::thread::sleep(Duration::from_millis(20 + 37 * (kill % 8)));
        child.kill().expect("SIGKILL");
        let last = lines.filter_map(|line| line.strip_prefix("told ")?.parse::<usize>().ok()).last();
        child.wait().expect("a child");
        told = last.or(told);

        // What a kill in the middle of replacing a file leaves; whether this one did is a matter of luck.
        std::fs::write(dir.join(".tmpA1b2C3"), "half").expect("a file");
        let rounds = rounds(&open(&dir));
        let left =
            std::fs::read_dir(&dir).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with(".tmp")).collect();
        assert!(left.is_empty(), "{left:?} are left");
        assert!(told.is_none_or(|told| rounds > told), "told {told:?}, there are {rounds}");
    }
}

#[test]
fn a_batch_for_which_the_disk_has_no_room_is_not_there_and_the_next_one_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "size=4m") else { return };
    let (dir, filler) = (at.join("registry"), at.join("filler"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let registry = open(&dir);
    let write = |round| runtime.block_on(registry.write(batch(round)));
    write(0).expect("there is room");
    // What others write to the disk, until it is full.
    let _ = std::fs::write(&filler, vec![0; 4 << 20]);
    for _ in 0..3 {
        let refused = write(1).expect_err("there is no room").to_string();
        assert!(refused.contains("the registry could not be written"), "{refused}");
        assert_eq!(rounds(&registry), 1, "what was there before can be read");
    }
    std::fs::remove_file(filler).expect("the filler");
    write(1).expect("there is room again");
    assert_eq!(rounds(&registry), 2);
    drop(registry);
    assert_eq!(rounds(&open(&dir)), 2);
}
