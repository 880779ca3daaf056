//! Builds the graph of a decoder.
//! Does not know about checkpoints: the weights are already in their file.
//!
//! Attention is written as MatMul–Softmax–MatMul, so that its raw logits are an ordinary value and it runs on
//! every execution provider. The values that pass between the prologue and the layers have stable names
//! ([`cut`]), so that a runtime can cut the graph at them and run it layer by layer.

use thresher_core::model::contract::{Rotary, value_names};
use thresher_core::model::onnx::DataType;

use super::weights::{DecoderWeights, LayerWeights, Norm};
use super::{Decoder, NormKind};
use crate::graph::{Axis, GraphBuilder, StoredTensor, Value};

/// The bias that is added to the logit of a masked position: the lowest `f32`. It is finite, so that a row
/// whose positions are all masked does not become NaN.
const MASK_BIAS: f32 = f32::MIN;

/// The values that the prologue computes from the positions, the same for all layers.
struct PositionValues {
    /// The rotary angles of all layers or, with `rotary_local`, of those with full attention.
    rotary: Option<RotaryValues>,
    /// The rotary angles of the layers with a sliding window, if they have other ones.
    rotary_local: Option<RotaryValues>,
    /// The bias that is added to logits, `[b, 1, t, p + t]`, for each size of sliding window.
    biases: Vec<(Option<usize>, Value)>,
}

struct RotaryValues {
    /// The number of components of a head that rotate.
    dim: usize,
    /// The cosine of the angle of each pair of components, `[b, 1, t, dim / 2]`.
    cos: Value,
    /// The sine of the angle of each pair of components, `[b, 1, t, dim / 2]`.
    sin: Value,
}

