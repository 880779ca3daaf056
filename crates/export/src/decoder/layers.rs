//! A decoder as one graph.
//! Knows nothing of checkpoints: the weights lie in their file already.
//!
//! Attention is written as MatMul–Softmax–MatMul: its raw logits are then an ordinary value, and it runs on every execution provider.
//! What passes between the prologue and the layers has names ([`cut`]), so that a runtime can cut the graph there and run it layer
//! by layer.

use thresher_core::model::contract::cut;
use thresher_core::model::onnx::DataType;

use super::weights::{DecoderWeights, LayerWeights, Norm};
use super::{Decoder, NormKind};
use crate::graph::{Axis, GraphBuilder, Stored, Value};

/// What a place that is not seen adds to a logit: the lowest `f32`, finite, so that a row that sees nothing is no NaN.
const UNSEEN: f32 = f32::MIN;

/// What the prologue makes of places, the same for all layers.
struct Places {
    /// Cosine and sine of each pair's angle, `[b, 1, t, dim / 2]`.
    turns: Option<[Value; 2]>,
    /// What is added to logits, `[b, 1, t, p + t]`, for each width of window that layers have.
    biases: Vec<(Option<usize>, Value)>,
}

impl Decoder {
    /// The graph that [`thresher_core::model::contract::Decoder::graph`] describes.
    pub fn graph(&self, weights: &DecoderWeights, weights_file: &str) -> Vec<u8> {
        let mut g = GraphBuilder::new(weights_file);
        let (b, t, all) = (Axis::Named("b"), Axis::Named("t"), Axis::Named("p_and_t"));
        let ids = g.input_i64("input_ids", &[b, t]);
        let positions = g.input_i64("position_ids", &[b, t]);
        let key_positions = g.input_i64("key_position_ids", &[b, all]);
        let (kv, d) = (Axis::Fixed(self.kv_heads), Axis::Fixed(self.head_dim));
        let past: Vec<[Value; 2]> = (0..self.layers)
            .map(|layer| {
                ["key", "value"]
                    .map(|part| g.input_f32(&format!("past.{layer}.{part}"), &[b, kv, Axis::Named("p"), d]))
            })
            .collect();
        let mut x = self.embed(&mut g, weights, (&ids, &positions));
        let places = self.places(&mut g, &positions, &key_positions);
        for (layer, (held, past)) in weights.layers.iter().zip(&past).enumerate() {
            x = g.named(&cut::hidden(layer), &x);
            x = self.layer(&mut g, (layer, held), &x, past, &places);
        }
        let hidden = self.normalise(&mut g, &weights.norm, &x);
        let logits = self.output(&mut g, &weights.output, &hidden, &ids);
        g.output_f32("logits", &[b, t, Axis::Fixed(self.vocab_size)], &logits);
        g.finish("decoder", "raw attention logits of every layer: scaled, neither masked nor normalised")
    }

    /// `ids [b, t]` → `[b, t, d]`.
    fn embed(
        &self,
        g: &mut GraphBuilder,
        weights: &DecoderWeights,
        (ids, positions): (&Value, &Value),
    ) -> Value {
        let words = rows(g, &weights.embedding, ids);
        match &weights.places {
            None => words,
            Some(places) => {
                let places = rows(g, places, positions);
                g.add(&words, &places)
            }
        }
    }

