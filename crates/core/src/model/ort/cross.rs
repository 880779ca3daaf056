//! Cross-encoders: loads a graph that reads two texts, as `thresher export` wrote it or as somebody else did, checks it and runs it on pairs.
//! Knows nothing of verdicts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ndarray::Array2;
use ort::environment::Environment;
use ort::value::TensorRef;
use rayon::prelude::*;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::device::Device;
use super::scheduling::{Flow, Pool};
use super::weights::{SharedWeights, WeightedSession};
use super::{OrtSettings, environment, graph_error, io_of_session, ort_error, session_builder};
use crate::model::ModelError;
use crate::model::contract::{
    CONTRACT_FILE, Contract, Dim, Family, Graph, IoTensor, Side, VerdictWeights, check_io,
};
use crate::model::cross::{CrossEncoder, KNOWN_PAIRS, LABELS_MAX, Labels, PairOpinion, Separation};
use crate::model::tokenizer::ModelTokenizer;
use crate::text::script_of;

/// The most tokens of a window of a model that says nothing of it.
const WINDOW_TOKENS: usize = 512;

/// The token in the rest of a window of a fixed length. The graph masks it, so any token will do.
const PADDING: i64 = 0;

/// A loaded cross-encoder. Clones share its sessions. Each pair is read by itself, so that its logits do not depend on other pairs.
#[derive(Clone)]
pub struct CrossRuntime {
    name: String,
    fingerprint: String,
    graph: String,
    inputs: PairInputs,
    labels: Labels,
    is_claim_first: bool,
    weights: VerdictWeights,
    tokenizer: Arc<ModelTokenizer>,
    sessions: Arc<Pool<WeightedSession>>,
    /// The flow of this handle's work on the sessions.
    flow: Flow,
}

/// How a graph reads two texts.
#[derive(Debug, Clone)]
struct PairInputs {
    /// The ids of the special tokens before, between and after the texts.
    prefix: Vec<u32>,
    between: Vec<u32>,
    suffix: Vec<u32>,
    /// The most tokens of a pair, special tokens included.
    tokens_max: usize,
    /// Whether every window has `tokens_max` tokens.
    is_fixed: bool,
    has_types: bool,
    has_mask: bool,
    /// The name of the output with the logits.
    output: String,
}

/// What `config.json` says of a classifier; every field may be missing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    id2label: std::collections::BTreeMap<usize, String>,
    max_position_embeddings: Option<usize>,
    vocab_size: Option<usize>,
}

/// A pair as the graph reads it, `[1, t]` each.
struct PairTokens {
    ids: Array2<i64>,
    types: Array2<i64>,
    mask: Array2<i64>,
    /// The number of tokens without padding.
    count: usize,
}

impl CrossRuntime {
    /// Loads the model in `dir`: one that `thresher export` wrote, which is compared with its contract, or any ONNX graph of a sequence
    /// classifier beside its `tokenizer.json`, with one to three labels. `settings` are those of the model that scores chunks, except for its
    /// folder.
    ///
    /// # Errors
    /// Fails if a file is missing or does not match the contract, if the contract is that of another family, if the graph does not read two
    /// texts or has other outputs, if nothing tells what its labels mean, or if the library or the device cannot be used.
    pub fn load(dir: &Path, settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let graph = if dir.join(CONTRACT_FILE).is_file() { None } else { find_graph(dir)? };
        match graph {
            Some(graph) => Self::load_plain(dir, &graph, &environment, settings),
            None => Self::load_exported(dir, &environment, settings),
        }
    }

    fn load_exported(
        dir: &Path,
        environment: &Environment,
        settings: &OrtSettings,
    ) -> Result<Self, ModelError> {
        let contract = Contract::load(dir)?;
        contract.verify_files(dir)?;
        let Family::Cross(cross) = &contract.family else {
            return Err(ModelError::WrongFamily { name: contract.name, expected: "cross-encoder" });
        };
        let device = Device::choose(environment, settings)?;
        let weights = SharedWeights::open(&contract, dir, &device)?;
        let count = if device.is_cpu() { settings.workers.max(1) } else { 1 };
        let path = dir.join(&cross.graph);
        let load = |_| weights.session_from_file(session_builder(environment, &device, 1)?, &path);
        let sessions = (0..count).into_par_iter().map(load).collect::<Result<Vec<_>, _>>();
        let sessions = sessions.map_err(|error| graph_error(&cross.graph, error))?;
        check_io(&contract, Graph::Pair, &io_of_session(&sessions[0]))?;
        weights.drop_pages();
        // A contract says which label supports; the name of another one may say that it excludes.
        let conflict = Labels::of_names(&cross.labels).and_then(|labels| labels.conflict);
        let special = &contract.tokenizer;
        Ok(Self {
            fingerprint: fingerprint_of_contract(&contract, cross.verdicts.unwrap_or_default(), &device),
            name: contract.name.clone(),
            graph: cross.graph.clone(),
            inputs: PairInputs {
                prefix: special.prefix.clone(),
                between: cross.between.clone(),
                suffix: special.suffix.clone(),
                tokens_max: contract.window.tokens_max,
                is_fixed: false,
                has_types: cross.token_types,
                has_mask: false,
                output: "logits".to_owned(),
            },
            labels: Labels { count: cross.labels.len(), support: cross.support, conflict },
            is_claim_first: false,
            weights: cross.verdicts.unwrap_or_default(),
            tokenizer: Arc::new(ModelTokenizer::from_file(&dir.join(&special.file))?),
            sessions: Arc::new(Pool::new(sessions)),
            flow: Flow::DEFAULT,
        })
    }

