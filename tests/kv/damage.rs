//! Files that are not what was written: a miss, counted, and written anew; never a wrong block.

use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::time::{Duration, SystemTime};

use thresher_core::kv::local::LocalSettings;

use super::{disk_only, files, filled, folder, found, insert, metric, open, wait};

const COUNT: u64 = 24;

/// Does `harm` to the n-th file of a closed store; `left` blocks must be found afterwards and `damaged` counted.
fn check(name: &str, left: usize, damaged: u64, harm: impl Fn(usize, &Path)) {
    let (_folder, dir) = folder();
    filled(&dir, 0..COUNT);
    files(&dir).iter().enumerate().for_each(|(n, file)| harm(n, file));
    let (tiers, metrics) = open(&disk_only(&dir)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(found(&tiers, 0..COUNT), left, "{name}");
    assert_eq!(metric(&metrics, "kv_damaged_total{tier=\"disk\"}"), damaged, "{name}");
    assert_eq!(found(&tiers, 0..COUNT), left, "{name}: again");
    assert_eq!(metric(&metrics, "kv_damaged_total{tier=\"disk\"}"), damaged, "{name}: counted once");
    insert(&tiers, 0..COUNT);
    wait(tiers.flush());
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize, "{name}: written anew");
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
fn a_damaged_file_is_a_miss_and_is_written_anew() {
    check("nothing", COUNT as usize, 0, |_, _| {});
    check("a bit, anywhere", 0, COUNT, |n, file| {
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
    check("a folder instead", 23, 1, |n, file| {
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
    // Gone before the start: not damage, only not there.
    check("deleted", 0, 0, |_, file| fs::remove_file(file).expect("a file"));
}

#[test]
fn anothers_bytes_under_a_blocks_name_are_damage() {
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
fn files_deleted_while_open_are_misses_and_written_anew() {
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
fn files_that_are_no_blocks_are_left_alone_and_parts_are_cleared_away() {
    let (_folder, dir) = folder();
    filled(&dir, 0..COUNT);
    let blocks = dir.join("blocks");
    let name = files(&dir)[0].file_name().expect("a name").to_string_lossy().into_owned();
    let foreign = ["notes.txt", "x.part", &name.to_uppercase(), &name[1..], &format!("{name}-0"), "\u{e9}"];
    foreign.iter().for_each(|name| fs::write(blocks.join(name), "mine").expect("a file"));
    let part = blocks.join(format!("{name}.part"));
    fs::write(&part, "half").expect("a file");
    // A name that claims more than there is memory.
    let huge = blocks.join(format!("{}ffffffffffffff", &name[..name.rfind('-').expect("a dash") + 1]));
    fs::write(&huge, "small").expect("a file");
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    assert!(foreign.iter().all(|name| blocks.join(name).exists()));
    assert!(!part.exists() && !huge.exists());
    // The huge name took the first block's key; nothing is served for it.
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize - 1);
}

/// Which of equal blocks are left in a store that is opened with room for half, after their files got these times.
fn left_of(time: impl Fn(u32) -> Option<SystemTime>) -> Vec<bool> {
    let (_folder, dir) = folder();
    let (keys, blocks): (Vec<_>, Vec<_>) = (0..COUNT).map(|n| super::sized(n, 20_000)).unzip();
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    keys.iter().zip(blocks).for_each(|(key, bytes)| tiers.insert(*key, bytes));
    wait(tiers.close());
    drop(tiers);
    // Names begin with the number of the write: these are in its order.
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
fn what_is_evicted_does_not_depend_on_clocks() {
    const YEAR: Duration = Duration::from_secs(86_400 * 365);
    let usual = left_of(|_| None);
    assert!(usual.contains(&true) && usual.contains(&false), "{usual:?}");
    let check = |name: &str, time: &dyn Fn(u32) -> SystemTime| {
        assert_eq!(left_of(|n| Some(time(n))), usual, "{name}");
    };
    check("the first seem the newest", &|n| SystemTime::now() + YEAR * (COUNT as u32 - n));
    check("the first seem the oldest", &|n| SystemTime::UNIX_EPOCH + YEAR * n);
    check("by turns", &|n| if n % 2 == 0 { SystemTime::UNIX_EPOCH } else { SystemTime::now() + 20 * YEAR });
}

#[test]
fn a_file_of_gigabytes_is_damage_and_links_and_pipes_are_left_alone() {
    let (_folder, dir) = folder();
    filled(&dir, 0..COUNT);
    let files = files(&dir);
    let names: Vec<String> =
        files.iter().map(|file| file.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    let blocks = dir.join("blocks");
    // Without bytes on disk: only its length.
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
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize, "written anew");
}
