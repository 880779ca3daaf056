//! Runs a decoder's graph in stages of some layers each. Knows nothing of windows or questions: its input is
//! tokens, their positions and the keys and values before them, its output is what each layer computes.
//!
//! The whole graph would need the past keys and values of all layers in memory at the same time. A stage needs only those
//! of its own layers, and a run costs time, so the device decides how many layers a stage has. The hidden states between two
//! stages stay in the memory of the device.

use std::ops::Range;
use std::path::Path;

use ndarray::Array2;
use ort::memory::{Allocator, MemoryInfo};
use ort::session::builder::SessionBuilder;
use ort::value::DynValue;

use super::device::Device;
use super::ort_error;
use super::weights::{SharedWeights, WeightedSession, integer_inputs, stored_bytes, value_named};
use crate::model::contract::value_names;
use crate::model::onnx::{self, MissingValue, ModelProto};

/// How many layers a stage has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageSize {
    Whole,
    /// This many layers. The sessions run one after the other. On a GPU, each may use all memory that the weights leave, and
    /// gives back what it does not use after each run, which takes time.
    Layers(usize),
}

/// The vectors that a layer computes of its tokens, `[b, heads or kv_heads, t, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Projection {
    /// Queries: scaled, and rotated to their positions.
    Query,
    /// Keys: rotated to their positions.
    Key,
    Value,
}

impl Projection {
    /// The name of the projection of `layer` in the graph.
    fn value_name(self, layer: usize) -> String {
        match self {
            Self::Query => value_names::query(layer),
            Self::Key => value_names::key(layer),
            Self::Value => value_names::value(layer),
        }
    }
}

impl StageSize {
    /// Returns the number of layers of a stage of a model of which `depth` layers are run.
    fn layers(self, depth: usize) -> usize {
        match self {
            Self::Whole => depth.max(1),
            Self::Layers(layers) => layers.max(1),
        }
    }
}

pub struct Stages {
    /// Computes the hidden states before the first layer, and the values that all layers use, from tokens and
    /// positions.
    prologue: WeightedSession,
    /// The names of the prologue's outputs; see [`prologue_outputs`].
    prologue_outputs: Vec<String>,
    stages: Vec<Stage>,
    device: Device,
    /// Allocates the past keys and values of the stages.
    allocator: Allocator,
}

struct Stage {
    layers: Range<usize>,
    session: WeightedSession,
}

/// The tokens of one pass through the stages. `b` is the number of sequences, `t` the number of tokens of
/// each, `p` the number of past tokens.
pub struct TokenBatch {
    /// The token ids, `[b, t]`.
    pub ids: Array2<i64>,
    /// The position of each token, `[b, t]`.
    pub positions: Array2<i64>,
    /// The positions of the past tokens and of the tokens themselves, `[b, p + t]`. A key at position -1 is
    /// masked.
    pub key_positions: Array2<i64>,
}

/// Tokens between two stages.
pub struct StagedTokens {
    /// The hidden states that enter the next stage.
    hidden: DynValue,
    /// The other outputs of the prologue, which all stages use.
    shared: Vec<DynValue>,
}

/// The past keys and the past values of one layer, each `[b, kv_heads, p, head_dim]`.
pub type LayerPast = [DynValue; 2];

impl Stages {
    /// Loads the first `depth` layers of `model` in stages of this size. Their weights are in `dir`. `builder`
    /// returns a new session builder for a device.
    ///
    /// # Errors
    /// Fails if the graph does not have the values of [`value_names`], and returns errors of the runtime.
    pub fn load(
        model: &ModelProto,
        depth: usize,
        size: StageSize,
        weights: &SharedWeights,
        dir: &Path,
        device: &Device,
        builder: impl Fn(&Device) -> Result<SessionBuilder, ort::Error>,
    ) -> Result<Self, ort::Error> {
        let subgraph = |inputs: &[String], outputs: &[String]| {
            onnx::extract_subgraph(model, inputs, outputs).map_err(ort_error)
        };
        let prologue_outputs = prologue_outputs(model);
        let prologue = subgraph(&[], &prologue_outputs)?;
        let [of_prologue, of_layers] = device.divided_after(stored_bytes(&prologue));
        let all_weights = weights_bytes(model, depth).map_err(ort_error)?;
        let load = |graph: &ModelProto, share: &Device| match size {
            StageSize::Whole => weights.session_from_model(builder(share)?, graph, dir),
            StageSize::Layers(_) => {
                let share = device.beside_weights(all_weights, stored_bytes(graph));
                weights.session_from_model(builder(&share)?, graph, dir)?.returning_memory(device)
            }
        };
        let prologue = load(&prologue, &of_prologue)?;
        let stage_layers = size.layers(depth);
        let stage = |first: usize| {
            let layers = first..first.saturating_add(stage_layers).min(depth);
            let hidden = std::iter::once(value_names::hidden(first));
            let inputs: Vec<String> = hidden.chain(prologue_outputs[1..].iter().cloned()).collect();
            let projections = [Projection::Query, Projection::Key, Projection::Value];
            let projections =
                layers.clone().flat_map(|layer| projections.map(|projection| projection.value_name(layer)));
            // The hidden states after the last layer are not needed.
            let next = (layers.end < depth).then(|| value_names::hidden(layers.end));
            let outputs: Vec<String> = projections.chain(next).collect();
            Ok(Stage { session: load(&subgraph(&inputs, &outputs)?, &of_layers)?, layers })
        };
        let stages = (0..depth).step_by(stage_layers).map(stage).collect::<Result<_, ort::Error>>()?;
        let allocator = prologue.host_allocator(device)?;
        Ok(Self { prologue, prologue_outputs, stages, device: device.clone(), allocator })
    }

