//! A decoder's whole graph, layer by layer, up to what it says next, with keys that some heads do not see: for measuring what
//! leaving keys out costs. Answers to requests do not come through here.

use std::path::Path;

use ndarray::{Array2, Array4, Axis, Ix3, Ix4, s};
use ort::memory::MemoryInfo;
use ort::session::builder::SessionBuilder;
use ort::value::{DynValue, Tensor};

use super::ort_error;
use super::stages::{LayerPast, common, grids};
use super::weights::{SharedWeights, WeightedSession};
use crate::model::contract::{Decoder, cut};
use crate::model::onnx::{self, ModelProto};
use crate::model::{Forward, KeyMask};

/// What is added to the logit of a key that is not seen: as the export's graph does.
const UNSEEN: f32 = f32::MIN;

/// The output of the whole graph that says what comes next.
const LOGITS: &str = "logits";

/// Sessions of all layers, one each.
pub struct ForwardGraph {
    prologue: WeightedSession,
    /// What the prologue gives, by name: the first layer's hidden state first.
    common: Vec<String>,
    layers: Vec<WeightedSession>,
    heads: usize,
    kv_heads: usize,
}

/// Tokens, and what lies before them.
pub struct Input<'a> {
    /// `[t]`
    pub ids: &'a [u32],
    /// `[t]`: their positions.
    pub positions: &'a [i64],
    /// `[p]`: positions of what lies before them, special tokens included.
    pub past_positions: &'a [i64],
    /// Which of these each head sees; all of them without.
    pub kept: Option<&'a KeyMask>,
}

impl ForwardGraph {
    /// Loads all layers of `model`, whose weights lie in `dir`. `builder` makes a session of a graph.
    ///
    /// # Errors
    /// A graph that cannot be cut where an export names its values; what the runtime reports.
    pub fn load(
        model: &ModelProto,
        decoder: &Decoder,
        (weights, dir): (&SharedWeights, &Path),
        builder: impl Fn() -> Result<SessionBuilder, ort::Error>,
    ) -> Result<Self, ort::Error> {
        let load = |inputs: &[String], outputs: &[String]| {
            let cut = onnx::cut(model, inputs, outputs).map_err(ort_error)?;
            weights.session_of(builder()?, &cut, dir)
        };
        let common = common(model);
        let layer = |layer: usize| {
            let inputs: Vec<String> =
                std::iter::once(cut::hidden(layer)).chain(common[1..].iter().cloned()).collect();
            load(&inputs, &[cut::query(layer), next(layer, decoder.layers)])
        };
        Ok(Self {
            prologue: load(&[], &common)?,
            layers: (0..decoder.layers).map(layer).collect::<Result<_, _>>()?,
            common,
            heads: decoder.heads,
            kv_heads: decoder.kv_heads,
        })
    }

    /// Reads `input`. `past` gives each layer's keys and values of what lies before.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn run(
        &mut self,
        input: &Input,
        mut past: impl FnMut(usize) -> Result<LayerPast, ort::Error>,
    ) -> Result<Forward, ort::Error> {
        let host = MemoryInfo::default();
        let inputs = grids(&[
            ("input_ids", &row(input.ids.iter().map(|&id| i64::from(id)))),
            ("position_ids", &row(input.positions.iter().copied())),
            ("key_position_ids", &row(input.past_positions.iter().chain(input.positions).copied())),
        ])?;
        let outputs: Vec<(&str, &MemoryInfo)> =
            self.common.iter().map(|name| (name.as_str(), &host)).collect();
        let of_name = |name: &str| inputs.iter().find(|(input, _)| *input == name).map(|(_, value)| value);
        let mut common = self.prologue.run_in_place(of_name, &outputs)?;
        let mut hidden = common.remove(0);
        let mut queries = Vec::with_capacity(self.layers.len());
        let depth = self.layers.len();
        for (layer, session) in self.layers.iter_mut().enumerate() {
            let (hidden_in, query, next) = (cut::hidden(layer), cut::query(layer), next(layer, depth));
            let past_names = ["key", "value"].map(|part| format!("past.{layer}.{part}"));
            let past = past(layer)?;
            let seen = match input.kept {
                None => None,
                Some(kept) => {
                    let names = &self.common[1..];
                    let takes = |name: &String| session.inputs().iter().any(|input| input.name() == name);
                    let at = names.iter().position(|name| name.starts_with(cut::SEEN) && takes(name));
                    let at = at.ok_or_else(|| ort_error("no layer says what is seen"))?;
                    Some((names[at].as_str(), masked(&common[at], kept, layer, (self.heads, self.kv_heads))?))
                }
            };
            let value_of = |name: &str| {
                let of_seen = || seen.as_ref().filter(|(seen, _)| *seen == name).map(|(_, value)| value);
                let of_common =
                    || self.common[1..].iter().position(|common| common == name).map(|i| &common[i]);
                let of_past = || past_names.iter().position(|past| past == name).map(|i| &past[i]);
                // The table of words takes its shape from the ids.
                let given = || of_name(name);
                let there = || of_seen().or_else(of_common).or_else(of_past).or_else(given);
                if name == hidden_in { Some(&hidden) } else { there() }
            };
            let mut found = session.run_in_place(value_of, &[(&query, &host), (&next, &host)])?;
            hidden = found.pop().ok_or_else(|| ort_error("nothing came of a layer"))?;
            let made =
                found[0].try_extract_array::<f32>()?.into_dimensionality::<Ix4>().map_err(ort_error)?;
            queries.push(made.index_axis(Axis(0), 0).to_owned());
        }
        let logits = hidden.try_extract_array::<f32>()?.into_dimensionality::<Ix3>().map_err(ort_error)?;
        Ok(Forward { queries, logits: logits.index_axis(Axis(0), 0).to_owned() })
    }
}

/// What comes behind a layer.
fn next(layer: usize, layers: usize) -> String {
    if layer + 1 == layers { LOGITS.to_owned() } else { cut::hidden(layer + 1) }
}

fn row(values: impl Iterator<Item = i64>) -> Array2<i64> {
    let values: Vec<i64> = values.collect();
    Array2::from_shape_vec((1, values.len()), values).expect("it is one row")
}

/// `seen [1, 1, t, p + t]` for each head, `[1, heads, t, p + t]`: without the keys that it does not keep.
fn masked(
    seen: &DynValue,
    kept: &KeyMask,
    layer: usize,
    (heads, kv_heads): (usize, usize),
) -> Result<DynValue, ort::Error> {
    let seen = seen.try_extract_array::<f32>()?.into_dimensionality::<Ix4>().map_err(ort_error)?;
    let (_, _, tokens, keys) = seen.dim();
    let mut masked = Array4::from_shape_fn((1, heads, tokens, keys), |(_, _, t, k)| seen[[0, 0, t, k]]);
    // What lies before the past that heads choose from, special tokens, they all see.
    let first = keys - tokens - kept.tokens();
    for head in 0..heads {
        let of_head = kept.of(layer, head / (heads / kv_heads));
        for (key, _) in of_head.iter().enumerate().filter(|(_, kept)| !**kept) {
            masked.slice_mut(s![0, head, .., first + key]).fill(UNSEEN);
        }
    }
    Ok(Tensor::from_array(masked)?.into_dyn())
}
