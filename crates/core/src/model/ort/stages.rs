//! A decoder's graph in stages of some layers each, run one behind the other.
//! Knows nothing of windows or questions: tokens, positions and what lies before them come in, what each layer makes goes out.
//!
//! The whole graph would hold the raw attention logits of all layers, and the keys and values of everything it looks back on. Cut into
//! stages, it holds those of one stage: hidden states go from one to the next, on the device where they are.

use std::ops::Range;
use std::path::Path;

use ndarray::Array2;
use ort::memory::MemoryInfo;
use ort::value::{DynValue, Tensor};

use super::device::Device;
use super::ort_error;
use super::weights::{SharedWeights, WeightedSession};
use crate::model::contract::cut;
use crate::model::onnx::{self, ModelProto};

/// Layers of one stage. Fewer hold less at once and are more sessions to load.
const LAYERS: usize = 2;

/// Sessions of so many layers: the stages, and what goes before them.
pub fn sessions(depth: usize) -> usize {
    1 + depth.div_ceil(LAYERS)
}

/// What a layer makes of its tokens, `[b, heads or kv_heads, t, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// Scaled, in their positions.
    Query,
    /// In their positions.
    Key,
    Value,
}

/// Sessions of all stages.
pub struct Stages {
    /// Tokens and positions to what all layers read.
    prologue: WeightedSession,
    /// What the prologue gives, by name: the first layer's hidden state first.
    common: Vec<String>,
    stages: Vec<Stage>,
    device: Device,
}

struct Stage {
    layers: Range<usize>,
    session: WeightedSession,
}

/// Tokens that go through the stages together.
pub struct Tokens {
    /// `[b, t]`
    pub ids: Array2<i64>,
    /// `[b, t]`
    pub positions: Array2<i64>,
    /// `[b, p + t]`: of everything that lies before them, and of themselves; -1 is not there.
    pub key_positions: Array2<i64>,
}

/// Tokens on their way: what all layers read of them, and their hidden states in front of the next stage.
pub struct OnTheirWay {
    hidden: DynValue,
    /// In the order of [`Stages::common`], without the first.
    common: Vec<DynValue>,
}

/// Keys and values of one layer that lie before some tokens: `[b, kv_heads, p, head_dim]`.
pub type LayerPast = [DynValue; 2];

impl Stages {
    /// Loads the first `depth` layers of `model`, whose weights lie in `dir`. `session` makes a session of a graph.
    ///
    /// # Errors
    /// A graph that cannot be cut where an export names its values; what the runtime reports.
    pub fn load(
        model: &ModelProto,
        depth: usize,
        (weights, dir): (&SharedWeights, &Path),
        device: &Device,
        builder: impl Fn() -> Result<ort::session::builder::SessionBuilder, ort::Error>,
    ) -> Result<Self, ort::Error> {
        let load = |inputs: &[String], outputs: &[String]| {
            let cut = onnx::cut(model, inputs, outputs).map_err(ort_error)?;
            weights.session_of(builder()?, &cut, dir)
        };
        let common = common(model);
        let prologue = load(&[], &common)?;
        let stage = |first: usize| {
            let layers = first..(first + LAYERS).min(depth);
            let inputs: Vec<String> =
                std::iter::once(cut::hidden(first)).chain(common[1..].iter().cloned()).collect();
            let parts =
                layers.clone().flat_map(|layer| [cut::query(layer), cut::key(layer), cut::value(layer)]);
            // Behind the last layer that is read, nothing is wanted any more.
            let next = (layers.end < depth).then(|| cut::hidden(layers.end));
            let outputs: Vec<String> = parts.chain(next).collect();
            Ok(Stage { session: load(&inputs, &outputs)?, layers })
        };
        let stages = (0..depth).step_by(LAYERS).map(stage).collect::<Result<_, ort::Error>>()?;
        Ok(Self { prologue, common, stages, device: device.clone() })
    }

    /// The layers of each stage.
    pub fn layers(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.stages.iter().map(|stage| stage.layers.clone()).collect::<Vec<_>>().into_iter()
    }

    /// Whether `layer` attends, so that it wants what lies before: the last one that is read does not.
    pub fn attends(&self, layer: usize) -> bool {
        self.stages.last().is_some_and(|last| layer + 1 < last.layers.end)
    }

