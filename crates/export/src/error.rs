//! The errors of an export. Every message names the file and the key at fault.

use std::{io, path::PathBuf};

use thresher_core::model::contract::ContractError;

/// Why a model was not exported. Nothing is written to the output folder then.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {cause}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        #[source]
        cause: io::Error,
    },
    /// The folder has a file only in a form that is not supported.
    #[error(
        "{} has `{found}` but no `{expected}`; load it with transformers, and save it with {saved_by}.save_pretrained",
        dir.display()
    )]
    OtherForm {
        /// The folder.
        dir: PathBuf,
        /// The name of the file that the folder has.
        found: &'static str,
        /// The name of the file that is needed.
        expected: &'static str,
        /// What of `transformers` writes the needed file.
        saved_by: &'static str,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {cause}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        #[source]
        cause: io::Error,
    },
    /// A file is not JSON, or a key is missing or has the wrong type.
    #[error("{}: {cause}", file.display())]
    JsonMalformed {
        /// The file.
        file: PathBuf,
        /// The parser's error, with line and column.
        #[source]
        cause: serde_json::Error,
    },
    /// A value of the configuration has the wrong type.
    #[error("{}: {key}: {cause}", file.display())]
    ConfigValue {
        /// The configuration file.
        file: PathBuf,
        /// The key of the value.
        key: &'static str,
        /// The parser's error.
        #[source]
        cause: serde_json::Error,
    },
    /// The configuration has a value that this export does not support.
    #[error("{}: {key} is `{found}`, supported: {supported}", file.display())]
    Unsupported {
        /// The configuration file.
        file: PathBuf,
        /// The key of the value.
        key: &'static str,
        /// The value, or `missing`.
        found: String,
        /// The values that are supported.
        supported: String,
    },
    /// The index of the shards lists a file that does not exist.
    #[error("{} lists the shard {shard}, which does not exist", index.display())]
    ShardMissing {
        /// The index file.
        index: PathBuf,
        /// The file name of the shard.
        shard: String,
    },
    /// A checkpoint is shorter than its header says.
    #[error("{} is cut short: {found_bytes} bytes, expected at least {expected_bytes}", file.display())]
    SafetensorsTruncated {
        /// The checkpoint file.
        file: PathBuf,
        /// The length that the header implies, in bytes.
        expected_bytes: u64,
        /// The length of the file, in bytes.
        found_bytes: u64,
    },
    /// A checkpoint is not a safetensors file.
    #[error("{} is not a safetensors file: {reason}", file.display())]
    SafetensorsMalformed {
        /// The file.
        file: PathBuf,
        /// What is wrong with the header.
        reason: String,
    },
    /// The checkpoint lacks a tensor.
    #[error("{} has no tensor `{key}`", file.display())]
    TensorMissing {
        /// The checkpoint, or the index of its shards.
        file: PathBuf,
        /// The name of the tensor.
        key: String,
    },
    /// A tensor does not have the shape that the configuration implies.
    #[error("{}: tensor `{key}` has shape {found:?}, the configuration implies {expected:?}", file.display())]
    TensorShape {
        /// The checkpoint file.
        file: PathBuf,
        /// The name of the tensor.
        key: String,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
        /// The shape of the tensor in the checkpoint.
        found: Vec<usize>,
    },
    /// The elements of a tensor are not floats of a supported type.
    #[error("{}: tensor `{key}` is {found}, supported: F32, F16, BF16", file.display())]
    TensorDtype {
        /// The checkpoint file.
        file: PathBuf,
        /// The name of the tensor.
        key: String,
        /// The element type, as safetensors names it.
        found: String,
    },
    /// A GGUF file ends before its own header says.
    #[error("{} is cut short at {at}: {found_bytes} bytes, expected at least {expected_bytes}", file.display())]
    GgufTruncated {
        /// The file.
        file: PathBuf,
        /// The part of the file that is incomplete: a metadata key or a tensor.
        at: String,
        /// The smallest length of a file that has this part, in bytes.
        expected_bytes: u64,
        /// The length of the file, in bytes.
        found_bytes: u64,
    },
    /// A GGUF file breaks a rule of the format, or a limit on its sizes.
    #[error("{}: {at}: {reason}", file.display())]
    GgufMalformed {
        /// The file.
        file: PathBuf,
        /// The part at fault: a metadata key, a tensor, or a field of the header.
        at: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A GGUF file has a value that this export does not support.
    #[error("{}: {at} is `{found}`, supported: {supported}", file.display())]
    GgufUnsupported {
        /// The file.
        file: PathBuf,
        /// The part at fault: a metadata key, a tensor, or a field of the header.
        at: String,
        /// The value, or `missing`.
        found: String,
        /// The values that are supported.
        supported: String,
    },
    /// A value of a tensor is not a finite number, so the file is damaged.
    #[error("tensor `{key}` holds {value}; every weight must be a finite number. Download the file again")]
    NotFinite {
        /// The name of the tensor.
        key: String,
        /// The value.
        value: f32,
    },
    /// A value of a tensor is too large for the element type of the export.
    #[error("tensor `{key}` holds {value}, which is too large for f16; export with --weights f32")]
    TooLargeForF16 {
        /// The name of the tensor.
        key: String,
        /// The value.
        value: f32,
    },
    /// The checkpoint has a tensor that the architecture does not use, so it is of another architecture than
    /// the configuration says.
    #[error("{} has tensor `{key}`, which {architecture} does not use", file.display())]
    TensorUnknown {
        /// The checkpoint, or the index of its shards.
        file: PathBuf,
        /// The name of the first such tensor.
        key: String,
        /// The architecture in the configuration.
        architecture: String,
    },
    /// Weights of this element type are not supported for this architecture.
    #[error("--weights {weights} is not supported for {architecture}; supported: {supported}")]
    WeightsUnsupported {
        /// The requested element type.
        weights: &'static str,
        /// The model's architecture.
        architecture: String,
        /// The supported element types.
        supported: &'static str,
    },
    /// A prefix was given for a model that reads no questions and passages apart.
    #[error(
        "prefixes are for encoders that score chunks, and {architecture} is a {kind}; leave out --query-prefix and \
         --passage-prefix"
    )]
    PrefixUnsupported {
        /// The model's architecture.
        architecture: String,
        /// What the model is.
        kind: &'static str,
    },
    /// The tokenizer does not fit the model.
    #[error("{}: {key}: {reason}", file.display())]
    Tokenizer {
        /// The tokenizer's file.
        file: PathBuf,
        /// The key at fault.
        key: &'static str,
        /// Why the tokenizer does not fit the model.
        reason: String,
    },
    /// The output folder has an entry that no export wrote.
    #[error("{} holds `{entry}`, which is not part of an exported model; choose another folder or remove it", dir.display())]
    OutOccupied {
        /// The output folder.
        dir: PathBuf,
        /// The file name of the entry.
        entry: String,
    },
    /// The contract is invalid or cannot be written.
    #[error(transparent)]
    Contract(#[from] ContractError),
}
