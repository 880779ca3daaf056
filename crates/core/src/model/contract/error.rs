//! What is wrong with a contract, its files, or the graphs it speaks of.
//! Every message names the file, and the key in it.

use std::{io, path::PathBuf};

use super::{CONTRACT_FILE, SCHEMA};

/// What is wrong with a contract, its files, or the graphs it speaks of.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// The folder holds a model that was not exported yet.
    #[error("{} is a Hugging Face folder; `thresher export {} --out FOLDER` makes one that can be run", dir.display(), dir.display())]
    NotExported {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder holds no model.
    #[error("no {CONTRACT_FILE} in {}; run `make model`, or make one there with `thresher export`", dir.display())]
    Absent {
        /// The folder.
        dir: PathBuf,
    },
    /// A file cannot be read.
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
    /// Not TOML, a key is missing, unknown or of the wrong type; the cause shows the line.
    #[error("{}: {cause}", file.display())]
    Malformed {
        /// The contract.
        file: PathBuf,
        /// What the parser met.
        #[source]
        cause: toml::de::Error,
    },
    /// Written by another version of Thresher.
    #[error("{}: schema is {found}, this version reads {SCHEMA}; export the model again", file.display())]
    SchemaUnknown {
        /// The contract.
        file: PathBuf,
        /// The version it declares.
        found: u32,
    },
    /// A value that cannot hold.
    #[error("{}: {key}: {reason}", file.display())]
    ValueInvalid {
        /// The contract.
        file: PathBuf,
        /// The key, dotted.
        key: String,
        /// What is wrong with its value.
        reason: String,
    },
    /// A file that the contract names is not there.
    #[error("{} names {}, which does not exist; export the model again", contract.display(), file.display())]
    FileMissing {
        /// The contract.
        contract: PathBuf,
        /// The file.
        file: PathBuf,
    },
    /// A file is not the one that was exported.
    #[error("{}: contract declares SHA-256 {declared}, file has {found}; export the model again (`make model` makes the default one)", file.display())]
    HashMismatch {
        /// The file.
        file: PathBuf,
        /// The contract's hash.
        declared: String,
        /// The file's hash.
        found: String,
    },
    /// A graph takes or gives something else than the contract says.
    #[error("{graph}: contract declares {declared}, graph has {found}")]
    IoMismatch {
        /// The graph's file name.
        graph: String,
        /// What the contract declares.
        declared: String,
        /// What the graph has.
        found: String,
    },
}
