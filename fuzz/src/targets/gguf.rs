//! GGUF files from elsewhere: the input is exported as a file, and decoded as the blocks of every type of tensors.

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::Corpus;
use tempfile::TempDir;
use thresher_core::model::contract::Contract;
use thresher_export::ExportOptions;
use thresher_export::gguf::ENCODINGS;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| crate::service::folder().expect("a folder"));

pub fn run(data: &[u8]) -> Corpus {
    for encoding in &ENCODINGS {
        let blocks = data.len() / encoding.block_bytes;
        assert_eq!(encoding.decode(data).len(), blocks * encoding.block_elements, "{}", encoding.name);
    }
    let (source, out) = (FOLDER.path().join("model.gguf"), FOLDER.path().join("out"));
    fs::write(&source, data).expect("room in memory");
    let options = ExportOptions { name: "fuzzed".to_owned(), ..ExportOptions::default() };
    match thresher_export::export(&source, &out, &options, &|_, _| ()) {
        Ok(contract) => assert_eq!(Contract::load(&out).expect("what was just written"), contract),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Corpus::Keep
}