    /// Makes of `tokens` what the first layer reads.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn enter(&mut self, tokens: &Tokens) -> Result<OnTheirWay, ort::Error> {
        let inputs = grids(&[
            ("input_ids", &tokens.ids),
            ("position_ids", &tokens.positions),
            ("key_position_ids", &tokens.key_positions),
        ])?;
        let memory = self.device.memory()?;
        let outputs: Vec<(&str, &MemoryInfo)> =
            self.common.iter().map(|name| (name.as_str(), &memory)).collect();
        let of_name = |name: &str| inputs.iter().find(|(input, _)| *input == name).map(|(_, value)| value);
        let mut common = self.prologue.run_in_place(of_name, &outputs)?;
        let hidden = common.remove(0);
        Ok(OnTheirWay { hidden, common })
    }

    /// Takes tokens through the stage that begins at layer `first`: what its layers make of them, those of `parts` in their order
    /// for each layer, on the processor. `past` has one for each of its layers that attends.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn pass(
        &mut self,
        first: usize,
        tokens: &mut OnTheirWay,
        past: &[LayerPast],
        parts: &[Part],
    ) -> Result<Vec<Vec<DynValue>>, ort::Error> {
        let stage = self.stages.iter_mut().find(|stage| stage.layers.start == first);
        let stage = stage.ok_or_else(|| ort_error(format_args!("no stage begins at layer {first}")))?;
        let depth_left = stage.layers.clone();
        let hidden_in = cut::hidden(first);
        let past_names: Vec<[String; 2]> = depth_left
            .clone()
            .map(|layer| ["key", "value"].map(|part| format!("past.{layer}.{part}")))
            .collect();
        let common = &self.common[1..];
        let value_of = |name: &str| {
            let of_common = || common.iter().position(|common| common == name).map(|i| &tokens.common[i]);
            let of_past = || {
                let mut named = past_names.iter().flatten().zip(past.iter().flatten());
                named.find(|(past, _)| *past == name).map(|(_, value)| value)
            };
            if name == hidden_in { Some(&tokens.hidden) } else { of_common().or_else(of_past) }
        };
        let (host, there) = (MemoryInfo::default(), self.device.memory()?);
        let named = |layer: usize| {
            parts.iter().map(move |part| match part {
                Part::Query => cut::query(layer),
                Part::Key => cut::key(layer),
                Part::Value => cut::value(layer),
            })
        };
        let names: Vec<String> = stage.layers.clone().flat_map(named).collect();
        let next = cut::hidden(stage.layers.end);
        let goes_on = stage.session.outputs().iter().any(|output| output.name() == next);
        let mut outputs: Vec<(&str, &MemoryInfo)> = names.iter().map(|name| (name.as_str(), &host)).collect();
        outputs.extend(goes_on.then_some((next.as_str(), &there)));
        let mut found = stage.session.run_in_place(value_of, &outputs)?;
        if goes_on {
            tokens.hidden = found.pop().ok_or_else(|| ort_error("no hidden state came of it"))?;
        }
        let mut found = found.into_iter();
        Ok(stage.layers.clone().map(|_| found.by_ref().take(parts.len()).collect()).collect())
    }
}

/// What a graph takes at its front, by name.
///
/// # Errors
/// What the runtime reports.
pub fn grids<'a>(inputs: &[(&'a str, &Array2<i64>)]) -> Result<Vec<(&'a str, DynValue)>, ort::Error> {
    let grid = |&(name, rows): &(&'a str, &Array2<i64>)| {
        let values: Vec<i64> = rows.iter().copied().collect();
        Ok((name, Tensor::from_array(([rows.nrows(), rows.ncols()], values))?.into_dyn()))
    };
    inputs.iter().map(grid).collect()
}

/// What every layer reads beside its hidden state, and the first hidden state in front: those of the names that the graph has.
pub fn common(model: &ModelProto) -> Vec<String> {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    let made = nodes.flat_map(|node| &node.output);
    let shared =
        made.filter(|name| [cut::COS, cut::SIN].contains(&name.as_str()) || name.starts_with(cut::SEEN));
    std::iter::once(cut::hidden(0)).chain(shared.cloned()).collect()
}
