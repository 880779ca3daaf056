//! The errors of an export. Every message names the file and the key at fault.

use std::{io, path::PathBuf};

use thresher_core::model::contract::ContractError;
use thresher_core::pipeline::calibration::CalibrationError;

/// Why a model was not exported. Nothing is written to the output folder then.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("cannot read {}: {cause}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(
        "{} has `{found}` but no `{expected}`; load it with transformers, and save it with {saved_by}.save_pretrained",
        dir.display()
    )]
    OtherForm {
        dir: PathBuf,
        found: &'static str,
        expected: &'static str,
        /// What of `transformers` writes the needed file.
        saved_by: &'static str,
    },
    #[error("cannot write {}: {cause}", file.display())]
    Write {
        file: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{}: {cause}", file.display())]
    JsonMalformed {
        file: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    #[error("{}: {key}: {cause}", file.display())]
    ConfigValue {
        file: PathBuf,
        key: &'static str,
        #[source]
        cause: serde_json::Error,
    },
    #[error("{}: {key} is `{found}`, supported: {supported}", file.display())]
    Unsupported {
        file: PathBuf,
        key: &'static str,
        /// The value, or `missing`.
        found: String,
        supported: String,
    },
    #[error("{} lists the shard {shard}, which does not exist", index.display())]
    ShardMissing { index: PathBuf, shard: String },
    #[error("{} is cut short: {found_bytes} bytes, expected at least {expected_bytes}", file.display())]
    SafetensorsTruncated {
        file: PathBuf,
        /// The length that the header implies, in bytes.
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error("{} is not a safetensors file: {reason}", file.display())]
    SafetensorsMalformed { file: PathBuf, reason: String },
    #[error("{} has no tensor `{key}`", file.display())]
    TensorMissing {
        /// The checkpoint, or the index of its shards.
        file: PathBuf,
        key: String,
    },
    #[error("{}: tensor `{key}` has shape {found:?}, the configuration implies {expected:?}", file.display())]
    TensorShape {
        file: PathBuf,
        key: String,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
        /// The shape of the tensor in the checkpoint.
        found: Vec<usize>,
    },
    #[error("{}: tensor `{key}` is {found}, supported: F32, F16, BF16", file.display())]
    TensorDtype {
        file: PathBuf,
        key: String,
        /// The element type, as safetensors names it.
        found: String,
    },
    #[error("{} is cut short at {at}: {found_bytes} bytes, expected at least {expected_bytes}", file.display())]
    FileTruncated {
        file: PathBuf,
        /// The part of the file that is incomplete: a metadata key or a tensor.
        at: String,
        /// The smallest length of a file that has this part, in bytes.
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error("{}: {at}: {reason}", file.display())]
    FileMalformed {
        file: PathBuf,
        /// The part at fault: a metadata key, a tensor, or a field of the header.
        at: String,
        reason: String,
    },
    #[error("{}: {at} is `{found}`, supported: {supported}", file.display())]
    FileUnsupported {
        file: PathBuf,
        /// The part at fault: a metadata key, a tensor, or a field of the header.
        at: String,
        /// The value, or `missing`.
        found: String,
        supported: String,
    },
    #[error("tensor `{key}` holds {value}; every weight must be a finite number. Download the file again")]
    NotFinite { key: String, value: f32 },
    #[error("tensor `{key}` holds {value}, which is too large for f16; export with --weights f32")]
    TooLargeForF16 { key: String, value: f32 },
    /// The checkpoint has a tensor that the architecture does not use, so it is of another architecture than
    /// the configuration says.
    #[error("{} has tensor `{key}`, which {architecture} does not use", file.display())]
    TensorUnknown {
        /// The checkpoint, or the index of its shards.
        file: PathBuf,
        /// The name of the first such tensor.
        key: String,
        architecture: String,
    },
    #[error("--weights {weights} is not supported for {architecture}; supported: {supported}")]
    WeightsUnsupported {
        /// The requested element type.
        weights: &'static str,
        architecture: String,
        supported: &'static str,
    },
    #[error(
        "prefixes are for encoders that score chunks, and {architecture} is a {kind}; leave out --query-prefix and \
         --passage-prefix"
    )]
    PrefixUnsupported { architecture: String, kind: &'static str },
    #[error("{}: {key}: {reason}", file.display())]
    Tokenizer {
        file: PathBuf,
        key: &'static str,
        /// Why the tokenizer does not fit the model.
        reason: String,
    },
    #[error("{} holds `{entry}`, which is not part of an exported model; choose another folder or remove it", dir.display())]
    OutOccupied { dir: PathBuf, entry: String },
    #[error(transparent)]
    Contract(#[from] ContractError),
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
}
