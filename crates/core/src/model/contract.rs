//! The contract: `contract.toml`, the file that says what a model's graphs take and give.
//! Knows nothing of ONNX Runtime: [`check_io`] is handed what a session reports.
//!
//! A contract is written by `thresher export` and read when a model is opened. It is checked in three steps, each
//! dearer than the one before: [`Contract::load`] (the file itself, and that the others exist), [`check_io`] (the
//! session's real inputs and outputs) and [`Contract::verify_files`] (the SHA-256 of every file).

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::Path,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub mod cut;
mod decoder;
mod error;
mod io_check;

pub use decoder::{Chosen, Decoder, HeadChoice, QuestionTokens, Rotary};
pub use error::ContractError;
pub use io_check::{Dim, Graph, IoTensor, Side, check_io};

/// The name of the contract's file in a model's folder.
pub const CONTRACT_FILE: &str = "contract.toml";

/// The only schema version that this build reads and writes.
pub const SCHEMA: u32 = 2;

/// The axes of a stored key, slowest first; a KV block depends on it, so another layout is another schema value.
pub const KEY_LAYOUT: &str = "head,token,dim";

/// What a model's files promise. Field by field the same as `contract.toml`, where the table `[late]` or `[decoder]` names the
/// family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Flat", into = "Flat")]
pub struct Contract {
    /// Version of this file's own shape: [`SCHEMA`].
    pub schema: u32,
    /// The name under which users ask for the model.
    pub name: String,
    /// The architecture that was exported, as the source's `config.json` names it (`BertModel`).
    pub architecture: String,
    /// Where the weights came from.
    pub source: Source,
    /// Tokenizer and the special tokens around a window.
    pub tokenizer: Tokenizer,
    /// How much one forward pass reads.
    pub window: Window,
    /// The weights of all graphs.
    pub weights: StoredWeights,
    /// How the model is run; each family has its own graphs.
    pub family: Family,
    /// SHA-256 in lower-case hex of every file of the model, by file name.
    pub files: BTreeMap<String, String>,
}

/// How a model is run.
#[derive(Debug, Clone, PartialEq)]
pub enum Family {
    /// Passages and question are encoded apart; the logits are dot products of their readout vectors.
    Late(Late),
    /// The question runs over the keys and values of passages that were read before; the logits are those of its own attention.
    Decoder(Decoder),
}

/// [`Contract`] as it stands in the file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Flat {
    schema: u32,
    name: String,
    architecture: String,
    source: Source,
    tokenizer: Tokenizer,
    window: Window,
    weights: StoredWeights,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Late>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decoder: Option<Decoder>,
    files: BTreeMap<String, String>,
}

/// Where the weights came from, as far as the source's folder says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Publisher's name of the checkpoint (`config.json`, `_name_or_path`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Publisher's revision (`config.json`, `_commit_hash`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Licence (the front matter of `README.md`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    /// SHA-256 of what `sha256sum` prints of the checkpoint's files (`model.safetensors`, or the index's shards by name): by this, keys and
    /// values are handed over to the same model elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// Tokenizer and special tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenizer {
    /// File name, in the format of the `tokenizers` library, without truncation or padding.
    pub file: String,
    /// Ids put before a window's tokens (`[CLS]`).
    pub prefix: Vec<u32>,
    /// Ids put after a window's tokens (`[SEP]`).
    pub suffix: Vec<u32>,
    /// Rows of the embedding table: every id given to a graph is below it.
    pub vocab_size: usize,
}

/// How much one forward pass reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Most tokens of one window, prefix and suffix included.
    pub tokens_max: usize,
}

/// The weights of all graphs, as ONNX external data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredWeights {
    /// File name.
    pub file: String,
    /// Element type.
    pub dtype: Weights,
}

/// Late interaction: its graphs and its readout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Late {
    /// `input_ids, attention_mask [b, t]` → `key [b, heads, t, head_dim]`, at every position, specials included.
    pub passage: String,
    /// `input_ids [1, q], key [heads, n, head_dim]` → `cross_logits [heads, q, n]`, `self_logits [heads, q, q]`: raw, no
    /// softmax. `q` counts the special tokens: the runtime drops their rows, and their columns of `self_logits`.
    /// From `n` = 2 on, a key's logits have the same bits whatever other keys they are computed with.
    pub query: String,
    /// Heads of a key.
    pub heads: usize,
    /// Components of a key in one head.
    pub head_dim: usize,
    /// What the query graph multiplies ⟨q, k⟩ with; its logits have it already.
    pub scale: f64,
    /// Axes of a key, slowest first: [`KEY_LAYOUT`].
    pub key_layout: String,
    /// Element type of keys and logits at the graphs' edge: `f32`.
    pub key_dtype: String,
}

/// Element type of the stored weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats; layers multiply in them, and all else is computed in 32 bits.
    F16,
    /// Signed bytes with a scale for each column, where that costs little; the rest stays `F32`.
    Int8,
}

impl Weights {
    /// As the contract spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

impl Contract {
    /// Reads `dir/contract.toml`, checks its values and that every file it names exists.
    ///
    /// # Errors
    /// An unreadable or malformed file, an unknown schema version, a value that cannot hold, a missing file.
    pub fn load(dir: &Path) -> Result<Self, ContractError> {
        let path = dir.join(CONTRACT_FILE);
        let text = fs::read_to_string(&path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound if dir.join("config.json").is_file() => {
                ContractError::NotExported { dir: dir.to_owned() }
            }
            io::ErrorKind::NotFound => ContractError::Absent { dir: dir.to_owned() },
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

    /// Writes `dir/contract.toml`; the same contract gives the same bytes.
    ///
    /// # Errors
    /// A value that cannot hold, or a file that cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), ContractError> {
        let path = dir.join(CONTRACT_FILE);
        self.check_values(&path)?;
        let text = toml::to_string(self).expect("a contract has only TOML's types, tables last");
        // Put in its position whole: a model that was there is never left without one.
        let partial = dir.join(format!(".{CONTRACT_FILE}.partial"));
        let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, &path));
        written.map_err(|cause| ContractError::Write { file: path, cause })
    }

