//! Methods that select the keys to keep, once, before the model reads the question over the kept keys.
//!
//! The published methods are adapted to that: H2O evicts step by step, StreamingLLM assigns new positions to
//! what it keeps, SnapKV is applied at the end of a prompt. All methods keep the same number of keys in each
//! layer, except for two (`rc_global`, `rc_paper`) that share one budget among all layers.

use anyhow::Result;
use ndarray::{Array1, Array2, Array3, ArrayView2, ArrayView3, Axis, s};
use thresher_core::Engine;
use thresher_core::model::{KeyMask, Past};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::evict::{Eviction, HeadBudget, even_budget};
use thresher_core::pipeline::kv_export::{self, KvExport};
use thresher_core::rc::{self, Keep};

use crate::eval::estimate::SplitMix64;

/// An eviction method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// RC with the budget, sinks and last tokens of `"policy": "heads"`.
    Rc,
    /// The same RC with the same number of keys in every head. The difference to `Rc` is the gain of
    /// distributing the budget among heads.
    RcEven,
    /// The same RC with one budget for all layers and no guaranteed part for any head.
    RcGlobal,
    /// Expected RC over the question's own keys; each head keeps the keys that reach the same multiple of the
    /// head's mean (RCStat, arXiv 2506.19549).
    RcPaper,
    /// Attention of the question, max-pooled over neighbouring keys, the same number of keys in every head
    /// (SnapKV, Li et al. 2024).
    SnapKv,
    /// SnapKV's scores with the budget distributed among a layer's heads as in `Rc` (Ada-KV, Feng et al.
    /// 2024).
    AdaSnapKv,
    /// Half of the budget for the keys with the most attention so far, half for the newest keys (Zhang et al.
    /// 2023).
    H2o,
    /// The first four keys and the newest ones (Xiao et al. 2023).
    StreamingLlm,
    /// The keys of the smallest norm (Devoto et al. 2024).
    KeyNorm,
    /// Random keys, with a fixed seed.
    Random,
}

/// Width of SnapKV's max pooling, in keys, the key itself included.
const SNAPKV_KERNEL: usize = 5;
const STREAMING_SINKS: usize = 4;
const SEED: u64 = 0x00C0_FFEE;

/// The scores that the methods select keys by.
pub struct KeyScores {
    /// `[layer, kv_head, key]`: RC of each key for its best query.
    rc: Array3<f32>,
    /// `[layer, kv_head, key]`: expected RC over the question's own keys.
    rc_self: Array3<f32>,
    /// `[layer, kv_head, key]`: attention of the question's tokens, summed over the tokens, averaged over the
    /// query heads that share the key head.
    question_attention: Array3<f32>,
    /// `[layer, kv_head, key]`: the same for the tokens of the chunks, each over its own window.
    chunk_attention: Array3<f32>,
    /// `[layer, kv_head, key]`: Euclidean norm of each key.
    key_norms: Array3<f32>,
    /// Number of special tokens at the start; all methods keep them.
    prefix: usize,
    row: usize,
}

