//! What the tiers keep, the tier in which a block is found, and the limits of the tiers.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use thresher_core::kv::local::{LocalSettings, LocalTiers, TierName};
use thresher_core::kv::store::Tiers as _;
use thresher_core::kv::tiers::AllTiers;

use super::{MIB, block, child, files, folder, found, insert, metric, open, settings, sized, tier_of, wait};

/// The bytes that `path` and everything in it take on disk. A file that is removed meanwhile counts as 0.
pub fn used(path: &Path) -> u64 {
    let own = path.symlink_metadata().map_or(0, |metadata| metadata.blocks() * 512);
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    own + entries.map(|entry| used(&entry.path())).sum::<u64>()
}

#[test]
fn a_block_is_found_in_the_first_tier_that_has_it() {
    let (_folder, dir) = folder();
    let (tiers, _) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    insert(&tiers, 0..10);
    assert_eq!(tier_of(&tiers, 3), Some(TierName::Memory));
    assert_eq!(tier_of(&tiers, 10), None);
    let (key, bytes) = block(3);
    let resident = tiers.get_resident(&key).expect("in memory");
    assert_eq!(resident, bytes);
    assert_eq!(
        resident.as_ptr(),
        tiers.get_resident(&key).expect("in memory").as_ptr(),
        "it is the same memory, not a copy"
    );
    wait(tiers.close());
    drop(tiers);

    let (tiers, _) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    assert_eq!(tiers.get_resident(&key), None);
    assert_eq!(tier_of(&tiers, 3), Some(TierName::Disk));
    assert_eq!(
        tier_of(&tiers, 3),
        Some(TierName::Disk),
        "a block stays on disk until the store has checked it"
    );
    tiers.promote(key, bytes.clone());
    assert_eq!(tier_of(&tiers, 3), Some(TierName::Memory), "after the promotion");
    assert_eq!(tiers.get_resident(&key), Some(bytes));
    let keys: Vec<_> = [9, 3, 10, 9].map(|n| block(n).0).into();
    let tiers_found: Vec<_> =
        wait(tiers.get_many(&keys)).into_iter().map(|hit| hit.map(|(_, tier)| tier)).collect();
    assert_eq!(
        tiers_found,
        [Some(TierName::Disk), Some(TierName::Memory), None, Some(TierName::Disk)],
        "in order"
    );
}

#[test]
fn a_removed_block_is_not_found_even_after_a_restart() {
    let (_folder, dir) = folder();
    let (tiers, _) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    insert(&tiers, 0..200);
    // Some of these blocks still wait in the write queue.
    (0..100).for_each(|n| tiers.remove(&block(n).0));
    insert(&tiers, 50..60);
    assert_eq!(found(&tiers, 0..100), 10);
    wait(tiers.close());
    assert_eq!((found(&tiers, 0..100), files(&dir).len()), (10, 110));
    drop(tiers);
    let (tiers, _) = open(&settings(0, 64 * MIB, &dir)).expect("it opens");
    assert_eq!((found(&tiers, 0..100), found(&tiers, 0..200)), (10, 110));
}

#[test]
fn each_tier_works_without_the_other() {
    let (_folder, dir) = folder();
    let check = |name: &str, settings: LocalSettings, expect: Option<TierName>| {
        let (tiers, _) = open(&settings).expect("it opens");
        insert(&tiers, 0..10);
        wait(tiers.flush());
        assert_eq!(tier_of(&tiers, 3), expect, "{name}");
        wait(tiers.close());
        insert(&tiers, 10..11);
        assert_eq!(tier_of(&tiers, 10), expect.filter(|tier| *tier == TierName::Memory), "{name}, closed");
    };
    check("no memory", settings(0, MIB, &dir), Some(TierName::Disk));
    check("no disk", settings(MIB, 0, &dir), Some(TierName::Memory));
    check("no directory", LocalSettings { dir: None, ..settings(MIB, MIB, &dir) }, Some(TierName::Memory));
    check("no tier", settings(0, 0, &dir), None);
    check("less space than a block needs", settings(100, 100, &dir), None);
}

#[test]
fn a_block_that_is_larger_than_a_tier_is_not_kept_there() {
    let (_folder, dir) = folder();
    let (tiers, metrics) = open(&settings(MIB, 16 * MIB, &dir)).expect("it opens");
    insert(&tiers, 0..5);
    let tier = |len| {
        let (key, bytes) = sized(1_000, len);
        tiers.remove(&key);
        tiers.insert(key, bytes);
        wait(tiers.flush());
        wait(tiers.get(&key)).map(|(_, tier)| tier)
    };
    assert_eq!(tier(100_000), Some(TierName::Memory));
    assert_eq!(tier(2_000_000), Some(TierName::Disk));
    assert_eq!(tier(20_000_000), None);
    assert_eq!(found(&tiers, 0..5), 5, "the other blocks are still there");
    let too_large =
        |tier| metric(&metrics, &format!("kv_writes_total{{tier=\"{tier}\",outcome=\"too_large\"}}"));
    assert_eq!((too_large("memory"), too_large("disk")), (2, 1));
}