    /// Loads a graph that has its weights in it or beside it. One session with all threads reads one pair after another, because each session
    /// holds the weights.
    fn load_plain(
        dir: &Path,
        graph: &Path,
        environment: &Environment,
        settings: &OrtSettings,
    ) -> Result<Self, ModelError> {
        let name = graph.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let refuse = |reason: String| graph_error(&name, reason);
        let device = Device::choose(environment, settings)?;
        let builder = session_builder(environment, &device, settings.workers.max(1));
        let session = builder.and_then(|builder| WeightedSession::of_whole_graph(builder, graph));
        let session = session.map_err(|error| refuse(error.to_string()))?;
        let config = read_config(dir).map_err(&refuse)?;
        let tokenizer_file = dir.join("tokenizer.json");
        let tokenizer = Arc::new(ModelTokenizer::from_file(&tokenizer_file)?);
        let inputs = PairInputs::of_graph(&io_of_session(&session), &tokenizer, &config).map_err(&refuse)?;
        if let Some(rows) = config.vocab_size.filter(|&rows| rows < tokenizer.vocab_size()) {
            let found = tokenizer.vocab_size();
            return Err(refuse(format!(
                "reads {rows} tokens, but tokenizer.json has {found}: it is another model's"
            )));
        }
        let mut hash = Sha256::new();
        for file in [graph, &tokenizer_file] {
            let bytes = fs::read(file).map_err(|error| refuse(error.to_string()))?;
            hash = hash.chain_update(bytes);
        }
        let mut model = Self {
            name: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            fingerprint: String::new(),
            graph: name.clone(),
            inputs,
            labels: Labels { count: 1, support: 0, conflict: None },
            is_claim_first: false,
            weights: VerdictWeights::default(),
            tokenizer,
            sessions: Arc::new(Pool::new(vec![session])),
            flow: Flow::DEFAULT,
        };
        let names: Vec<String> = config.id2label.into_values().collect();
        let (labels, mut found) = model.find_labels(&names)?;
        model.labels = labels;
        if labels.count == 2 && labels.conflict.is_some() {
            // A conflict is mutual: nothing says which text stands first, and the known pairs tell what such a model reads better.
            let reversed = Self { is_claim_first: true, ..model.clone() };
            // In this order, the model may not know the pairs.
            if let Ok((labels, found_reversed)) = reversed.find_labels(&names)
                && labels == model.labels
                && found_reversed.distance > found.distance
            {
                (model, found) = (reversed, found_reversed);
            }
        }
        let by_pairs = found.is_clear.then(|| found.weights());
        model.weights = VerdictWeights::load(dir)?.or(by_pairs).unwrap_or_default();
        let settings =
            format!("{:?} {} {:?} {}", model.labels, model.is_claim_first, model.weights, ort::info());
        let hash = hash.chain_update(settings).chain_update(device.arithmetic());
        model.fingerprint = hex::encode(&hash.finalize()[..16]);
        Ok(model)
    }

