#![doc = include_str!("../README.md")]

// `source` reads the files that describe the model, and `weights` reads its tensors. `bert` and `decoder`
// build the graphs from `linear` layers and the operations of `graph`, which `thresher_core::model::onnx`
// encodes. `write` puts the output folder in place. The same input produces the same bytes. Nothing here
// knows about ONNX Runtime: only tests run the exported files.

mod bert;
mod decoder;
mod error;
mod graph;
mod linear;
mod source;
mod weights;
mod write;

use std::{collections::BTreeMap, path::Path};

use thresher_core::model::contract::{
    self, Contract, Family, KEY_LAYOUT, Late, SCHEMA, StoredWeights, Tokenizer, Weights, Window, sha256_of,
};

pub use error::ExportError;

use self::bert::Bert;
use self::decoder::Decoder;
use self::source::{ExportedTokenizer, Header, SpecialTokens, TOKENIZER, read_tokenizer};
use self::weights::Checkpoint;
use self::write::{Staging, WeightFile};

const PASSAGE: &str = "passage.onnx";
const QUERY: &str = "query.onnx";
const DECODER: &str = "decoder.onnx";
const WEIGHTS: &str = "weights.bin";

/// The number of text tokens in a decoder's window, if its context is at least twice as long. Each window is
/// read separately, and the cost of reading it grows with the square of its length.
const DECODER_WINDOW_TOKENS: usize = 512;

/// The number of tokens in a tile of keys. A decoder's window is a multiple of it.
const TILE_TOKENS: usize = 16;

/// The options of an export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// The element type of the stored weights. BERT encoders support f32 and int8, decoders f32 and f16.
    pub weights: Weights,
    /// The name of the model in its contract.
    pub name: String,
}

/// The model that the configuration in the source folder describes.
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

/// The parts of the contract and the files that depend on the model's family.
struct FamilyExport {
    architecture: String,
    tokenizer: ExportedTokenizer,
    vocab_size: usize,
    window_tokens_max: usize,
    family: Family,
    graphs: &'static [&'static str],
}

/// Exports the model in `source_dir` to `out_dir`: its graphs, their weights, the tokenizer and the contract,
/// which is returned. The output folder is written whole or not at all, and replaces an earlier export. For
/// decoders, which may be large, `progress` is called with the number of layers that are done and the number
/// of all layers.
///
/// # Errors
/// Returns an [`ExportError`] if the source is incomplete, malformed or unsupported, if `out_dir` has files
/// that no export wrote, or if a file cannot be read or written.
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
    let exporter =
        Exporter { source_dir, staging: &staging, checkpoint: &checkpoint, weights: options.weights };
    let exported = match &model {
        Model::Late(bert) => exporter.late(bert)?,
        Model::Decoder(decoder) => exporter.decoder(decoder, progress)?,
    };
    staging.write(TOKENIZER, &exported.tokenizer.bytes)?;
    let files: Vec<&str> = exported.graphs.iter().copied().chain([WEIGHTS, TOKENIZER]).collect();
    let contract = Contract {
        schema: SCHEMA,
        name: options.name.clone(),
        architecture: exported.architecture,
        source: source::provenance(source_dir, &header, checkpoint.fingerprint()?),
        tokenizer: Tokenizer {
            file: TOKENIZER.into(),
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

/// Writes the graphs and weights of a model to the staging folder.
struct Exporter<'a> {
    source_dir: &'a Path,
    staging: &'a Staging,
    checkpoint: &'a Checkpoint,
    weights: Weights,
}

impl Exporter<'_> {
    fn late(&self, bert: &Bert) -> Result<FamilyExport, ExportError> {
        self.refuse_weights(Weights::F16, &bert.architecture, "f32, int8")?;
        let tokenizer = read_tokenizer(self.source_dir, bert.vocab_size, SpecialTokens::Around)?;
        let tokens_max = source::sequence_tokens_max(self.source_dir)?.unwrap_or(bert.positions);
        let mut weights = WeightFile::create(self.staging.dir().join(WEIGHTS))?;
        let stored = bert.store(self.checkpoint, &mut weights, self.weights)?;
        weights.finish()?;
        self.staging.write(PASSAGE, &bert.passage_graph(&stored, WEIGHTS))?;
        self.staging.write(QUERY, &bert.query_graph(&stored, WEIGHTS))?;
        Ok(FamilyExport {
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

    fn decoder(
        &self,
        decoder: &Decoder,
        progress: &dyn Fn(usize, usize),
    ) -> Result<FamilyExport, ExportError> {
        self.refuse_weights(Weights::Int8, decoder.architecture, "f32, f16")?;
        let tokenizer = read_tokenizer(self.source_dir, decoder.vocab_size, SpecialTokens::Before)?;
        let mut weights = WeightFile::create(self.staging.dir().join(WEIGHTS))?;
        let stored = decoder.store(self.checkpoint, &mut weights, self.weights, progress)?;
        weights.finish()?;
        self.staging.write(DECODER, &decoder.graph(&stored, WEIGHTS))?;
        Ok(FamilyExport {
            architecture: decoder.architecture.to_owned(),
            vocab_size: decoder.vocab_size,
            window_tokens_max: tokenizer.prefix.len() + window_tokens(decoder.context_tokens_max),
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
                probe: None,
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
        if self.weights != refused {
            return Ok(());
        }
        let architecture = architecture.to_owned();
        Err(ExportError::WeightsUnsupported { weights: refused.as_str(), architecture, supported })
    }
}

/// The number of text tokens in a window of a decoder with this context. At least half of the context is left
/// for a question and other chunks.
fn window_tokens(context_tokens_max: usize) -> usize {
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
