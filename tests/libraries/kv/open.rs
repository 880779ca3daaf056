//! Opening a store: directories that cannot be used, a second daemon, and stores of another version.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{child, disk_only, files, filled, folder, found, insert, open, settings, wait};

/// Asserts that opening `dir` fails with a message that contains these words and the directory.
fn check(name: &str, dir: &Path, expect: &[&str]) {
    let error = open(&disk_only(dir)).err().unwrap_or_else(|| panic!("{name}: it opens")).to_string();
    for part in expect.iter().copied().chain([&*dir.to_string_lossy(), "blocks.dir"]) {
        assert!(error.contains(part), "{name}: {error:?} lacks {part:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_refused_with_advice() {
    let (folder, dir) = folder();
    let file = folder.path().join("file");
    fs::write(&file, "mine").expect("a file");
    check("a file", &file, &["cannot create", "name another", "no disk tier"]);
    check("below a file", &file.join("kv"), &["cannot create", "name another"]);
    if cfg!(target_os = "linux") {
        check("not creatable", Path::new("/proc/no-such/kv"), &["cannot create"]);
    }
    check("a directory with foreign files", folder.path(), &["file", "name an empty or a new directory"]);
    assert_eq!(fs::read_to_string(&file).expect("a file"), "mine");

    filled(&dir, 0..3);
    let blocks = dir.join("blocks");
    fs::rename(&blocks, dir.join("away")).expect("it moves");
    fs::write(&blocks, "a file").expect("a file");
    check("a file in place of a directory", &dir, &["cannot create", "blocks"]);

    let locked = folder.path().join("folder-for-lock");
    fs::create_dir_all(locked.join("LOCK")).expect("a folder");
    check("a directory in place of a file", &locked, &["cannot write", "LOCK"]);
}

#[test]
fn a_directory_that_cannot_be_written_is_refused_with_advice() {
    let (_folder, dir) = folder();
    filled(&dir, 0..3);
    let blocks = dir.join("blocks");
    fs::set_permissions(&blocks, fs::Permissions::from_mode(0o555)).expect("a mode");
    // Root may write even so.
    if fs::write(blocks.join("try"), "").is_err() {
        check("read-only blocks", &dir, &["cannot write", "change its owner"]);
    }
    fs::set_permissions(&blocks, fs::Permissions::from_mode(0o755)).expect("a mode");
}

#[test]
fn a_store_can_be_opened_by_one_process_at_a_time() {
    let (_folder, dir) = folder();
    let (tiers, _) = open(&disk_only(&dir)).expect("it opens");
    check("twice in one process", &dir, &["is in use by another process", "a directory of its own"]);
    let open_in_child = || {
        let output = child::command("open", &dir).output().expect("a child");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let refused = open_in_child();
    assert!(refused.contains("refused") && refused.contains("is in use"), "{refused}");
    wait(tiers.close());
    drop(tiers);
    assert!(open_in_child().contains("opened"));
}

#[test]
fn blocks_of_another_version_are_discarded() {
    for version in
        ["thresher blocks 1\n", "thresher blocks 3\n", "thresher blocks 2", "", "\u{0}\u{ff}garbage"]
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
fn a_store_can_be_opened_after_its_first_start_was_interrupted() {
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
fn of_several_simultaneous_starts_one_succeeds_and_the_others_are_refused() {
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
fn a_file_name_with_the_largest_number_does_not_stop_later_writes() {
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