    /// Finds out what the labels mean, from their names or from pairs whose answer is known, and how the model tells these apart. The pairs also
    /// show that the graph runs.
    fn find_labels(&self, names: &[String]) -> Result<(Labels, Separation), ModelError> {
        let refuse = |reason: String| graph_error(&self.graph, reason);
        let logits = |claim: usize| -> Result<Vec<Vec<f32>>, ModelError> {
            let logits = |pair: &[&str; 3]| Ok(self.logits(pair[0], pair[claim], &|| true)?.0);
            KNOWN_PAIRS.iter().map(logits).collect()
        };
        let [evidence, claim, _] = KNOWN_PAIRS[0];
        let count = self.logits(evidence, claim, &|| true)?.0.len();
        if !(1..=LABELS_MAX).contains(&count) {
            return Err(refuse(format!(
                "has {count} labels; a model of evidence and claims has one to {LABELS_MAX}"
            )));
        }
        let (same, other) = (logits(1)?, logits(2)?);
        let named = Labels::of_names(names).filter(|labels| labels.count == count);
        let labels = named.or_else(|| Labels::of_logits(&same, &other)).ok_or_else(|| {
            refuse(
                "does not tell claims that their evidence supports from others on ten known pairs; name its labels in id2label \
                 of config.json, such as entailment, neutral and contradiction"
                    .to_owned(),
            )
        })?;
        Ok((labels, Separation::measure(&same, &other, labels.support)))
    }

    pub fn labels(&self) -> Labels {
        self.labels
    }

    /// Returns the tokens of a pair. Texts that are too long are cut at their ends: the claim at half of the window, the evidence where the
    /// window is full. Also returns whether the claim was cut.
    fn tokens(&self, evidence: &str, claim: &str) -> Result<(PairTokens, bool), ModelError> {
        let PairInputs { prefix, between, suffix, tokens_max, .. } = &self.inputs;
        let (mut evidence, mut claim) =
            (self.tokenizer.encode(evidence)?.ids, self.tokenizer.encode(claim)?.ids);
        let room = tokens_max - prefix.len() - between.len() - suffix.len();
        let is_cut = claim.len() > room / 2;
        claim.truncate(room / 2);
        evidence.truncate(room - claim.len());
        let (first, last) = if self.is_claim_first { (claim, evidence) } else { (evidence, claim) };
        let second = prefix.len() + first.len() + between.len();
        let ids = prefix.iter().chain(&first).chain(between).chain(&last).chain(suffix);
        let mut ids: Vec<i64> = ids.map(|&id| i64::from(id)).collect();
        let count = ids.len();
        if self.inputs.is_fixed {
            ids.resize(*tokens_max, PADDING);
        }
        let len = ids.len();
        let row = |row: Vec<i64>| Array2::from_shape_vec((1, len), row).expect("one row of all tokens");
        let types = (0..len).map(|at| i64::from((second..count).contains(&at))).collect();
        let mask = (0..len).map(|at| i64::from(at < count)).collect();
        Ok((PairTokens { ids: row(ids), types: row(types), mask: row(mask), count }, is_cut))
    }

