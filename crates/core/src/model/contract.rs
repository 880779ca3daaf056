//! The contract of a model: `contract.toml`, which declares the model's files, the shapes of its graphs and
//! how it is run. Knows nothing of ONNX Runtime: the caller passes to [`check_io`] what a session reports.
//!
//! `thresher export` writes the contract, and loading a model reads it. There are three checks, each more
//! expensive than the one before: [`Contract::load`] checks the values of the contract and that all files
//! exist, [`check_io`] compares the inputs and outputs of a graph with the contract, and
//! [`Contract::verify_files`] compares the SHA-256 of every file.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::regular_files;

mod cross;
mod decoder;
mod eviction;
mod graphs;
mod probe;

pub use cross::{Cross, VerdictWeights};
pub use decoder::{ChosenHeads, Decoder, HeadChoice, QuestionTokens, Rotary};
pub use eviction::{BudgetScope, CalibratedEviction, EvictionForm, KeyScale};
pub use graphs::{Dim, Graph, IoTensor, Side, check_io, value_names};
pub use probe::{Around, Probe, ProbeFeatures, QUESTION_MARK, TEMPLATE_DEFAULT, around_question};

/// The file name of the contract in a model's folder.
pub const CONTRACT_FILE: &str = "contract.toml";

/// The schema version of contracts that this build reads and writes.
pub const SCHEMA: u32 = 2;

/// The axes of a stored key, slowest first. Cached blocks depend on this order: another layout needs another
/// schema version.
pub const KEY_LAYOUT: &str = "head,token,dim";

/// The content of `contract.toml`. It has the same fields as the file, except that the file gives the family
/// as a table `[late]`, `[decoder]` or `[cross]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ContractFile", into = "ContractFile")]
pub struct Contract {
    /// The schema version of the contract; [`SCHEMA`] in contracts that this build can read.
    pub schema: u32,
    /// The model's name in requests, responses and logs.
    pub name: String,
    /// The architecture of the exported model, as its `config.json` names it (for example `BertModel`).
    pub architecture: String,
    /// The checkpoint that the model was exported from.
    pub source: CheckpointInfo,
    /// The tokenizer, and the special tokens around a window.
    pub tokenizer: Tokenizer,
    /// The size of a window: the tokens of one forward pass.
    pub window: Window,
    /// The file with the weights of all graphs.
    pub weights: StoredWeights,
    /// The family of the model with its graphs and shapes.
    pub family: Family,
    /// The SHA-256 of every file of the model, in lower-case hexadecimal, by file name.
    pub files: BTreeMap<String, String>,
}

/// The family of a model, which decides how it is run.
#[derive(Debug, Clone, PartialEq)]
pub enum Family {
    /// Late interaction: passages and question are encoded separately, and the logits are dot products of
    /// their vectors.
    Late(Late),
    /// A decoder: the question attends to the cached keys and values of passages, and the logits are those of
    /// this attention.
    Decoder(Decoder),
    /// A cross-encoder: two texts are read together, and the logits are those of its labels. It has no keys, so it
    /// cannot score chunks; it only judges whether evidence supports a claim.
    Cross(Cross),
}

/// A [`Contract`] as the file contains it: the family is given by which of three tables is present.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContractFile {
    schema: u32,
    name: String,
    architecture: String,
    source: CheckpointInfo,
    tokenizer: Tokenizer,
    window: Window,
    weights: StoredWeights,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Late>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decoder: Option<Decoder>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cross: Option<Cross>,
    files: BTreeMap<String, String>,
}

