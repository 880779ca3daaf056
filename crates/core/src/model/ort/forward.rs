//! Runs a decoder's whole graph, layer by layer, up to the logits of the next token, with a mask of keys per
//! head. It measures the effect of evicting keys; requests do not use it.

use std::path::Path;

use ndarray::{Array2, Array4, Axis, Ix3, Ix4, s};
use ort::memory::MemoryInfo;
use ort::session::builder::SessionBuilder;
use ort::value::{DynValue, Tensor};

use super::ort_error;
use super::stages::{LayerPast, integer_inputs, past_names, prologue_outputs, value_named};
use super::weights::{SharedWeights, WeightedSession};
use crate::model::contract::{Decoder, value_names};
use crate::model::onnx::{self, ModelProto};
use crate::model::{Forward, KeyMask};

/// The number that masks a key when it is added to the key's logit, as in the exported graph.
const MASK_BIAS: f32 = f32::MIN;

/// The name of the graph's output with the logits of the next token.
const LOGITS: &str = "logits";

/// The sessions of all layers of a decoder, one for each layer.
pub struct ForwardGraph {
    prologue: WeightedSession,
    /// The names of the prologue's outputs; see [`prologue_outputs`].
    prologue_outputs: Vec<String>,
    layers: Vec<WeightedSession>,
    heads: usize,
    kv_heads: usize,
}

/// The input of a forward pass. `t` is the number of tokens, `p` the number of past tokens.
pub struct ForwardInput<'a> {
    /// The token ids, `[t]`.
    pub ids: &'a [u32],
    /// The position of each token, `[t]`.
    pub positions: &'a [i64],
    /// The position of each past token, special tokens included, `[p]`.
    pub past_positions: &'a [i64],
    /// The past tokens that each key head attends to; `None` means all of them.
    pub kept: Option<&'a KeyMask>,
}

impl ForwardGraph {
    /// Loads all layers of `model`, whose weights are in `dir`. `builder` returns a new session builder.
    ///
    /// # Errors
    /// Fails if the graph does not have the values of [`value_names`], and returns errors of the runtime.
    pub fn load(
        model: &ModelProto,
        decoder: &Decoder,
        (weights, dir): (&SharedWeights, &Path),
        builder: impl Fn() -> Result<SessionBuilder, ort::Error>,
    ) -> Result<Self, ort::Error> {
        let load = |inputs: &[String], outputs: &[String]| {
            let subgraph = onnx::extract_subgraph(model, inputs, outputs).map_err(ort_error)?;
            weights.session_from_model(builder()?, &subgraph, dir)
        };
        let prologue_outputs = prologue_outputs(model);
        let layer = |layer: usize| {
            let hidden = std::iter::once(value_names::hidden(layer));
            let inputs: Vec<String> = hidden.chain(prologue_outputs[1..].iter().cloned()).collect();
            load(&inputs, &[value_names::query(layer), layer_output(layer, decoder.layers)])
        };
        Ok(Self {
            prologue: load(&[], &prologue_outputs)?,
            layers: (0..decoder.layers).map(layer).collect::<Result<_, _>>()?,
            prologue_outputs,
            heads: decoder.heads,
            kv_heads: decoder.kv_heads,
        })
    }

