//! A process that is killed while it registers, and a disk without room: what it was told is registered is there
//! afterwards, and what was refused is not.
//! The child is this test binary, told by its environment what to do.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use thresher::domain::Chunk;
use thresher::registry::{Change, Registry, RegistrySettings};

/// Names the folder for the child; without it the child's test does nothing.
const FOLDER: &str = "THRESHER_TEST_REGISTRY_DIR";
const KILLS: u64 = 6;

fn open(dir: &Path) -> Registry {
    let settings = RegistrySettings { dir: dir.into(), ..RegistrySettings::default() };
    Registry::open(&settings).expect("a registry")
}

fn batch(round: usize) -> Vec<Change> {
    let chunk = |n| Chunk {
        id: format!("{round:06}-{n}"),
        title: None,
        text: format!("round {round} "),
        metadata: Some(format!("{{\"round\":{round}}}")),
    };
    (0..5).map(|n| Change::Put(Arc::new(chunk(n)))).collect()
}

/// Registers batch after batch, and says which of them it was told are there.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    let registry = open(Path::new(&dir));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let first = registry.progress().registered / 5;
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
        std::thread::sleep(Duration::from_millis(40 + 37 * kill));
        child.kill().expect("SIGKILL");
        let last = lines.filter_map(|line| line.strip_prefix("told ")?.parse::<usize>().ok()).last();
        child.wait().expect("a child");
        told = last.or(told);

        let registry = open(&dir);
        let registered = registry.progress().registered;
        assert_eq!(registered % 5, 0, "a batch is there or not");
        let rounds = registered / 5;
        assert!(told.is_none_or(|told| rounds > told), "told {told:?}, there are {rounds}");
        let ids: Vec<String> =
            (0..rounds).flat_map(|round| (0..5).map(move |n| format!("{round:06}-{n}"))).collect();
        let found = registry.get(&ids).expect("readable");
        assert!(found.iter().all(Option::is_some), "all that is listed can be read");
        assert_eq!(registry.search("round", None, registered + 1).expect("an index").len(), registered);
    }
}

/// A small file system in memory, unmounted at the end.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    /// None where this user may not mount.
    fn new(at: &'a Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at);
        mount.output().is_ok_and(|output| output.status.success()).then_some(Self(at))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // Lazily: what is still open does not keep it.
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

#[test]
fn a_batch_for_which_the_disk_has_no_room_is_not_there_and_the_next_one_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "size=4m") else { return eprintln!("skipped: may not mount") };
    let (dir, filler) = (at.join("registry"), at.join("filler"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let registry = open(&dir);
    let write = |round| runtime.block_on(registry.write(batch(round)));
    let state = |registry: &Registry| {
        let page = registry.list(None, 100, None).expect("readable");
        let found = registry.search("round", None, 100).expect("an index").len();
        (page.chunks.len(), found, registry.progress().registered)
    };
    write(0).expect("there is room");
    // What others write to the disk, until it is full.
    let _ = std::fs::write(&filler, vec![0; 4 << 20]);
    for round in 1..4 {
        let refused = write(round).expect_err("there is no room").to_string();
        assert!(refused.contains("the registry could not be written"), "{refused}");
        assert_eq!(state(&registry), (5, 5, 5), "what was there before can be read");
    }
    std::fs::remove_file(filler).expect("the filler");
    write(4).expect("there is room again");
    assert_eq!(state(&registry), (10, 10, 10));
    drop(registry);
    let registry = open(&dir);
    assert_eq!(state(&registry), (10, 10, 10));
    assert!(registry.missing(&["000004-0", "000001-0"]) == [1], "what was refused is not there");
}
