//! A disk that takes no more: the tiers go on from memory, say so once, and write again when there is room.

use std::fs::{self, File};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use thresher_core::kv::store::Tiers as _;
use thresher_core::kv::tiers::AllTiers;
use tokio::runtime::Runtime;

use super::mount::Mount;
use super::{MIB, block, child, files, folder, found, insert, metric, open, settings, wait};

const FAILING: &str = "kv_failing{tier=\"disk\"}";

#[test]
fn files_that_may_not_grow_are_said_once_and_small_ones_are_written() {
    let (_folder, dir) = folder();
    let output = child::limited(&child::command("short", &dir), 64).output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    for expect in
        ["resident 20 on disk 0\n", "failing 1\n", "failed 20\n", "then on disk 1\n", "then failing 0\n"]
    {
        assert!(said.contains(expect), "{said:?} lacks {expect:?}");
    }
    for once in
        ["cannot be written to disk (blocks.dir) and are kept in memory only", "written to disk again"]
    {
        assert_eq!(said.matches(once).count(), 1, "{said}");
    }
}

#[test]
fn a_directory_that_goes_away_and_comes_back() {
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
fn a_disk_that_is_stuck_keeps_nobody_from_ending() {
    let (_folder, dir) = folder();
    let local = open(&settings(MIB, 64 * MIB, &dir)).expect("it opens").0;
    // Where the first block goes, opening waits for a reader: for good, as on a disk that is gone.
    let (key, bytes) = block(0);
    let stuck = dir.join("blocks").join(format!("{:016x}-{key}-{:x}.part", 0, bytes.len()));
    assert!(Command::new("mkfifo").arg(&stuck).status().is_ok_and(|status| status.success()), "mkfifo");
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Runtime::new().expect("a runtime");
        let tiers = AllTiers::new(local, None, runtime.handle().clone());
        tiers.keep(key, bytes);
        runtime.block_on(tiers.close(Duration::from_millis(50)));
        drop(tiers);
        ended.send(())
    });
    let in_time = end.recv_timeout(Duration::from_secs(20));
    // Lets the writer go, whether the test passes or not.
    drop(File::open(&stuck));
    in_time.expect("the end does not wait for the disk");
}

#[test]
fn a_disk_without_room() {
    let (folder, _) = folder();
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "size=4m") else { return };
    let (dir, filler) = (at.join("kv"), at.join("filler"));
    let (tiers, metrics) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    insert(&tiers, 0..10);
    wait(tiers.flush());
    // What others write to the disk, until it is full.
    let _ = fs::write(&filler, vec![0; 4 << 20]);
    insert(&tiers, 10..100);
    wait(tiers.flush());
    assert_eq!((found(&tiers, 0..100), metric(&metrics, FAILING)), (100, 1), "from memory");
    assert_eq!(tiers.stats().disk.entries as usize, files(&dir).len());

    // A start on a full disk is no error.
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
fn a_disk_that_is_read_only_is_named_at_the_start() {
    let (folder, _) = folder();
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "ro") else { return };
    let error = open(&settings(0, MIB, &at.join("kv"))).err().expect("it is refused").to_string();
    assert!(error.contains("cannot create") && error.contains("blocks.dir"), "{error}");
    let error = open(&settings(0, MIB, &at)).err().expect("it is refused").to_string();
    assert!(error.contains("cannot write") && error.contains("blocks.dir"), "{error}");
}
