//! Methods that select the keys to keep, once, before the model reads the question over the kept keys.
//!
//! The published methods are adapted to that: H2O evicts step by step, StreamingLLM assigns new positions to
//! what it keeps, SnapKV and PyramidKV are applied at the end of a prompt, and Quest evicts nothing but reads
//! other pages for each query. All methods keep the same number of keys in all layers together; `rc`,
//! `rc_paper` and `pyramid_kv` may keep more in one layer than in another.

use anyhow::Result;
use ndarray::{Array3, ArrayView3, Axis, s};
use thresher_core::model::contract::{BudgetScope, EvictionForm};
use thresher_core::pipeline::evict::{Eviction, HeadBudget, even_budget};
use thresher_core::rc;

use super::scores::{KeyScores, PAPER};
use crate::estimate::SplitMix64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// RC in the form of the model's contract: what `"policy": "heads"` keeps.
    Rc,
    /// Expected RC over the question's own keys; each head keeps the keys that reach the same multiple of the
    /// head's mean (RCStat, arXiv 2506.19549).
    RcPaper,
    /// Attention of the question, averaged over neighbouring keys, the same number of keys in every head
    /// (SnapKV, Li et al. 2024, arXiv 2404.14469).
    SnapKv,
    /// SnapKV's scores with the budget distributed among a layer's heads (Ada-KV, Feng et al. 2024, arXiv
    /// 2407.11550).
    AdaSnapKv,
    /// SnapKV's scores with a budget that falls linearly from the first layer to the last (PyramidKV, Cai et
    /// al. 2024, arXiv 2406.02069).
    PyramidKv,
    /// Pages of 16 keys by an upper bound of the question's logits over them (Quest, Tang et al. 2024, arXiv
    /// 2406.10774).
    Quest,
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

/// The number of keys, the key itself included, over which SnapKV averages.
const SNAPKV_NEIGHBOURS: usize = 5;
const STREAMING_SINKS: usize = 4;
/// The last layer of PyramidKV has one key of this many of an even budget.
const PYRAMID_SLOPE: usize = 20;
const SEED: u64 = 0x00C0_FFEE;

impl Method {
    /// All methods, Thresher's first.
    pub const ALL: [Self; 10] = [
        Self::Rc,
        Self::RcPaper,
        Self::SnapKv,
        Self::AdaSnapKv,
        Self::PyramidKv,
        Self::Quest,
        Self::H2o,
        Self::StreamingLlm,
        Self::KeyNorm,
        Self::Random,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::RcPaper => "rc_paper",
            Self::SnapKv => "snapkv",
            Self::AdaSnapKv => "ada_snapkv",
            Self::PyramidKv => "pyramid_kv",
            Self::Quest => "quest",
            Self::H2o => "h2o",
            Self::StreamingLlm => "streaming_llm",
            Self::KeyNorm => "key_norm",
            Self::Random => "random",
        }
    }

    /// Selects one key in `ratio`, `[layer, kv_head, key]`, in the layers with full attention.
    ///
    /// # Errors
    /// Fails as [`Eviction::choose`] does. That does not happen here, because no method names tokens that are
    /// always kept.
    pub fn select_keys(self, scores: &KeyScores, ratio: u32) -> Result<Array3<bool>> {
        let share = 1.0 / f64::from(ratio);
        let count = even_budget(scores.rc.len_of(Axis(2)), share);
        Ok(match self {
            Self::Rc => Eviction::with_budget(HeadBudget::Ratio(share)).choose(
                &scores.rc,
                scores.prefix,
                &scores.form,
            )?,
            Self::RcPaper => by_form(&scores.rc_paper, share, &PAPER)?,
            Self::SnapKv => best(snapkv(scores).view(), count, 0, 0),
            Self::AdaSnapKv => {
                let form = EvictionForm { budget: BudgetScope::Layer, floor: 0.2, ..scores.form };
                by_form(&snapkv(scores), share, &form)?
            }
            Self::PyramidKv => pyramid(snapkv(scores).view(), count),
            Self::Quest => best(scores.page_bounds.view(), count, 0, 0),
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

/// Keeps a share of the keys by the budgets of `form`, and no key whatever its score.
fn by_form(scores: &Array3<f32>, share: f64, form: &EvictionForm) -> Result<Array3<bool>> {
    let eviction = Eviction { keep: HeadBudget::Ratio(share), sinks: Some(0), recent: Some(0) };
    Ok(eviction.choose(scores, 0, form)?)
}

/// Keeps the `count` best keys of each head; the `first` keys and the `last` keys are kept whatever their
/// scores.
fn best(scores: ArrayView3<f32>, count: usize, first: usize, last: usize) -> Array3<bool> {
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
    kept
}

/// Returns SnapKV's scores: the question's attention, averaged over neighbouring keys.
fn snapkv(scores: &KeyScores) -> Array3<f32> {
    let mut pooled = scores.question_attention.clone();
    for mut head in pooled.rows_mut() {
        let averaged = rc::average_over_neighbours(head.view(), SNAPKV_NEIGHBOURS);
        head.assign(&averaged);
    }
    pooled
}

/// Keeps the best keys of each head; the number falls linearly from the first layer to the last, and is
/// `count` on average.
fn pyramid(scores: ArrayView3<f32>, count: usize) -> Array3<bool> {
    let (layers, _, tokens) = scores.dim();
    let least = if layers == 1 { count as f64 } else { (count / PYRAMID_SLOPE) as f64 };
    let most = 2.0 * count as f64 - least;
    let step = (most - least) / (layers.max(2) - 1) as f64;
    let mut kept = Array3::from_elem(scores.dim(), false);
    // What a layer cannot use, because it has no more keys, goes to the layers after it.
    let (mut planned, mut used) = (0.0, 0);
    for (layer, mut kept) in kept.outer_iter_mut().enumerate() {
        planned += most - step * layer as f64;
        let of_layer = (planned.round() as usize).saturating_sub(used).min(tokens);
        used += of_layer;
        let scores = scores.slice(s![layer..=layer, .., ..]);
        kept.assign(&best(scores, of_layer, 0, 0).index_axis(Axis(0), 0));
    }
    kept
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    fn check(name: &str, kept: Array3<bool>, expect: &[&str]) {
        let shown = |row: ndarray::ArrayView1<bool>| {
            row.iter().map(|kept| if *kept { 'x' } else { '.' }).collect::<String>()
        };
        let found: Vec<String> = kept.rows().into_iter().map(shown).collect();
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn each_head_keeps_its_best_keys() {
        let scores = array![[[1.0, 5.0, 2.0, 4.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0]]];
        check("two", best(scores.view(), 2, 0, 0), &[".x.x.", "xx..."]);
        check("the first and the last key in any case", best(scores.view(), 3, 1, 1), &["xx..x", "xx..x"]);
        check("more than there are keys", best(scores.view(), 9, 0, 0), &["xxxxx", "xxxxx"]);
    }

    #[test]
    fn the_budget_of_a_pyramid_falls_from_layer_to_layer() {
        let counts = |layers: usize, tokens: usize, count: usize| {
            let kept = pyramid(Array3::zeros((layers, 1, tokens)).view(), count);
            let of = |layer: usize| kept.slice(s![layer, 0, ..]).iter().filter(|kept| **kept).count();
            (0..layers).map(of).collect::<Vec<_>>()
        };
        assert_eq!(counts(3, 100, 20), [39, 20, 1]);
        assert_eq!(counts(3, 30, 20), [30, 29, 1], "the first layer has only 30 keys");
        assert_eq!(counts(1, 10, 5), [5]);
    }
}
