//! KV eviction: decides which keys and values each head of an export keeps, by their RC for a question. Knows
//! nothing of files and transports.

use ndarray::{Array1, Array2, Array3, ArrayView2, ArrayViewMut1, Axis, s};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::cancel::Cancel;
use super::kv_export::{KvExport, check_model};
use super::question::BlocksAsPast;
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::model::{DecoderInfo, EncodedQuestion, KeyMask, ModelError, Past};
use crate::rc::{self, Keep};

/// The share of an even budget that is reserved for each head's own best keys. An even budget gives every
/// head of a layer the same number of keys. The value was measured (`docs/decisions.md`).
const FLOOR_SHARE: f64 = 0.2;

/// The number of first tokens, and of last tokens, that every head keeps by default.
const ALWAYS_KEPT_DEFAULT: usize = 4;

/// By default the first tokens that every head keeps are at most one of this many of a head's keys, and so
/// are the last tokens. If few keys are kept, those that the question needs are worth more.
const BUDGET_PER_ALWAYS_KEPT: usize = 16;

/// Which keys each head keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Eviction {
    /// How many keys the heads keep.
    pub keep: HeadBudget,
    /// The number of tokens at the beginning (attention sinks) that every head keeps, special tokens
    /// included. `None` keeps the special tokens and 4 more, or fewer of a small budget: at most a sixteenth
    /// of it.
    pub sinks: Option<usize>,
    /// The number of tokens at the end that every head keeps. `None` keeps 4, or fewer of a small budget: at
    /// most a sixteenth of it.
    pub recent: Option<usize>,
}

/// How many keys the heads keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadBudget {
    /// Each head keeps the fewest keys that carry this share of its RC; above 0, at most 1.
    Mass(f64),
    /// Each layer keeps this share of its keys, shared out among its heads by RC; above 0, at most 1.
    Ratio(f64),
}

impl Eviction {
    /// Returns an eviction with this budget and the default first and last tokens.
    pub fn of(keep: HeadBudget) -> Self {
        Self { keep, sinks: None, recent: None }
    }

    /// Checks that the share in the budget is above 0 and at most 1.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::KvShareOutOfRange`] if it is not.
    pub fn check(&self) -> Result<(), InvalidRequest> {
        let (share, field) = match self.keep {
            HeadBudget::Mass(share) => (share, "mass"),
            HeadBudget::Ratio(share) => (share, "ratio"),
        };
        match share > 0.0 && share <= 1.0 {
            true => Ok(()),
            false => Err(InvalidRequest::KvShareOutOfRange { share, field }),
        }
    }

    /// Returns which keys are kept, from `scores` `[layer, kv_head, token]`. The tokens follow
    /// `prefix_tokens` special tokens, which are always kept and have no scores.
    ///
    /// With [`HeadBudget::Ratio`], a layer's budget is shared out among its heads by score, with a floor for
    /// each head: the allocation of Ada-KV (Feng et al. 2024, arXiv 2407.11550) with RC in place of
    /// attention.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::KvBudgetTooSmall`] if the tokens that every head keeps exceed the budget.
    pub fn choose(&self, scores: &Array3<f32>, prefix_tokens: usize) -> Result<KeyMask, InvalidRequest> {
        let (_, kv_heads, tokens) = scores.dim();
        let always = self.always_kept(tokens, prefix_tokens)?;
        let keep = match self.keep {
            HeadBudget::Mass(share) => Keep::Mass(share),
            HeadBudget::Ratio(share) => {
                let even = even_budget(tokens, share);
                Keep::Shared { count: even * kv_heads, each: (even as f64 * FLOOR_SHARE) as usize }
            }
        };
        let mut kept = Array3::from_elem(scores.dim(), false);
        for (scores, mut kept) in scores.outer_iter().zip(kept.outer_iter_mut()) {
            kept.assign(&rc::keep(scores, &always, keep));
        }
        Ok(KeyMask::new(kept))
    }

