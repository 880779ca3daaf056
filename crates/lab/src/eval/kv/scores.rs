//! The scores by which eviction methods select keys, for one question over the chunks of a row. Knows nothing
//! of budgets.

use anyhow::Result;
use ndarray::{Array1, Array2, Array3, ArrayView1, ArrayView2, ArrayView3, Axis, s};
use thresher_core::Engine;
use thresher_core::model::contract::EvictionForm;
use thresher_core::model::{ModelRuntime, Past};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::kv_export::{self, KvExport};
use thresher_core::rc;

use super::reading::ReadRow;

/// The number of keys of a page of Quest.
const PAGE_KEYS: usize = 16;

/// The scores that the methods select keys by, in the layers with full attention.
pub struct KeyScores {
    /// `[layer, kv_head, key]`: RC of each key for the question in the form of the model's contract.
    pub(super) rc: Array3<f32>,
    /// `[layer, kv_head, key]`: expected RC over the question's own keys.
    pub(super) rc_self: Array3<f32>,
    /// `[layer, kv_head, key]`: attention of the question's tokens, summed over the tokens, averaged over the
    /// query heads that share the key head.
    pub(super) question_attention: Array3<f32>,
    /// `[layer, kv_head, key]`: the same for the tokens of the chunks, each over its own window.
    pub(super) chunk_attention: Array3<f32>,
    /// `[layer, kv_head, key]`: Euclidean norm of each key.
    pub(super) key_norms: Array3<f32>,
    /// `[layer, kv_head, key]`: an upper bound of the question's logits over the page of each key.
    pub(super) page_bounds: Array3<f32>,
    /// The form of eviction by RC of the model's contract.
    pub(super) form: EvictionForm,
    /// Number of special tokens at the start; all methods keep them.
    pub(super) prefix: usize,
    pub(super) row: usize,
}

impl KeyScores {
    /// Runs the question and the chunks through the model and computes all scores.
    ///
    /// # Errors
    /// Fails if the model is not a decoder whose keys can be exported, or if it fails.
    pub fn new(read: &ReadRow, engine: &Engine, form: &EvictionForm, row: usize) -> Result<Self> {
        let kv_export = &read.kv_export;
        let pipeline = engine.pipeline();
        let info = pipeline.model();
        let decoder = kv_export::check_model(info)?;
        let cancel = Cancel::default();
        let over = pipeline.attend_export(kv_export, &read.question, &cancel)?;
        let (rc, rc_self) = (over.rc_of_keys(form), over.key_scores(expected_over_self));
        let encoded = over.encoded();
        let (tokens, prefix, dim) = (kv_export.tokens.len(), decoder.prefix_tokens(), info.head_dim);
        let layers = decoder.full_layers();
        let shape = (layers.len(), decoder.kv_heads, tokens);
        let [mut question_attention, mut chunk_attention, mut key_norms, mut page_bounds] =
            std::array::from_fn(|_| Array3::zeros(shape));
        let window_ranges = window_ranges(kv_export);
        let mut window_queries = Vec::with_capacity(window_ranges.len());
        for window in &window_ranges {
            let ids: Vec<u32> = kv_export.tokens[window.clone()].iter().map(|token| token.id).collect();
            let past = PrefixOnly(prefix as i64);
            window_queries
                .push(super::decoder_of(engine)?.encode_question_in_all_heads(&ids, &past)?.vectors);
        }
        let group = decoder.heads / decoder.kv_heads;
        for (at_layer, &layer) in layers.iter().enumerate() {
            for kv_head in 0..decoder.kv_heads {
                let mut keys = Array2::zeros((prefix + tokens, dim));
                let plane = decoder.planes().keys(layer).start + kv_head;
                kv_export.read_plane(
                    pipeline,
                    plane,
                    keys.as_slice_mut().expect("a new array is contiguous"),
                );
                let at = s![at_layer, kv_head, ..];
                let lengths = keys.slice(s![prefix.., ..]).map_axis(Axis(1), |key| key.dot(&key).sqrt());
                key_norms.slice_mut(at).assign(&lengths);
                let heads =
                    layer * decoder.heads + kv_head * group..layer * decoder.heads + (kv_head + 1) * group;
                let queries = encoded.vectors.slice(s![heads, .., ..]);
                page_bounds.slice_mut(at).assign(&bounds_by_page(queries, keys.slice(s![prefix.., ..])));
                for head in kv_head * group..(kv_head + 1) * group {
                    let all = layer * decoder.heads + head;
                    let x = encoded.vectors.slice(s![all, .., ..]).dot(&keys.t());
                    let question_self_logits = encoded.self_logits(all..all + 1);
                    let [attention_sums, _] =
                        attention(x.view(), question_self_logits.index_axis(Axis(0), 0));
                    let mut question_attention = question_attention.slice_mut(at);
                    question_attention.scaled_add(1.0 / group as f32, &attention_sums.slice(s![prefix..]));
                }
                // A window was read after the special tokens, so its queries and the keys of its block have
                // positions that start there.
                for (window, window_queries) in window_ranges.iter().zip(&window_queries) {
                    let window_keys = kv_export.window_keys(pipeline, plane, window.clone());
                    for head in kv_head * group..(kv_head + 1) * group {
                        let queries = window_queries.slice(s![layer * decoder.heads + head, .., ..]);
                        let x = queries.dot(&window_keys.t());
                        let (before, among) = x.view().split_at(Axis(1), prefix);
                        let [_, attention_sums] = attention(before, among);
                        let mut chunk_attention =
                            chunk_attention.slice_mut(s![at_layer, kv_head, window.clone()]);
                        chunk_attention.scaled_add(1.0 / group as f32, &attention_sums);
                    }
                }
            }
        }
        Ok(Self {
            rc,
            rc_self,
            question_attention,
            chunk_attention,
            key_norms,
            page_bounds,
            form: *form,
            prefix,
            row,
        })
    }
}

