//! Rebuilds a model's `tokenizer.json` from the metadata of a GGUF file. Does not know about architectures.
//!
//! A file has the tokens and what they are for, but only a name for the rules by which a text is split before
//! byte pairs are merged. A tokenizer whose rules are not in the tables below is refused, because wrong rules
//! give other token ids than those that the model was trained on.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::container::{GgufFile, Value, unsupported};
use crate::{ExportError, source::ChatTemplate};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const TEMPLATE: &str = "tokenizer.chat_template";

/// The kinds of tokens in [`KINDS`] that a text is searched for before it is split.
const KIND_UNKNOWN: u64 = 2;
const KIND_CONTROL: u64 = 3;
const KIND_USER: u64 = 4;

/// The character that stands for a space in the tokens of a SentencePiece vocabulary.
const SPACE: &str = "▁";

/// The largest number of tokens, four times that of Gemma 3. Each token takes about a kilobyte while the
/// tokenizer is built.
const TOKENS_MAX: usize = 1 << 20;

/// The longest token, in bytes. Splitting a token takes time that grows with the square of its length.
const TOKEN_BYTES_MAX: usize = 1 << 10;

/// The largest number of pairs that form tokens. Real vocabularies have about two for each token.
const PAIRS_MAX: usize = 1 << 22;

/// The order in which pairs of tokens of a SentencePiece vocabulary are merged, if the file has no merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeOrder {
    /// The pair whose merged token has the highest score first.
    Scores,
    /// The pair whose merged token has the lowest id first.
    Ids,
}

/// How a byte-level vocabulary splits a text before it merges byte pairs.
struct Split {
    /// The names of the rules in [`PRE`].
    names: &'static [&'static str],
    /// What is done to the text first.
    normalizer: Option<&'static str>,
    rule: Rule,
    /// Whether a piece of text that is a token is that token, whatever the merges say.
    ignores_merges: bool,
    /// Whether a text begins with the first token, in a file that does not say.
    adds_bos: bool,
}

#[derive(Clone, Copy)]
enum Rule {
    Gpt2,
    /// The rule of GPT-2 after every digit became a piece of its own.
    Digits,
    /// A regular expression for a piece.
    Pieces(&'static str),
}

const SPLITS: [Split; 4] = [
    Split {
        names: &["default", "gpt-2"],
        normalizer: None,
        rule: Rule::Gpt2,
        ignores_merges: false,
        adds_bos: false,
    },
    Split {
        names: &["smollm"],
        normalizer: None,
        rule: Rule::Digits,
        ignores_merges: false,
        adds_bos: false,
    },
    Split {
        names: &["llama-bpe", "llama3", "llama-v3"],
        normalizer: None,
        rule: Rule::Pieces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ignores_merges: true,
        adds_bos: true,
    },
    Split {
        names: &["qwen2"],
        normalizer: Some("NFC"),
        rule: Rule::Pieces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ignores_merges: false,
        adds_bos: false,
    },
];

/// Returns the content of `tokenizer.json`. `order` is used for SentencePiece vocabularies without merges.
///
/// # Errors
/// Returns an [`ExportError`] if a key is missing or has a value of another type, or if the tokenizer is of
/// a kind that cannot be rebuilt.
pub fn tokenizer_json(file: &GgufFile, order: MergeOrder) -> Result<Vec<u8>, ExportError> {
    let json = match text(file, MODEL)? {
        Some("gpt2") => byte_level(file),
        Some("llama") => sentence_piece(file, order),
        found => Err(unsupported(file, MODEL, found.unwrap_or("missing").to_owned(), "gpt2, llama")),
    }?;
    Ok(serde_json::to_vec(&json).expect("texts and numbers serialise"))
}

/// Returns the chat template and the tokens that it may use; `None` if the file has no template.
///
/// # Errors
/// Returns an [`ExportError`] if a key has a value of another type, or a token id that does not exist.
pub fn chat_template(file: &GgufFile) -> Result<Option<ChatTemplate>, ExportError> {
    let Some(template) = text(file, TEMPLATE)? else { return Ok(None) };
    let tokens = tokens(file)?;
    let token = |key| id(file, key, tokens).map(|id| id.map(|id| tokens[id].clone()));
    Ok(Some(ChatTemplate { template: template.to_owned(), bos_token: token(BOS)?, eos_token: token(EOS)? }))
}

/// A tokenizer that merges bytes, each of which is written as a printable character.
fn byte_level(file: &GgufFile) -> Result<Json, ExportError> {
    let name = text(file, PRE)?.unwrap_or("default");
    let split = SPLITS.iter().find(|split| split.names.contains(&name)).ok_or_else(|| {
        let supported = SPLITS.iter().flat_map(|split| split.names).copied().collect::<Vec<_>>().join(", ");
        unsupported(file, PRE, name.to_owned(), &supported)
    })?;
    let tokens = tokens(file)?;
    let Some(merges) = merges(file)? else {
        return Err(unsupported(file, MERGES, "missing".to_owned(), "a list of texts"));
    };
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let sequence = |first: Json, then: Json| json!({"type": "Sequence", "pretokenizers": [first, then]});
    let pre_tokenizer = match split.rule {
        Rule::Gpt2 => bytes(true),
        Rule::Digits => sequence(json!({"type": "Digits", "individual_digits": true}), bytes(true)),
        Rule::Pieces(regex) => {
            let pattern = json!({"Regex": regex});
            let pieces =
                json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
            sequence(pieces, bytes(false))
        }
    };
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(file, tokens, tokens)?,
        "normalizer": split.normalizer.map(|kind| json!({"type": kind})),
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor(file, tokens, split.adds_bos)?,
        "decoder": bytes(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": split.ignores_merges,
            "vocab": vocabulary(file, tokens)?,
            "merges": merges,
        },
    }))
}

