//! Runs a decoder's whole graph, layer by layer, up to the logits of the next token, with a mask of keys per
//! head. It measures the effect of evicting keys; requests do not use it.

use std::ops::Range;
use std::path::Path;

use ndarray::{Array2, Array4, Ix3, Ix4, Zip, s};
use ort::memory::MemoryInfo;
use ort::session::builder::SessionBuilder;
use ort::value::{DynValue, Tensor};

use super::device::Device;
use super::ort_error;
use super::stages::{LayerPast, past_names, prologue_outputs};
use super::weights::{SharedWeights, WeightedSession, integer_inputs, stored_bytes, value_named};
use crate::model::KeyMask;
use crate::model::contract::{Decoder, value_names};
use crate::model::onnx::{self, ModelProto};

/// The number that masks a key when it is added to the key's logit, as in the exported graph.
const MASK_BIAS: f32 = f32::MIN;

/// The sessions of all layers of a decoder, one for each layer.
pub struct ForwardGraph {
    prologue: WeightedSession,
    /// The names of the prologue's outputs; see [`prologue_outputs`].
    prologue_outputs: Vec<String>,
    layers: Vec<WeightedSession>,
    heads: usize,
    kv_heads: usize,
}

/// The keys and values that the sequences of a forward pass follow, special tokens included. They are copied
/// once and serve any number of passes.
pub struct ForwardPast {
    /// `[layer]`: the keys and values of the past tokens.
    pub(super) layers: Vec<LayerPast>,
    /// The position of each past token, `[p]`.
    pub(super) positions: Vec<i64>,
    /// The position of the first token of each sequence.
    pub(super) next_position: i64,
}

/// A sequence of tokens that follows the past. It does not attend to the other sequences of its pass.
#[derive(Clone, Copy)]
pub struct ForwardSequence<'a> {
    pub tokens: &'a [u32],
    /// The past tokens that each key head attends to; `None` means all of them.
    pub kept: Option<&'a KeyMask>,
}

impl ForwardGraph {
    /// Loads all layers of `model`, whose weights are in `dir`. `builder` returns a new session builder for a
    /// device. On a GPU, each session may use all memory of `device` that the weights leave while it runs, and keeps only
    /// its weights after that.
    ///
    /// # Errors
    /// Fails if the graph does not have the values of [`value_names`], and returns errors of the runtime.
    pub fn load(
        model: &ModelProto,
        decoder: &Decoder,
        weights: &SharedWeights,
        dir: &Path,
        device: &Device,
        builder: impl Fn(&Device) -> Result<SessionBuilder, ort::Error>,
    ) -> Result<Self, ort::Error> {
        let all_weights = stored_bytes(model);
        let load = |inputs: &[String], outputs: &[String]| {
            let subgraph = onnx::extract_subgraph(model, inputs, outputs).map_err(ort_error)?;
            let share = device.beside_weights(all_weights, stored_bytes(&subgraph));
            weights.session_from_model(builder(&share)?, &subgraph, dir)?.returning_memory(device)
        };
        let prologue_outputs = prologue_outputs(model);
        let layer = |layer: usize| {
            let hidden = std::iter::once(value_names::hidden(layer));
            let inputs: Vec<String> = hidden.chain(prologue_outputs[1..].iter().cloned()).collect();
            load(&inputs, &[value_names::layer_output(layer, decoder.layers)])
        };
        Ok(Self {
            prologue: load(&[], &prologue_outputs)?,
            layers: (0..decoder.layers).map(layer).collect::<Result<_, _>>()?,
            prologue_outputs,
            heads: decoder.heads,
            kv_heads: decoder.kv_heads,
        })
    }

