//! The graphs of an encoder: for passages, and for questions. Does not know about checkpoints.
//!
//! Attention is written with plain MatMul–Softmax–MatMul: ONNX Runtime's fused operators are no faster on a CPU at
//! these lengths, and the plain form runs on every execution provider. With f16 weights, which are for GPUs, it is one
//! fused operator that does not store the logits, and the values inside attention and feed-forward part are f16. The sums
//! over the layers and the normalisations are `f32` in both.

use super::{
    Encoder, Positions,
    colbert::Colbert,
    cross::{Head, Labels},
    weights::{EncoderWeights, LayerWeights, Norm},
};
use crate::graph::{Axis, GraphBuilder, Value};

/// The bias that is added to the logit of a masked position: the lowest `f32`. It is finite, so that a row
/// whose positions are all masked does not become NaN.
const MASK_BIAS: f32 = f32::MIN;

/// The bias that is added to the logit of a position that is out of a layer's reach. The sum with
/// [`MASK_BIAS`] is finite, too.
const REACH_BIAS: f32 = -1e30;

/// The lowest bias of a position for fused attention in f16, for each reason to mask it. There are two reasons, and their
/// sum with a logit is above the lowest f16, -65504: a row whose positions are all masked would otherwise become NaN.
const MASK_BIAS_F16: f32 = -20_000.0;

/// The smallest norm by which a readout vector is divided, as in `torch.nn.functional.normalize`.
const NORM_MIN: f32 = 1e-12;

#[derive(Clone, Copy)]
pub struct GraphParts<'a> {
    pub weights: &'a EncoderWeights,
    pub weights_file: &'a str,
    /// What ColBERT adds to the encoder, if it is one.
    pub colbert: Option<&'a Colbert>,
}

/// The values in a graph that all layers share.
struct Shared {
    /// `[b, 1, 1, t]`: the bias of masked positions.
    mask: Option<Value>,
    /// `[b, t]`: the ids of the tokens.
    ids: Value,
    /// `[1]`: `t`, the number of tokens of a window.
    tokens: Value,
    /// For each reach, the bias of fused attention, `[b or 1, heads or 1, t, t]` as f16; `None` if there is none.
    fused_bias: Vec<(Option<usize>, Option<Value>)>,
    /// `[heads, t, t]`: the biases of attention logits by distance.
    relative_bias: Option<Value>,
    /// `[t]`: the numbers of the tokens as `f32`, for encoders without learned positions alone.
    numbers: Option<Value>,
    /// `[t, t]`: the distances of the tokens, with the names of their values in the graph by reach.
    reach: Vec<(usize, Value)>,
    /// Cosines and sines `[t, 1, head_dim / 2]`, with their frequencies.
    rotary: Vec<(Vec<f32>, [Value; 2])>,
}

impl Encoder {
    pub fn readout_dim(&self, colbert: Option<&Colbert>) -> usize {
        colbert.map_or(self.hidden, |colbert| colbert.projection.dim)
    }

    /// The graph for passages: `input_ids, attention_mask [b, t]` → `key [b, 1, t, dim]`.
    pub fn passage_graph(&self, parts: GraphParts) -> Vec<u8> {
        let mut g = GraphBuilder::new(parts.weights_file);
        let tokens = [Axis::Named("b"), Axis::Named("t")];
        let ids = g.input_i64("input_ids", &tokens);
        let mask = g.input_i64("attention_mask", &tokens);
        let bias = mask_bias(&mut g, &mask);
        let unit = self.readout(&mut g, parts.weights, &ids, Some(bias));
        let key = g.unsqueeze(&unit, &[1]);
        g.output_f32(
            "key",
            &[
                Axis::Named("b"),
                Axis::Fixed(1),
                Axis::Named("t"),
                Axis::Fixed(self.readout_dim(parts.colbert)),
            ],
            &key,
        );
        g.finish("passage", "key: unit readout vector of every position, special tokens included")
    }