/// A tokenizer that merges characters, and falls back to bytes for characters that are not tokens.
fn sentence_piece(file: &GgufFile, order: MergeOrder) -> Result<Json, ExportError> {
    let stored = tokens(file)?;
    // Some files have tokens of several spaces with true spaces, where the model's tokenizer has `SPACE`.
    let is_spaces = |token: &str| token.len() > 1 && token.bytes().all(|byte| byte == b' ');
    let respell = |token: &String| if is_spaces(token) { token.replace(' ', SPACE) } else { token.clone() };
    let tokens: Vec<String> = stored.iter().map(respell).collect();
    let vocabulary = vocabulary(file, &tokens)?;
    let merges = match merges(file)? {
        Some(merges) => merges,
        None => merges_of_vocabulary(file, &tokens, &priorities(file, order, tokens.len())?)?,
    };
    let unknown = match id(file, UNKNOWN, &tokens)? {
        Some(id) => Some(id),
        None => kinds(file, tokens.len())?.iter().position(|kind| *kind == KIND_UNKNOWN),
    };
    let adds_space = flag(file, ADD_SPACE)?.unwrap_or(true);
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if adds_space {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(file, stored, &tokens)?,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": if adds_space { "first" } else { "never" },
            "split": false,
        },
        "post_processor": post_processor(file, &tokens, true)?,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown.map(|id| &tokens[id]),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocabulary,
            "merges": merges,
        },
    }))
}

/// Returns the id of each token. Fails if two tokens are equal.
fn vocabulary(file: &GgufFile, tokens: &[String]) -> Result<Map<String, Json>, ExportError> {
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = vocabulary.insert(token.clone(), json!(id)) {
            return Err(malformed(file, TOKENS, format!("token `{token}` has the ids {first} and {id}")));
        }
    }
    Ok(vocabulary)
}