impl Decoder {
    /// Builds the graph that [`thresher_core::model::contract::Decoder::graph`] describes.
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
        let mut x = self.embed(&mut g, weights, &ids, &positions);
        let position_values = self.position_values(&mut g, &positions, &key_positions);
        for (layer, (layer_weights, past)) in weights.layers.iter().zip(&past).enumerate() {
            x = g.named(&value_names::hidden(layer), &x);
            x = self.layer(&mut g, layer, layer_weights, &x, past, &position_values);
        }
        let hidden = self.normalise(&mut g, &weights.norm, &x);
        let logits = self.output(&mut g, &weights.output, &hidden, &ids);
        g.output_f32(value_names::LOGITS, &[b, t, Axis::Fixed(self.vocab_size)], &logits);
        g.finish("decoder", "raw attention logits of every layer: scaled, neither masked nor normalised")
    }

    /// The embeddings of the tokens and, if they are learned, of their positions: `ids [b, t]` → `[b, t, d]`.
    fn embed(&self, g: &mut GraphBuilder, weights: &DecoderWeights, ids: &Value, positions: &Value) -> Value {
        let words = lookup(g, &weights.embedding, ids);
        let words = match self.embedding_scale {
            Some(scale) => {
                let scale = g.const_f32(scale);
                g.mul(&words, &scale)
            }
            None => words,
        };
        match &weights.positions {
            None => words,
            Some(table) => {
                let positions = lookup(g, table, positions);
                g.add(&words, &positions)
            }
        }
    }

    fn position_values(
        &self,
        g: &mut GraphBuilder,
        positions: &Value,
        key_positions: &Value,
    ) -> PositionValues {
        let mut angles = |rotary: &Option<Rotary>, names: [&str; 2]| {
            rotary.as_ref().map(|rotary| rotary_values(g, rotary, positions, names))
        };
        let rotary = angles(&self.rotary, [value_names::COS, value_names::SIN]);
        let rotary_local = angles(&self.rotary_local, [value_names::COS_LOCAL, value_names::SIN_LOCAL]);
        let query = g.unsqueeze(positions, &[1, 3]);
        let key = g.unsqueeze(key_positions, &[1, 2]);
        let zero = g.const_i64(&[0]);
        // Keys with a negative position are padding.
        let (exists, is_causal) = (g.less_or_equal(&zero, &key), g.less_or_equal(&key, &query));
        let visible = g.and(&exists, &is_causal);
        let mut windows = self.sliding_windows.clone();
        windows.sort_unstable();
        windows.dedup();
        let bias = |window: Option<usize>| {
            let visible = match window {
                None => visible.clone(),
                Some(window) => {
                    let size = g.const_i64(&[window as i64]);
                    let before_window = g.sub(&query, &size);
                    let in_window = g.less(&before_window, &key);
                    g.and(&visible, &in_window)
                }
            };
            let (zero, masked) = (g.const_f32(0.0), g.const_f32(MASK_BIAS));
            let bias = g.select(&visible, &zero, &masked);
            (window, g.named(&value_names::attention_mask(window), &bias))
        };
        PositionValues { rotary, rotary_local, biases: windows.into_iter().map(bias).collect() }
    }

    fn layer(
        &self,
        g: &mut GraphBuilder,
        layer: usize,
        weights: &LayerWeights,
        x: &Value,
        past: &[Value; 2],
        positions: &PositionValues,
    ) -> Value {
        let normalised = self.normalise(g, &weights.attention_norm, x);
        let attended = self.attend(g, layer, weights, &normalised, past, positions);
        if self.parallel {
            let normalised = self.normalise(g, &weights.mlp_norm, x);
            let mlp = self.feed_forward(g, weights, &normalised);
            let sum = g.add(&mlp, &attended);
            return g.add(&sum, x);
        }
        let attended = self.normalise_if(g, weights.attention_out_norm.as_ref(), attended);
        let x = g.add(x, &attended);
        let normalised = self.normalise(g, &weights.mlp_norm, &x);
        let mlp = self.feed_forward(g, weights, &normalised);
        let mlp = self.normalise_if(g, weights.mlp_out_norm.as_ref(), mlp);
        g.add(&x, &mlp)
    }

    /// Attention with its output projection: `x [b, t, d]` → `[b, t, d]`.
    fn attend(
        &self,
        g: &mut GraphBuilder,
        layer: usize,
        weights: &LayerWeights,
        x: &Value,
        [past_key, past_value]: &[Value; 2],
        positions: &PositionValues,
    ) -> Value {
        let (heads, kv_heads, width) = (self.heads as i64, self.kv_heads as i64, self.head_dim as i64);
        let (queries, keys) = self.qk_widths();
        let joined = weights.qkv.apply(g, x);
        let [q, k, v] = g.split_sizes(&joined, [queries, keys, keys]);
        let mut by_head = |x: &Value, heads: i64, norm: Option<&StoredTensor>| {
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
        let rotary = positions.rotary_of(self.sliding_windows[layer]);
        let (q, k) = (self.apply_rotary(g, &q, rotary), self.apply_rotary(g, &k, rotary));
        let scale = g.const_f32(self.scale as f32);
        let q = g.mul(&q, &scale);
        let q = g.named(&value_names::query(layer), &q);
        let (k, v) = (g.named(&value_names::key(layer), &k), g.named(&value_names::value(layer), &v));
        let (k, v) = (g.concat(&[past_key, &k], 2), g.concat(&[past_value, &v], 2));
        let present = [
            Axis::Named("b"),
            Axis::Fixed(self.kv_heads),
            Axis::Named("p_and_t"),
            Axis::Fixed(self.head_dim),
        ];
        g.output_f32(&format!("present.{layer}.key"), &present, &k);
        g.output_f32(&format!("present.{layer}.value"), &present, &v);

        // The tokens of all query heads that share a key head are joined into one longer axis, so that no key
        // is repeated.
        let shared = self.heads != self.kv_heads;
        let q = if shared { g.reshape(&q, &[0, kv_heads, -1, width]) } else { q };
        let columns = g.transpose(&k, &[0, 1, 3, 2]);
        let logits = g.matmul(&q, &columns);
        let logits = if shared { g.reshape(&logits, &[0, heads, -1, 0]) } else { logits };
        let axes = [Axis::Named("b"), Axis::Fixed(self.heads), Axis::Named("t"), Axis::Named("p_and_t")];
        g.output_f32(&format!("attn_logits.{layer}"), &axes, &logits);
        let (_, bias) = positions
            .biases
            .iter()
            .find(|(window, _)| *window == self.sliding_windows[layer])
            .expect("one per window");
        let masked = g.add(&logits, bias);
        let probabilities = g.softmax(&masked);
        let probabilities =
            if shared { g.reshape(&probabilities, &[0, kv_heads, -1, 0]) } else { probabilities };
        let attended = g.matmul(&probabilities, &v);
        let attended = if shared { g.reshape(&attended, &[0, heads, -1, width]) } else { attended };
        let by_token = g.transpose(&attended, &[0, 2, 1, 3]);
        let joined = g.reshape(&by_token, &[0, 0, heads * width]);
        weights.attention_out.apply(g, &joined)
    }

    /// Applies the rotary position embedding to `x [b, heads, t, head_dim]`.
    fn apply_rotary(&self, g: &mut GraphBuilder, x: &Value, rotary: Option<&RotaryValues>) -> Value {
        let Some(RotaryValues { dim, cos, sin }) = rotary else { return x.clone() };
        let half = dim / 2;
        let rest = self.head_dim - dim;
        let (first, second, rest) = if rest == 0 {
            let [first, second] = g.split_sizes(x, [half, half]);
            (first, second, None)
        } else {
            let [first, second, rest] = g.split_sizes(x, [half, half, rest]);
            (first, second, Some(rest))
        };
        let (a, b) = (g.mul(&first, cos), g.mul(&second, sin));
        let rotated_first = g.sub(&a, &b);
        let (a, b) = (g.mul(&second, cos), g.mul(&first, sin));
        let rotated_second = g.add(&a, &b);
        let parts: Vec<&Value> = [&rotated_first, &rotated_second].into_iter().chain(&rest).collect();
        g.concat(&parts, -1)
    }

    fn feed_forward(&self, g: &mut GraphBuilder, weights: &LayerWeights, x: &Value) -> Value {
        let up = weights.up.apply(g, x);
        let active = if self.gated {
            let [up, gate] = g.split(&up);
            let active = g.activate(&up, self.activation);
            g.mul(&active, &gate)
        } else {
            g.activate(&up, self.activation)
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

    fn normalise_if(&self, g: &mut GraphBuilder, norm: Option<&Norm>, x: Value) -> Value {
        match norm {
            Some(norm) => self.normalise(g, norm, &x),
            None => x,
        }
    }

    /// The output projection: `x [b, t, d]` → `[b, t, vocab]`.
    fn output(&self, g: &mut GraphBuilder, stored: &StoredTensor, x: &Value, ids: &Value) -> Value {
        let table = g.weight(stored);
        let flat = g.reshape(x, &[-1, self.hidden as i64]);
        let is_f16 = stored.data_type == DataType::Float16;
        let flat = if is_f16 { g.cast_f16(&flat) } else { flat };
        let logits = g.matmul_transposed(&flat, &table);
        let logits = if is_f16 { g.cast_f32(&logits) } else { logits };
        let (tokens, vocab) = (g.shape(ids), g.const_i64(&[self.vocab_size as i64]));
        let shape = g.concat(&[&tokens, &vocab], 0);
        g.reshape_to(&logits, &shape)
    }
}

impl PositionValues {
    /// The rotary angles of a layer with this sliding window; `None` if positions are learned.
    fn rotary_of(&self, window: Option<usize>) -> Option<&RotaryValues> {
        window.and(self.rotary_local.as_ref()).or(self.rotary.as_ref())
    }
}

/// Computes the rotary angles of `positions [b, t]`, and gives the cosines and sines their `names`.
fn rotary_values(
    g: &mut GraphBuilder,
    rotary: &Rotary,
    positions: &Value,
    [cos_name, sin_name]: [&str; 2],
) -> RotaryValues {
    let positions = g.cast_f32(positions);
    let positions = g.unsqueeze(&positions, &[1, 3]);
    let frequencies = g.const_f32s(&rotary.frequencies);
    let angles = g.mul(&positions, &frequencies);
    let (cos, sin) = (g.cos(&angles), g.sin(&angles));
    RotaryValues { dim: rotary.dim, cos: g.named(cos_name, &cos), sin: g.named(sin_name, &sin) }
}

/// Looks up rows of a table, which may be stored as f16, as `f32`.
fn lookup(g: &mut GraphBuilder, stored: &StoredTensor, ids: &Value) -> Value {
    let table = g.weight(stored);
    let rows = g.gather(&table, ids);
    if stored.data_type == DataType::Float16 { g.cast_f32(&rows) } else { rows }
}
