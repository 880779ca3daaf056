//! `kill -9` while blocks are written: the store never returns a wrong block, and blocks that were flushed
//! are there.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use super::{MIB, child, disk_only, files, folder, found, open, settings};

/// The most blocks that one child process can write.
const SPAN: u64 = 1_000;

/// Runs a child process that writes blocks from `from` on, and kills it after it has acknowledged blocks
/// `acks` times. Returns the end of the acknowledged blocks.
fn killed(role: &str, dir: &Path, from: u64, acks: usize) -> u64 {
    let mut child = child::command(&format!("{role} {from}"), dir).spawn().expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let acked = lines.filter_map(|line| line.ok()?.rsplit_once("acked ")?.1.parse().ok());
    let last = acked.take(acks).last();
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    last.expect("the child acknowledged blocks")
}

#[test]
fn flushed_blocks_survive_a_hundred_kills() {
    let (_folder, dir) = folder();
    let mut acked = Vec::new();
    for round in 0..100 {
        let from = round * SPAN;
        acked.extend(from..killed("write", &dir, from, 1 + round as usize % 3));
        let (tiers, metrics) = open(&disk_only(&dir)).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(
            files(&dir).iter().all(|file| file.extension().is_none()),
            "round {round}: an unfinished file is left"
        );
        // Blocks that were not acknowledged may be missing, but must not be wrong.
        found(&tiers, from..from + 100);
        let recent = acked.iter().rev().take(200).copied();
        assert_eq!(found(&tiers, recent.clone()), recent.count(), "round {round}");
        assert_eq!(super::metric(&metrics, "kv_damaged_total{tier=\"disk\"}"), 0, "round {round}");
    }
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    assert_eq!(found(&tiers, acked.iter().copied()), acked.len(), "all rounds");
}

#[test]
fn a_full_store_stays_within_its_limit_when_it_is_killed() {
    let (_folder, dir) = folder();
    for round in 0..20 {
        killed("write-tight", &dir, round * SPAN, 3 + round as usize % 5);
        let used = super::tiers::used(&dir);
        assert!(used <= 2 * MIB, "round {round}: {used}");
        let (tiers, _) = open(&settings(0, 2 * MIB, &dir)).expect("it opens");
        assert!(found(&tiers, round * SPAN..(round + 1) * SPAN) > 0, "round {round}");
    }
}