impl KeyScores {
    /// Runs the question and the chunks through the model and computes all scores.
    ///
    /// # Errors
    /// Fails if the model is not a decoder whose keys can be exported, or if it fails.
    pub fn new(kv_export: &KvExport, question: &[u32], engine: &Engine, row: usize) -> Result<Self> {
        let pipeline = engine.pipeline();
        let info = pipeline.model();
        let decoder = kv_export::check_model(info)?;
        let cancel = Cancel::default();
        let over = pipeline.attend_export(kv_export, question, &cancel)?;
        let (rc, rc_self) =
            (over.key_scores(|x, _| rc::peak_over_queries(x)), over.key_scores(rc::expected_over_self));
        let encoded = over.encoded();
        let (tokens, prefix, dim) = (kv_export.tokens.len(), decoder.prefix_tokens(), info.head_dim);
        let shape = (decoder.layers, decoder.kv_heads, tokens);
        let (mut question_attention, mut chunk_attention, mut key_norms) =
            (Array3::zeros(shape), Array3::zeros(shape), Array3::zeros(shape));
        let window_ranges = window_ranges(kv_export);
        let mut window_queries = Vec::with_capacity(window_ranges.len());
        for window in &window_ranges {
            let ids: Vec<u32> = kv_export.tokens[window.clone()].iter().map(|token| token.id).collect();
            window_queries
                .push(super::decoder_of(engine)?.forward(&ids, &PrefixOnly(prefix as i64), None)?.queries);
        }
        let group = decoder.heads / decoder.kv_heads;
        for layer in 0..decoder.layers {
            for kv_head in 0..decoder.kv_heads {
                let mut keys = Array2::zeros((prefix + tokens, dim));
                let plane = decoder.planes().keys(layer).start + kv_head;
                kv_export.read_plane(
                    pipeline,
                    plane,
                    keys.as_slice_mut().expect("a new array is contiguous"),
                );
                let at = s![layer, kv_head, ..];
                let lengths = keys.slice(s![prefix.., ..]).map_axis(Axis(1), |key| key.dot(&key).sqrt());
                key_norms.slice_mut(at).assign(&lengths);
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
                        let queries = window_queries[layer].slice(s![head, .., ..]);
                        let x = queries.dot(&window_keys.t());
                        let (before, among) = x.view().split_at(Axis(1), prefix);
                        let [_, attention_sums] = attention(before, among);
                        let mut chunk_attention =
                            chunk_attention.slice_mut(s![layer, kv_head, window.clone()]);
                        chunk_attention.scaled_add(1.0 / group as f32, &attention_sums);
                    }
                }
            }
        }
        Ok(Self { rc, rc_self, question_attention, chunk_attention, key_norms, prefix, row })
    }
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

impl Method {
    /// All methods, Thresher's first.
    pub const ALL: [Self; 10] = [
        Self::Rc,
        Self::RcEven,
        Self::RcGlobal,
        Self::RcPaper,
        Self::SnapKv,
        Self::AdaSnapKv,
        Self::H2o,
        Self::StreamingLlm,
        Self::KeyNorm,
        Self::Random,
    ];

    /// Returns the method's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::RcEven => "rc_even",
            Self::RcGlobal => "rc_global",
            Self::RcPaper => "rc_paper",
            Self::SnapKv => "snapkv",
            Self::AdaSnapKv => "ada_snapkv",
            Self::H2o => "h2o",
            Self::StreamingLlm => "streaming_llm",
            Self::KeyNorm => "key_norm",
            Self::Random => "random",
        }
    }

    /// Selects one key in `ratio`.
    ///
    /// # Errors
    /// Fails as [`Eviction::choose`] does. That does not happen here, because no method names tokens that are
    /// always kept.
    pub fn select_keys(self, scores: &KeyScores, ratio: u32) -> Result<KeyMask> {
        let share = 1.0 / f64::from(ratio);
        let count = even_budget(scores.rc.len_of(Axis(2)), share);
        Ok(match self {
            Self::Rc => Eviction::of(HeadBudget::Ratio(share)).choose(&scores.rc, scores.prefix)?,
            Self::RcEven => best(scores.rc.view(), count, 0, 0),
            Self::RcGlobal => global(scores.rc.view(), count),
            Self::RcPaper => {
                let mut scores = scores.rc_self.clone();
                for mut head in scores.rows_mut() {
                    let mean = head.mean().unwrap_or(0.0).max(f32::MIN_POSITIVE);
                    head.mapv_inplace(|rc| rc / mean);
                }
                global(scores.view(), count)
            }
            Self::SnapKv => best(pooled(scores.question_attention.view()).view(), count, 0, 0),
            Self::AdaSnapKv => {
                let none = Some(0);
                let eviction = Eviction { keep: HeadBudget::Ratio(share), sinks: none, recent: none };
                eviction.choose(&pooled(scores.question_attention.view()), scores.prefix)?
            }
            Self::H2o => {
                best((&scores.question_attention + &scores.chunk_attention).view(), count, 0, count / 2)
            }
            Self::StreamingLlm => {
                let sinks = STREAMING_SINKS.saturating_sub(scores.prefix).min(count);
                best(Array3::zeros(scores.key_norms.dim()).view(), count, sinks, count - sinks)
            }
            Self::KeyNorm => best(scores.key_norms.mapv(|length| -length).view(), count, 0, 0),
            Self::Random => {
                let mut rng = SplitMix64(SEED + scores.row as u64);
                let any = Array3::from_shape_simple_fn(scores.key_norms.dim(), || rng.below(1 << 24) as f32);
                best(any.view(), count, 0, 0)
            }
        })
    }
}

