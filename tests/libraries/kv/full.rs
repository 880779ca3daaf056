//! A disk that accepts no writes: the tiers keep blocks in memory, log this once, and write again when the
//! disk has space.

use std::fs::{self, File};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use thresher_core::kv::store::Tiers as _;
use thresher_core::kv::tiers::AllTiers;
use tokio::runtime::Runtime;

use crate::support::mount::Mount;
use crate::support::wait::WAIT_MAX;

use super::{MIB, block, child, files, folder, found, insert, metric, open, settings, wait};

const FAILING: &str = "kv_failing{tier=\"disk\"}";

#[test]
fn writes_beyond_the_file_size_limit_fail_with_one_log_line_and_small_writes_succeed() {
    let (_folder, dir) = folder();
    let output = child::limited(&child::command("short", &dir), 64).output().expect("a child");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    for expect in
        ["resident 20 on disk 0\n", "failing 1\n", "failed 20\n", "then on disk 1\n", "then failing 0\n"]
    {
        assert!(printed.contains(expect), "{printed:?} lacks {expect:?}");
    }
    for once in
        ["cannot be written to disk (blocks.dir) and are kept in memory only", "written to disk again"]
    {
        assert_eq!(printed.matches(once).count(), 1, "{printed}");
    }
}

#[test]
fn a_store_whose_directory_goes_away_writes_again_when_it_is_back() {
    let (_folder, dir) = folder();
    let (tiers, metrics) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    insert(&tiers, 0..10);
    wait(tiers.flush());
    let (blocks, away) = (dir.join("blocks"), dir.join("away"));
    fs::rename(&blocks, &away).expect("it moves");
    insert(&tiers, 10..20);
    wait(tiers.flush());
    assert_eq!((found(&tiers, 0..20), metric(&metrics, FAILING)), (20, 1), "from memory");
    fs::rename(&away, &blocks).expect("it moves");
    insert(&tiers, 10..20);
    wait(tiers.flush());
    assert_eq!((files(&dir).len(), metric(&metrics, FAILING)), (20, 0), "written again");
}

#[test]
fn closing_does_not_wait_for_a_disk_that_hangs() {
    let (_folder, dir) = folder();
    let local = open(&settings(MIB, 64 * MIB, &dir)).expect("it opens").0;
    // The path of the first block is a pipe. Opening it for writing waits for a reader forever, as a write to
    // a disk that hangs does.
    let (key, bytes) = block(0);
    let stuck = dir.join("blocks").join(format!("{:016x}-{key}-{:x}.part", 0, bytes.len()));
    assert!(Command::new("mkfifo").arg(&stuck).status().is_ok_and(|status| status.success()), "mkfifo");
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Runtime::new().expect("a runtime");
        let tiers = AllTiers::new(local, None);
        tiers.keep(key, bytes);
        runtime.block_on(tiers.local().close_within(Duration::from_millis(50)));
        drop(tiers);
        ended.send(())
    });
    let closed = end.recv_timeout(WAIT_MAX);
    // Ends the writer, whether the test passes or not.
    drop(File::open(&stuck));
    closed.expect("closing does not wait for the disk");
}

#[test]
fn a_store_on_a_full_disk_serves_from_memory_and_writes_again_when_there_is_space() {
    let (folder, _) = folder();
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "size=4m") else { return };
    let (dir, filler) = (at.join("kv"), at.join("filler"));
    let (tiers, metrics) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    insert(&tiers, 0..10);
    wait(tiers.flush());
    // Another file fills the disk.
    let _ = fs::write(&filler, vec![0; 4 << 20]);
    insert(&tiers, 10..100);
    wait(tiers.flush());
    assert_eq!((found(&tiers, 0..100), metric(&metrics, FAILING)), (100, 1), "from memory");
    assert_eq!(tiers.stats().disk.entries as usize, files(&dir).len());

    // Opening a store on a full disk is not an error.
    wait(tiers.close());
    drop(tiers);
    let (tiers, metrics) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    assert!(found(&tiers, 0..100) >= 10);
    fs::remove_file(filler).expect("the filler");
    insert(&tiers, 0..50);
    wait(tiers.flush());
    assert_eq!(metric(&metrics, FAILING), 0, "written again");
    assert!(tiers.stats().disk.entries >= 50);
}

#[test]
fn a_read_only_disk_is_refused_at_the_start() {
    let (folder, _) = folder();
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "ro") else { return };
    let error = open(&settings(0, MIB, &at.join("kv"))).err().expect("the store is refused").to_string();
    assert!(error.contains("cannot create") && error.contains("blocks.dir"), "{error}");
    let error = open(&settings(0, MIB, &at)).err().expect("the store is refused").to_string();
    assert!(error.contains("cannot write") && error.contains("blocks.dir"), "{error}");
}