/// Returns the expected RC of each key over the question's own keys, `[key]`: the largest of the query heads.
fn expected_over_self(x: ArrayView3<f32>, self_logits: ArrayView3<f32>) -> Array1<f32> {
    let mut best = Array1::zeros(x.len_of(Axis(2)));
    for (x, self_logits) in x.outer_iter().zip(self_logits.outer_iter()) {
        let rc = rc::expected_over_self(x, self_logits);
        best.zip_mut_with(&rc, |best: &mut f32, &rc| *best = best.max(rc));
    }
    best
}

/// Returns the ranges of tokens that belong to the same window.
fn window_ranges(kv_export: &KvExport) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, token) in kv_export.tokens.iter().enumerate() {
        match found.last_mut() {
            Some(last) if kv_export.tokens[last.start].window == token.window => last.end = at + 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

/// A past that holds the special tokens only.
struct PrefixOnly(i64);

impl Past for PrefixOnly {
    fn positions(&self) -> &[i64] {
        &[]
    }

    fn question_position(&self) -> i64 {
        self.0
    }

    fn read_plane(&self, _plane: usize, _out: &mut [f32]) {}

    fn go_on(&self) -> bool {
        true
    }
}

/// Returns for each key an upper bound of the logits of any query over the keys of its page, `[key]`: per
/// component, the larger of the products with the page's smallest and largest value. `queries` is `[head,
/// query, head_dim]`, `keys` is `[key, head_dim]`. The largest bound over heads and queries counts.
fn bounds_by_page(queries: ArrayView3<f32>, keys: ArrayView2<f32>) -> Array1<f32> {
    let mut bounds = Array1::zeros(keys.nrows());
    for (page, mut bounds) in
        keys.axis_chunks_iter(Axis(0), PAGE_KEYS).zip(bounds.axis_chunks_iter_mut(Axis(0), PAGE_KEYS))
    {
        let least = page.fold_axis(Axis(0), f32::MAX, |least, &value| least.min(value));
        let most = page.fold_axis(Axis(0), f32::MIN, |most, &value| most.max(value));
        let bound = |query: ArrayView1<f32>| {
            let products = query.iter().zip(least.iter().zip(&most));
            products.map(|(q, (least, most))| (q * least).max(q * most)).sum::<f32>()
        };
        bounds.fill(queries.rows().into_iter().map(bound).fold(f32::MIN, f32::max));
    }
    bounds
}

/// Returns the attention of all queries, summed, to each key before them and to each key among them. Inputs
/// are logits: `before [query, key]` and `among [query, query]`; each query sees the keys up to its own.
fn attention(before: ArrayView2<f32>, among: ArrayView2<f32>) -> [Array1<f32>; 2] {
    let mut sums = [Array1::zeros(before.ncols()), Array1::zeros(among.ncols())];
    for (j, (before, among)) in before.outer_iter().zip(among.outer_iter()).enumerate() {
        let among = among.slice(s![..=j]);
        let most = before.iter().chain(&among).fold(f32::MIN, |most, &logit| most.max(logit));
        let total: f32 = before.iter().chain(&among).map(|&logit| (logit - most).exp()).sum();
        let add = |sum: &mut f32, &logit: &f32| *sum += (logit - most).exp() / total;
        sums[0].zip_mut_with(&before, add);
        sums[1].slice_mut(s![..=j]).zip_mut_with(&among, add);
    }
    sums
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn the_bound_of_a_page_is_no_less_than_any_logit_over_it() {
        let keys = Array2::from_shape_fn((PAGE_KEYS + 1, 2), |(key, d)| {
            key as f32 * if d == 0 { 1.0 } else { -1.0 }
        });
        let queries = array![[[1.0, 1.0], [0.0, -1.0]]];
        let last = (PAGE_KEYS - 1) as f32;
        let bounds = bounds_by_page(queries.view(), keys.view());
        assert_eq!(bounds[0], last, "the first query gets 0 from each key; the bound mixes two keys");
        assert_eq!(bounds[PAGE_KEYS], PAGE_KEYS as f32);
        assert!(bounds.iter().take(PAGE_KEYS).all(|bound| *bound == last));
    }

    #[test]
    fn attention_is_causal_and_sums_to_one_per_query() {
        let (three, none) = (3.0_f32.ln(), 0.0);
        let before = array![[three, none], [none, none]];
        // The first query does not see the second.
        let among = array![[none, 99.0], [none, none]];
        let [to_before, to_among] = attention(before.view(), among.view());
        let close = |found: Array1<f32>, expect: [f32; 2]| {
            assert!(found.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{found} for {expect:?}");
        };
        close(to_before, [0.6 + 0.25, 0.2 + 0.25]);
        close(to_among, [0.2 + 0.25, 0.25]);
    }
}
