//! Tests with a small wheel of their own, from a folder and from an index on loopback.

use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::TcpListener;
use std::thread;

use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;

use super::*;

const TEXT: &[u8] = b"the library";

const WHEEL: &str = "tool-1.0-py3-none-any.whl";

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn wheel() -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("tool/lib.so.1", SimpleFileOptions::default()).expect("a member");
    zip.write_all(TEXT).expect("written");
    zip.finish().expect("a zip file").into_inner()
}

fn pin(wheel: &[u8]) -> Pin {
    let json = serde_json::json!({
        "package": "tool", "version": "1.0", "folder": "tool",
        "wheels": {"any": {
            "file": WHEEL, "bytes": wheel.len(), "sha256": sha256(wheel),
            "files": {"sub/lib.so": {"member": "tool/lib.so.1", "sha256": sha256(TEXT)}},
        }},
    });
    serde_json::from_value(json).expect("a pin")
}

/// Serves a list of files and one file until the test process ends. Returns the URL of the index.
fn index(list: String, file: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).expect("a request");
            let body = if request.contains("/simple/tool/ ") { list.as_bytes() } else { &file };
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            // A client that has read enough closes the connection.
            let _closed = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    format!("http://{address}/simple")
}

fn list_of(name: &str) -> String {
    serde_json::json!({"files": [{"filename": name, "url": "../../files/1"}]}).to_string()
}

/// Returns what `ensure_pin` says, after checking that it left nothing else behind.
fn run(pin: &Pin, target: &Path, source: &PackageSource) -> Result<Outcome, ProvisionError> {
    let outcome = ensure_pin(pin, target, source, &|_, _| {});
    let rest = std::fs::read_dir(target.parent().expect("a folder")).expect("a folder");
    let rest = rest.map(|entry| entry.expect("an entry").path()).filter(|path| path != target).count();
    assert_eq!(rest, 0, "no temporary folder is left");
    outcome
}

#[test]
fn files_come_from_an_index_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("out/tool");
    let bytes = wheel();
    let source = PackageSource::Index(index(list_of(WHEEL), bytes.clone()));
    let pin = pin(&bytes);
    assert_eq!(run(&pin, &target, &source).expect("fetched"), Outcome::Fetched);
    assert_eq!(std::fs::read(target.join("sub/lib.so")).expect("a file"), TEXT);

    let nowhere = PackageSource::Folder(folder.path().join("absent"));
    assert_eq!(run(&pin, &target, &nowhere).expect("present"), Outcome::Present);

    std::fs::write(target.join("sub/lib.so"), "changed").expect("written");
    assert_eq!(run(&pin, &target, &source).expect("fetched again"), Outcome::Fetched);
    assert_eq!(std::fs::read(target.join("sub/lib.so")).expect("a file"), TEXT);
}

#[test]
fn files_come_from_a_folder_with_the_wheel_or_its_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = wheel();
    let pin = pin(&bytes);
    let from = folder.path().join("from");
    std::fs::create_dir(&from).expect("a folder");
    std::fs::write(from.join(WHEEL), &bytes).expect("written");
    let first = folder.path().join("one/tool");
    assert_eq!(run(&pin, &first, &PackageSource::Folder(from)).expect("copied"), Outcome::Fetched);
    let second = folder.path().join("two/other");
    let unpacked = PackageSource::Folder(folder.path().join("one"));
    assert_eq!(run(&pin, &second, &unpacked).expect("copied"), Outcome::Fetched);
    assert_eq!(std::fs::read(second.join("sub/lib.so")).expect("a file"), TEXT);
    // Whole files are taken although the wheel beside them is damaged.
    std::fs::write(folder.path().join("one").join(WHEEL), &bytes[..9]).expect("written");
    assert_eq!(run(&pin, &folder.path().join("three/tool"), &unpacked).expect("copied"), Outcome::Fetched);
}

/// Reading it would never end.
#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = folder.path().join("tool");
    std::fs::create_dir_all(from.join("sub")).expect("a folder");
    for pipe in [from.join("sub/lib.so"), folder.path().join(WHEEL)] {
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        let source = PackageSource::Folder(folder.path().to_owned());
        let target = folder.path().join("out/tool");
        let error = run(&pin(&wheel()), &target, &source).expect_err("refused");
        let message = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let message: Vec<String> = message.map(ToString::to_string).collect();
        assert!(message.concat().contains("not a regular file"), "{message:?}");
    }
}

#[test]
fn what_differs_from_its_pin_is_refused_and_the_old_files_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("out/tool");
    std::fs::create_dir_all(&target).expect("a folder");
    std::fs::write(target.join("old"), "old").expect("written");
    let bytes = wheel();
    let pin = pin(&bytes);
    let check = |name: &str, source: PackageSource, expect: &str| {
        let error = run(&pin, &target, &source).expect_err(name).to_string();
        assert!(error.contains(expect), "{name}: {error}");
        assert!(target.join("old").exists(), "{name}");
    };
    let mut longer = bytes.clone();
    longer.push(0);
    check(
        "a longer file",
        PackageSource::Index(index(list_of(WHEEL), longer)),
        "is not the file that it should be",
    );
    check(
        "half of it",
        PackageSource::Index(index(list_of(WHEEL), bytes[..9].to_vec())),
        "is not the file that it should be",
    );
    check("another list", PackageSource::Index(index(list_of("other.whl"), Vec::new())), "has no tool-1.0");
    check("no list", PackageSource::Index(index("<html>".to_owned(), Vec::new())), "not a list of files");
    check("nobody listens", PackageSource::Index("http://127.0.0.1:1/simple".to_owned()), "--from");
    check("no URL", PackageSource::Index("pypi".to_owned()), "is not an http or https URL");
    let damaged = |name: &str, file: &str| {
        let from = folder.path().join(name);
        let path = from.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, &bytes[..9]).expect("written");
        PackageSource::Folder(from)
    };
    check("half of a wheel in a folder", damaged("half", WHEEL), "is not the file that it should be");
    check(
        "half of a file in a folder",
        damaged("files", "tool/sub/lib.so"),
        "is not the file that it should be",
    );
    check("an empty folder", PackageSource::Folder(folder.path().to_owned()), "found neither");
}

#[test]
fn every_pin_can_be_read() {
    for item in [Item::Runtime, Item::RuntimeGpu, Item::Model, Item::ModelMultilingual] {
        assert!(!Pin::find(item).version.is_empty());
    }
    for item in [Item::Model, Item::ModelMultilingual] {
        assert!(Pin::find(item).wheel_for("any platform").is_ok());
    }
    let error = Pin::find(Item::Runtime).wheel_for("plan9-mips").expect_err("no wheel").to_string();
    assert!(error.contains("plan9-mips") && error.contains("linux-x86_64"), "{error}");
}
