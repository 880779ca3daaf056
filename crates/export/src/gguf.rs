//! GGUF files, as llama.cpp and Ollama store models: read as if they were a Hugging Face folder.
//!
//! `container` reads the file and `quant` converts its tensors to `f32`. `architecture` translates the
//! metadata to `config.json` and the names of tensors, `checkpoint` gives the tensors the form of a Hugging
//! Face checkpoint, and `tokenizer` rebuilds `tokenizer.json`. The rest of the export does not know that the
//! source was a GGUF file.

mod architecture;
mod checkpoint;
mod container;
mod quant;
#[cfg(test)]
mod tests;
mod tokenizer;

pub(crate) use self::checkpoint::GgufCheckpoint;
pub use self::quant::{ENCODINGS, Encoding};

use std::path::Path;

use serde_json::{Map, Value as Json};

use self::architecture::Architecture;
use self::container::{GgufFile, Value};
use crate::{ExportError, source::ChatTemplate};

/// A model as its GGUF file describes it, in the terms of a Hugging Face folder.
#[derive(Debug)]
pub(crate) struct GgufModel {
    pub config: Map<String, Json>,
    /// The content of `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    pub chat_template: Option<ChatTemplate>,
    /// The name that the file gives to the model.
    pub name: Option<String>,
    pub licence: Option<String>,
    pub checkpoint: GgufCheckpoint,
}

impl GgufModel {
    /// Opens a file and translates what describes the model. Its tensors are read later, one at a time.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be read, is malformed, or has an architecture, a type of
    /// tensors or a tokenizer that is not supported.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        let file = GgufFile::open(path)?;
        let architecture = Architecture::detect(&file)?;
        let config = architecture.config(&file)?;
        let tokenizer = tokenizer::tokenizer_json(&file, architecture.merge_order)?;
        let chat_template = tokenizer::chat_template(&file)?;
        let stated = |key| match file.value(key) {
            Some(Value::Text(text)) if !text.is_empty() => Some(text.clone()),
            _ => None,
        };
        let (name, licence) = (stated("general.name"), stated("general.license"));
        let size = |key| config.get(key).and_then(Json::as_u64).map_or(0, |size| size as usize);
        let (heads, kv_heads) = (size("num_attention_heads"), size("num_key_value_heads"));
        let checkpoint = GgufCheckpoint::new(file, architecture, heads, kv_heads);
        Ok(Self { config, tokenizer, chat_template, name, licence, checkpoint })
    }
}

/// Whether `path` is a file, or has the name of a GGUF file. Other models are folders.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.is_file() || path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}
