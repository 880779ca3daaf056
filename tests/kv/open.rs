//! Directories that cannot be opened, and those of another version.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{child, disk_only, files, filled, folder, found, insert, open, settings, wait};

/// Opening `dir` must be refused in these words and with its name.
fn check(name: &str, dir: &Path, expect: &[&str]) {
    let error = open(&disk_only(dir)).err().unwrap_or_else(|| panic!("{name}: it opens")).to_string();
    for part in expect.iter().copied().chain([&*dir.to_string_lossy(), "blocks.dir"]) {
        assert!(error.contains(part), "{name}: {error:?} lacks {part:?}");
    }
}

#[test]
fn what_cannot_be_opened_is_named_with_what_to_do() {
    let (folder, dir) = folder();
    let file = folder.path().join("file");
    fs::write(&file, "mine").expect("a file");
    check("a file", &file, &["cannot create", "name another", "no disk tier"]);
    check("below a file", &file.join("kv"), &["cannot create", "name another"]);
    if cfg!(target_os = "linux") {
        check("not creatable", Path::new("/proc/no-such/kv"), &["cannot create"]);
    }
    check("somebody's", folder.path(), &["file", "name an empty or a new directory"]);
    assert_eq!(fs::read_to_string(&file).expect("a file"), "mine");

    filled(&dir, 0..3);
    let blocks = dir.join("blocks");
    fs::rename(&blocks, dir.join("away")).expect("it moves");
    fs::write(&blocks, "a file").expect("a file");
    check("a file for a folder", &dir, &["cannot create", "blocks"]);

    let locked = folder.path().join("folder-for-lock");
    fs::create_dir_all(locked.join("LOCK")).expect("a folder");
    check("a folder for a file", &locked, &["cannot write", "LOCK"]);
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let (_folder, dir) = folder();
    filled(&dir, 0..3);
    let blocks = dir.join("blocks");
    fs::set_permissions(&blocks, fs::Permissions::from_mode(0o555)).expect("a mode");
    // Root may write all the same.
    if fs::write(blocks.join("try"), "").is_err() {
        check("read-only blocks", &dir, &["cannot write", "change its owner"]);
    }
    fs::set_permissions(&blocks, fs::Permissions::from_mode(0o755)).expect("a mode");
}

#[test]
fn a_second_daemon_is_refused_until_the_first_has_gone() {
    let (_folder, dir) = folder();
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    check("twice in one process", &dir, &["is in use by another process", "a directory of its own"]);
    let told = || {
        let output = child::command("open", &dir).output().expect("a child");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let refused = told();
    assert!(refused.contains("refused") && refused.contains("is in use"), "{refused}");
    wait(tiers.close());
    drop(tiers);
    assert!(told().contains("opened"));
}

#[test]
fn blocks_of_another_version_are_discarded_never_read() {
    for version in
        ["thresher blocks 0\n", "thresher blocks 2\n", "thresher blocks 1", "", "\u{0}\u{ff}garbage"]
    {
        let (_folder, dir) = folder();
        filled(&dir, 0..10);
        fs::write(dir.join("FORMAT"), version).expect("a file");
        fs::write(dir.join("blocks/mine.txt"), "mine").expect("a file");
        let (tiers, _) = open(&disk_only(&dir)).unwrap_or_else(|e| panic!("{version:?}: {e}"));
        assert_eq!((found(&tiers, 0..10), files(&dir).len()), (0, 1), "{version:?}");
        insert(&tiers, 0..10);
        wait(tiers.close());
        drop(tiers);
        let (tiers, _) = open(&disk_only(&dir)).unwrap_or_else(|e| panic!("{version:?}: {e}"));
        assert_eq!(found(&tiers, 0..10), 10, "{version:?}");
    }
}

#[test]
fn a_start_that_was_cut_off_is_taken_up() {
    let (_folder, dir) = folder();
    fs::create_dir_all(dir.join("lost+found")).expect("a folder");
    for left in ["LOCK", "FORMAT.part"] {
        fs::write(dir.join(left), "half").expect("a file");
    }
    let (tiers, _) = open(&settings(0, super::MIB, &dir)).expect("it opens");
    insert(&tiers, 0..3);
    wait(tiers.flush());
    assert_eq!(found(&tiers, 0..3), 3);
}

#[test]
fn of_starts_at_the_same_time_one_opens_and_the_others_hear_that_it_is_in_use() {
    for _ in 0..400 {
        let (_folder, dir) = folder();
        let barrier = std::sync::Barrier::new(8);
        let opened: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                open(&disk_only(&dir)).map_err(|error| error.to_string())
            };
            let threads = [(); 8].map(|()| scope.spawn(start));
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let refused: Vec<_> = opened.iter().filter_map(|opened| opened.as_ref().err()).collect();
        assert_eq!(refused.len(), 7, "{refused:?}");
        assert!(refused.iter().all(|error| error.contains("is in use by another process")), "{refused:?}");
    }
}

#[test]
fn a_name_with_the_largest_number_is_nobodys() {
    let (_folder, dir) = folder();
    filled(&dir, 0..3);
    let first = files(&dir).remove(0);
    let name = first.file_name().expect("a name").to_string_lossy().into_owned();
    for number in ["ffffffffffffffff", "fffffffffffffffe"] {
        fs::copy(&first, dir.join("blocks").join(format!("{number}{}", &name[16..]))).expect("a copy");
    }
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    insert(&tiers, 3..6);
    wait(tiers.flush());
    assert_eq!((found(&tiers, 0..6), files(&dir).len()), (6, 8));
}