    fn places(&self, g: &mut GraphBuilder, positions: &Value, key_positions: &Value) -> Places {
        let turns = self.rotary.as_ref().map(|rotary| {
            let at = g.cast_f32(positions);
            let at = g.unsqueeze(&at, &[1, 3]);
            let frequencies = g.const_f32s(&rotary.frequencies);
            let angles = g.mul(&at, &frequencies);
            let (cos, sin) = (g.cos(&angles), g.sin(&angles));
            [g.named(cut::COS, &cos), g.named(cut::SIN, &sin)]
        });
        let query = g.unsqueeze(positions, &[1, 3]);
        let key = g.unsqueeze(key_positions, &[1, 2]);
        let zero = g.const_i64(&[0]);
        let (is_there, is_behind) = (g.at_most(&zero, &key), g.at_most(&key, &query));
        let seen = g.and(&is_there, &is_behind);
        let mut widths = self.windows.clone();
        widths.sort_unstable();
        widths.dedup();
        let bias = |window: Option<usize>| {
            let seen = match window {
                None => seen.clone(),
                Some(window) => {
                    let width = g.const_i64(&[window as i64]);
                    let edge = g.sub(&query, &width);
                    let is_near = g.less(&edge, &key);
                    g.and(&seen, &is_near)
                }
            };
            let (yes, no) = (g.const_f32(0.0), g.const_f32(UNSEEN));
            let bias = g.choose(&seen, &yes, &no);
            (window, g.named(&cut::bias(window), &bias))
        };
        Places { turns, biases: widths.into_iter().map(bias).collect() }
    }

    fn layer(
        &self,
        g: &mut GraphBuilder,
        (layer, weights): (usize, &LayerWeights),
        x: &Value,
        past: &[Value; 2],
        places: &Places,
    ) -> Value {
        let read = self.normalise(g, &weights.attention_norm, x);
        let attended = self.attend(g, (layer, weights), &read, past, places);
        if self.parallel {
            let read = self.normalise(g, &weights.mlp_norm, x);
            let fed = self.feed_forward(g, weights, &read);
            let sum = g.add(&fed, &attended);
            return g.add(&sum, x);
        }
        let x = g.add(x, &attended);
        let read = self.normalise(g, &weights.mlp_norm, &x);
        let fed = self.feed_forward(g, weights, &read);
        g.add(&x, &fed)
    }

    /// Attention with its output projection: `x [b, t, d]` → `[b, t, d]`.
    fn attend(
        &self,
        g: &mut GraphBuilder,
        (layer, weights): (usize, &LayerWeights),
        x: &Value,
        [past_key, past_value]: &[Value; 2],
        places: &Places,
    ) -> Value {
        let (heads, kv_heads, width) = (self.heads as i64, self.kv_heads as i64, self.head_dim as i64);
        let (queries, keys) = self.widths();
        let joined = weights.qkv.apply(g, x);
        let [q, k, v] = g.split_sizes(&joined, [queries, keys, keys]);
        let mut by_head = |x: &Value, heads: i64, norm: Option<&Stored>| {
            let x = g.reshape(x, &[0, 0, heads, width]);
            let x = norm.map_or(x.clone(), |norm| {
                let scale = g.weight(norm);
                g.rms_norm(&x, &scale, self.epsilon)
            });
            g.transpose(&x, &[0, 2, 1, 3])
        };
        let [q_norm, k_norm] =
            weights.qk_norms.as_ref().map_or([None; 2], |norms| norms.each_ref().map(Some));
        let (q, k, v) =
            (by_head(&q, heads, q_norm), by_head(&k, kv_heads, k_norm), by_head(&v, kv_heads, None));
        let (q, k) = (self.turn(g, &q, places), self.turn(g, &k, places));
        let scale = g.const_f32(self.scale() as f32);
        let q = g.mul(&q, &scale);
        let q = g.named(&cut::query(layer), &q);
        let (k, v) = (g.named(&cut::key(layer), &k), g.named(&cut::value(layer), &v));
        let (k, v) = (g.concat(&[past_key, &k], 2), g.concat(&[past_value, &v], 2));
        let present = [
            Axis::Named("b"),
            Axis::Fixed(self.kv_heads),
            Axis::Named("p_and_t"),
            Axis::Fixed(self.head_dim),
        ];
        g.output_f32(&format!("present.{layer}.key"), &present, &k);
        g.output_f32(&format!("present.{layer}.value"), &present, &v);

        // Query heads of one key head stand together: their tokens are one longer axis, and no key is repeated.
        let shared = self.heads != self.kv_heads;
        let q = if shared { g.reshape(&q, &[0, kv_heads, -1, width]) } else { q };
        let columns = g.transpose(&k, &[0, 1, 3, 2]);
        let logits = g.matmul(&q, &columns);
        let logits = if shared { g.reshape(&logits, &[0, heads, -1, 0]) } else { logits };
        let axes = [Axis::Named("b"), Axis::Fixed(self.heads), Axis::Named("t"), Axis::Named("p_and_t")];
        g.output_f32(&format!("attn_logits.{layer}"), &axes, &logits);
        let (_, bias) =
            places.biases.iter().find(|(window, _)| *window == self.windows[layer]).expect("each has one");
        let seen = g.add(&logits, bias);
        let shares = g.softmax(&seen);
        let shares = if shared { g.reshape(&shares, &[0, kv_heads, -1, 0]) } else { shares };
        let attended = g.matmul(&shares, &v);
        let attended = if shared { g.reshape(&attended, &[0, heads, -1, width]) } else { attended };
        let by_token = g.transpose(&attended, &[0, 2, 1, 3]);
        let joined = g.reshape(&by_token, &[0, 0, heads * width]);
        weights.attention_out.apply(g, &joined)
    }

