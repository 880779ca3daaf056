//! Export: a Hugging Face folder becomes ONNX graphs with their contract, without Python.
//! Knows nothing of ONNX Runtime: it writes files, and only tests run them.
//!
//! `source` and `tokenizer` read what the folder says, `weights` its tensors; `bert` and `decoder` make the graphs out of `linear`
//! layers and `graph`'s operations, which `model::onnx` encodes; `write` puts the folder in place. The same input gives the same bytes.

mod bert;
mod decoder;
mod error;
mod graph;
mod linear;
mod source;
mod tokenizer;
mod weights;
mod write;

use std::{collections::BTreeMap, path::Path};

use thresher_core::model::contract::{
    self, Contract, Family, KEY_LAYOUT, Late, SCHEMA, StoredWeights, Tokenizer, Weights, Window, sha256_of,
};

pub use error::ExportError;

use self::bert::Bert;
use self::decoder::Decoder;
use self::source::Header;
use self::tokenizer::Specials;
use self::weights::Checkpoint;
use self::write::{Staging, WeightFile};

const PASSAGE: &str = "passage.onnx";
const QUERY: &str = "query.onnx";
const DECODER: &str = "decoder.onnx";
const WEIGHTS: &str = "weights.bin";

/// Tokens of text that a decoder's window holds, where its context is twice as long: a window is read on its own, and what it
/// costs grows with its square.
const DECODER_WINDOW_TOKENS: usize = 512;

/// Keys lie in tiles of so many; a decoder's windows are whole tiles.
const TILE_TOKENS: usize = 16;

/// What the caller chooses about an export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// Element type of the stored weights.
    pub weights: Weights,
    /// Name of the model in its contract.
    pub name: String,
}

/// What a source's configuration describes.
enum Model {
    Late(Bert),
    Decoder(Decoder),
}

impl Model {
    fn read(dir: &Path, header: &Header) -> Result<Self, ExportError> {
        if let Some(architecture) = bert::architecture(header) {
            return Ok(Self::Late(Bert::read(dir, architecture)?));
        }
        if let Some((architecture, family)) = decoder::architecture(header) {
            return Ok(Self::Decoder(Decoder::read(dir, architecture, family)?));
        }
        let decoders = decoder::ARCHITECTURES.map(|(name, _)| name);
        Err(ExportError::Unsupported {
            file: dir.join(source::CONFIG),
            key: "architectures",
            found: header.architectures.first().cloned().unwrap_or_else(|| "none".to_owned()),
            supported: [&bert::ARCHITECTURES[..], &decoders].concat().join(", "),
        })
    }
}

/// What a family adds to its folder.
struct Exported {
    architecture: String,
    tokenizer: tokenizer::Exported,
    vocab_size: usize,
    window_tokens_max: usize,
    family: Family,
    graphs: &'static [&'static str],
}

/// Writes the model in `source_dir` to `out_dir`: its graphs, their weights, the tokenizer and the contract, which is
/// returned. The folder is there whole or not at all; an earlier export in it is replaced. `progress` is told how many layers of how
/// many are done, where a model is so large that somebody waits.
///
/// # Errors
/// A source that is incomplete, malformed or unsupported; an `out_dir` that holds anything but an earlier export; a disk
/// that refuses.
pub fn export(
    source_dir: &Path,
    out_dir: &Path,
    options: &ExportOptions,
    progress: &dyn Fn(usize, usize),
) -> Result<Contract, ExportError> {
    let header: Header = source::read_json(&source_dir.join(source::CONFIG))?;
    let model = Model::read(source_dir, &header)?;
    let checkpoint = Checkpoint::open(source_dir)?;
    let staging = Staging::begin(out_dir)?;
    let to = To { source_dir, staging: &staging, checkpoint: &checkpoint, dtype: options.weights };
    let exported = match &model {
        Model::Late(bert) => to.late(bert)?,
        Model::Decoder(decoder) => to.decoder(decoder, progress)?,
    };
    staging.write(tokenizer::TOKENIZER, &exported.tokenizer.bytes)?;
    let files: Vec<&str> = exported.graphs.iter().copied().chain([WEIGHTS, tokenizer::TOKENIZER]).collect();
    let contract = Contract {
        schema: SCHEMA,
        name: options.name.clone(),
        architecture: exported.architecture,
        source: source::provenance(source_dir, &header, checkpoint.fingerprint()?),
        tokenizer: Tokenizer {
            file: tokenizer::TOKENIZER.into(),
            prefix: exported.tokenizer.prefix,
            suffix: exported.tokenizer.suffix,
            vocab_size: exported.vocab_size,
        },
        window: Window { tokens_max: exported.window_tokens_max },
        weights: StoredWeights { file: WEIGHTS.into(), dtype: options.weights },
        family: exported.family,
        files: hashes(staging.dir(), &files)?,
    };
    contract.save(staging.dir())?;
    staging.publish()?;
    Ok(contract)
}