/// The tokens that a text is searched for before it is split: control tokens and the unknown token, which are
/// special, and tokens that the model's user defined. Of the latter, those in the chat template are special,
/// too: files differ in the kind that they give to the marks of turns, and text of a chunk must not be read as
/// one. A token with another spelling than in the file is not searched for.
fn added_tokens(file: &GgufFile, stored: &[String], tokens: &[String]) -> Result<Vec<Json>, ExportError> {
    let kinds = kinds(file, tokens.len())?;
    let template = text(file, TEMPLATE)?.unwrap_or_default();
    let marks_a_turn = |token: &str| {
        !token.starts_with(|c: char| c.is_alphanumeric() || c.is_whitespace()) && template.contains(token)
    };
    let is_added = |kind: u64| matches!(kind, KIND_UNKNOWN | KIND_CONTROL | KIND_USER);
    let added = tokens.iter().enumerate().zip(&kinds);
    Ok(added
        .filter(|((id, token), kind)| is_added(**kind) && stored[*id] == **token && !token.is_empty())
        .map(|((id, token), kind)| {
            json!({
                "id": id,
                "content": token,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": *kind != KIND_USER || marks_a_turn(token),
            })
        })
        .collect())
}

/// Puts the first token before each text, if the model needs it. A last token is not added after a text: in a
/// decoder, other texts follow.
fn post_processor(file: &GgufFile, tokens: &[String], adds_bos: bool) -> Result<Json, ExportError> {
    if !flag(file, ADD_BOS)?.unwrap_or(adds_bos) {
        return Ok(Json::Null);
    }
    let Some(id) = id(file, BOS, tokens)? else {
        return Err(unsupported(file, BOS, "missing".to_owned(), "a token id, since texts begin with it"));
    };
    let token = &tokens[id];
    let text = |name: &str, type_id: u32| json!({"Sequence": {"id": name, "type_id": type_id}});
    let bos = |type_id: u32| json!({"SpecialToken": {"id": token, "type_id": type_id}});
    let mut special = Map::new();
    special.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
    Ok(json!({
        "type": "TemplateProcessing",
        "single": [bos(0), text("A", 0)],
        "pair": [bos(0), text("A", 0), bos(1), text("B", 1)],
        "special_tokens": special,
    }))
}

/// The pairs of tokens that the file lists for merging, the first to be merged first; `None` if the file has
/// no list.
fn merges(file: &GgufFile) -> Result<Option<Vec<[&str; 2]>>, ExportError> {
    let merges = match file.value(MERGES) {
        None => return Ok(None),
        Some(Value::Texts(merges)) => merges,
        Some(other) => return Err(unsupported(file, MERGES, other.describe(), "a list of texts")),
    };
    let pair = |merge: &'_ String| {
        // The first token may be a space itself.
        let first_bytes = merge.chars().next().map_or(0, char::len_utf8);
        let space = merge[first_bytes..].find(' ').map(|at| at + first_bytes);
        space.map(|at| (at, at + 1))
    };
    let split = |(index, merge)| match pair(merge) {
        Some((end, start)) => Ok([&merge[..end], &merge[start..]]),
        None => Err(malformed(file, MERGES, format!("entry {index}, `{merge}`, is not a pair of tokens"))),
    };
    merges.iter().enumerate().map(split).collect::<Result<_, _>>().map(Some)
}

/// All pairs of tokens that form a token, in the order in which they are merged: by the priority of the token
/// that they form, then the longer first part. `priorities[id]` is highest for the pair that is merged first.
///
/// # Errors
/// Returns an [`ExportError`] if there are more than [`PAIRS_MAX`] pairs.
fn merges_of_vocabulary<'a>(
    file: &GgufFile,
    tokens: &'a [String],
    priorities: &[f64],
) -> Result<Vec<[&'a str; 2]>, ExportError> {
    let ids: HashMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let mut pairs = Vec::new();
    for (token, &priority) in tokens.iter().zip(priorities) {
        let from = pairs.len();
        for (at, _) in token.char_indices().skip(1) {
            let (first, second) = token.split_at(at);
            if let (Some(&a), Some(&b)) = (ids.get(first), ids.get(second)) {
                pairs.push((priority, (a, b), [first, second]));
            }
        }
        if pairs.len() > PAIRS_MAX {
            let found = format!("tokens with more than {PAIRS_MAX} pairs to merge");
            return Err(unsupported(file, TOKENS, found, "fewer pairs"));
        }
        pairs[from..].sort_by_key(|(_, ids, _)| *ids);
    }
    let lengths = |pair: &[&str; 2]| pair.map(|part| part.chars().count());
    // The sort is stable: pairs that are equal in all of this keep the order of their ids.
    pairs.sort_by_cached_key(|(priority, _, pair)| Reverse((Ordered(*priority), lengths(pair))));
    Ok(pairs.into_iter().map(|(_, _, pair)| pair).collect())
}