    /// Runs the graph on a pair and returns the logits of the labels, and the number of tokens.
    ///
    /// # Errors
    /// As [`CrossEncoder::judge`].
    pub fn logits(
        &self,
        evidence: &str,
        claim: &str,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(Vec<f32>, usize), ModelError> {
        if !go_on() {
            return Err(ModelError::Cancelled);
        }
        let (tokens, _) = self.tokens(evidence, claim)?;
        Ok((self.run(&tokens, go_on)?, tokens.count))
    }

    fn run(&self, tokens: &PairTokens, go_on: &dyn Fn() -> bool) -> Result<Vec<f32>, ModelError> {
        let run = |session: &mut WeightedSession| -> Result<Vec<f32>, ort::Error> {
            let mut inputs = ort::inputs!["input_ids" => TensorRef::from_array_view(tokens.ids.view())?];
            if self.inputs.has_types {
                inputs
                    .push(("token_type_ids".into(), TensorRef::from_array_view(tokens.types.view())?.into()));
            }
            if self.inputs.has_mask {
                inputs
                    .push(("attention_mask".into(), TensorRef::from_array_view(tokens.mask.view())?.into()));
            }
            let outputs = session.run(inputs)?;
            let logits = outputs[&*self.inputs.output].try_extract_array::<f32>()?.iter().copied().collect();
            let logits: Vec<f32> = logits;
            if logits.iter().all(|logit| logit.is_finite()) {
                Ok(logits)
            } else {
                Err(ort_error("the output logits contains a value that is not finite"))
            }
        };
        let logits = self.sessions.with_while(self.flow, go_on, run).ok_or(ModelError::Cancelled)?;
        logits.map_err(|error| graph_error(&self.graph, error))
    }
}

impl PairInputs {
    /// Reads from a graph how it takes pairs. Returns the reason if it does not.
    fn of_graph(io: &[IoTensor], tokenizer: &ModelTokenizer, config: &Config) -> Result<Self, String> {
        let names = |side: Side| io.iter().filter(move |tensor| tensor.side == side);
        let known = ["input_ids", "attention_mask", "token_type_ids"];
        if let Some(other) = names(Side::Input).find(|input| !known.contains(&&*input.name)) {
            return Err(format!("reads {}; a sequence classifier reads {}", other.name, known.join(", ")));
        }
        let input = |name: &str| names(Side::Input).find(|input| input.name == name);
        let ids = input("input_ids").ok_or("reads no input_ids")?;
        if let Some(other) = names(Side::Input).find(|input| input.dtype != "i64") {
            return Err(format!("reads {} as {}; it must be i64", other.name, other.dtype));
        }
        let outputs: Vec<&IoTensor> = names(Side::Output).collect();
        let output = match outputs[..] {
            [only] => only,
            _ => *outputs.iter().find(|output| output.name == "logits").ok_or("has no output logits")?,
        };
        if output.dtype != "f32" || output.dims.len() != 2 {
            return Err(format!(
                "writes {} as {}; it must be f32 [pairs, labels]",
                output.name, output.dtype
            ));
        }
        let fixed = match ids.dims[..] {
            [_, Dim::Fixed(tokens)] => Some(tokens),
            [_, _] => None,
            _ => return Err("reads input_ids in another shape than [pairs, tokens]".to_owned()),
        };
        let free = config.max_position_embeddings.unwrap_or(WINDOW_TOKENS).min(WINDOW_TOKENS);
        let [prefix, between, suffix] = tokenizer.around_pair()?;
        let tokens_max = fixed.unwrap_or(free);
        if prefix.len() + between.len() + suffix.len() >= tokens_max {
            return Err(format!("leaves no room for two texts in {tokens_max} tokens"));
        }
        Ok(Self {
            prefix,
            between,
            suffix,
            tokens_max,
            is_fixed: fixed.is_some(),
            has_types: input("token_type_ids").is_some(),
            has_mask: input("attention_mask").is_some(),
            output: output.name.clone(),
        })
    }
}

/// Returns the graph of a folder that has no contract: the only ONNX file in it or in its folder `onnx`, or of several `model.onnx`. Returns
/// `None` if there is none.
fn find_graph(dir: &Path) -> Result<Option<PathBuf>, ModelError> {
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in [dir.to_owned(), dir.join("onnx")] {
        let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        found.extend(files.filter(|file| file.extension().is_some_and(|ending| ending == "onnx")));
    }
    found.sort();
    if found.len() > 1 {
        found.retain(|file| file.file_name().is_some_and(|name| name == "model.onnx"));
    }
    match &found[..] {
        [graph] => Ok(Some(graph.clone())),
        [] if dir.join("onnx").is_dir() => {
            Err(graph_error("onnx", "has several graphs, and none is model.onnx: leave one"))
        }
        _ => Ok(None),
    }
}

fn read_config(dir: &Path) -> Result<Config, String> {
    match fs::read(dir.join("config.json")) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| format!("has a config.json that cannot be read: {error}")),
        Err(_) => Ok(Config::default()),
    }
}

/// Returns the hash of the contract, the weights of the opinions and, where opinions depend on it, the arithmetic.
fn fingerprint_of_contract(contract: &Contract, weights: VerdictWeights, device: &Device) -> String {
    let of_contract = Sha256::new().chain_update(contract.fingerprint());
    let of_contract = if contract.weights.dtype.is_exact() {
        of_contract
    } else {
        of_contract.chain_update(device.arithmetic()).chain_update(ort::info())
    };
    let VerdictWeights { bias, own, model } = weights;
    let hash = [bias, own, model]
        .into_iter()
        .fold(of_contract, |hash, weight| hash.chain_update(weight.to_le_bytes()));
    hex::encode(&hash.finalize()[..16])
}

impl CrossEncoder for CrossRuntime {
    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn weights(&self) -> VerdictWeights {
        self.weights
    }

    fn judge(
        &self,
        evidence: &str,
        claim: &str,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<PairOpinion>, ModelError> {
        if !go_on() {
            return Err(ModelError::Cancelled);
        }
        let is_known =
            |text: &str| text.chars().all(|c| !c.is_alphabetic() || self.tokenizer.knows(script_of(c)));
        if !is_known(claim) || !is_known(evidence) {
            return Ok(None);
        }
        let (tokens, is_cut) = self.tokens(evidence, claim)?;
        if is_cut {
            return Ok(None);
        }
        let logits = self.run(&tokens, go_on)?;
        Ok(Some(self.labels.read(&logits, tokens.count)))
    }

    fn with_own_flow(&self) -> Arc<dyn CrossEncoder> {
        Arc::new(Self { flow: Flow::new(), ..self.clone() })
    }
}