    /// Runs one forward pass over all `sequences`, and returns the logits of each, `[token, vocab]`. The
    /// sequences are one row of tokens whose attention masks separate them, so the past is in memory once.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn run(
        &mut self,
        past: &ForwardPast,
        sequences: &[ForwardSequence],
    ) -> Result<Vec<Array2<f32>>, ort::Error> {
        // On every device, all outputs go to the memory of the CPU: masks are changed there between two layers.
        let host = MemoryInfo::default();
        let ids = sequences.iter().flat_map(|sequence| sequence.tokens).map(|&id| i64::from(id));
        let positions: Vec<i64> = sequences
            .iter()
            .flat_map(|sequence| (past.next_position..).take(sequence.tokens.len()))
            .collect();
        let inputs = integer_inputs(&[
            ("input_ids", &row(ids)),
            ("position_ids", &row(positions.iter().copied())),
            ("key_position_ids", &row(past.positions.iter().chain(&positions).copied())),
        ])?;
        let outputs: Vec<(&str, &MemoryInfo)> =
            self.prologue_outputs.iter().map(|name| (name.as_str(), &host)).collect();
        let mut shared = self.prologue.run_with_binding(|name| value_named(name, &inputs), &outputs)?;
        let mut hidden = shared.remove(0);
        let shared_names = &self.prologue_outputs[1..];
        let needs_masks = sequences.len() > 1 || sequences.iter().any(|sequence| sequence.kept.is_some());
        let depth = self.layers.len();
        for (layer, session) in self.layers.iter_mut().enumerate() {
            let (hidden_in, output) = (value_names::hidden(layer), value_names::layer_output(layer, depth));
            let past_names = past_names(layer);
            let mask = if !needs_masks {
                None
            } else {
                let is_input = |name: &String| session.inputs().iter().any(|input| input.name() == name);
                let is_mask = |name: &&String| name.starts_with(value_names::ATTENTION_MASK_PREFIX);
                let at = shared_names.iter().position(|name| is_mask(&name) && is_input(name));
                let at = at.ok_or_else(|| ort_error(format_args!("layer {layer} has no attention mask")))?;
                let mask = mask_per_head(&shared[at], sequences, layer, self.heads, self.kv_heads)?;
                Some((shared_names[at].as_str(), mask))
            };
            let value_of = |name: &str| {
                let of_mask = || mask.as_ref().filter(|(mask, _)| *mask == name).map(|(_, value)| value);
                let of_shared = || shared_names.iter().position(|shared| shared == name).map(|i| &shared[i]);
                let of_past =
                    || past_names.iter().position(|past| past == name).map(|i| &past.layers[layer][i]);
                // The subgraph of the last layer takes the shape of the logits from the ids.
                let of_inputs = || value_named(name, &inputs);
                let other = || of_mask().or_else(of_shared).or_else(of_past).or_else(of_inputs);
                if name == hidden_in { Some(&hidden) } else { other() }
            };
            let mut computed = session.run_with_binding(value_of, &[(&output, &host)])?;
            hidden = computed.pop().ok_or_else(|| ort_error("a layer returned no output"))?;
        }
        let logits = hidden.try_extract_array::<f32>()?.into_dimensionality::<Ix3>().map_err(ort_error)?;
        let of_sequence = |tokens: Range<usize>| logits.slice(s![0, tokens, ..]).to_owned();
        Ok(token_ranges(sequences).into_iter().map(of_sequence).collect())
    }
}

/// The range of the tokens of each sequence in the row of all tokens.
fn token_ranges(sequences: &[ForwardSequence]) -> Vec<Range<usize>> {
    let range = |end: &mut usize, sequence: &ForwardSequence| {
        let start = *end;
        *end += sequence.tokens.len();
        Some(start..*end)
    };
    sequences.iter().scan(0, range).collect()
}

/// Returns an array `[1, n]`.
fn row(values: impl Iterator<Item = i64>) -> Array2<i64> {
    let values: Vec<i64> = values.collect();
    Array2::from_shape_vec((1, values.len()), values).expect("the shape has as many elements as the values")
}

/// Expands an attention mask `[1, 1, t, p + t]` to `[1, heads, t, p + t]`. Masks the past keys that a head does
/// not keep for the sequence of a token, and the tokens of other sequences.
fn mask_per_head(
    mask: &DynValue,
    sequences: &[ForwardSequence],
    layer: usize,
    heads: usize,
    kv_heads: usize,
) -> Result<DynValue, ort::Error> {
    let mask = mask.try_extract_array::<f32>()?.into_dimensionality::<Ix4>().map_err(ort_error)?;
    let (_, _, tokens, keys) = mask.dim();
    let past = keys - tokens;
    let mut per_head = Array4::zeros((1, heads, tokens, keys));
    for (sequence, range) in sequences.iter().zip(token_ranges(sequences)) {
        for head in 0..heads {
            let mut rows = per_head.slice_mut(s![0, head, range.clone(), ..]);
            rows.assign(&mask.slice(s![0, 0, range.clone(), ..]));
            rows.slice_mut(s![.., past..past + range.start]).fill(MASK_BIAS);
            rows.slice_mut(s![.., past + range.end..]).fill(MASK_BIAS);
            let Some(kept) = sequence.kept else { continue };
            // The special tokens come before the tokens of `kept`, and every head attends to them.
            let first = past - kept.tokens();
            let kept = kept.head(layer, head / (heads / kv_heads));
            for mut row in rows.rows_mut() {
                let past = row.slice_mut(s![first..past]);
                Zip::from(past).and(kept).for_each(|bias, &is_kept| {
                    if !is_kept {
                        *bias = MASK_BIAS;
                    }
                });
            }
        }
    }
    Ok(Tensor::from_array(per_head)?.into_dyn())
}