    /// The graph for queries: `input_ids [1, q], key [1, n, dim]` → `cross_logits [1, q, n], self_logits [1,
    /// q, q]`.
    pub fn query_graph(&self, parts: GraphParts) -> Vec<u8> {
        let mut g = GraphBuilder::new(parts.weights_file);
        let (one, q, n) = (Axis::Fixed(1), Axis::Named("q"), Axis::Named("n"));
        let ids = g.input_i64("input_ids", &[one, q]);
        let key = g.input_f32("key", &[one, n, Axis::Fixed(self.readout_dim(parts.colbert))]);
        let hidden_token = parts.colbert.and_then(|colbert| colbert.hidden_token);
        let bias = hidden_token.map(|token| token_bias(&mut g, &ids, token));
        // The batch axis has size 1 and is also the axis of the only head.
        let unit = self.readout(&mut g, parts.weights, &ids, bias);
        let unit_columns = g.transpose(&unit, &[0, 2, 1]);
        // The keys are the left operand, so that a key's logits are bit-identical for any number of other
        // keys, except for a single key, for which ONNX Runtime uses its matrix-vector kernel. The test
        // `export_bits` checks this.
        let by_key = g.matmul(&key, &unit_columns);
        let cross = g.transpose(&by_key, &[0, 2, 1]);
        let self_logits = g.matmul(&unit, &unit_columns);
        g.output_f32("cross_logits", &[one, q, n], &cross);
        g.output_f32("self_logits", &[one, q, q], &self_logits);
        g.finish(
            "query",
            "raw logits, no softmax; q counts the special tokens, whose rows and columns the caller drops",
        )
    }

    /// The graph of a cross-encoder: `input_ids [1, t]`, and `token_type_ids [1, t]` if it has token types → `logits [1,
    /// labels]`.
    pub fn pair_graph(&self, parts: GraphParts, head: &Head, labels: &Labels) -> Vec<u8> {
        let mut g = GraphBuilder::new(parts.weights_file);
        let tokens = [Axis::Fixed(1), Axis::Named("t")];
        let ids = g.input_i64("input_ids", &tokens);
        let types = head.has_types().then(|| g.input_i64("token_type_ids", &tokens));
        let hidden =
            self.hidden_states(&mut g, parts.weights, &ids, types.as_ref().map(|types| (head, types)), None);
        let logits = head.logits(&mut g, &hidden);
        g.output_f32("logits", &[Axis::Fixed(1), Axis::Fixed(labels.count())], &logits);
        g.finish("pair", "raw logits of the labels for a pair of texts")
    }

    /// The readout vectors: `ids [b, t]`, `mask [b, 1, 1, t]` → unit vectors `[b, t, dim]`.
    fn readout(
        &self,
        g: &mut GraphBuilder,
        weights: &EncoderWeights,
        ids: &Value,
        mask: Option<Value>,
    ) -> Value {
        let mut x = self.hidden_states(g, weights, ids, None, mask);
        if let Some(projection) = &weights.projection {
            x = projection.apply(g, &x);
        }
        let norm = g.norm(&x);
        let least = g.const_f32(NORM_MIN);
        let norm = g.max(&norm, &least);
        g.div(&x, &norm)
    }

    /// The last hidden states: `ids [b, t]`, for a cross-encoder with token types also `types [b, t]`, `mask [b, 1, 1,
    /// t]` → `[b, t, d]`.
    fn hidden_states(
        &self,
        g: &mut GraphBuilder,
        weights: &EncoderWeights,
        ids: &Value,
        types: Option<(&Head, &Value)>,
        mask: Option<Value>,
    ) -> Value {
        let (mut x, mut shared) = self.embed(g, weights, ids, types, mask);
        for (index, layer) in weights.layers.iter().enumerate() {
            let before = self.normalise_if(g, layer.attention_norm.as_ref(), self.pre_norm, &x);
            let attended = self.attend(g, index, layer, &before, &mut shared);
            let sum = g.add(&attended, &x);
            x = self.normalise_if(g, layer.attention_norm.as_ref(), !self.pre_norm, &sum);
            let before = self.normalise_if(g, Some(&layer.mlp_norm), self.pre_norm, &x);
            let transformed = self.feed_forward(g, layer, &before);
            let sum = g.add(&transformed, &x);
            x = self.normalise_if(g, Some(&layer.mlp_norm), !self.pre_norm, &sum);
        }
        self.normalise_if(g, weights.final_norm.as_ref(), true, &x)
    }

