//! Ways of choosing the keys that are kept, each as its authors describe it. All but RC keep as many in every head.

use anyhow::Result;
use ndarray::{Array1, Array2, Array3, ArrayView2, ArrayView3, Axis, s};

use crate::eval::bootstrap::SplitMix;
use crate::model::{Kept, Past};
use crate::pipeline::Pipeline;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::handover::{self, Eviction, Handover, HeadBudget};
use crate::rc;

/// A method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// What `kv.policy = heads` does.
    Rc,
    /// The same without whole sentences: all by the RC of single keys.
    RcHeads,
    /// Expected RC over the question's own keys; each head keeps what reaches the same multiple of its mean (RCStat).
    RcPaper,
    /// What the question attends to, each key with its neighbours (Li et al. 2024).
    SnapKv,
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

/// What the methods choose by: the attention of question and chunks.
pub struct Seen {
    /// `[layer, kv_head, key]`: attention of the question's tokens, mean over query heads.
    asked: Array3<f32>,
    /// The same of the chunks' own tokens, each over its window.
    own: Array3<f32>,
    /// `[layer, kv_head, key]`: length of each key.
    norms: Array3<f32>,
    row: usize,
}

impl Seen {
    /// Runs question and chunks through the model.
    pub fn new(handover: &Handover, question: &[u32], pipeline: &Pipeline, row: usize) -> Result<Self> {
        let info = pipeline.model();
        let decoder = handover::check_model(info)?;
        let cancel = Cancel::default();
        let encoded = pipeline.runtime().question_in_all_heads(question, &handover.past(info, &cancel))?;
        let (tokens, prefix, dim) = (handover.tokens.len(), decoder.prefix_tokens(), info.head_dim);
        let shape = (decoder.layers, decoder.kv_heads, tokens);
        let (mut asked, mut own, mut norms) =
            (Array3::zeros(shape), Array3::zeros(shape), Array3::zeros(shape));
        let windows = windows(handover);
        let mut spoken = Vec::with_capacity(windows.len());
        for window in &windows {
            let ids: Vec<u32> = handover.tokens[window.clone()].iter().map(|token| token.id).collect();
            spoken.push(pipeline.runtime().tell(&ids, &Behind(prefix as i64), None)?.queries);
        }
        let group = decoder.heads / decoder.kv_heads;
        for layer in 0..decoder.layers {
            for kv_head in 0..decoder.kv_heads {
                let mut keys = Array2::zeros((prefix + tokens, dim));
                let plane = 2 * layer * decoder.kv_heads + kv_head;
                handover.read_plane(pipeline, plane, keys.as_slice_mut().expect("a new array is contiguous"));
                let at = s![layer, kv_head, ..];
                let lengths = keys.slice(s![prefix.., ..]).map_axis(Axis(1), |key| key.dot(&key).sqrt());
                norms.slice_mut(at).assign(&lengths);
                for head in kv_head * group..(kv_head + 1) * group {
                    let all = layer * decoder.heads + head;
                    let x = encoded.vectors.slice(s![all, .., ..]).dot(&keys.t());
                    let of_own = encoded.own(all..all + 1);
                    let [shares, _] = attention(x.view(), of_own.index_axis(Axis(0), 0));
                    let mut asked = asked.slice_mut(at);
                    asked.scaled_add(1.0 / group as f32, &shares.slice(s![prefix..]));
                }
                // A window was read behind the special tokens: its queries stand there, and so do its keys in its block.
                for (window, spoken) in windows.iter().zip(&spoken) {
                    let of_window = handover.window_keys(pipeline, plane, window.clone());
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
        Ok(Self { asked, own, norms, row })
    }
}

/// Runs of tokens of one window.
fn windows(handover: &Handover) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, token) in handover.tokens.iter().enumerate() {
        match found.last_mut() {
            Some(last) if handover.tokens[last.start].window == token.window => last.end = at + 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

/// Tokens that look back on special tokens only.
struct Behind(i64);

impl Past for Behind {
    fn places(&self) -> &[i64] {
        &[]
    }

    fn question_place(&self) -> i64 {
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
    pub const ALL: [Self; 8] = [
        Self::Rc,
        Self::RcHeads,
        Self::RcPaper,
        Self::SnapKv,
        Self::H2o,
        Self::StreamingLlm,
        Self::KeyNorm,
        Self::Random,
    ];

    /// As it stands in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::RcHeads => "rc_heads",
            Self::RcPaper => "rc_paper",
            Self::SnapKv => "snapkv",
            Self::H2o => "h2o",
            Self::StreamingLlm => "streaming_llm",
            Self::KeyNorm => "key_norm",
            Self::Random => "random",
        }
    }

    /// One key of `ratio` is kept.
    pub fn kept(
        self,
        seen: &Seen,
        handover: &Handover,
        question: &[u32],
        ratio: u32,
        pipeline: &Pipeline,
    ) -> Result<Kept> {
        let tokens = handover.tokens.len();
        let share = 1.0 / f64::from(ratio);
        let count = tokens / ratio as usize;
        let cancel = Cancel::default();
        Ok(match self {
            Self::Rc => {
                let (sinks, recent) = (Eviction::SINKS, Eviction::RECENT);
                let eviction = Eviction { keep: HeadBudget::Ratio(share), sinks, recent };
                pipeline.evict(handover, question, &eviction, &cancel)?
            }
            Self::RcHeads => {
                let scores = pipeline.ask(handover, question, &cancel)?.keys(|x, _| rc::peak_over_queries(x));
                handover::kept(scores, &[], &vec![false; tokens], HeadBudget::Ratio(share))
            }
            Self::RcPaper => {
                let mut scores = pipeline.ask(handover, question, &cancel)?.keys(rc::expected_over_self);
                for mut head in scores.rows_mut() {
                    let mean = head.mean().unwrap_or(0.0).max(f32::MIN_POSITIVE);
                    head.mapv_inplace(|rc| rc / mean);
                }
                handover::kept(scores, &[], &vec![false; tokens], HeadBudget::Ratio(share))
            }
            Self::SnapKv => best(pooled(seen.asked.view()).view(), count, 0, 0),
            Self::H2o => best((&seen.asked + &seen.own).view(), count, 0, count / 2),
            Self::StreamingLlm => {
                let sinks = STREAMING_SINKS.saturating_sub(pipeline.runtime().prefix().len_of(Axis(1)));
                best(
                    Array3::zeros(seen.norms.dim()).view(),
                    count,
                    sinks.min(count),
                    count.saturating_sub(sinks),
                )
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

/// In each head the `count` best keys; the `first` and the `last` ones whatever they score.
fn best(scores: ArrayView3<f32>, count: usize, first: usize, last: usize) -> Kept {
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
    Kept::new(kept)
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
