//! Ways of choosing the keys that are kept, once and before the question is read over what is left. Those of others are adapted to that:
//! H2O evicts step by step, StreamingLLM gives new places to what it keeps, SnapKV is applied to a prompt's end. All methods keep as many
//! keys of each layer, but for two that share one budget among all of them.

use anyhow::Result;
use ndarray::{Array1, Array2, Array3, ArrayView2, ArrayView3, Axis, s};
use thresher_core::model::{KeyMask, Past};
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::evict::{Eviction, HeadBudget, of_head};
use thresher_core::pipeline::kv_export::{self, KvExport};
use thresher_core::rc::{self, Keep};

use crate::eval::bootstrap::SplitMix;

/// A method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// What `kv.policy = heads` does.
    Rc,
    /// The same RC, as many keys in every head: what sharing out is worth.
    RcEven,
    /// The same RC, one budget for all layers, no head with a part of its own.
    RcGlobal,
    /// Expected RC over the question's own keys; each head keeps what reaches the same multiple of its mean (RCStat).
    RcPaper,
    /// What the question attends to, each key with its neighbours, as many in every head (Li et al. 2024).
    SnapKv,
    /// The same, shared out among a layer's heads as `rc` is (Feng et al. 2024).
    AdaSnapKv,
    /// Half what everything attended to so far, half the newest (Zhang et al. 2023).
    H2o,
    /// The first four and the newest (Xiao et al. 2023).
    StreamingLlm,
    /// Keys of the least length (Devoto et al. 2024).
    KeyNorm,
    /// Any.
    Random,
}

/// Neighbours that SnapKV takes the best of, the key itself included.
const SNAPKV_KERNEL: usize = 5;
const STREAMING_SINKS: usize = 4;
const SEED: u64 = 0x00C0_FFEE;

/// What the methods choose by.
pub struct Seen {
    /// `[layer, kv_head, key]`: RC of each key for its best query.
    rc: Array3<f32>,
    /// The same: expected RC over the question's own keys.
    rc_self: Array3<f32>,
    /// The same: attention of the question's tokens, mean over query heads.
    asked: Array3<f32>,
    /// The same of the chunks' own tokens, each over its window.
    own: Array3<f32>,
    /// `[layer, kv_head, key]`: length of each key.
    norms: Array3<f32>,
    /// Special tokens in front, which all methods keep.
    prefix: usize,
    row: usize,
}

impl Seen {
    /// Runs question and chunks through the model.
    pub fn new(kv_export: &KvExport, question: &[u32], pipeline: &Pipeline, row: usize) -> Result<Self> {
        let info = pipeline.model();
        let decoder = kv_export::check_model(info)?;
        let cancel = Cancel::default();
        let over = pipeline.attend_export(kv_export, question, &cancel)?;
        let (rc, rc_self) = (over.keys(|x, _| rc::peak_over_queries(x)), over.keys(rc::expected_over_self));
        let encoded = over.encoded();
        let (tokens, prefix, dim) = (kv_export.tokens.len(), decoder.prefix_tokens(), info.head_dim);
        let shape = (decoder.layers, decoder.kv_heads, tokens);
        let (mut asked, mut own, mut norms) =
            (Array3::zeros(shape), Array3::zeros(shape), Array3::zeros(shape));
        let windows = windows(kv_export);
        let mut spoken = Vec::with_capacity(windows.len());
        for window in &windows {
            let ids: Vec<u32> = kv_export.tokens[window.clone()].iter().map(|token| token.id).collect();
            spoken.push(pipeline.runtime().forward(&ids, &Behind(prefix as i64), None)?.queries);
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
                norms.slice_mut(at).assign(&lengths);
                for head in kv_head * group..(kv_head + 1) * group {
                    let all = layer * decoder.heads + head;
                    let x = encoded.vectors.slice(s![all, .., ..]).dot(&keys.t());
                    let of_own = encoded.self_logits(all..all + 1);
                    let [shares, _] = attention(x.view(), of_own.index_axis(Axis(0), 0));
                    let mut asked = asked.slice_mut(at);
                    asked.scaled_add(1.0 / group as f32, &shares.slice(s![prefix..]));
                }
                // A window was read behind the special tokens: its queries stand there, and so do its keys in its block.
                for (window, spoken) in windows.iter().zip(&spoken) {
                    let of_window = kv_export.window_keys(pipeline, plane, window.clone());
                    for head in kv_head * group..(kv_head + 1) * group {
                        let queries = spoken[layer].slice(s![head, .., ..]);
                        let x = queries.dot(&of_window.t());
                        let (before, among) = x.view().split_at(Axis(1), prefix);
                        let [_, shares] = attention(before, among);
                        let mut own = own.slice_mut(s![layer, kv_head, window.clone()]);
                        own.scaled_add(1.0 / group as f32, &shares);
                    }
                }
            }
        }
        Ok(Self { rc, rc_self, asked, own, norms, prefix, row })
    }
}