    /// Turns the pairs of `x [b, heads, t, head_dim]` by their places.
    fn turn(&self, g: &mut GraphBuilder, x: &Value, places: &Places) -> Value {
        let (Some(rotary), Some([cos, sin])) = (&self.rotary, &places.turns) else { return x.clone() };
        let half = rotary.dim / 2;
        let rest = self.head_dim - rotary.dim;
        let (first, second, rest) = if rest == 0 {
            let [first, second] = g.split_sizes(x, [half, half]);
            (first, second, None)
        } else {
            let [first, second, rest] = g.split_sizes(x, [half, half, rest]);
            (first, second, Some(rest))
        };
        let (a, b) = (g.mul(&first, cos), g.mul(&second, sin));
        let turned_first = g.sub(&a, &b);
        let (a, b) = (g.mul(&second, cos), g.mul(&first, sin));
        let turned_second = g.add(&a, &b);
        let parts: Vec<&Value> = [&turned_first, &turned_second].into_iter().chain(&rest).collect();
        g.concat(&parts, -1)
    }

    fn feed_forward(&self, g: &mut GraphBuilder, weights: &LayerWeights, x: &Value) -> Value {
        let raised = weights.up.apply(g, x);
        let active = if self.gated {
            let [raised, gate] = g.split(&raised);
            let active = g.activate(&raised, self.activation);
            g.mul(&active, &gate)
        } else {
            g.activate(&raised, self.activation)
        };
        weights.down.apply(g, &active)
    }

    fn normalise(&self, g: &mut GraphBuilder, norm: &Norm, x: &Value) -> Value {
        let scale = g.weight(&norm.scale);
        match (self.norm, &norm.bias) {
            (NormKind::Layer, Some(bias)) => {
                let bias = g.weight(bias);
                g.layer_norm(x, &scale, &bias, self.epsilon)
            }
            _ => g.rms_norm(x, &scale, self.epsilon),
        }
    }

    /// `x [b, t, d]` → `[b, t, vocab]`.
    fn output(&self, g: &mut GraphBuilder, stored: &Stored, x: &Value, ids: &Value) -> Value {
        let table = g.weight(stored);
        let flat = g.reshape(x, &[-1, self.hidden as i64]);
        let is_half = stored.data_type == DataType::Float16;
        let flat = if is_half { g.cast_f16(&flat) } else { flat };
        let logits = g.product_with_rows(&flat, &table);
        let logits = if is_half { g.cast_f32(&logits) } else { logits };
        let (tokens, vocab) = (g.shape(ids), g.const_i64(&[self.vocab_size as i64]));
        let shape = g.concat(&[&tokens, &vocab], 0);
        g.reshape_to(&logits, &shape)
    }
}

/// Rows of a table that may hold halves.
fn rows(g: &mut GraphBuilder, stored: &Stored, ids: &Value) -> Value {
    let table = g.weight(stored);
    let rows = g.gather(&table, ids);
    if stored.data_type == DataType::Float16 { g.cast_f32(&rows) } else { rows }
}
