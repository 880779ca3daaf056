//! Export: a Hugging Face folder becomes ONNX graphs with their contract, without Python.
//! Knows nothing of ONNX Runtime: it writes files, and only tests run them.
//!
//! `source` and `tokenizer` read what the folder says, `weights` its tensors; `bert` makes the graphs out of `linear` layers and
//! `graph`'s operations, which `model::onnx` encodes; `write` puts the folder in place. The same input gives the same bytes.

mod bert;
mod error;
mod graph;
mod linear;
mod source;
mod tokenizer;
mod weights;
mod write;

use std::{collections::BTreeMap, path::Path};

pub use error::ExportError;

use crate::model::contract::{
    Contract, Family, Graphs, KEY_LAYOUT, Readout, SCHEMA, Tokenizer, Weights, Window, sha256_of,
};

const PASSAGE: &str = "passage.onnx";
const QUERY: &str = "query.onnx";
const WEIGHTS: &str = "weights.bin";

/// What the caller chooses about an export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// Element type of the stored weights.
    pub weights: Weights,
    /// Name of the model in its contract.
    pub name: String,
}

/// Writes the model in `source_dir` to `out_dir`: both graphs, their weights, the tokenizer and the contract, which is
/// returned. The folder is there whole or not at all; an earlier export in it is replaced.
///
/// # Errors
/// A source that is incomplete, malformed or unsupported; an `out_dir` that holds anything but an earlier export; a disk
/// that refuses.
pub fn export(source_dir: &Path, out_dir: &Path, options: &ExportOptions) -> Result<Contract, ExportError> {
    let header: source::Header = source::read_json(&source_dir.join(source::CONFIG))?;
    let bert = bert::Bert::read(source_dir, &header)?;
    let tokenizer = tokenizer::read(source_dir, bert.vocab_size)?;
    let sequence_tokens_max = source::sequence_tokens_max(source_dir)?.unwrap_or(bert.positions);
    let checkpoint = weights::Checkpoint::open(source_dir)?;

    let staging = write::Staging::begin(out_dir)?;
    let mut weights = write::WeightFile::create(staging.dir().join(WEIGHTS))?;
    let stored = bert.store(&checkpoint, &mut weights, options.weights)?;
    weights.finish()?;
    staging.write(PASSAGE, &bert.passage_graph(&stored, WEIGHTS))?;
    staging.write(QUERY, &bert.query_graph(&stored, WEIGHTS))?;
    staging.write(tokenizer::TOKENIZER, &tokenizer.bytes)?;

    let contract = Contract {
        schema: SCHEMA,
        name: options.name.clone(),
        family: Family::Late,
        architecture: bert.architecture.clone(),
        source: source::provenance(source_dir, &header),
        graphs: Graphs { passage: PASSAGE.into(), query: QUERY.into(), weights: WEIGHTS.into() },
        tokenizer: Tokenizer {
            file: tokenizer::TOKENIZER.into(),
            prefix: tokenizer.prefix,
            suffix: tokenizer.suffix,
            vocab_size: bert.vocab_size,
        },
        window: Window { tokens_max: sequence_tokens_max.min(bert.positions) },
        readout: Readout {
            heads: 1,
            head_dim: bert.hidden,
            scale: 1.0,
            key_layout: KEY_LAYOUT.into(),
            key_dtype: "f32".into(),
            weights: options.weights,
        },
        files: hashes(staging.dir(), &[PASSAGE, QUERY, WEIGHTS, tokenizer::TOKENIZER])?,
    };
    contract.save(staging.dir())?;
    staging.publish()?;
    Ok(contract)
}

fn hashes(dir: &Path, names: &[&str]) -> Result<BTreeMap<String, String>, ExportError> {
    let hash = |name: &&str| {
        let file = dir.join(name);
        let hash = sha256_of(&file).map_err(|cause| ExportError::Read { file, cause })?;
        Ok((name.to_string(), hash))
    };
    names.iter().map(hash).collect()
}
