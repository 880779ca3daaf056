//! Reads the files of a Hugging Face folder that describe a model: `config.json`,
//! `sentence_bert_config.json`, `README.md`, `tokenizer.json` and the chat template. Does not know about
//! tensors or graphs.

use std::path::{Path, PathBuf};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use thresher_core::model::contract::CheckpointInfo;
use thresher_core::model::tokenizer::template_fault;
use thresher_core::regular_files;
use tokenizers::Tokenizer;

use super::ExportError;

/// The name of the file with the model's configuration.
pub const CONFIG: &str = "config.json";

/// The keys of `config.json` that are common to all architectures.
#[derive(Debug, Clone, Deserialize)]
pub struct Header {
    /// Class names; the first is the class of the checkpoint.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// The family of the configuration, such as `bert`.
    pub model_type: Option<String>,
    #[serde(rename = "_name_or_path")]
    name_or_path: Option<String>,
    #[serde(rename = "_commit_hash")]
    commit_hash: Option<String>,
}

/// Reads a JSON file.
///
/// # Errors
/// Returns an [`ExportError`] if the file cannot be read or is not JSON of type `T`; the message names the
/// file, line and column.
pub fn read_json<T: DeserializeOwned>(file: &Path) -> Result<T, ExportError> {
    let bytes =
        regular_files::read(file).map_err(|cause| ExportError::Read { file: file.to_owned(), cause })?;
    serde_json::from_slice(&bytes)
        .map_err(|cause| ExportError::JsonMalformed { file: file.to_owned(), cause })
}

/// Reads a JSON file; `None` if it does not exist.
///
/// # Errors
/// As [`read_json`], if the file exists.
pub fn read_json_if_exists<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, ExportError> {
    if file.is_file() { read_json(file).map(Some) } else { Ok(None) }
}

/// The origin of the model, as far as the folder says.
pub fn provenance(dir: &Path, header: &Header) -> CheckpointInfo {
    let known = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    CheckpointInfo {
        name: known(&header.name_or_path),
        revision: known(&header.commit_hash),
        licence: licence(dir),
        weights: None,
    }
}

/// Returns the value of `key` in the configuration, or `None` if it is missing or null.
///
/// # Errors
/// Returns [`ExportError::ConfigValue`] if the value has another type.
pub fn optional<T: DeserializeOwned>(
    config: &serde_json::Map<String, Value>,
    key: &'static str,
    file: &Path,
) -> Result<Option<T>, ExportError> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match T::deserialize(value) {
            Ok(value) => Ok(Some(value)),
            Err(cause) => Err(ExportError::ConfigValue { file: file.to_owned(), key, cause }),
        },
    }
}

/// Returns the length of the longest sequence that the model was trained on, in tokens, if
/// `sentence_bert_config.json` has it.
///
/// # Errors
/// Returns an [`ExportError`] if the file exists and is malformed.
pub fn sequence_tokens_max(dir: &Path) -> Result<Option<usize>, ExportError> {
    #[derive(Deserialize)]
    struct SentenceBert {
        max_seq_length: Option<usize>,
    }
    let file = dir.join("sentence_bert_config.json");
    Ok(read_json_if_exists::<SentenceBert>(&file)?.and_then(|settings| settings.max_seq_length))
}

/// The value of `license:` in the front matter of `README.md`. Model cards are free text, so a licence
/// written in any other way is treated as unknown.
fn licence(dir: &Path) -> Option<String> {
    let readme = regular_files::read_to_string(&dir.join("README.md")).ok()?;
    let mut lines = readme.lines().map(str::trim_end);
    if lines.next() != Some("---") {
        return None;
    }
    let value = lines.take_while(|line| *line != "---").find_map(|line| line.strip_prefix("license:"))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

/// The name of the tokenizer's file, in the source folder and in the export.
pub const TOKENIZER: &str = "tokenizer.json";

/// The name of the chat template's file, in the source folder and in the export.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The file of a folder with settings of the tokenizer. Older folders have the chat template in it.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The template that turns a list of messages into the text that a model continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The template, in the language Jinja.
    pub template: String,
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
}

