//! What can be wrong with a source folder or a place to export to.
//! Every message names the file, and the key in it.

use std::{io, path::PathBuf};

use thresher_core::model::contract::ContractError;

/// Why a model was not exported; nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {cause}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {cause}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// Not JSON, or a key is missing or of the wrong type.
    #[error("{}: {cause}", file.display())]
    JsonMalformed {
        /// The file.
        file: PathBuf,
        /// What the parser met, with line and column.
        #[source]
        cause: serde_json::Error,
    },
    /// A value of the configuration is missing or of the wrong type.
    #[error("{}: {key}: {cause}", file.display())]
    ConfigValue {
        /// The configuration.
        file: PathBuf,
        /// Its key.
        key: &'static str,
        /// What the parser met.
        #[source]
        cause: serde_json::Error,
    },
    /// The configuration asks for what this export does not do.
    #[error("{}: {key} is `{found}`, supported: {supported}", file.display())]
    Unsupported {
        /// The configuration.
        file: PathBuf,
        /// Its key.
        key: &'static str,
        /// Its value.
        found: String,
        /// Values that work.
        supported: String,
    },
    /// The index lists a file that is not there.
    #[error("{} lists the shard {shard}, which does not exist", index.display())]
    ShardMissing {
        /// The index.
        index: PathBuf,
        /// The shard's file name.
        shard: String,
    },
    /// A checkpoint is shorter than its header says.
    #[error("{} is cut short: {found_bytes} bytes, expected at least {expected_bytes}", file.display())]
    SafetensorsTruncated {
        /// The checkpoint.
        file: PathBuf,
        /// What its header promises.
        expected_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// A checkpoint is no safetensors file.
    #[error("{} is not a safetensors file: {reason}", file.display())]
    SafetensorsMalformed {
        /// The file.
        file: PathBuf,
        /// What is wrong with its header.
        reason: String,
    },
    /// The checkpoint lacks a tensor.
    #[error("{} has no tensor `{key}`", file.display())]
    TensorMissing {
        /// The checkpoint, or the index of its shards.
        file: PathBuf,
        /// The tensor.
        key: String,
    },
    /// A tensor is not of the shape that the configuration implies.
    #[error("{}: tensor `{key}` has shape {found:?}, config.json implies {expected:?}", file.display())]
    TensorShape {
        /// The checkpoint.
        file: PathBuf,
        /// The tensor.
        key: String,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
        /// The tensor's shape.
        found: Vec<usize>,
    },
    /// A tensor's elements are no floats.
    #[error("{}: tensor `{key}` is {found}, supported: F32, F16, BF16", file.display())]
    TensorDtype {
        /// The checkpoint.
        file: PathBuf,
        /// The tensor.
        key: String,
        /// Its element type, as safetensors names it.
        found: String,
    },
    /// A tensor's value does not fit the type that weights are to be stored in.
    #[error("tensor `{key}` holds {value}, which is too large for f16; export with --weights f32")]
    TooLargeForF16 {
        /// The tensor.
        key: String,
        /// The value.
        value: f32,
    },
    /// The checkpoint holds what the architecture does not have: it is another architecture than it says.
    #[error("{} has tensor `{key}`, which {architecture} does not use", file.display())]
    TensorUnknown {
        /// The checkpoint, or the index of its shards.
        file: PathBuf,
        /// The first such tensor.
        key: String,
        /// What the configuration says the checkpoint is.
        architecture: String,
    },
    /// Weights of this type are not made of such models.
    #[error("--weights {weights} is not for {architecture}; supported: {supported}")]
    WeightsUnsupported {
        /// The type that was asked for.
        weights: &'static str,
        /// The architecture.
        architecture: String,
        /// Types that work.
        supported: &'static str,
    },
    /// The tokenizer does not fit the model.
    #[error("{}: {key}: {reason}", file.display())]
    Tokenizer {
        /// The tokenizer.
        file: PathBuf,
        /// The key at fault.
        key: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// The place to export to holds what no export wrote.
    #[error("{} holds `{entry}`, which is not part of an exported model; choose another folder or remove it", dir.display())]
    OutOccupied {
        /// The folder.
        dir: PathBuf,
        /// The first such entry.
        entry: String,
    },
    /// The contract cannot hold or cannot be written.
    #[error(transparent)]
    Contract(#[from] ContractError),
}