/// The checkpoint that a model was exported from, as far as the checkpoint's folder says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointInfo {
    /// The publisher's name of the checkpoint (`_name_or_path` in `config.json`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The publisher's revision of the checkpoint (`_commit_hash` in `config.json`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The licence of the weights (from the front matter of `README.md`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    /// The SHA-256 of the output of `sha256sum` over the checkpoint's files (`model.safetensors`, or the
    /// shards of the index ordered by name), in hexadecimal. A program that imports exported keys and values
    /// compares it, to be sure that it runs the same weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// The tokenizer and the special tokens of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenizer {
    /// The file name of the tokenizer, in the format of the `tokenizers` library.
    pub file: String,
    /// The ids of the tokens before a window's tokens: special tokens (for example `[CLS]`), and the tokens of
    /// `prefix_text`.
    pub prefix: Vec<u32>,
    /// The ids of the special tokens after a window's tokens (for example `[SEP]`). Empty for a decoder.
    pub suffix: Vec<u32>,
    /// The number of rows of the embedding table. Every token id is below it.
    pub vocab_size: usize,
    /// The text that the model reads before every passage (for example `passage: `), for people who read the
    /// contract; `prefix` has its tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_text: Option<String>,
    /// How the model writes a chat; `None` if its source had no chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<Chat>,
    /// What stands around a question; `None` if it is the same as around a window. Always `None` for a decoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Question>,
}

/// What stands around a question, for late-interaction models that read questions and passages differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The ids of the tokens before a question: special tokens, a marker, and the tokens of `prefix_text`.
    pub prefix: Vec<u32>,
    /// The ids of the special tokens after a question.
    pub suffix: Vec<u32>,
    /// The text that the model reads before every question (for example `query: `), for people who read the
    /// contract; `prefix` has its tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_text: Option<String>,
    /// The padding after `suffix`; `None` if the model does not pad questions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<QuestionPadding>,
}

/// The padding of questions in ColBERT, which the model reads as further tokens of the question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuestionPadding {
    /// The id of the padding token (for example `[MASK]`).
    pub token: u32,
    /// The number of tokens, special tokens included, that a padded question has. Longer questions are not
    /// padded.
    pub tokens_min: usize,
    /// Whether the question's tokens attend to the padding. If they do not, the padding does not change their
    /// vectors, and the runtime leaves it out.
    pub attended: bool,
}

/// How a model writes a list of messages as one text. It has no influence on keys and values, so it is not
/// part of the fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// The file name of the template, in the language Jinja.
    pub template: String,
    /// The token that the template names `bos_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos_token: Option<String>,
    /// The token that the template names `eos_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos_token: Option<String>,
}

/// The size of a window: the tokens of one forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The largest number of tokens of a window, special tokens included.
    pub tokens_max: usize,
}

/// The file with the weights of all graphs, in the form of ONNX external data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredWeights {
    pub file: String,
    pub dtype: Weights,
}

/// A late-interaction model: its graphs, shapes and the scale of its logits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Late {
    /// The file name of the graph that encodes passages: `input_ids, attention_mask [b, t]` →
    /// `key [b, heads, t, head_dim]`, for all tokens, special tokens included.
    pub passage: String,
    /// The file name of the graph that computes logits: `input_ids [1, q], key [heads, n, head_dim]` →
    /// `cross_logits [heads, q, n]`, `self_logits [heads, q, q]`. Logits are raw: before the softmax. `q`
    /// includes the special tokens; the runtime drops their rows, and their columns of `self_logits`. If `n`
    /// is at least 2, the logits over a key have the same bits whatever other keys are in `key`.
    pub query: String,
    pub heads: usize,
    /// The number of components of a key in one head.
    pub head_dim: usize,
    /// The factor by which the query graph multiplies the dot products of queries and keys. The logits
    /// include it.
    pub scale: f64,
    /// The axes of a key, slowest first. It must be [`KEY_LAYOUT`].
    pub key_layout: String,
    /// The element type of keys and logits in the graphs' inputs and outputs. It must be `f32`.
    pub key_dtype: String,
}

/// The element type of stored weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// 32-bit floating point. This is the default.
    #[default]
    F32,
    /// 16-bit floating point. Layers multiply in 16 bits; all other operations use 32 bits.
    F16,
    /// Signed bytes with a scale for each column, for weights where this loses little accuracy; the others
    /// are `F32`.
    Int8,
}

impl Weights {
    /// Returns whether results with these weights are the same on every device and machine, except for rounding in single
    /// precision.
    pub fn is_exact(self) -> bool {
        self == Self::F32
    }