    /// Returns the allocator for past keys and values: that of the memory that they are copied to the device from.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub fn are_one(&self) -> bool {
        self.stages.len() == 1
    }

    pub fn layers(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.stages.iter().map(|stage| stage.layers.clone()).collect::<Vec<_>>().into_iter()
    }

    /// Returns whether the attention of `layer` is computed, so that the layer needs past keys and values. It
    /// is not computed in the last layer that is run, because only the projections of this layer are needed.
    pub fn attends(&self, layer: usize) -> bool {
        self.stages.last().is_some_and(|last| layer + 1 < last.layers.end)
    }

    /// Computes the input of the first stage from `tokens`.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn start(&mut self, tokens: &TokenBatch) -> Result<StagedTokens, ort::Error> {
        let inputs = integer_inputs(&[
            ("input_ids", &tokens.ids),
            ("position_ids", &tokens.positions),
            ("key_position_ids", &tokens.key_positions),
        ])?;
        let device = self.device.memory()?;
        let outputs: Vec<(&str, &MemoryInfo)> =
            self.prologue_outputs.iter().map(|name| (name.as_str(), &device)).collect();
        let mut shared = self.prologue.run_with_binding(|name| value_named(name, &inputs), &outputs)?;
        let hidden = shared.remove(0);
        Ok(StagedTokens { hidden, shared })
    }

    /// Runs the stage whose first layer is `first` and replaces the hidden states in `tokens` by its output.
    /// `past` has an entry for each layer of the stage that attends (see [`Self::attends`]). Returns for each
    /// layer of the stage the `projections` in their order, in the memory of the CPU.
    ///
    /// # Errors
    /// Fails if no stage begins at `first`, and returns errors of the runtime.
    pub fn run_stage(
        &mut self,
        first: usize,
        tokens: &mut StagedTokens,
        past: &[LayerPast],
        projections: &[Projection],
    ) -> Result<Vec<Vec<DynValue>>, ort::Error> {
        let stage = self.stages.iter_mut().find(|stage| stage.layers.start == first);
        let stage = stage.ok_or_else(|| ort_error(format_args!("no stage begins at layer {first}")))?;
        let layers = stage.layers.clone();
        let hidden_in = value_names::hidden(first);
        let past_names: Vec<[String; 2]> = layers.clone().map(past_names).collect();
        let shared_names = &self.prologue_outputs[1..];
        let value_of = |name: &str| {
            let shared = || shared_names.iter().position(|shared| shared == name).map(|i| &tokens.shared[i]);
            let past = || {
                let mut named = past_names.iter().flatten().zip(past.iter().flatten());
                named.find(|(past, _)| *past == name).map(|(_, value)| value)
            };
            if name == hidden_in { Some(&tokens.hidden) } else { shared().or_else(past) }
        };
        let (host, device) = (self.device.host_memory()?, self.device.memory()?);
        let names: Vec<String> = layers
            .clone()
            .flat_map(|layer| projections.iter().map(move |projection| projection.value_name(layer)))
            .collect();
        let next = value_names::hidden(layers.end);
        let has_next = stage.session.outputs().iter().any(|output| output.name() == next);
        let mut outputs: Vec<(&str, &MemoryInfo)> = names.iter().map(|name| (name.as_str(), &host)).collect();
        outputs.extend(has_next.then_some((next.as_str(), &device)));
        let mut computed = stage.session.run_with_binding(value_of, &outputs)?;
        if has_next {
            tokens.hidden = computed.pop().ok_or_else(|| ort_error("a stage returned no hidden states"))?;
        }
        let mut computed = computed.into_iter();
        Ok(layers.map(|_| computed.by_ref().take(projections.len()).collect()).collect())
    }
}

/// Returns the number of bytes of the weights of the first `depth` layers and of the embeddings.
///
/// # Errors
/// Fails if the graph does not have the values of [`value_names`].
pub fn weights_bytes(model: &ModelProto, depth: usize) -> Result<usize, MissingValue> {
    let last = [value_names::value(depth.saturating_sub(1))];
    Ok(stored_bytes(&onnx::extract_subgraph(model, &[], &last)?))
}

/// Returns the names of the graph's inputs for the past keys and the past values of `layer`.
pub fn past_names(layer: usize) -> [String; 2] {
    ["key", "value"].map(|part| format!("past.{layer}.{part}"))
}

/// Returns the names of the values that the prologue of `model` computes: first the hidden states that enter
/// the first layer, then the values that all layers use (rotary cosines and sines, attention masks), as far
/// as the graph has them.
pub fn prologue_outputs(model: &ModelProto) -> Vec<String> {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    let shared = nodes.flat_map(|node| &node.output).filter(|name| {
        [value_names::COS, value_names::SIN, value_names::COS_LOCAL, value_names::SIN_LOCAL]
            .contains(&name.as_str())
            || name.starts_with(value_names::ATTENTION_MASK_PREFIX)
    });
    std::iter::once(value_names::hidden(0)).chain(shared.cloned()).collect()
}