    /// The embeddings of the tokens, `ids [b, t]`, for a cross-encoder also `types [b, t]` → `[b, t, d]`, and the values that all layers share.
    fn embed(
        &self,
        g: &mut GraphBuilder,
        weights: &EncoderWeights,
        ids: &Value,
        types: Option<(&Head, &Value)>,
        mask: Option<Value>,
    ) -> (Value, Shared) {
        let learned = weights.positions.learned.as_ref().map(|positions| g.weight(positions));
        let words = weights.words.rows(g, ids);
        let tokens = g.size_of_axis(ids, 1);
        let sum = match &learned {
            None => words,
            Some(positions) => {
                let positions = g.first_rows(positions, &tokens);
                g.add(&words, &positions)
            }
        };
        let sum = match types {
            Some((head, types)) => head.with_types(g, &sum, types),
            None => sum,
        };
        let x = self.normalise(g, &weights.norm, &sum);
        let numbers = weights.positions.numbers.as_ref().map(|numbers| {
            let numbers = g.weight(numbers);
            g.first_rows(&numbers, &tokens)
        });
        let relative_bias = weights.positions.relative_bias.as_ref().zip(numbers.as_ref());
        let relative_bias = relative_bias.map(|(biases, numbers)| {
            let first_row = g.const_f32((self.tokens_max - 1) as f32);
            let distances = distances(g, numbers);
            let rows = g.add(&distances, &first_row);
            let (rows, biases) = (g.cast_i64(&rows), g.weight(biases));
            let by_head_last = g.gather(&biases, &rows);
            g.transpose(&by_head_last, &[2, 0, 1])
        });
        let (ids, reach, rotary, fused_bias) = (ids.clone(), Vec::new(), Vec::new(), Vec::new());
        (x, Shared { mask, ids, tokens, fused_bias, relative_bias, numbers, reach, rotary })
    }

    /// Self-attention with its output projection: `x [b, t, d]` → `[b, t, d]`.
    fn attend(
        &self,
        g: &mut GraphBuilder,
        index: usize,
        layer: &LayerWeights,
        x: &Value,
        shared: &mut Shared,
    ) -> Value {
        if layer.qkv.is_f16() {
            return self.attend_f16(g, index, layer, x, shared);
        }
        let (heads, width) = (self.heads as i64, self.head_dim() as i64);
        let rotary = shared.rotary_of(g, self, index);
        let qkv = layer.qkv.apply(g, x);
        let [q, k, v] = g.split(&qkv);
        let parts = [(q, [0, 2, 1, 3], true), (k, [0, 2, 3, 1], true), (v, [0, 2, 1, 3], false)];
        let [q, k, v] = parts.map(|(part, order, is_rotated)| {
            let by_head = g.reshape(&part, &[0, 0, heads, width]);
            let by_head = match rotary.as_ref().filter(|_| is_rotated) {
                Some([cos, sin]) => rotate(g, &by_head, [cos, sin]),
                None => by_head,
            };
            g.transpose(&by_head, &order)
        });
        let mut logits = g.matmul(&q, &k);
        let reach = shared.reach_bias(g, self.reach(index));
        for bias in [&shared.relative_bias, &reach, &shared.mask].into_iter().flatten() {
            logits = g.add(&logits, bias);
        }
        let probabilities = g.softmax(&logits);
        let by_head = g.matmul(&probabilities, &v);
        let by_token = g.transpose(&by_head, &[0, 2, 1, 3]);
        let joined = g.reshape(&by_token, &[0, 0, self.hidden as i64]);
        layer.attention_out.apply(g, &joined)
    }