/// Reads the chat template of a folder: `chat_template.jinja`, or else the key `chat_template` of
/// `tokenizer_config.json`. `None` if the folder has neither.
///
/// # Errors
/// Returns an [`ExportError`] if a file exists and cannot be read or is malformed.
pub fn chat_template(dir: &Path) -> Result<Option<ChatTemplate>, ExportError> {
    let (file, config) = (dir.join(CHAT_TEMPLATE), dir.join(TOKENIZER_CONFIG));
    let config: Value = read_json_if_exists(&config)?.unwrap_or_default();
    let template = if file.is_file() {
        let text = regular_files::read_to_string(&file);
        Some(text.map_err(|cause| ExportError::Read { file, cause })?)
    } else {
        configured_template(&config["chat_template"]).map(str::to_owned)
    };
    let token = |key: &str| token_text(&config[key]);
    Ok(template.map(|template| ChatTemplate {
        template,
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
    }))
}

/// Returns `tokenizer_config.json` and the special token that it has under `key`, if the file exists and has it.
///
/// # Errors
/// Returns an [`ExportError`] if the file is malformed.
pub fn token_of_config(dir: &Path, key: &str) -> Result<(PathBuf, Option<String>), ExportError> {
    let file = dir.join(TOKENIZER_CONFIG);
    let config: Value = read_json_if_exists(&file)?.unwrap_or_default();
    let token = token_text(&config[key]);
    Ok((file, token))
}

/// A token is a text, or an object with its text and its settings.
fn token_text(token: &Value) -> Option<String> {
    token.as_str().or(token["content"].as_str()).map(str::to_owned)
}

/// The value of `chat_template`: a template, or a list of templates with names, of which the one with the name
/// `default` is meant for chats.
fn configured_template(value: &Value) -> Option<&str> {
    let named = |list: &'_ Vec<Value>| list.iter().position(|entry| entry["name"] == "default");
    match value {
        Value::Array(list) => list.get(named(list)?)?["template"].as_str(),
        other => other.as_str(),
    }
}

#[derive(Debug, Clone)]
pub struct ExportedTokenizer {
    /// The content of the file to store: that of the source, without truncation and padding.
    pub bytes: Vec<u8>,
    /// The ids of the special tokens before a text.
    pub prefix: Vec<u32>,
    /// The ids of the special tokens after a text.
    pub suffix: Vec<u32>,
    tokenizer: Tokenizer,
}

/// How a tokenizer joins two texts for a cross-encoder: `prefix first between second suffix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairTokens {
    /// The ids of the special tokens between the texts.
    pub between: Vec<u32>,
    /// Whether the tokens after `between` are of another type than those before.
    pub has_types: bool,
}

impl ExportedTokenizer {
    /// Returns how the tokenizer joins two texts.
    ///
    /// # Errors
    /// Returns the reason if it cannot, or puts other tokens around a pair than around a single text.
    pub fn pair_tokens(&self) -> Result<PairTokens, String> {
        let encoding = self.tokenizer.encode_fast(("a", "a"), true).map_err(|cause| cause.to_string())?;
        let (ids, types) = (encoding.get_ids(), encoding.get_type_ids());
        let mask = encoding.get_special_tokens_mask();
        let next = |from: usize, special: u32| (from..ids.len()).find(|&at| mask[at] == special);
        let ends = next(0, 0).and_then(|first| {
            let end = next(first, 1)?;
            let second = next(end, 0)?;
            Some((first, end, second, next(second, 1)?))
        });
        match ends {
            Some((first, end, second, last)) if ids[..first] == self.prefix && ids[last..] == self.suffix => {
                Ok(PairTokens {
                    between: ids[end..second].to_vec(),
                    has_types: types[second] != types[first],
                })
            }
            _ => Err(format!(
                "does not put {:?} before, a token between and {:?} after two texts, but {ids:?} in all",
                self.prefix, self.suffix
            )),
        }
    }

    /// Returns the id of a token; `None` if the vocabulary does not have it.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Returns the ids of the tokens that `prefix` has before any other text.
    ///
    /// # Errors
    /// Returns the message of the tokenizer if it refuses the text.
    pub fn ids_before_text(&self, prefix: &str) -> Result<Vec<u32>, String> {
        const TEXT: &str = "a";
        let ids = |text: &str| -> Result<Vec<u32>, String> {
            let encoding = self.tokenizer.encode_fast(text, false).map_err(|cause| cause.to_string())?;
            Ok(encoding.get_ids().to_vec())
        };
        let (joined, alone) = (ids(&format!("{prefix}{TEXT}"))?, ids(TEXT)?);
        match joined.strip_suffix(&alone[..]) {
            Some(before) => Ok(before.to_vec()),
            // The text has other tokens after a space, which belongs to its first token.
            None => ids(prefix.trim_end()),
        }
    }
}