    /// Returns the name of the element type in a contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

impl Contract {
    /// Reads `dir/contract.toml`, and checks its values and that every file that it names exists.
    ///
    /// # Errors
    /// Fails if the contract is missing, cannot be read, is malformed, has another schema version or a value
    /// that is not allowed, or names a file that does not exist.
    pub fn load(dir: &Path) -> Result<Self, ContractError> {
        let path = dir.join(CONTRACT_FILE);
        let text = regular_files::read_to_string(&path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound if dir.join("config.json").is_file() => {
                ContractError::NotExported { dir: dir.to_owned() }
            }
            io::ErrorKind::NotFound => ContractError::Missing { dir: dir.to_owned() },
            _ => ContractError::Read { file: path.clone(), cause },
        })?;
        let contract = Self::parse(&path, &text)?;
        contract.check_values(&path)?;
        for file in contract.files.keys().map(|name| dir.join(name)) {
            if !file.is_file() {
                return Err(ContractError::FileMissing { contract: path, file });
            }
        }
        Ok(contract)
    }

    /// Writes `dir/contract.toml`. Equal contracts give equal bytes.
    ///
    /// # Errors
    /// Fails if a value is not allowed or the file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), ContractError> {
        let path = dir.join(CONTRACT_FILE);
        self.check_values(&path)?;
        let text =
            toml::to_string(self).expect("a contract has only types of TOML, and its tables come last");
        // The file is renamed when it is complete, so that the folder of an existing model always has a
        // complete contract.
        let partial = dir.join(format!(".{CONTRACT_FILE}.partial"));
        let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, &path));
        written.map_err(|cause| ContractError::Write { file: path, cause })
    }

    /// Compares the SHA-256 of every file with the contract. It reads the files completely, which takes about
    /// a second per gigabyte.
    ///
    /// # Errors
    /// Fails at the first file that cannot be read or has another hash.
    pub fn verify_files(&self, dir: &Path) -> Result<(), ContractError> {
        for (name, declared) in &self.files {
            let file = dir.join(name);
            let found =
                sha256_of(&file).map_err(|cause| ContractError::Read { file: file.clone(), cause })?;
            if found != *declared {
                return Err(ContractError::HashMismatch { file, declared: declared.clone(), found });
            }
        }
        Ok(())
    }

    /// Returns a hash over everything that cached keys depend on: the hashes of graphs, weights and
    /// tokenizer, the special tokens, the size of windows, and the shapes of the family. It does not depend
    /// on the name, the source, the chosen heads and the probe, except that it depends on the number of
    /// layers that these need.
    pub fn fingerprint(&self) -> [u8; 32] {
        let files = self.named_files().into_iter().map(|(key, name)| (key, self.files.get(name)));
        let shapes = match &self.family {
            Family::Late(late) => serde_json::to_value(late),
            Family::Decoder(decoder) => serde_json::to_value((decoder.for_fingerprint(), decoder.depth())),
            Family::Cross(cross) => serde_json::to_value(Cross { verdicts: None, ..cross.clone() }),
        };
        let Self { tokenizer, window, weights, schema, .. } = self;
        let files = files.collect::<Vec<_>>();
        let mut shapes = shapes.expect("plain values serialise");
        if let Some(question) = &self.tokenizer.question {
            // The self logits of a question depend on it, keys do not. Only models that have it hash it.
            shapes = serde_json::json!([shapes, question.prefix, question.suffix, question.padding]);
        }
        let hashed = (files, &tokenizer.prefix, &tokenizer.suffix, window, weights.dtype, shapes, schema);
        Sha256::digest(serde_json::to_vec(&hashed).expect("plain values serialise")).into()
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ContractError> {
        // The version is read first. Otherwise the new keys of a newer schema would be reported as unknown
        // keys.
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let malformed = |cause| ContractError::Malformed { file: path.to_owned(), cause };
        let Version { schema } = toml::from_str(text).map_err(malformed)?;
        if schema != SCHEMA {
            return Err(ContractError::SchemaUnknown { file: path.to_owned(), found: schema });
        }
        toml::from_str(text).map_err(malformed)
    }

    fn check_values(&self, path: &Path) -> Result<(), ContractError> {
        let refuse = |key: &str, reason: String| {
            Err(ContractError::ValueInvalid { file: path.to_owned(), key: key.to_owned(), reason })
        };
        let chat = self.tokenizer.chat.iter().map(|chat| ("tokenizer.chat.template", &chat.template));
        for (key, name) in self.named_files().into_iter().chain(chat) {
            if !self.files.contains_key(name) {
                return refuse(key, format!("`{name}` has no hash in the table [files]"));
            }
        }
        for (name, hash) in &self.files {
            // A contract may come with a downloaded model, so it must not name files outside of its folder.
            if Path::new(name).components().ne([std::path::Component::Normal(name.as_ref())]) {
                return refuse("files", format!("`{name}` is not a plain file name"));
            }
            if hash.len() != 64 || !hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                return refuse(
                    "files",
                    format!("`{hash}` of `{name}` is not 64 lower-case hexadecimal digits"),
                );
            }
        }
        let specials = self.tokenizer.special_tokens_max();
        if self.window.tokens_max <= specials {
            return refuse(
                "window.tokens_max",
                format!(
                    "{} tokens leave no room for text beside the {specials} special tokens",
                    self.window.tokens_max
                ),
            );
        }
        if let Some(id) = self.special_ids().find(|&id| id as usize >= self.tokenizer.vocab_size) {
            return refuse(
                "tokenizer",
                format!("special token id {id} is not below vocab_size {}", self.tokenizer.vocab_size),
            );
        }
        let padding = self.tokenizer.question.as_ref().and_then(|question| question.padding.as_ref());
        if let Some(padding) = padding.filter(|padding| padding.tokens_min > self.window.tokens_max) {
            let reason = format!(
                "is {}, but a window has {} tokens at most",
                padding.tokens_min, self.window.tokens_max
            );
            return refuse("tokenizer.question.padding.tokens_min", reason);
        }
        match &self.family {
            Family::Late(late) => late.check(),
            Family::Decoder(_) if self.tokenizer.question.is_some() => {
                let reason =
                    "is for late-interaction models; a decoder's question follows windows".to_owned();
                Err(("tokenizer.question", reason))
            }
            Family::Decoder(_) if !self.tokenizer.suffix.is_empty() => {
                let reason = "must be empty for a decoder, because other windows follow a window".to_owned();
                Err(("tokenizer.suffix", reason))
            }
            Family::Cross(cross) => cross.check(specials, self.window.tokens_max),
            Family::Decoder(decoder) => decoder.check(self.window.tokens_max).and_then(|()| {
                let Some(probe) = &decoder.probe else { return Ok(()) };
                // A probe of another model has another shape, too; the advice is to train one for this model.
                probe.check_weights(self.files.get(&self.weights.file))?;
                probe.check(decoder.layers, decoder.heads)
            }),
        }
        .or_else(|(key, reason)| refuse(key, reason))
    }

    /// The files that decide what the model computes, with the keys that name them.
    fn named_files(&self) -> Vec<(&'static str, &String)> {
        let mut files = match &self.family {
            Family::Late(late) => vec![("late.passage", &late.passage), ("late.query", &late.query)],
            Family::Decoder(decoder) => vec![("decoder.graph", &decoder.graph)],
            Family::Cross(cross) => vec![("cross.graph", &cross.graph)],
        };
        files.extend([("weights.file", &self.weights.file), ("tokenizer.file", &self.tokenizer.file)]);
        files
    }

    fn special_ids(&self) -> impl Iterator<Item = u32> {
        let Tokenizer { prefix, suffix, question, .. } = &self.tokenizer;
        let of_question = question.iter().flat_map(|question| {
            let padding = question.padding.iter().map(|padding| &padding.token);
            question.prefix.iter().chain(&question.suffix).chain(padding)
        });
        let between = match &self.family {
            Family::Cross(cross) => &cross.between[..],
            Family::Late(_) | Family::Decoder(_) => &[],
        };
        prefix.iter().chain(suffix).chain(of_question).chain(between).copied()
    }
}