    /// Runs the forward pass over `input`. `past` returns the past keys and values of a layer.
    ///
    /// # Errors
    /// Returns an error of `past` or of the runtime.
    pub fn run(
        &mut self,
        input: &ForwardInput,
        mut past: impl FnMut(usize) -> Result<LayerPast, ort::Error>,
    ) -> Result<Forward, ort::Error> {
        let host = MemoryInfo::default();
        let inputs = integer_inputs(&[
            ("input_ids", &row(input.ids.iter().map(|&id| i64::from(id)))),
            ("position_ids", &row(input.positions.iter().copied())),
            ("key_position_ids", &row(input.past_positions.iter().chain(input.positions).copied())),
        ])?;
        let outputs: Vec<(&str, &MemoryInfo)> =
            self.prologue_outputs.iter().map(|name| (name.as_str(), &host)).collect();
        let mut shared = self.prologue.run_with_binding(|name| value_named(name, &inputs), &outputs)?;
        let mut hidden = shared.remove(0);
        let shared_names = &self.prologue_outputs[1..];
        let mut queries = Vec::with_capacity(self.layers.len());
        let depth = self.layers.len();
        for (layer, session) in self.layers.iter_mut().enumerate() {
            let (hidden_in, query) = (value_names::hidden(layer), value_names::query(layer));
            let (output, past_names, past) = (layer_output(layer, depth), past_names(layer), past(layer)?);
            let mask = match input.kept {
                None => None,
                Some(kept) => {
                    let is_input = |name: &String| session.inputs().iter().any(|input| input.name() == name);
                    let is_mask = |name: &&String| name.starts_with(value_names::ATTENTION_MASK_PREFIX);
                    let at = shared_names.iter().position(|name| is_mask(&name) && is_input(name));
                    let at =
                        at.ok_or_else(|| ort_error(format_args!("layer {layer} has no attention mask")))?;
                    let mask = mask_per_head(&shared[at], kept, layer, (self.heads, self.kv_heads))?;
                    Some((shared_names[at].as_str(), mask))
                }
            };
            let value_of = |name: &str| {
                let of_mask = || mask.as_ref().filter(|(mask, _)| *mask == name).map(|(_, value)| value);
                let of_shared = || shared_names.iter().position(|shared| shared == name).map(|i| &shared[i]);
                let of_past = || past_names.iter().position(|past| past == name).map(|i| &past[i]);
                // The subgraph of the last layer takes the shape of the logits from the ids.
                let of_inputs = || value_named(name, &inputs);
                let other = || of_mask().or_else(of_shared).or_else(of_past).or_else(of_inputs);
                if name == hidden_in { Some(&hidden) } else { other() }
            };
            let mut computed = session.run_with_binding(value_of, &[(&query, &host), (&output, &host)])?;
            hidden = computed.pop().ok_or_else(|| ort_error("a layer returned no output"))?;
            let query =
                computed[0].try_extract_array::<f32>()?.into_dimensionality::<Ix4>().map_err(ort_error)?;
            queries.push(query.index_axis(Axis(0), 0).to_owned());
        }
        let logits = hidden.try_extract_array::<f32>()?.into_dimensionality::<Ix3>().map_err(ort_error)?;
        Ok(Forward { queries, logits: logits.index_axis(Axis(0), 0).to_owned() })
    }
}

/// The name of the output of a layer: the hidden states for the next layer, or the logits after the last
/// layer.
fn layer_output(layer: usize, layers: usize) -> String {
    if layer + 1 == layers { LOGITS.to_owned() } else { value_names::hidden(layer + 1) }
}

/// Returns an array `[1, n]`.
fn row(values: impl Iterator<Item = i64>) -> Array2<i64> {
    let values: Vec<i64> = values.collect();
    Array2::from_shape_vec((1, values.len()), values).expect("the shape has as many elements as the values")
}

/// Expands an attention mask `[1, 1, t, p + t]` to `[1, heads, t, p + t]` and masks the keys that a head does
/// not keep.
fn mask_per_head(
    mask: &DynValue,
    kept: &KeyMask,
    layer: usize,
    (heads, kv_heads): (usize, usize),
) -> Result<DynValue, ort::Error> {
    let mask = mask.try_extract_array::<f32>()?.into_dimensionality::<Ix4>().map_err(ort_error)?;
    let (_, _, tokens, keys) = mask.dim();
    let mut per_head = Array4::from_shape_fn((1, heads, tokens, keys), |(_, _, t, k)| mask[[0, 0, t, k]]);
    // The special tokens come before the tokens of `kept`, and every head attends to them.
    let first = keys - tokens - kept.tokens();
    for head in 0..heads {
        let kept = kept.of(layer, head / (heads / kv_heads));
        for (key, _) in kept.iter().enumerate().filter(|(_, is_kept)| !**is_kept) {
            per_head.slice_mut(s![0, head, .., first + key]).fill(MASK_BIAS);
        }
    }
    Ok(Tensor::from_array(per_head)?.into_dyn())
}
