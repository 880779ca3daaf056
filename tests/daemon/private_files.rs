//! The file modes of the daemon's stores: in a process that starts with a permissive umask, and in
//! directories that an earlier version left readable for other users.

#![cfg(unix)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::support::child::child_process;
use bytes::Bytes;
use thresher::access::NewKey;
use thresher::originals::{OriginalSettings, Originals};
use thresher::process;
use thresher::receipt::SigningKey;
use thresher_core::domain::{Chunk, Tenant};
use thresher_core::kv::key::BlockKey;
use thresher_core::kv::local::{LocalSettings, LocalTiers};
use thresher_registry::{Change, Registry, RegistrySettings};

/// Gives the child process its directory. Without it the child's test does nothing.
const DIR: &str = "THRESHER_TEST_PRIVATE_DIR";

/// The modes of a directory and of everything in it. The directory itself comes first.
fn modes(path: &Path) -> Vec<(PathBuf, u32)> {
    let metadata = path.symlink_metadata().expect("it is there");
    let mut found = vec![(path.to_owned(), metadata.permissions().mode() & 0o777)];
    if metadata.is_dir() {
        let entries = std::fs::read_dir(path).expect("a directory");
        found.extend(entries.flat_map(|entry| modes(&entry.expect("an entry").path())));
    }
    found
}

/// Opens every store as `serve` does, and writes to each of them.
#[test]
#[ignore = "a child process that another test starts"]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    // A file that belongs to the user, written before the daemon restricts its own files.
    std::fs::write(dir.join("report.json"), "{}").expect("a file");
    process::keep_files_private();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let settings = LocalSettings {
        memory_bytes_max: 1 << 20,
        disk_bytes_max: 1 << 24,
        write_queue_bytes_max: 1 << 20,
        dir: Some(dir.join("kv")),
    };
    let tiers = LocalTiers::open(&settings).expect("blocks");
    let number = std::fs::read_dir(dir.join("kv/blocks")).expect("blocks").count() as u8;
    tiers.insert(BlockKey::from_bytes([number; 32]), Bytes::from_static(b"block"));
    runtime.block_on(tiers.close());
    let settings = RegistrySettings { dir: dir.join("registry"), ..RegistrySettings::default() };
    let tenant = Tenant::new("acme").expect("a name");
    for settings in [settings.of_tenant(&tenant), settings] {
        let registry = Registry::open(&settings).expect("a registry");
        let id = registry.progress().registered.to_string();
        let chunk = Chunk::new(id, "The tide.");
        runtime.block_on(registry.write(vec![Change::Put(Arc::new(chunk))])).expect("written");
    }
    let originals =
        Originals::at(&OriginalSettings { dir: dir.join("originals"), ..OriginalSettings::default() });
    originals.tenant("acme").put(&[(b"key", b"text")]).expect("kept");
    SigningKey::at(&dir.join("receipts/key.pem")).expect("a key");
    let name = format!("key-{number}");
    let issued = NewKey { name, ..NewKey::default() }.issue().expect("a key");
    issued.add_to(&dir.join("keys.toml")).expect("an entry");
}

/// Runs the child process under the umask 000, which keeps all permissions.
fn start(dir: &Path) {
    let child = child_process(module_path!(), "child");
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(child.get_program()).args(child.get_args());
    let output = shell.env(DIR, dir).output().expect("the shell starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Asserts that other users may not use any file or directory except the report.
fn check(name: &str, dir: &Path) {
    let found = modes(dir);
    for part in [
        "kv/blocks",
        "registry/meta.json",
        "registry/tenants/acme/meta.json",
        "originals/originals.redb",
        "receipts/key.pem",
        "keys.toml",
    ] {
        assert!(found.iter().any(|(path, _)| *path == dir.join(part)), "{name}: {part} is there");
    }
    assert_eq!(
        found.iter().find(|(path, _)| *path == dir.join("report.json")).map(|found| found.1),
        Some(0o666),
        "{name}"
    );
    for (path, mode) in &found[1..] {
        let expect = if path.is_dir() { 0o700 } else { 0o600 };
        assert!(
            *mode == expect || path.ends_with("report.json"),
            "{name}: {} has mode {mode:o}",
            path.display()
        );
    }
}

#[test]
fn stores_are_private_to_the_user_with_any_umask_and_any_earlier_modes() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    start(dir);
    check("new", dir);
    for (name, of_directories) in
        [("an earlier version left all readable", 0o755), ("readable files in private directories", 0o700)]
    {
        for (path, _) in &modes(dir)[1..] {
            let mode = if path.is_dir() { of_directories } else { 0o644 };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("this user's");
        }
        std::fs::remove_file(dir.join("report.json")).expect("the report");
        start(dir);
        // The file of keys holds only hashes, and a group may be meant to read it: only the permissions of
        // all other users are removed.
        let keys = dir.join("keys.toml");
        assert_eq!(keys.metadata().expect("a file").permissions().mode() & 0o777, 0o640, "{name}");
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("this user's");
        check(name, dir);
    }
}
