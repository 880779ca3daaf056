//! Files of keys, which people write by hand. A key must never be told in an error.

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::Corpus;
use tempfile::TempDir;
use thresher::access::{Access, AccessSettings};

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| crate::service::folder().expect("a folder"));

/// Stands in the seeds where a key does not belong.
const MISPLACED: &str = "thr_0123456789abcdef";

pub fn run(data: &[u8]) -> Corpus {
    let keys_file = FOLDER.path().join("keys.toml");
    fs::write(&keys_file, data).expect("room in memory");
    let settings = AccessSettings { keys_file };
    if let Err(error) = Access::open(&settings) {
        assert!(!error.to_string().contains(MISPLACED), "{error}");
    }
    Corpus::Keep
}
