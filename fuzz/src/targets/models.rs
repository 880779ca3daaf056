//! Model folders from elsewhere: a letter for the file that is put in place of a sound one, then its bytes. `c` config.json,
//! `t` tokenizer.json, `w` model.safetensors of an encoder, the same in capitals of a decoder; `x` contract.toml of an exported folder.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::Corpus;
use tempfile::TempDir;
use thresher_core::model::contract::Contract;
use thresher_export::ExportOptions;

/// `config.json`, `tokenizer.json`, `model.safetensors`.
type Files = [&'static [u8]; 3];

const NAMES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

const ENCODER: Files = [
    include_bytes!("../../../models/tiny/bert-gelu/config.json"),
    include_bytes!("../../../models/tiny/bert-gelu/tokenizer.json"),
    include_bytes!("../../../models/tiny/bert-gelu/model.safetensors"),
];
const DECODER: Files = [
    include_bytes!("../../../models/tiny/llama/config.json"),
    include_bytes!("../../../models/tiny/llama/tokenizer.json"),
    include_bytes!("../../../models/tiny/llama/model.safetensors"),
];

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| crate::service::folder().expect("a folder"));

pub fn run(data: &[u8]) -> Corpus {
    let Some((letter, bytes)) = data.split_first() else { return Corpus::Reject };
    let sound = if letter.is_ascii_uppercase() { DECODER } else { ENCODER };
    let replaced = match letter.to_ascii_lowercase() {
        b'c' => 0,
        b't' => 1,
        b'w' => 2,
        b'x' => {
            write(FOLDER.path(), "contract.toml", bytes);
            let _ = Contract::load(FOLDER.path());
            return Corpus::Keep;
        }
        _ => return Corpus::Reject,
    };
    let (source, out) = (FOLDER.path().join("source"), FOLDER.path().join("out"));
    fs::create_dir_all(&source).expect("room in memory");
    for (at, (name, sound)) in NAMES.iter().zip(sound).enumerate() {
        write(&source, name, if at == replaced { bytes } else { sound });
    }
    let options = ExportOptions { name: "fuzzed".to_owned(), ..ExportOptions::default() };
    if let Ok(contract) = thresher_export::export(&source, &out, &options, &|_, _| ()) {
        assert_eq!(Contract::load(&out).expect("what was just written"), contract);
    }
    Corpus::Keep
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).expect("room in memory");
}