/// Where a model's files come from and go to.
struct To<'a> {
    source_dir: &'a Path,
    staging: &'a Staging,
    checkpoint: &'a Checkpoint,
    dtype: Weights,
}

impl To<'_> {
    fn late(&self, bert: &Bert) -> Result<Exported, ExportError> {
        self.refuse_weights(Weights::F16, &bert.architecture, "f32, int8")?;
        let tokenizer = tokenizer::read(self.source_dir, bert.vocab_size, Specials::Around)?;
        let tokens_max = source::sequence_tokens_max(self.source_dir)?.unwrap_or(bert.positions);
        let mut weights = WeightFile::create(self.staging.dir().join(WEIGHTS))?;
        let stored = bert.store(self.checkpoint, &mut weights, self.dtype)?;
        weights.finish()?;
        self.staging.write(PASSAGE, &bert.passage_graph(&stored, WEIGHTS))?;
        self.staging.write(QUERY, &bert.query_graph(&stored, WEIGHTS))?;
        Ok(Exported {
            architecture: bert.architecture.clone(),
            tokenizer,
            vocab_size: bert.vocab_size,
            window_tokens_max: tokens_max.min(bert.positions),
            family: Family::Late(Late {
                passage: PASSAGE.into(),
                query: QUERY.into(),
                heads: 1,
                head_dim: bert.hidden,
                scale: 1.0,
                key_layout: KEY_LAYOUT.into(),
                key_dtype: "f32".into(),
            }),
            graphs: &[PASSAGE, QUERY],
        })
    }

    fn decoder(&self, decoder: &Decoder, progress: &dyn Fn(usize, usize)) -> Result<Exported, ExportError> {
        self.refuse_weights(Weights::Int8, decoder.architecture, "f32, f16")?;
        let tokenizer = tokenizer::read(self.source_dir, decoder.vocab_size, Specials::Before)?;
        let mut weights = WeightFile::create(self.staging.dir().join(WEIGHTS))?;
        let stored = decoder.store(self.checkpoint, &mut weights, self.dtype, progress)?;
        weights.finish()?;
        self.staging.write(DECODER, &decoder.graph(&stored, WEIGHTS))?;
        Ok(Exported {
            architecture: decoder.architecture.to_owned(),
            vocab_size: decoder.vocab_size,
            window_tokens_max: tokenizer.prefix.len() + window(decoder.context_tokens_max),
            tokenizer,
            family: Family::Decoder(contract::Decoder {
                graph: DECODER.into(),
                layers: decoder.layers,
                heads: decoder.heads,
                kv_heads: decoder.kv_heads,
                head_dim: decoder.head_dim,
                scale: decoder.scale(),
                context_tokens_max: decoder.context_tokens_max,
                kv_dtype: "f32".into(),
                rotary: decoder.rotary.clone(),
                chosen: None,
            }),
            graphs: &[DECODER],
        })
    }

    fn refuse_weights(
        &self,
        refused: Weights,
        architecture: &str,
        supported: &'static str,
    ) -> Result<(), ExportError> {
        if self.dtype != refused {
            return Ok(());
        }
        let architecture = architecture.to_owned();
        Err(ExportError::WeightsUnsupported { weights: refused.as_str(), architecture, supported })
    }
}

/// Tokens of text in a window of a decoder with this context: half of it is left for a question and other chunks.
fn window(context_tokens_max: usize) -> usize {
    let tokens = DECODER_WINDOW_TOKENS.min(context_tokens_max / 2).max(1);
    if tokens < TILE_TOKENS { tokens } else { tokens - tokens % TILE_TOKENS }
}

fn hashes(dir: &Path, names: &[&str]) -> Result<BTreeMap<String, String>, ExportError> {
    let hash = |name: &&str| {
        let file = dir.join(name);
        let hash = sha256_of(&file).map_err(|cause| ExportError::Read { file, cause })?;
        Ok((name.to_string(), hash))
    };
    names.iter().map(hash).collect()
}