impl Tokenizer {
    /// Returns the largest number of tokens around a window or a question, without padding.
    pub fn special_tokens_max(&self) -> usize {
        let of_question =
            self.question.as_ref().map_or(0, |question| question.prefix.len() + question.suffix.len());
        of_question.max(self.prefix.len() + self.suffix.len())
    }
}

impl Late {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.heads == 0 || self.head_dim == 0 {
            let reason =
                format!("heads is {} and head_dim is {}; both must be above 0", self.heads, self.head_dim);
            return Err(("late", reason));
        }
        if !self.scale.is_finite() || self.scale <= 0.0 {
            return Err(("late.scale", format!("must be finite and above 0, but is {}", self.scale)));
        }
        if self.key_layout != KEY_LAYOUT {
            let reason = format!("must be `{KEY_LAYOUT}`, but is `{}`", self.key_layout);
            return Err(("late.key_layout", reason));
        }
        if self.key_dtype != "f32" {
            return Err(("late.key_dtype", format!("must be `f32`, but is `{}`", self.key_dtype)));
        }
        Ok(())
    }
}

impl TryFrom<ContractFile> for Contract {
    type Error = &'static str;

    fn try_from(file: ContractFile) -> Result<Self, Self::Error> {
        let family = match (file.late, file.decoder, file.cross) {
            (Some(late), None, None) => Family::Late(late),
            (None, Some(decoder), None) => Family::Decoder(decoder),
            (None, None, Some(cross)) => Family::Cross(cross),
            (None, None, None) => return Err("the contract has no table [late], [decoder] or [cross]"),
            _ => {
                return Err(
                    "the contract has several of the tables [late], [decoder] and [cross]; keep the one of the \
                     model's family",
                );
            }
        };
        let ContractFile { schema, name, architecture, source, tokenizer, window, weights, files, .. } = file;
        Ok(Self { schema, name, architecture, source, tokenizer, window, weights, family, files })
    }
}

