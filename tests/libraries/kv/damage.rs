//! Damaged files of blocks: they are counted misses and are written again. The store never returns a wrong
//! block.

use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::time::{Duration, SystemTime};

use thresher_core::kv::local::LocalSettings;

use super::{disk_only, files, filled, folder, found, insert, metric, open, wait};

const COUNT: u64 = 24;

/// Calls `harm` with the number and path of each file of a closed store. Afterwards `left` blocks must be
/// found, `damaged` must be counted, and all blocks can be written again.
fn check(name: &str, left: usize, damaged: u64, harm: impl Fn(usize, &Path)) {
    let (_folder, dir) = folder();
    filled(&dir, 0..COUNT);
    files(&dir).iter().enumerate().for_each(|(n, file)| harm(n, file));
    let (tiers, metrics) = open(&disk_only(&dir)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(found(&tiers, 0..COUNT), left, "{name}");
    assert_eq!(metric(&metrics, "kv_damaged_total{tier=\"disk\"}"), damaged, "{name}");
    assert_eq!(found(&tiers, 0..COUNT), left, "{name}: at the second lookup");
    assert_eq!(
        metric(&metrics, "kv_damaged_total{tier=\"disk\"}"),
        damaged,
        "{name}: damage is counted once"
    );
    insert(&tiers, 0..COUNT);
    wait(tiers.flush());
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize, "{name}: written again");
    wait(tiers.close());
    drop(tiers);
    let (tiers, _) = open(&disk_only(&dir)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize, "{name}: after a restart");
}

fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).expect("a file");
    change(&mut bytes);
    fs::write(file, bytes).expect("it can be written");
}

#[test]
fn a_damaged_file_is_a_miss_and_is_written_again() {
    check("no damage", COUNT as usize, 0, |_, _| {});
    check("one bit at any place", 0, COUNT, |n, file| {
        change(file, |bytes| {
            let at = bytes.len() * n / COUNT as usize;
            bytes[at] ^= 1 << (n % 8);
        });
    });
    check("a bit of the first fifty bytes", 0, COUNT, |n, file| change(file, |bytes| bytes[2 * n] ^= 0x80));
    check("cut short", 0, COUNT, |n, file| {
        change(file, |bytes| bytes.truncate(bytes.len() * n / COUNT as usize))
    });
    check("one byte more", 0, COUNT, |_, file| change(file, |bytes| bytes.push(0)));
    check("zeros", 0, COUNT, |_, file| change(file, |bytes| bytes.fill(0)));
    check("garbage", 0, COUNT, |n, file| {
        change(file, |bytes| blake3::Hasher::new().update(&[n as u8]).finalize_xof().fill(bytes));
    });
    check("a directory instead of a file", 23, 1, |n, file| {
        if n == 3 {
            fs::remove_file(file).expect("a file");
            fs::create_dir(file).expect("a folder");
        }
    });
    check("every second", 12, 12, |n, file| {
        if n % 2 == 0 {
            change(file, |bytes| bytes[40] ^= 1);
        }
    });
    // A file that was deleted before the start is a plain miss and not damage.
    check("deleted", 0, 0, |_, file| fs::remove_file(file).expect("a file"));
}

#[test]
fn the_bytes_of_another_block_are_damage() {
    let (_folder, dir) = folder();
    let same_size = |n| super::sized(n, 5_000);
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    (0..2).map(same_size).for_each(|(key, bytes)| tiers.insert(key, bytes));
    wait(tiers.close());
    drop(tiers);
    let files = files(&dir);
    fs::copy(&files[0], &files[1]).expect("a copy");
    let (tiers, metrics) = open(&disk_only(&dir)).expect("it opens");
    let hits = wait(tiers.get_many(&[same_size(0).0, same_size(1).0]));
    assert_eq!(hits.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    assert_eq!(metric(&metrics, "kv_damaged_total{tier=\"disk\"}"), 1);
}

#[test]
fn files_that_are_deleted_while_the_store_is_open_are_misses_and_are_written_again() {
    let (_folder, dir) = folder();
    let (tiers, metrics) = open(&disk_only(&dir)).expect("it opens");
    insert(&tiers, 0..COUNT);
    wait(tiers.flush());
    files(&dir).iter().for_each(|file| fs::remove_file(file).expect("a file"));
    assert_eq!(found(&tiers, 0..COUNT), 0);
    assert_eq!(metric(&metrics, "kv_damaged_total{tier=\"disk\"}"), COUNT);
    insert(&tiers, 0..COUNT);
    wait(tiers.flush());
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize);
}

