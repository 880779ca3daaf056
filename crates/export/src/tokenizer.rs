//! Reads `tokenizer.json`, finds the special tokens around a text, and gives the bytes to store.
//! Knows nothing of graphs; it is told how many rows the embedding table has.

use std::{fs, path::Path};

use serde_json::Value;
use thresher_core::model::tokenizer::template_fault;
use tokenizers::Tokenizer;

use super::ExportError;

/// Name of the tokenizer's file, in the source and in the export.
pub const TOKENIZER: &str = "tokenizer.json";

/// What an export takes from a tokenizer.
#[derive(Debug, Clone)]
pub struct Exported {
    /// The file to store: the source's, with truncation and padding off.
    pub bytes: Vec<u8>,
    /// Ids put before a text.
    pub prefix: Vec<u32>,
    /// Ids put after a text.
    pub suffix: Vec<u32>,
}

/// What stands around a text that a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// At least one token on each side.
    Around,
    /// Those that begin a text, if any; texts have no end, since others follow.
    Before,
}

/// Reads `dir/tokenizer.json` for a model whose embedding table has `rows` rows.
///
/// # Errors
/// The file is missing or malformed, has ids beyond the table, or lacks special tokens that there must be.
pub fn read(dir: &Path, rows: usize, wanted: Specials) -> Result<Exported, ExportError> {
    let file = dir.join(TOKENIZER);
    let bytes = fs::read(&file).map_err(|cause| ExportError::Read { file: file.clone(), cause })?;
    let refuse =
        |key: &'static str, reason: String| ExportError::Tokenizer { file: file.clone(), key, reason };

    let bytes =
        without_limits(bytes).map_err(|cause| ExportError::JsonMalformed { file: file.clone(), cause })?;
    let tokenizer = Tokenizer::from_bytes(&bytes).map_err(|cause| refuse("model", cause.to_string()))?;

    let vocabulary = tokenizer.get_vocab(true);
    if let Some((token, id)) =
        vocabulary.iter().max_by_key(|(_, id)| **id).filter(|(_, id)| **id as usize >= rows)
    {
        return Err(refuse(
            "model.vocab",
            format!("token `{token}` has id {id}, the model embeds {rows} tokens"),
        ));
    }
    if let Some(fault) = template_fault(&tokenizer) {
        return Err(refuse("post_processor", fault));
    }
    let (prefix, mut suffix) = specials(&tokenizer).map_err(|reason| refuse("post_processor", reason))?;
    if wanted == Specials::Before {
        suffix.clear();
    } else if prefix.is_empty() || suffix.is_empty() {
        let reason =
            format!("puts {prefix:?} before and {suffix:?} after a text, expected a token on each side");
        return Err(refuse("post_processor", reason));
    }
    match prefix.iter().chain(&suffix).find(|&&id| tokenizer.id_to_token(id).is_none()) {
        Some(id) => Err(refuse("post_processor", format!("special token id {id} is not in the vocabulary"))),
        None => Ok(Exported { bytes, prefix, suffix }),
    }
}

/// Published tokenizers often cut texts off (MiniLM's at 128 tokens) or pad them. A window is neither cut nor padded, so
/// both are taken out of the stored file, where whoever loads it cannot forget to; without either the bytes stay as they are.
fn without_limits(bytes: Vec<u8>) -> Result<Vec<u8>, serde_json::Error> {
    let mut json: Value = serde_json::from_slice(&bytes)?;
    let mut limited = false;
    for key in ["truncation", "padding"] {
        if let Some(limit) = json.get_mut(key).filter(|limit| !limit.is_null()) {
            *limit = Value::Null;
            limited = true;
        }
    }
    if limited { serde_json::to_vec(&json) } else { Ok(bytes) }
}

/// Asks the tokenizer itself, so that every kind of post-processor is understood.
fn specials(tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    let encoding = tokenizer.encode_fast("a", true).map_err(|cause| cause.to_string())?;
    let mask = encoding.get_special_tokens_mask();
    let before = mask.iter().take_while(|&&special| special == 1).count();
    let after = mask.iter().rev().take_while(|&&special| special == 1).count();
    let ids = encoding.get_ids();
    if before == ids.len() {
        return Err("gives no token for the text `a`".to_owned());
    }
    Ok((ids[..before].to_vec(), ids[ids.len() - after..].to_vec()))
}