    /// Returns `[token]`, which of `tokens` tokens after `prefix_tokens` special ones every head keeps.
    fn always_kept(&self, tokens: usize, prefix_tokens: usize) -> Result<Vec<bool>, InvalidRequest> {
        let budget = match self.keep {
            HeadBudget::Mass(_) => tokens,
            HeadBudget::Ratio(share) => even_budget(tokens, share),
        };
        let default = ALWAYS_KEPT_DEFAULT.min(budget / BUDGET_PER_ALWAYS_KEPT);
        let first = self.sinks.map_or(default, |sinks| sinks.saturating_sub(prefix_tokens)).min(tokens);
        let last = self.recent.unwrap_or(default).min(tokens - first);
        if first + last > budget {
            return Err(InvalidRequest::KvBudgetTooSmall { budget, tokens, first, last });
        }
        Ok((0..tokens).map(|token| token < first || token >= tokens - last).collect())
    }
}

/// Returns the number of keys per head if all heads keep equally many: `share` of `tokens`, but at least one
/// if there is any.
pub fn even_budget(tokens: usize, share: f64) -> usize {
    ((tokens as f64 * share) as usize).max(tokens.min(1))
}

impl Pipeline {
    /// Returns which keys of an export each head keeps, by the RC of each key for the question with the token
    /// ids `question`. See [`rc::peak_over_queries`] for the score of a key.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::KvBudgetTooSmall`] if the tokens that every head keeps exceed the budget;
    /// otherwise fails as [`Pipeline::read`] does.
    pub fn evict(
        &self,
        kv_export: &KvExport,
        question: &[u32],
        eviction: &Eviction,
        cancel: &Cancel,
    ) -> Result<KeyMask, PipelineError> {
        let prefix_tokens = self.model.prefix().len_of(Axis(1));
        // An impossible budget is refused before the model encodes the question.
        eviction.always_kept(kv_export.tokens.len(), prefix_tokens)?;
        let attention = self.attend_export(kv_export, question, cancel)?;
        cancel.check()?;
        let scores = attention.key_scores(|logits, _| rc::peak_over_queries(logits));
        cancel.check()?;
        Ok(eviction.choose(&scores, prefix_tokens)?)
    }

    /// Encodes `question` with an export as its past, in all heads of all layers.
    ///
    /// # Errors
    /// Fails as [`Pipeline::read`] does.
    pub fn attend_export<'a>(
        &'a self,
        kv_export: &'a KvExport,
        question: &[u32],
        cancel: &'a Cancel,
    ) -> Result<ExportAttention<'a>, PipelineError> {
        let info = self.model.info();
        let decoder = check_model(info)?;
        let past = kv_export.past(info, cancel);
        match self.model.encode_question_in_all_heads(question, &past) {
            Err(ModelError::Cancelled) => {
                Err(cancel.check().expect_err("the model stops only if the caller no longer waits"))
            }
            encoded => Ok(ExportAttention { decoder, past, encoded: encoded?, head_dim: info.head_dim }),
        }
    }
}

/// A question that was encoded with an export as its past, in all heads of all layers.
pub struct ExportAttention<'a> {
    decoder: &'a DecoderInfo,
    past: BlocksAsPast<'a>,
    encoded: EncodedQuestion,
    head_dim: usize,
}