    /// Self-attention with f16 weights. Only the rotation is computed in `f32`, like its angles.
    fn attend_f16(
        &self,
        g: &mut GraphBuilder,
        index: usize,
        layer: &LayerWeights,
        x: &Value,
        shared: &mut Shared,
    ) -> Value {
        let (heads, width, joined) = (self.heads as i64, self.head_dim() as i64, self.hidden as i64);
        let rotary = shared.rotary_of(g, self, index);
        let x = g.cast_f16(x);
        let qkv = layer.qkv.apply_f16(g, &x);
        let [q, k, v] = g.split(&qkv);
        let [q, k] = [q, k].map(|part| match &rotary {
            None => part,
            Some([cos, sin]) => {
                let part = g.cast_f32(&part);
                let by_head = g.reshape(&part, &[0, 0, heads, width]);
                let rotated = rotate(g, &by_head, [cos, sin]);
                let rotated = g.reshape(&rotated, &[0, 0, joined]);
                g.cast_f16(&rotated)
            }
        });
        let bias = shared.fused_bias(g, self.reach(index));
        let attended = g.fused_attention([&q, &k, &v], bias.as_ref(), self.heads);
        let out = layer.attention_out.apply_f16(g, &attended);
        g.cast_f32(&out)
    }

    fn feed_forward(&self, g: &mut GraphBuilder, layer: &LayerWeights, x: &Value) -> Value {
        let is_f16 = layer.up.is_f16();
        let up = if is_f16 {
            let x = g.cast_f16(x);
            layer.up.apply_f16(g, &x)
        } else {
            layer.up.apply(g, x)
        };
        let active = if self.gated {
            let [up, gate] = g.split(&up);
            let active = g.activate(&up, self.activation);
            g.mul(&active, &gate)
        } else {
            g.activate(&up, self.activation)
        };
        if is_f16 {
            let down = layer.down.apply_f16(g, &active);
            g.cast_f32(&down)
        } else {
            layer.down.apply(g, &active)
        }
    }

    /// Normalises `x` if the condition holds and there is a normalisation.
    fn normalise_if(&self, g: &mut GraphBuilder, norm: Option<&Norm>, condition: bool, x: &Value) -> Value {
        match norm.filter(|_| condition) {
            Some(norm) => self.normalise(g, norm, x),
            None => x.clone(),
        }
    }

    fn normalise(&self, g: &mut GraphBuilder, norm: &Norm, x: &Value) -> Value {
        let (scale, bias) = (g.weight(&norm.scale), g.weight(&norm.bias));
        g.layer_norm(x, &scale, &bias, self.epsilon)
    }
}

impl Shared {
    /// The cosines and sines of a layer, each `[t, 1, head_dim / 2]`; `None` if the layer does not rotate.
    fn rotary_of(&mut self, g: &mut GraphBuilder, encoder: &Encoder, layer: usize) -> Option<[Value; 2]> {
        let Positions::Rotary { layers } = &encoder.positions else { return None };
        let frequencies = &layers[layer].frequencies;
        if let Some((_, values)) = self.rotary.iter().find(|(known, _)| known == frequencies) {
            return Some(values.clone());
        }
        let numbers = self.numbers.as_ref().expect("an encoder that rotates has the numbers of its tokens");
        let numbers = g.unsqueeze(numbers, &[1, 2]);
        let by_pair = g.const_f32s(frequencies);
        let angles = g.mul(&numbers, &by_pair);
        let values = [g.cos(&angles), g.sin(&angles)];
        self.rotary.push((frequencies.clone(), values.clone()));
        Some(values)
    }