#[derive(PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The priority of each token for [`merges_of_vocabulary`].
fn priorities(file: &GgufFile, order: MergeOrder, count: usize) -> Result<Vec<f64>, ExportError> {
    if order == MergeOrder::Ids {
        return Ok((0..count).map(|id| -(id as f64)).collect());
    }
    let numbers = match file.value(SCORES) {
        Some(Value::Numbers(numbers)) if numbers.count() == count => numbers,
        found => {
            let found = found.map_or_else(|| "missing".to_owned(), Value::describe);
            return Err(unsupported(file, SCORES, found, &format!("a list of {count} numbers")));
        }
    };
    let score = |value| match value {
        Value::Float(score) => score,
        Value::Unsigned(score) => score as f64,
        Value::Negative(score) => score as f64,
        _ => 0.0,
    };
    Ok(numbers.iter().map(score).collect())
}

/// Returns all tokens; the index of a token is its id.
fn tokens(file: &GgufFile) -> Result<&[String], ExportError> {
    match file.value(TOKENS) {
        Some(Value::Texts(tokens)) => match tokens.iter().map(String::len).max() {
            _ if tokens.len() > TOKENS_MAX => {
                let found = format!("{} tokens", tokens.len());
                Err(unsupported(file, TOKENS, found, &format!("at most {TOKENS_MAX}")))
            }
            Some(longest) if longest > TOKEN_BYTES_MAX => {
                let found = format!("a token of {longest} bytes");
                Err(unsupported(file, TOKENS, found, &format!("at most {TOKEN_BYTES_MAX} bytes a token")))
            }
            _ => Ok(tokens),
        },
        found => {
            let found = found.map_or_else(|| "missing".to_owned(), Value::describe);
            Err(unsupported(file, TOKENS, found, "a list of texts"))
        }
    }
}

/// The kind of each token. A file without kinds has ordinary tokens only.
fn kinds(file: &GgufFile, count: usize) -> Result<Vec<u64>, ExportError> {
    let kind = |value| if let Value::Unsigned(kind) = value { kind } else { 0 };
    match file.value(KINDS) {
        None => Ok(vec![0; count]),
        Some(Value::Numbers(numbers)) if numbers.count() == count => Ok(numbers.iter().map(kind).collect()),
        Some(other) => Err(unsupported(file, KINDS, other.describe(), &format!("a list of {count} numbers"))),
    }
}

/// The token id under `key`; `None` if the file does not have the key.
fn id(file: &GgufFile, key: &str, tokens: &[String]) -> Result<Option<usize>, ExportError> {
    match file.value(key) {
        None => Ok(None),
        Some(Value::Unsigned(id)) if *id < tokens.len() as u64 => Ok(Some(*id as usize)),
        Some(other) => {
            Err(unsupported(file, key, other.describe(), &format!("a token id below {}", tokens.len())))
        }
    }
}

fn text<'a>(file: &'a GgufFile, key: &str) -> Result<Option<&'a str>, ExportError> {
    match file.value(key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text)),
        Some(other) => Err(unsupported(file, key, other.describe(), "a text")),
    }
}

fn flag(file: &GgufFile, key: &str) -> Result<Option<bool>, ExportError> {
    match file.value(key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(unsupported(file, key, other.describe(), "true, false")),
    }
}

fn malformed(file: &GgufFile, at: &str, reason: String) -> ExportError {
    ExportError::FileMalformed { file: file.path().to_owned(), at: at.to_owned(), reason }
}
