//! Reads what a Hugging Face folder says about a model: `config.json`, `sentence_bert_config.json`, `README.md`.
//! Knows nothing of tensors or graphs.

use std::{fs, path::Path};

use serde::{Deserialize, de::DeserializeOwned};
use thresher_core::model::contract::Source;

use super::ExportError;

/// The file that names the architecture.
pub const CONFIG: &str = "config.json";

/// The keys of `config.json` that every architecture has.
#[derive(Debug, Clone, Deserialize)]
pub struct Header {
    /// Class names, the first is the checkpoint's.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// Family of the configuration (`bert`).
    pub model_type: Option<String>,
    #[serde(rename = "_name_or_path")]
    name_or_path: Option<String>,
    #[serde(rename = "_commit_hash")]
    commit_hash: Option<String>,
}

/// Reads a JSON file.
///
/// # Errors
/// The file cannot be read, or is not the JSON that is expected; the message names file, line and column.
pub fn read_json<T: DeserializeOwned>(file: &Path) -> Result<T, ExportError> {
    let bytes = fs::read(file).map_err(|cause| ExportError::Read { file: file.to_owned(), cause })?;
    serde_json::from_slice(&bytes)
        .map_err(|cause| ExportError::JsonMalformed { file: file.to_owned(), cause })
}

/// Where the weights came from, as far as the folder says.
pub fn provenance(dir: &Path, header: &Header, weights: String) -> Source {
    let known = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    Source {
        name: known(&header.name_or_path),
        revision: known(&header.commit_hash),
        licence: licence(dir),
        weights: Some(weights),
    }
}

/// The configuration's value at `key`, where it is there and not null.
///
/// # Errors
/// It is of another type.
pub fn optional<T: DeserializeOwned>(
    config: &serde_json::Map<String, serde_json::Value>,
    key: &'static str,
    file: &Path,
) -> Result<Option<T>, ExportError> {
    match config.get(key) {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(value) => match T::deserialize(value) {
            Ok(value) => Ok(Some(value)),
            Err(cause) => Err(ExportError::ConfigValue { file: file.to_owned(), key, cause }),
        },
    }
}

/// The longest sequence that the model was trained on, where `sentence-transformers` wrote it down.
///
/// # Errors
/// The file is there and malformed.
pub fn sequence_tokens_max(dir: &Path) -> Result<Option<usize>, ExportError> {
    #[derive(Deserialize)]
    struct SentenceBert {
        max_seq_length: Option<usize>,
    }
    let file = dir.join("sentence_bert_config.json");
    if !file.is_file() {
        return Ok(None);
    }
    Ok(read_json::<SentenceBert>(&file)?.max_seq_length)
}

/// `license:` of the front matter of `README.md`; model cards are prose, so anything else is simply unknown.
fn licence(dir: &Path) -> Option<String> {
    let readme = fs::read_to_string(dir.join("README.md")).ok()?;
    let mut lines = readme.lines().map(str::trim_end);
    if lines.next() != Some("---") {
        return None;
    }
    let value = lines.take_while(|line| *line != "---").find_map(|line| line.strip_prefix("license:"))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}