/// Keeps the best keys of all heads of all layers together: `count` per head on average.
fn global(scores: ArrayView3<f32>, count: usize) -> KeyMask {
    let (layers, kv_heads, tokens) = scores.dim();
    let heads = layers * kv_heads;
    let all = scores.to_shape((heads, tokens)).expect("the same values");
    let kept = rc::keep(all.view(), &vec![false; tokens], Keep::Shared { count: count * heads, each: 0 });
    KeyMask::new(kept.into_shape_with_order(scores.dim()).expect("the same values"))
}

/// Keeps the `count` best keys of each head; the `first` keys and the `last` keys are kept whatever their
/// scores.
fn best(scores: ArrayView3<f32>, count: usize, first: usize, last: usize) -> KeyMask {
    let tokens = scores.len_of(Axis(2));
    let mut kept = Array3::from_elem(scores.dim(), false);
    for (scores, mut kept) in scores.rows().into_iter().zip(kept.rows_mut()) {
        let is_fixed = |key: usize| key < first || key + last >= tokens;
        let mut order: Vec<usize> = (0..tokens).collect();
        order.sort_by(|&a, &b| {
            is_fixed(b).cmp(&is_fixed(a)).then(scores[b].total_cmp(&scores[a])).then(a.cmp(&b))
        });
        order.into_iter().take(count).for_each(|key| kept[key] = true);
    }
    KeyMask::new(kept)
}

/// Replaces each key's score by the maximum over its neighbours (SnapKV's pooling).
fn pooled(scores: ArrayView3<f32>) -> Array3<f32> {
    let radius = SNAPKV_KERNEL / 2;
    let mut pooled = scores.to_owned();
    for (scores, mut pooled) in scores.rows().into_iter().zip(pooled.rows_mut()) {
        for (key, pooled) in pooled.iter_mut().enumerate() {
            let around = s![key.saturating_sub(radius)..(key + radius + 1).min(scores.len())];
            *pooled = scores.slice(around).fold(f32::MIN, |most, &score| most.max(score));
        }
    }
    pooled
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    fn check(name: &str, kept: KeyMask, expect: &[&str]) {
        let shown = |row: ndarray::ArrayView1<bool>| {
            row.iter().map(|kept| if *kept { 'x' } else { '.' }).collect::<String>()
        };
        let found: Vec<String> = kept.view().rows().into_iter().map(shown).collect();
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn each_head_keeps_its_best_keys() {
        let scores = array![[[1.0, 5.0, 2.0, 4.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0]]];
        check("two", best(scores.view(), 2, 0, 0), &[".x.x.", "xx..."]);
        check("the first and the last key in any case", best(scores.view(), 3, 1, 1), &["xx..x", "xx..x"]);
        check("more than there are keys", best(scores.view(), 9, 0, 0), &["xxxxx", "xxxxx"]);
        check("one budget for all heads", global(scores.view(), 2), &[".x.x.", "xx..."]);
        check(
            "one head has higher scores",
            global((&scores - &array![[[0.0], [2.0]]]).view(), 1),
            &[".x.x.", "....."],
        );
    }

    #[test]
    fn max_pooling_takes_the_best_neighbour() {
        let scores = array![[[9.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]];
        assert_eq!(pooled(scores.view()), array![[[9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 0.0]]]);
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