/// Where a model needs special tokens around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// At least one token before and one after the text.
    Around,
    /// Any number of tokens before the text. Tokens after it are dropped, because other texts follow.
    Before,
}

/// Reads a tokenizer from the content of a `tokenizer.json`, for a model whose embedding table has
/// `vocab_size` rows. Errors name `file`.
///
/// # Errors
/// Returns an [`ExportError`] if the content is malformed, has ids beyond the embedding table, or
/// lacks the special tokens that the model needs.
pub fn read_tokenizer(
    file: &Path,
    bytes: &[u8],
    vocab_size: usize,
    special_tokens: SpecialTokens,
) -> Result<ExportedTokenizer, ExportError> {
    let refuse =
        |key: &'static str, reason: String| ExportError::Tokenizer { file: file.to_owned(), key, reason };

    let bytes = without_limits(bytes.to_vec())
        .map_err(|cause| ExportError::JsonMalformed { file: file.to_owned(), cause })?;
    let tokenizer = Tokenizer::from_bytes(&bytes).map_err(|cause| refuse("model", cause.to_string()))?;

    let vocabulary = tokenizer.get_vocab(true);
    if let Some((token, id)) =
        vocabulary.iter().max_by_key(|(_, id)| **id).filter(|(_, id)| **id as usize >= vocab_size)
    {
        return Err(refuse(
            "model.vocab",
            format!("token `{token}` has id {id}, the model embeds {vocab_size} tokens"),
        ));
    }
    if let Some(fault) = template_fault(&tokenizer) {
        return Err(refuse("post_processor", fault));
    }
    let (prefix, mut suffix) = special_ids(&tokenizer).map_err(|reason| refuse("post_processor", reason))?;
    if special_tokens == SpecialTokens::Before {
        suffix.clear();
    } else if prefix.is_empty() || suffix.is_empty() {
        let reason =
            format!("puts {prefix:?} before and {suffix:?} after a text, expected a token on each side");
        return Err(refuse("post_processor", reason));
    }
    match prefix.iter().chain(&suffix).find(|&&id| tokenizer.id_to_token(id).is_none()) {
        Some(id) => Err(refuse("post_processor", format!("special token id {id} is not in the vocabulary"))),
        None => Ok(ExportedTokenizer { bytes, prefix, suffix, tokenizer }),
    }
}

/// Removes truncation and padding from a tokenizer file. Published tokenizers often truncate texts (MiniLM's
/// at 128 tokens) or pad them, but a window must be neither truncated nor padded, and a program that loads
/// the file could forget to turn both off. A file without truncation and padding keeps its bytes.
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

/// The ids of the special tokens before and after a text. They are taken from an encoding, so that every kind
/// of post-processor is supported.
fn special_ids(tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    let encoding = tokenizer.encode_fast("a", true).map_err(|cause| cause.to_string())?;
    let mask = encoding.get_special_tokens_mask();
    let before = mask.iter().take_while(|&&special| special == 1).count();
    let after = mask.iter().rev().take_while(|&&special| special == 1).count();
    let ids = encoding.get_ids();
    if before == ids.len() {
        return Err("produces no token for the text `a`".to_owned());
    }
    Ok((ids[..before].to_vec(), ids[ids.len() - after..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_template_is_found_where_folders_have_it() {
        let check = |files: &[(&str, &str)], expect: Option<(&str, Option<&str>)>| {
            let dir = tempfile::tempdir().expect("a folder");
            for (name, text) in files {
                std::fs::write(dir.path().join(name), text).expect("written");
            }
            let found = chat_template(dir.path()).expect("sound files");
            let found = found.as_ref().map(|chat| (chat.template.as_str(), chat.bos_token.as_deref()));
            assert_eq!(found, expect, "{files:?}");
        };
        let file = ("chat_template.jinja", "file");
        check(&[], None);
        check(&[file], Some(("file", None)));
        check(&[("tokenizer_config.json", "{}")], None);
        check(&[("tokenizer_config.json", r#"{"chat_template": null}"#)], None);
        let config = r#"{"chat_template": "key", "bos_token": "<s>"}"#;
        check(&[("tokenizer_config.json", config)], Some(("key", Some("<s>"))));
        check(&[file, ("tokenizer_config.json", config)], Some(("file", Some("<s>"))));
        let objects = r#"{"bos_token": {"content": "<s>", "lstrip": false},
            "chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        check(&[("tokenizer_config.json", objects)], Some(("d", Some("<s>"))));
    }
}
