//! `kill -9` while blocks are written: nothing wrong is served, and what was flushed is there.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use super::{MIB, child, disk_only, files, folder, found, open, settings};

/// Blocks that one child may have got to.
const SPAN: u64 = 1_000;

/// Runs a child that writes from `from` and kills it after `acks` acknowledgements; returns the end of what it acknowledged.
fn killed(role: &str, dir: &Path, from: u64, acks: usize) -> u64 {
    let mut child = child::command(&format!("{role} {from}"), dir).spawn().expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let acked = lines.filter_map(|line| line.ok()?.rsplit_once("acked ")?.1.parse().ok());
    let last = acked.take(acks).last();
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    last.expect("it wrote something")
}

#[test]
fn what_was_flushed_survives_a_hundred_kills() {
    let (_folder, dir) = folder();
    let mut acked = Vec::new();
    for round in 0..100 {
        let from = round * SPAN;
        acked.extend(from..killed("write", &dir, from, 1 + round as usize % 3));
        let (tiers, metrics) = open(&disk_only(&dir)).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(files(&dir).iter().all(|file| file.extension().is_none()), "round {round}: a part is left");
        // Also what was not acknowledged: there or not, never wrong.
        found(&tiers, from..from + 100);
        let recent = acked.iter().rev().take(200).copied();
        assert_eq!(found(&tiers, recent.clone()), recent.count(), "round {round}");
        assert_eq!(super::metric(&metrics, "kv_damaged_total{tier=\"disk\"}"), 0, "round {round}");
    }
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    assert_eq!(found(&tiers, acked.iter().copied()), acked.len(), "all rounds");
}

#[test]
fn a_full_store_stays_within_its_bound_whenever_it_is_killed() {
    let (_folder, dir) = folder();
    for round in 0..20 {
        killed("write-tight", &dir, round * SPAN, 3 + round as usize % 5);
        let used = super::tiers::used(&dir);
        assert!(used <= 2 * MIB, "round {round}: {used}");
        let (tiers, _) = open(&settings(0, 2 * MIB, &dir)).expect("it opens");
        assert!(found(&tiers, round * SPAN..(round + 1) * SPAN) > 0, "round {round}");
    }
}
