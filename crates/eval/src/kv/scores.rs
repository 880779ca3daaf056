//! The scores by which eviction methods select keys, for one question over the chunks of a row. Knows nothing
//! of budgets.

use std::ops::Range;

use anyhow::Result;
use ndarray::{Array1, Array2, Array3, ArrayView1, ArrayView2, ArrayView3, Axis, s};
use thresher_core::Engine;
use thresher_core::domain::TokenSpan;
use thresher_core::model::contract::{BudgetScope, EvictionForm, KeyScale};
use thresher_core::model::{DecoderInfo, EncodedQuestion, ModelRuntime, Past, raw_logits};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::kv_export::{self, KvExport, KvExportToken};
use thresher_core::rc::{self, OverQuestion, Reference};

use super::reading::ReadRow;

const PAGE_KEYS: usize = 16;

/// The paper's scores as a form: expected RC over the question's own keys. Each head keeps the keys that reach
/// the same multiple of the head's mean (RCStat, arXiv 2506.19549).
pub const PAPER: EvictionForm = EvictionForm {
    reference: Reference::SelfLogits,
    over_question: OverQuestion::Mean,
    neighbours: 1,
    scale: KeyScale::Mean,
    budget: BudgetScope::Model,
    floor: 0.0,
};

/// The scores that the methods select keys by, in the layers with full attention.
pub struct KeyScores {
    /// `[layer, kv_head, key]`: RC of each key for the question in [`Self::form`].
    pub(super) rc: Array3<f32>,
    /// `[layer, kv_head, key]`: RC in the form [`PAPER`].
    pub(super) rc_paper: Array3<f32>,
    /// `[layer, kv_head, key]`: attention of the question's tokens, summed over the tokens, averaged over the
    /// query heads that share the key head.
    pub(super) question_attention: Array3<f32>,
    /// `[layer, kv_head, key]`: the same for the tokens of the chunks, each over its own window.
    pub(super) chunk_attention: Array3<f32>,
    /// `[layer, kv_head, key]`: Euclidean norm of each key.
    pub(super) key_norms: Array3<f32>,
    /// `[layer, kv_head, key]`: an upper bound of the question's logits over the page of each key.
    pub(super) page_bounds: Array3<f32>,
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
        let (model, kv_export) = (super::decoder_of(engine)?, &read.kv_export);
        let pipeline = engine.pipeline();
        let info = pipeline.model();
        let decoder = kv_export::check_model(info)?;
        let cancel = Cancel::default();
        let question = pipeline.attend_export(kv_export, &read.question, &cancel)?;
        let (tokens, prefix) = (kv_export.tokens.len(), decoder.prefix_tokens());
        let shape = (decoder.full_layers().len(), decoder.kv_heads, tokens);
        let [question_attention, chunk_attention, key_norms, page_bounds] =
            std::array::from_fn(|_| Array3::zeros(shape));
        let (rc, rc_paper) = (question.rc_of_keys(form), question.rc_of_keys(&PAPER));
        let mut scores = Self {
            rc,
            rc_paper,
            question_attention,
            chunk_attention,
            key_norms,
            page_bounds,
            form: *form,
            prefix,
            row,
        };
        for (at, layer, kv_head) in key_heads(decoder) {
            let mut keys = Array2::zeros((prefix + tokens, info.head_dim));
            let values = keys.as_slice_mut().expect("a new array is contiguous");
            kv_export.read_plane(pipeline, decoder.planes().keys(layer).start + kv_head, values);
            let of_head = s![at, kv_head, ..];
            let heads = decoder.query_heads(layer, kv_head);
            let (_, kept) = keys.view().split_at(Axis(0), prefix);
            let norms = kept.map_axis(Axis(1), |key| key.dot(&key).sqrt());
            scores.key_norms.slice_mut(of_head).assign(&norms);
            let queries = question.encoded().vectors.slice(s![heads.clone(), .., ..]);
            scores.page_bounds.slice_mut(of_head).assign(&bounds_by_page(queries, kept));
            let logits = raw_logits(queries, keys.view().insert_axis(Axis(0)));
            let own = question.encoded().self_logits(heads);
            let attention = attention(logits.view(), own.view());
            scores.question_attention.slice_mut(of_head).assign(&attention.slice(s![prefix..]));
        }
        for window in window_ranges(kv_export) {
            let ids: Vec<u32> = kv_export.tokens[window.clone()].iter().map(|token| token.id).collect();
            let past = PrefixOnly(prefix as i64);
            let encoded = model.encode_question_in_all_heads(&ids, &past)?;
            scores.add_attention_of_window(window, &encoded, model.prefix(), decoder);
        }
        Ok(scores)
    }

    /// Adds the attention of a window's tokens to its own keys. `encoded` is the window after the special tokens,
    /// whose planes are `prefix`.
    fn add_attention_of_window(
        &mut self,
        window: Range<usize>,
        encoded: &EncodedQuestion,
        prefix: ArrayView3<f32>,
        decoder: &DecoderInfo,
    ) {
        for (at, layer, kv_head) in key_heads(decoder) {
            let heads = decoder.query_heads(layer, kv_head);
            let plane = decoder.planes().keys(layer).start + kv_head;
            let queries = encoded.vectors.slice(s![heads.clone(), .., ..]);
            let over_prefix = raw_logits(queries, prefix.slice(s![plane..=plane, .., ..]));
            let attention = attention(encoded.self_logits(heads).view(), over_prefix.view());
            self.chunk_attention.slice_mut(s![at, kv_head, window.clone()]).assign(&attention);
        }
    }
}

/// Returns (index among the layers with full attention, layer, key head) of each key head of these layers.
fn key_heads(decoder: &DecoderInfo) -> impl Iterator<Item = (usize, usize, usize)> {
    let layers = decoder.full_layers().into_iter().enumerate();
    layers.flat_map(|(at, layer)| (0..decoder.kv_heads).map(move |kv_head| (at, layer, kv_head)))
}

fn window_ranges(kv_export: &KvExport) -> Vec<Range<usize>> {
    let windows = kv_export.tokens.chunk_by(|a, b| a.window == b.window);
    let range = |start: &mut usize, window: &[KvExportToken]| {
        let first = *start;
        *start += window.len();
        Some(first..*start)
    };
    windows.scan(0, range).collect()
}

/// Returns the attention to each key, `[key]`: the softmax over `logits` `[head, query, key]` and the logits
/// over all other keys, `others` `[head, query, other key]`; summed over queries, averaged over heads.
fn attention(logits: ArrayView3<f32>, others: ArrayView3<f32>) -> Array1<f32> {
    let keys = logits.len_of(Axis(2));
    let each: Vec<TokenSpan> = (0..keys).map(|key| TokenSpan::new(key, key + 1)).collect();
    let shares = rc::attention_mass(logits, others, &each);
    shares.sum_axis(Axis(1)).mean_axis(Axis(0)).unwrap_or_else(|| Array1::zeros(keys))
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
    fn attention_is_summed_over_queries_and_averaged_over_heads() {
        let three = 3.0_f32.ln();
        let logits = array![[[three, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]];
        // The first query does not see the second.
        let others = array![[[0.0, f32::MIN], [0.0, 0.0]], [[0.0, f32::MIN], [0.0, 0.0]]];
        let found = attention(logits.view(), others.view());
        let of_second_head = 1.0 / 3.0 + 0.25;
        let expect = [f32::midpoint(0.6 + 0.25, of_second_head), f32::midpoint(0.2 + 0.25, of_second_head)];
        assert!(found.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{found} for {expect:?}");
    }
}