#[test]
fn foreign_files_stay_and_unfinished_files_are_removed() {
    let (_folder, dir) = folder();
    filled(&dir, 0..COUNT);
    let blocks = dir.join("blocks");
    let name = files(&dir)[0].file_name().expect("a name").to_string_lossy().into_owned();
    let foreign = ["notes.txt", "x.part", &name.to_uppercase(), &name[1..], &format!("{name}-0"), "\u{e9}"];
    foreign.iter().for_each(|name| fs::write(blocks.join(name), "mine").expect("a file"));
    let part = blocks.join(format!("{name}.part"));
    fs::write(&part, "half").expect("a file");
    // A name that declares more bytes than there is memory.
    let huge = blocks.join(format!("{}ffffffffffffff", &name[..name.rfind('-').expect("a dash") + 1]));
    fs::write(&huge, "small").expect("a file");
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    assert!(foreign.iter().all(|name| blocks.join(name).exists()));
    assert!(!part.exists() && !huge.exists());
    // That name has the first block's key, so the store finds nothing for it.
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize - 1);
}

/// Which blocks of equal size are left when a store is opened with space for half of them, after their files
/// were given these times.
fn left_after(time: impl Fn(u32) -> Option<SystemTime>) -> Vec<bool> {
    let (_folder, dir) = folder();
    let (keys, blocks): (Vec<_>, Vec<_>) = (0..COUNT).map(|n| super::sized(n, 20_000)).unzip();
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    keys.iter().zip(blocks).for_each(|(key, bytes)| tiers.insert(*key, bytes));
    wait(tiers.close());
    drop(tiers);
    // The name of a file begins with the number of its write, so these are in the order of the writes.
    for (n, file) in files(&dir).iter().enumerate() {
        let Some(at) = time(n as u32) else { continue };
        let opened = File::options().write(true).open(file).expect("a file");
        opened.set_times(FileTimes::new().set_modified(at).set_accessed(at)).expect("times");
    }
    let disk_bytes_max = (64 << 10) + COUNT / 2 * 25_000;
    let (tiers, _) = open(&LocalSettings { disk_bytes_max, ..disk_only(&dir) }).expect("it opens");
    wait(tiers.get_many(&keys)).iter().map(Option::is_some).collect()
}

#[test]
fn eviction_does_not_depend_on_file_times() {
    const YEAR: Duration = Duration::from_secs(86_400 * 365);
    let usual = left_after(|_| None);
    assert!(usual.contains(&true) && usual.contains(&false), "{usual:?}");
    let check = |name: &str, time: &dyn Fn(u32) -> SystemTime| {
        assert_eq!(left_after(|n| Some(time(n))), usual, "{name}");
    };
    check("the first files seem the newest", &|n| SystemTime::now() + YEAR * (COUNT as u32 - n));
    check("the first files seem the oldest", &|n| SystemTime::UNIX_EPOCH + YEAR * n);
    check("old and new by turns", &|n| {
        if n % 2 == 0 { SystemTime::UNIX_EPOCH } else { SystemTime::now() + 20 * YEAR }
    });
}

#[test]
fn a_huge_file_is_damage_and_links_and_pipes_are_left_alone() {
    let (_folder, dir) = folder();
    filled(&dir, 0..COUNT);
    let files = files(&dir);
    let names: Vec<String> =
        files.iter().map(|file| file.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    let blocks = dir.join("blocks");
    // A sparse file: it has a length and no bytes on disk.
    let hash = &names[0].split('-').nth(1).expect("a hash");
    let huge = blocks.join(format!("{:016x}-{hash}-{:x}", 1_u64 << 40, 2_u64 << 30));
    File::create(&huge).and_then(|file| file.set_len((2 << 30) + 40)).expect("a file with holes");
    let away = dir.join("away");
    fs::rename(&files[1], &away).expect("it moves");
    std::os::unix::fs::symlink(&away, &files[1]).expect("a link");
    fs::remove_file(&files[2]).expect("a file");
    let made = std::process::Command::new("mkfifo").arg(&files[2]).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    let settings = LocalSettings { disk_bytes_max: 64 << 30, ..disk_only(&dir) };
    let (tiers, metrics) = open(&settings).expect("it opens");
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize - 3);
    assert_eq!(metric(&metrics, "kv_damaged_total{tier=\"disk\"}"), 1);
    assert!(!huge.exists() && files[1].is_symlink() && files[2].exists());
    insert(&tiers, 0..COUNT);
    wait(tiers.flush());
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize, "written again");
}
