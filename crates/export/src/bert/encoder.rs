//! BERT's encoder as graphs.
//! Knows nothing of checkpoints: the weights lie in their file already.
//!
//! The encoder is written with plain MatMul–Softmax–MatMul: ONNX Runtime's fused attention operators are no faster on a
//! CPU at these lengths, and the plain form runs on every execution provider.

use super::{
    Bert,
    weights::{BertWeights, LayerWeights, Norm},
};
use crate::graph::{Axis, GraphBuilder, Value};

/// What a masked position adds to a logit: the lowest `f32`, finite, so that a wholly masked row is no NaN.
const MASKED: f32 = f32::MIN;

/// The smallest norm that a readout vector is divided by, as `torch.nn.functional.normalize` has it.
const NORM_MIN: f32 = 1e-12;

impl Bert {
    /// `input_ids, attention_mask [b, t]` → `key [b, 1, t, d]`.
    pub fn passage_graph(&self, weights: &BertWeights, weights_file: &str) -> Vec<u8> {
        let mut g = GraphBuilder::new(weights_file);
        let tokens = [Axis::Named("b"), Axis::Named("t")];
        let ids = g.input_i64("input_ids", &tokens);
        let mask = g.input_i64("attention_mask", &tokens);
        let bias = mask_bias(&mut g, &mask);
        let unit = self.readout(&mut g, weights, &ids, Some(&bias));
        let key = g.unsqueeze(&unit, &[1]);
        g.output_f32(
            "key",
            &[Axis::Named("b"), Axis::Fixed(1), Axis::Named("t"), Axis::Fixed(self.hidden)],
            &key,
        );
        g.finish("passage", "key: unit readout vector of every position, special tokens included")
    }

    /// `input_ids [1, q], key [1, n, d]` → `cross_logits [1, q, n], self_logits [1, q, q]`.
    pub fn query_graph(&self, weights: &BertWeights, weights_file: &str) -> Vec<u8> {
        let mut g = GraphBuilder::new(weights_file);
        let (one, q, n) = (Axis::Fixed(1), Axis::Named("q"), Axis::Named("n"));
        let ids = g.input_i64("input_ids", &[one, q]);
        let key = g.input_f32("key", &[one, n, Axis::Fixed(self.hidden)]);
        // The batch axis, of size 1, serves as the axis of the one head.
        let unit = self.readout(&mut g, weights, &ids, None);
        let unit_columns = g.transpose(&unit, &[0, 2, 1]);
        // Keys on the left: a key's logits then do not depend, to the last bit, on how many others it came with (but
        // for a key quite alone, where ONNX Runtime takes its matrix-vector kernel). `tests/export_bits.rs` holds it.
        let by_key = g.matmul(&key, &unit_columns);
        let cross = g.transpose(&by_key, &[0, 2, 1]);
        let own = g.matmul(&unit, &unit_columns);
        g.output_f32("cross_logits", &[one, q, n], &cross);
        g.output_f32("self_logits", &[one, q, q], &own);
        g.finish(
            "query",
            "raw logits, no softmax; q counts the special tokens, whose rows and columns the caller drops",
        )
    }

    /// `ids [b, t]`, `bias [b, 1, 1, t]` → unit vectors `[b, t, d]`.
    fn readout(
        &self,
        g: &mut GraphBuilder,
        weights: &BertWeights,
        ids: &Value,
        bias: Option<&Value>,
    ) -> Value {
        let mut x = self.embed(g, weights, ids);
        for layer in &weights.layers {
            let attended = self.attend(g, layer, &x, bias);
            let sum = g.add(&attended, &x);
            x = self.normalise(g, &layer.attention_norm, &sum);
            let raised = layer.up.apply(g, &x);
            let active = g.activate(&raised, self.activation);
            let lowered = layer.down.apply(g, &active);
            let sum = g.add(&lowered, &x);
            x = self.normalise(g, &layer.norm, &sum);
        }
        let norm = g.norm(&x);
        let least = g.const_f32(NORM_MIN);
        let norm = g.max(&norm, &least);
        g.div(&x, &norm)
    }

    /// `ids [b, t]` → `[b, t, d]`.
    fn embed(&self, g: &mut GraphBuilder, weights: &BertWeights, ids: &Value) -> Value {
        let (table, positions) = (g.weight(&weights.words), g.weight(&weights.positions));
        let words = g.gather(&table, ids);
        let tokens = g.size_of_axis(ids, 1);
        let places = g.first_rows(&positions, &tokens);
        let sum = g.add(&words, &places);
        self.normalise(g, &weights.norm, &sum)
    }

    /// Self-attention with its output projection: `x [b, t, d]` → `[b, t, d]`.
    fn attend(&self, g: &mut GraphBuilder, layer: &LayerWeights, x: &Value, bias: Option<&Value>) -> Value {
        let (heads, width) = (self.heads as i64, (self.hidden / self.heads) as i64);
        let qkv = layer.qkv.apply(g, x);
        let [q, k, v] = g.split(&qkv);
        let [q, k, v] = [(q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3])].map(|(part, order)| {
            let by_head = g.reshape(&part, &[0, 0, heads, width]);
            g.transpose(&by_head, &order)
        });
        let logits = g.matmul(&q, &k);
        let logits = bias.map_or(logits.clone(), |bias| g.add(&logits, bias));
        let shares = g.softmax(&logits);
        let by_head = g.matmul(&shares, &v);
        let by_token = g.transpose(&by_head, &[0, 2, 1, 3]);
        let joined = g.reshape(&by_token, &[0, 0, self.hidden as i64]);
        layer.attention_out.apply(g, &joined)
    }

    fn normalise(&self, g: &mut GraphBuilder, norm: &Norm, x: &Value) -> Value {
        let (scale, bias) = (g.weight(&norm.scale), g.weight(&norm.bias));
        g.layer_norm(x, &scale, &bias, self.epsilon)
    }
}

/// `mask [b, t]` of 0 and 1 → what to add to logits, `[b, 1, 1, t]`.
fn mask_bias(g: &mut GraphBuilder, mask: &Value) -> Value {
    let kept = g.cast_f32(mask);
    let (one, masked) = (g.const_f32(1.0), g.const_f32(MASKED));
    let dropped = g.sub(&one, &kept);
    let bias = g.mul(&dropped, &masked);
    g.unsqueeze(&bias, &[1, 2])
}