/// Runs of tokens of one window.
fn windows(kv_export: &KvExport) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, token) in kv_export.tokens.iter().enumerate() {
        match found.last_mut() {
            Some(last) if kv_export.tokens[last.start].window == token.window => last.end = at + 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

/// Tokens that look back on special tokens only.
struct Behind(i64);

impl Past for Behind {
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

/// Attention of all queries together to each key that lies before them, and to each other: `before [query, key]` and `among [query, query]`,
/// of which each sees those up to itself.
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
    /// All of them, ours first.
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

    /// As it stands in reports.
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

    /// One key of `ratio` is kept.
    ///
    /// # Errors
    /// None of its own: nothing that is always kept is named.
    pub fn kept(self, seen: &Seen, ratio: u32) -> Result<KeyMask> {
        let share = 1.0 / f64::from(ratio);
        let count = of_head(seen.rc.len_of(Axis(2)), share);
        Ok(match self {
            Self::Rc => Eviction::of(HeadBudget::Ratio(share)).choose(&seen.rc, seen.prefix)?,
            Self::RcEven => best(seen.rc.view(), count, 0, 0),
            Self::RcGlobal => global(seen.rc.view(), count),
            Self::RcPaper => {
                let mut scores = seen.rc_self.clone();
                for mut head in scores.rows_mut() {
                    let mean = head.mean().unwrap_or(0.0).max(f32::MIN_POSITIVE);
                    head.mapv_inplace(|rc| rc / mean);
                }
                global(scores.view(), count)
            }
            Self::SnapKv => best(pooled(seen.asked.view()).view(), count, 0, 0),
            Self::AdaSnapKv => {
                let none = Some(0);
                let eviction = Eviction { keep: HeadBudget::Ratio(share), sinks: none, recent: none };
                eviction.choose(&pooled(seen.asked.view()), seen.prefix)?
            }
            Self::H2o => best((&seen.asked + &seen.own).view(), count, 0, count / 2),
            Self::StreamingLlm => {
                let sinks = STREAMING_SINKS.saturating_sub(seen.prefix).min(count);
                best(Array3::zeros(seen.norms.dim()).view(), count, sinks, count - sinks)
            }
            Self::KeyNorm => best(seen.norms.mapv(|length| -length).view(), count, 0, 0),
            Self::Random => {
                let mut random = SplitMix(SEED + seen.row as u64);
                let any = Array3::from_shape_simple_fn(seen.norms.dim(), || random.below(1 << 24) as f32);
                best(any.view(), count, 0, 0)
            }
        })
    }
}

/// The best keys of all heads of all layers, so many a head on average.
fn global(scores: ArrayView3<f32>, count: usize) -> KeyMask {
    let (layers, kv_heads, tokens) = scores.dim();
    let heads = layers * kv_heads;
    let all = scores.to_shape((heads, tokens)).expect("the same values");
    let kept = rc::keep(all.view(), &vec![false; tokens], Keep::Shared { count: count * heads, each: 0 });
    KeyMask::new(kept.into_shape_with_order(scores.dim()).expect("the same values"))
}

/// In each head the `count` best keys; the `first` and the `last` ones whatever they score.
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

/// Each key's score as the best of those around it.
fn pooled(scores: ArrayView3<f32>) -> Array3<f32> {
    let reach = SNAPKV_KERNEL / 2;
    let mut pooled = scores.to_owned();
    for (scores, mut pooled) in scores.rows().into_iter().zip(pooled.rows_mut()) {
        for (key, pooled) in pooled.iter_mut().enumerate() {
            let around = s![key.saturating_sub(reach)..(key + reach + 1).min(scores.len())];
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
    fn each_head_its_best() {
        let scores = array![[[1.0, 5.0, 2.0, 4.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0]]];
        check("two", best(scores.view(), 2, 0, 0), &[".x.x.", "xx..."]);
        check(
            "the first and the last whatever they score",
            best(scores.view(), 3, 1, 1),
            &["xx..x", "xx..x"],
        );
        check("no more than there are", best(scores.view(), 9, 0, 0), &["xxxxx", "xxxxx"]);
        check("of all heads together", global(scores.view(), 2), &[".x.x.", "xx..."]);
        check(
            "where one head finds more",
            global((&scores - &array![[[0.0], [2.0]]]).view(), 1),
            &[".x.x.", "....."],
        );
    }

    #[test]
    fn a_key_is_as_good_as_its_best_neighbour() {
        let scores = array![[[9.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]];
        assert_eq!(pooled(scores.view()), array![[[9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 0.0]]]);
    }

    #[test]
    fn attention_is_a_share_of_what_each_query_sees() {
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