    /// Hashes every file and compares; reads them whole, so it takes about a second per gigabyte.
    ///
    /// # Errors
    /// The first file that cannot be read or has another hash.
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

    /// What stored keys depend on: the hashes of graphs, weights and tokenizer, the special tokens, the window that long
    /// texts are cut into, and the family's shapes. The name and the source are left out, and so are the heads that a
    /// calibration chose, but for how many layers they need.
    pub fn fingerprint(&self) -> [u8; 32] {
        let files = self.named_files().into_iter().map(|(key, name)| (key, self.files.get(name)));
        let shapes = match &self.family {
            Family::Late(late) => serde_json::to_value(late),
            Family::Decoder(decoder) => serde_json::to_value((decoder.shape(), decoder.depth())),
        };
        let Self { tokenizer, window, weights, schema, .. } = self;
        let files = files.collect::<Vec<_>>();
        let shapes = shapes.expect("plain values serialise");
        let held = (files, &tokenizer.prefix, &tokenizer.suffix, window, weights.dtype, shapes, schema);
        Sha256::digest(serde_json::to_vec(&held).expect("plain values serialise")).into()
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ContractError> {
        // The version is read first: a newer schema's other keys would otherwise be reported as unknown ones.
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
        for (key, name) in self.named_files() {
            if !self.files.contains_key(name) {
                return refuse(key, format!("`{name}` has no hash in [files]"));
            }
        }
        for (name, hash) in &self.files {
            // A contract may come with a downloaded model: it must not point outside its folder.
            if Path::new(name).components().ne([std::path::Component::Normal(name.as_ref())]) {
                return refuse("files", format!("`{name}` is not a plain file name"));
            }
            if hash.len() != 64 || !hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                return refuse("files", format!("`{hash}` of `{name}` is not 64 lower-case hex digits"));
            }
        }
        let specials = self.tokenizer.prefix.len() + self.tokenizer.suffix.len();
        if self.window.tokens_max <= specials {
            return refuse(
                "window.tokens_max",
                format!("{} leaves no room beside {specials} special tokens", self.window.tokens_max),
            );
        }
        if let Some(id) = self.special_ids().find(|&id| id as usize >= self.tokenizer.vocab_size) {
            return refuse(
                "tokenizer",
                format!("special token id {id} is not below vocab_size {}", self.tokenizer.vocab_size),
            );
        }
        match &self.family {
            Family::Late(late) => late.check(),
            Family::Decoder(_) if !self.tokenizer.suffix.is_empty() => {
                Err(("tokenizer.suffix", "a decoder's window has no end: others follow".to_owned()))
            }
            Family::Decoder(decoder) => decoder.check(self.window.tokens_max),
        }
        .or_else(|(key, reason)| refuse(key, reason))
    }

    fn named_files(&self) -> Vec<(&'static str, &String)> {
        let mut files = match &self.family {
            Family::Late(late) => vec![("late.passage", &late.passage), ("late.query", &late.query)],
            Family::Decoder(decoder) => vec![("decoder.graph", &decoder.graph)],
        };
        files.extend([("weights.file", &self.weights.file), ("tokenizer.file", &self.tokenizer.file)]);
        files
    }

    fn special_ids(&self) -> impl Iterator<Item = u32> {
        self.tokenizer.prefix.iter().chain(&self.tokenizer.suffix).copied()
    }
}

impl Late {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.heads == 0 || self.head_dim == 0 {
            return Err(("late", format!("{} heads of {} components", self.heads, self.head_dim)));
        }
        if !self.scale.is_finite() || self.scale <= 0.0 {
            return Err(("late.scale", format!("{} is not above 0", self.scale)));
        }
        if self.key_layout != KEY_LAYOUT {
            return Err(("late.key_layout", format!("`{}` is not `{KEY_LAYOUT}`", self.key_layout)));
        }
        if self.key_dtype != "f32" {
            return Err(("late.key_dtype", format!("`{}` is not `f32`", self.key_dtype)));
        }
        Ok(())
    }
}

impl TryFrom<Flat> for Contract {
    type Error = &'static str;

    fn try_from(flat: Flat) -> Result<Self, Self::Error> {
        let family = match (flat.late, flat.decoder) {
            (Some(late), None) => Family::Late(late),
            (None, Some(decoder)) => Family::Decoder(decoder),
            (None, None) => return Err("there is neither a table [late] nor [decoder]"),
            (Some(_), Some(_)) => {
                return Err("there are both [late] and [decoder]: a model is of one family");
            }
        };
        let Flat { schema, name, architecture, source, tokenizer, window, weights, files, .. } = flat;
        Ok(Self { schema, name, architecture, source, tokenizer, window, weights, family, files })
    }
}

impl From<Contract> for Flat {
    fn from(contract: Contract) -> Self {
        let (late, decoder) = match contract.family {
            Family::Late(late) => (Some(late), None),
            Family::Decoder(decoder) => (None, Some(decoder)),
        };
        let Contract { schema, name, architecture, source, tokenizer, window, weights, files, .. } = contract;
        Self { schema, name, architecture, source, tokenizer, window, weights, late, decoder, files }
    }
}

/// SHA-256 of a file in lower-case hex, read piece by piece: a model's file may be larger than memory.
///
/// # Errors
/// A file that cannot be read.
pub fn sha256_of(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "contract/tests.rs"]
mod tests;