impl From<Contract> for ContractFile {
    fn from(contract: Contract) -> Self {
        let (late, decoder, cross) = match contract.family {
            Family::Late(late) => (Some(late), None, None),
            Family::Decoder(decoder) => (None, Some(decoder), None),
            Family::Cross(cross) => (None, None, Some(cross)),
        };
        let Contract { schema, name, architecture, source, tokenizer, window, weights, files, .. } = contract;
        Self { schema, name, architecture, source, tokenizer, window, weights, late, decoder, cross, files }
    }
}

/// Returns the SHA-256 of a file in lower-case hexadecimal. It reads the file piece by piece, because a
/// model's file may be larger than memory.
///
/// # Errors
/// Returns the error of reading the file.
pub fn sha256_of(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hex::encode(hasher.finalize()))
}

/// What is wrong with a contract, with the model's files or with its graphs. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    #[error("{} is a Hugging Face folder; convert it with `thresher export {} --out FOLDER`", dir.display(), dir.display())]
    NotExported { dir: PathBuf },
    #[error("no {CONTRACT_FILE} in {}; run `thresher init`, or export a model to this folder with `thresher export`", dir.display())]
    Missing { dir: PathBuf },
    #[error("cannot read {}: {cause}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("cannot write {}: {cause}", file.display())]
    Write {
        file: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// The contract is not TOML, or a key is missing, unknown or of the wrong type. The cause shows the line.
    #[error("{}: {cause}", file.display())]
    Malformed {
        file: PathBuf,
        #[source]
        cause: toml::de::Error,
    },
    #[error("{}: schema is {found}, but this version reads {SCHEMA}; export the model again", file.display())]
    SchemaUnknown {
        file: PathBuf,
        /// The schema version of the contract.
        found: u32,
    },
    #[error("{}: {key}: {reason}", file.display())]
    ValueInvalid {
        file: PathBuf,
        /// The key of the value with its tables, separated by dots.
        key: String,
        reason: String,
    },
    #[error("{} names {}, which does not exist; export the model again", contract.display(), file.display())]
    FileMissing { contract: PathBuf, file: PathBuf },
    #[error("{}: contract declares SHA-256 {declared}, file has {found}; export the model again (`thresher init` does this for the default model)", file.display())]
    HashMismatch {
        file: PathBuf,
        /// The SHA-256 in the contract, in hexadecimal.
        declared: String,
        /// The SHA-256 of the file, in hexadecimal.
        found: String,
    },
    #[error("{graph}: contract declares {declared}, graph has {found}")]
    IoMismatch {
        graph: String,
        /// The inputs or outputs that the contract declares.
        declared: String,
        /// The inputs or outputs that the graph has.
        found: String,
    },
}

#[cfg(test)]
#[path = "contract/tests.rs"]
pub(crate) mod tests;