impl ExportAttention<'_> {
    /// Returns the encoded question: its vectors are `[layer * heads + head, question_token, head_dim]`.
    pub fn encoded(&self) -> &EncodedQuestion {
        &self.encoded
    }

    /// Returns the score of each key, `[layer, kv_head, key]`. `score` computes the scores of all keys for
    /// one query head, `[key]`, from its raw logits over the exported keys, `[question_token, key]`, and over
    /// the question's own keys, `[question_token, question_token]`. If several query heads share a key head,
    /// the largest score of each key counts.
    pub fn key_scores(
        &self,
        score: impl Fn(ArrayView2<f32>, ArrayView2<f32>) -> Array1<f32> + Sync,
    ) -> Array3<f32> {
        let DecoderInfo { layers, heads, kv_heads, .. } = *self.decoder;
        let (heads_per_kv_head, tokens) = (heads / kv_heads, self.past.positions().len());
        let score_kv_head = |(index, mut best): (usize, ArrayViewMut1<f32>)| {
            let (layer, kv_head) = (index / kv_heads, index % kv_heads);
            let mut keys = Array2::zeros((tokens, self.head_dim));
            let values = keys.as_slice_mut().expect("a new array is contiguous");
            self.past.read_plane(self.decoder.planes().keys(layer).start + kv_head, values);
            let first = layer * heads + kv_head * heads_per_kv_head;
            for head in first..first + heads_per_kv_head {
                let logits = self.encoded.vectors.slice(s![head, .., ..]).dot(&keys.t());
                let self_logits = self.encoded.self_logits(head..head + 1);
                let scores = score(logits.view(), self_logits.index_axis(Axis(0), 0));
                best.zip_mut_with(&scores, |best, &score| *best = best.max(score));
            }
        };
        let mut scores = Array3::zeros((layers, kv_heads, tokens));
        let rows = scores.rows_mut().into_iter().enumerate().collect::<Vec<_>>();
        rows.into_par_iter().for_each(score_kv_head);
        scores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        name: &str,
        eviction: Eviction,
        (tokens, prefix): (usize, usize),
        expect: Result<&str, (usize, usize)>,
    ) {
        let shown =
            |kept: Vec<bool>| kept.into_iter().map(|kept| if kept { 'x' } else { '.' }).collect::<String>();
        let found = eviction.always_kept(tokens, prefix).map(shown);
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{name}"),
            (Err(InvalidRequest::KvBudgetTooSmall { first, last, .. }), Err(expect)) => {
                assert_eq!((first, last), expect, "{name}");
            }
            (found, expect) => panic!("{name}: {found:?} for {expect:?}"),
        }
    }

    #[test]
    fn first_and_last_tokens_are_always_kept() {
        let of = |keep, sinks, recent| Eviction { keep, sinks: Some(sinks), recent: Some(recent) };
        let (half, mass) = (HeadBudget::Ratio(0.5), HeadBudget::Mass(0.1));
        check("two sinks and one recent token", of(half, 2, 1), (8, 0), Ok("xx.....x"));
        check("special tokens count as sinks", of(half, 2, 1), (8, 1), Ok("x......x"));
        check("neither", of(half, 0, 0), (4, 1), Ok("...."));
        check("the whole budget", of(half, 2, 2), (8, 0), Ok("xx....xx"));
        check("one more than the budget", of(half, 3, 2), (8, 0), Err((3, 2)));
        check("more sinks than tokens", of(half, usize::MAX, usize::MAX), (8, 1), Err((8, 0)));
        check("more recent tokens than tokens", of(half, 0, usize::MAX), (8, 1), Err((0, 8)));
        check("a share of RC has no budget", of(mass, 1, usize::MAX), (3, 0), Ok("xxx"));
        check("no tokens", of(mass, 4, 4), (0, 1), Ok(""));
        check("one key", of(HeadBudget::Ratio(0.1), 1, 0), (9, 0), Ok("x........"));
        check("by default no token of a small budget", Eviction::of(half), (8, 0), Ok("........"));
        let one = format!("x{}x", ".".repeat(30));
        check("by default one token of a budget of 16", Eviction::of(half), (32, 0), Ok(&one));
        let four = format!("xxxx{}xxxx", ".".repeat(120));
        check("by default four tokens of a large budget", Eviction::of(half), (128, 1), Ok(&four));
        let recent = Eviction { recent: Some(5), ..Eviction::of(half) };
        check("recent tokens alone exceed the budget", recent, (8, 0), Err((0, 5)));
    }

    #[test]
    fn layers_keep_equally_many_keys_and_every_head_keeps_some() {
        let scores = Array3::from_shape_fn((2, 2, 20), |(layer, head, key)| {
            (100 * layer + 10 * head + key % 7) as f32
        });
        let eviction = Eviction { sinks: Some(0), recent: Some(0), ..Eviction::of(HeadBudget::Ratio(0.5)) };
        let kept = eviction.choose(&scores, 0).unwrap();
        let of = |layer, head| kept.of(layer, head).iter().filter(|kept| **kept).count();
        assert_eq!([of(0, 0), of(0, 1), of(1, 0), of(1, 1)], [2, 18, 2, 18]);
        assert!((kept.share() - 0.5).abs() < 1e-12);
    }
}