#[test]
fn the_disk_stays_within_its_limit_at_every_moment() {
    let (_folder, dir) = folder();
    let bound = 8 * MIB;
    let (tiers, metrics) = open(&settings(MIB, bound, &dir)).expect("it opens");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let most = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(used(&dir));
            }
            most
        });
        // Large blocks, and then so many small ones that names and inodes matter.
        insert(&tiers, 0..1_000);
        wait(tiers.flush());
        (0..4_000).map(|n| sized(10_000 + n, 10)).for_each(|(key, bytes)| tiers.insert(key, bytes));
        wait(tiers.flush());
        done.store(true, Ordering::Relaxed);
        let most = most.join().expect("a thread");
        assert!(most > bound / 2 && most <= bound, "{most} of {bound}");
    });
    let stats = tiers.stats();
    assert!(stats.memory.bytes <= MIB && stats.disk.bytes <= bound, "{stats:?}");
    assert_eq!(stats.disk.entries as usize, files(&dir).len());
    for tier in ["memory", "disk"] {
        let of = |name: &str| metric(&metrics, &format!("{name}{{tier=\"{tier}\"}}"));
        let stats = if tier == "disk" { stats.disk } else { stats.memory };
        assert_eq!((of("kv_entries"), of("kv_bytes")), (stats.entries, stats.bytes), "{tier}");
        let written = metric(&metrics, &format!("kv_writes_total{{tier=\"{tier}\",outcome=\"ok\"}}"));
        assert_eq!(of("kv_evictions_total"), written - stats.entries, "{tier}");
    }
    wait(tiers.close());
    drop(tiers);
    let (tiers, _) = open(&settings(0, bound / 4, &dir)).expect("it opens");
    assert!(used(&dir) <= bound / 4, "a smaller limit holds from the start");
    assert_eq!(tiers.stats().disk.entries as usize, files(&dir).len());
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn memory_stays_within_its_limit() {
    // The child has the program's allocator, where memory that one thread frees can be used by the next, so that the process
    // holds what the tier counts.
    let output = child::command("resident", Path::new("")).output().expect("a child");
    let printed = String::from_utf8_lossy(&output.stdout);
    let grew = printed.split("grew ").nth(1).and_then(|rest| rest.lines().next()?.parse::<u64>().ok());
    let grew = grew.unwrap_or_else(|| panic!("{printed}"));
    // The allocator keeps freed memory for a second.
    assert!(grew > 48 * MIB && grew <= 84 * MIB, "{grew} bytes for a limit of {}", 64 * MIB);
}

#[test]
fn a_full_write_queue_drops_writes_and_memory_still_has_the_blocks() {
    let (_folder, dir) = folder();
    let (tiers, metrics) =
        open(&LocalSettings { write_queue_bytes_max: 100_000, ..settings(64 * MIB, 64 * MIB, &dir) })
            .expect("it opens");
    insert(&tiers, 0..500);
    assert_eq!(found(&tiers, 0..500), 500);
    wait(tiers.flush());
    let writes =
        |outcome| metric(&metrics, &format!("kv_writes_total{{tier=\"disk\",outcome=\"{outcome}\"}}"));
    assert!(writes("dropped") > 0);
    assert_eq!((writes("ok") + writes("dropped"), writes("ok")), (500, tiers.stats().disk.entries));
    // A block that is larger than the queue is written alone.
    let (key, bytes) = sized(1_000, 1_000_000);
    tiers.insert(key, bytes);
    wait(tiers.flush());
    assert_eq!(writes("ok"), tiers.stats().disk.entries);
    assert!(files(&dir).iter().any(|file| file.metadata().expect("a file").len() > 1_000_000));
}

#[test]
fn many_threads_never_see_a_wrong_block() {
    let (_folder, dir) = folder();
    let (tiers, _) = open(&settings(MIB, 4 * MIB, &dir)).expect("it opens");
    let work = |seed: u64, tiers: &LocalTiers| {
        for step in 0..400 {
            let n = (seed * 31 + step * 17) % 300;
            match step % 5 {
                0 | 1 => insert(tiers, n..n + 2),
                2 => tiers.remove(&block(n).0),
                _ => drop(found(tiers, n..n + 3)),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|seed| {
            drop(scope.spawn({
                let tiers = &tiers;
                move || work(seed, tiers)
            }))
        })
    });
    wait(tiers.close());
    assert_eq!(tiers.stats().disk.entries as usize, files(&dir).len());
    let empty = tiers.get_resident(&block(9_999).0);
    assert_eq!(empty, None::<Bytes>);
}

/// A Tokio task may wait on 128 channels before it has to yield. A thread that waits without yielding must not count.
#[tokio::test]
async fn many_blocks_are_fetched_from_disk_within_one_task() {
    let (_folder, dir) = folder();
    let (tiers, _) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    insert(&tiers, 0..300);
    tiers.close().await;
    drop(tiers);
    let (local, _) = open(&settings(64 * MIB, 64 * MIB, &dir)).expect("it opens");
    let tiers = AllTiers::new(local, None);
    let keys: Vec<_> = (0..300).map(|n| block(n).0).collect();
    assert_eq!(tiers.fetch(&keys).iter().flatten().count(), 300);
}
