//! Files that are not what was written: a miss, counted, and written anew; never a wrong block.

use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::time::{Duration, SystemTime};

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

#[test]
fn clocks_do_not_matter() {
    let (_folder, dir) = folder();
    filled(&dir, 0..COUNT);
    for (n, file) in files(&dir).iter().enumerate() {
        let days = Duration::from_secs(86_400 * 365 * 20);
        let at = if n % 2 == 0 { SystemTime::UNIX_EPOCH } else { SystemTime::now() + days };
        let opened = File::options().write(true).open(file).expect("a file");
        opened.set_times(FileTimes::new().set_modified(at).set_accessed(at)).expect("times");
    }
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    assert_eq!(found(&tiers, 0..COUNT), COUNT as usize);
    // By construction: nobody here asks what time it is.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kv/local");
    for entry in fs::read_dir(source).expect("the source") {
        let code = fs::read_to_string(entry.expect("an entry").path()).expect("a source file");
        assert!(!code.contains("SystemTime") && !code.contains("Instant") && !code.contains("modified("));
    }
}