    /// The bias of fused attention in a layer with this reach: the sum of all biases, each at least [`MASK_BIAS_F16`].
    fn fused_bias(&mut self, g: &mut GraphBuilder, reach: Option<usize>) -> Option<Value> {
        if let Some((_, bias)) = self.fused_bias.iter().find(|(known, _)| *known == reach) {
            return bias.clone();
        }
        // The operator takes four axes.
        let relative = self.relative_bias.as_ref().map(|bias| g.unsqueeze(bias, &[0]));
        let of_reach = self.reach_bias(g, reach).map(|bias| g.unsqueeze(&bias, &[0, 1]));
        let has_rows = relative.is_some() || of_reach.is_some();
        let biases: Vec<Value> = [relative, of_reach, self.mask.clone()].into_iter().flatten().collect();
        let to_f16 = |bias: Value| {
            let lowest = g.const_f32(MASK_BIAS_F16);
            let bias = g.max(&bias, &lowest);
            g.cast_f16(&bias)
        };
        let biases: Vec<Value> = biases.into_iter().map(to_f16).collect();
        let bias = biases.into_iter().reduce(|sum, bias| g.add(&sum, &bias));
        // A mask alone, `[b, 1, 1, t]`, has one row for all queries.
        let bias = bias.map(|bias| {
            if has_rows {
                bias
            } else {
                let (windows, one) = (g.size_of_axis(&self.ids, 0), g.const_i64(&[1]));
                let shape = g.concat(&[&windows, &one, &self.tokens, &self.tokens], 0);
                g.expand(&bias, &shape)
            }
        });
        self.fused_bias.push((reach, bias.clone()));
        bias
    }

    /// The bias `[t, t]` of positions that are out of reach; `None` if all are within it.
    fn reach_bias(&mut self, g: &mut GraphBuilder, reach: Option<usize>) -> Option<Value> {
        let reach = reach?;
        if let Some((_, bias)) = self.reach.iter().find(|(known, _)| *known == reach) {
            return Some(bias.clone());
        }
        let numbers = self.numbers.as_ref().expect("an encoder with a reach has the numbers of its tokens");
        let distances = distances(g, numbers);
        let (distances, largest) = (g.abs(&distances), g.const_f32(reach as f32));
        let is_within = g.less_or_equal(&distances, &largest);
        let (within, beyond) = (g.const_f32(0.0), g.const_f32(REACH_BIAS));
        let bias = g.select(&is_within, &within, &beyond);
        self.reach.push((reach, bias.clone()));
        Some(bias)
    }
}

/// How many positions after the query each key is: `numbers [t]` → `[t, t]`, rows for queries.
fn distances(g: &mut GraphBuilder, numbers: &Value) -> Value {
    let (queries, keys) = (g.unsqueeze(numbers, &[1]), g.unsqueeze(numbers, &[0]));
    g.sub(&keys, &queries)
}

/// Rotates the two halves of each head: `x [b, t, heads, head_dim]`.
fn rotate(g: &mut GraphBuilder, x: &Value, [cos, sin]: [&Value; 2]) -> Value {
    let [first, second] = g.split(x);
    let (a, b) = (g.mul(&first, cos), g.mul(&second, sin));
    let rotated_first = g.sub(&a, &b);
    let (a, b) = (g.mul(&second, cos), g.mul(&first, sin));
    let rotated_second = g.add(&a, &b);
    g.concat(&[&rotated_first, &rotated_second], -1)
}

/// Converts a mask of 0 and 1, `[b, t]`, to the bias that is added to the logits, `[b, 1, 1, t]`.
fn mask_bias(g: &mut GraphBuilder, mask: &Value) -> Value {
    let kept = g.cast_f32(mask);
    let (one, masked) = (g.const_f32(1.0), g.const_f32(MASK_BIAS));
    let dropped = g.sub(&one, &kept);
    let bias = g.mul(&dropped, &masked);
    g.unsqueeze(&bias, &[1, 2])
}

/// The bias `[b, 1, 1, t]` that hides the positions of the token `hidden` from all tokens: `ids [b, t]`.
fn token_bias(g: &mut GraphBuilder, ids: &Value, hidden: u32) -> Value {
    let hidden = g.const_i64(&[hidden.into()]);
    let is_hidden = g.equal(ids, &hidden);
    let (kept, masked) = (g.const_f32(0.0), g.const_f32(MASK_BIAS));
    let bias = g.select(&is_hidden, &masked, &kept);
    g.unsqueeze(&bias, &[1, 2])
}
