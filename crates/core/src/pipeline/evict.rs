//! Which keys each head keeps of what is handed over: those that a question's RC reaches.
//! Knows nothing of files or transports.

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

/// Of an even share of a layer's keys, the part that each head fills with its own best, whatever the others find: measured
/// (`docs/decisions.md`).
const FLOOR_SHARE: f64 = 0.2;

/// Which keys of each head are handed over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Eviction {
    /// How much is kept.
    pub keep: HeadBudget,
    /// Tokens at the front that every head keeps, special tokens included; without it those and 4 more, of a small budget fewer.
    pub sinks: Option<usize>,
    /// Tokens at the end that every head keeps; without it 4, of a small budget fewer.
    pub recent: Option<usize>,
}

/// How much the heads keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadBudget {
    /// In each head the fewest keys that carry this share of its RC.
    Mass(f64),
    /// This share of each layer's keys, shared out among its heads by RC.
    Ratio(f64),
}

impl Eviction {
    /// Sinks, and as many of the last tokens, that every head keeps unless a request says otherwise.
    const KEPT_ANYWAY: usize = 4;
    /// Of a head's keys at most one of so many is such a one, and one of so many the other: where few are kept, those that the question
    /// asks for are worth more.
    const OF_KEPT: usize = 16;

    /// By default in all but how much.
    pub fn of(keep: HeadBudget) -> Self {
        Self { keep, sinks: None, recent: None }
    }

    /// Whether the budget is one at all.
    ///
    /// # Errors
    /// [`InvalidRequest::KvShareOutOfRange`]
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

    /// Draws the line under scores `[layer, kv_head, token]` of tokens behind `prefix` special ones.
    ///
    /// # Errors
    /// [`InvalidRequest::KvBudgetTooSmall`]
    pub fn choose(&self, scores: &Array3<f32>, prefix: usize) -> Result<KeyMask, InvalidRequest> {
        let (_, kv_heads, tokens) = scores.dim();
        let always = self.always(tokens, prefix)?;
        let how = match self.keep {
            HeadBudget::Mass(share) => Keep::Mass(share),
            HeadBudget::Ratio(share) => {
                let even = of_head(tokens, share);
                Keep::Shared { count: even * kv_heads, each: (even as f64 * FLOOR_SHARE) as usize }
            }
        };
        let mut kept = Array3::from_elem(scores.dim(), false);
        for (scores, mut kept) in scores.outer_iter().zip(kept.outer_iter_mut()) {
            kept.assign(&rc::keep(scores, &always, how));
        }
        Ok(KeyMask::new(kept))
    }

    /// `[token]`: what every head keeps, of `tokens` behind `prefix` special ones.
    fn always(&self, tokens: usize, prefix: usize) -> Result<Vec<bool>, InvalidRequest> {
        let budget = match self.keep {
            HeadBudget::Mass(_) => tokens,
            HeadBudget::Ratio(share) => of_head(tokens, share),
        };
        let by_default = Self::KEPT_ANYWAY.min(budget / Self::OF_KEPT);
        let first = self.sinks.map_or(by_default, |sinks| sinks.saturating_sub(prefix)).min(tokens);
        let last = self.recent.unwrap_or(by_default).min(tokens - first);
        if first + last > budget {
            return Err(InvalidRequest::KvBudgetTooSmall { budget, tokens, first, last });
        }
        Ok((0..tokens).map(|token| token < first || token >= tokens - last).collect())
    }
}

/// Keys of a head where all have as many: at least one of what there is.
pub fn of_head(tokens: usize, share: f64) -> usize {
    ((tokens as f64 * share) as usize).max(tokens.min(1))
}

impl Pipeline {
    /// The keys that each head keeps of what is handed over, by what a question asks of each head.
    ///
    /// # Errors
    /// [`InvalidRequest::KvBudgetTooSmall`]; else as [`Pipeline::read`].
    pub fn evict(
        &self,
        kv_export: &KvExport,
        question: &[u32],
        eviction: &Eviction,
        cancel: &Cancel,
    ) -> Result<KeyMask, PipelineError> {
        let prefix = self.model.prefix().len_of(Axis(1));
        // Said before the model works for it.
        eviction.always(kv_export.tokens.len(), prefix)?;
        let asked = self.attend_export(kv_export, question, cancel)?;
        cancel.check()?;
        let scores = asked.keys(|x, _| rc::peak_over_queries(x));
        cancel.check()?;
        Ok(eviction.choose(&scores, prefix)?)
    }

    /// Reads `question` over what is handed over, in all heads of all layers.
    ///
    /// # Errors
    /// As [`Pipeline::read`].
    pub fn attend_export<'a>(
        &'a self,
        kv_export: &'a KvExport,
        question: &[u32],
        cancel: &'a Cancel,
    ) -> Result<ExportAttention<'a>, PipelineError> {
        let info = self.model.info();
        let decoder = check_model(info)?;
        let past = kv_export.past(info, cancel);
        match self.model.question_in_all_heads(question, &past) {
            Err(ModelError::Stopped) => {
                Err(cancel.check().expect_err("a question stops only when nobody waits"))
            }
            encoded => Ok(ExportAttention { decoder, past, encoded: encoded?, head_dim: info.head_dim }),
        }
    }
}

/// A question in all heads, over what is handed over.
pub struct ExportAttention<'a> {
    decoder: &'a DecoderInfo,
    past: BlocksAsPast<'a>,
    encoded: EncodedQuestion,
    head_dim: usize,
}

impl ExportAttention<'_> {
    /// The question, `[layer * heads + head, question_token, head_dim]`.
    pub fn encoded(&self) -> &EncodedQuestion {
        &self.encoded
    }

    /// What each key of each key head is worth: `score` is given a query head's raw logits `[question_token, key]` and those over the
    /// question's own keys; the best of the query heads that share a key head counts. `[layer, kv_head, key]`
    pub fn keys(
        &self,
        score: impl Fn(ArrayView2<f32>, ArrayView2<f32>) -> Array1<f32> + Sync,
    ) -> Array3<f32> {
        let DecoderInfo { layers, heads, kv_heads, .. } = *self.decoder;
        let (group, tokens) = (heads / kv_heads, self.past.positions().len());
        let of_kv_head = |(at, mut best): (usize, ArrayViewMut1<f32>)| {
            let (layer, kv_head) = (at / kv_heads, at % kv_heads);
            let mut keys = Array2::zeros((tokens, self.head_dim));
            let values = keys.as_slice_mut().expect("a new array is contiguous");
            self.past.read_plane(self.decoder.planes().keys(layer).start + kv_head, values);
            let first = layer * heads + kv_head * group;
            for head in first..first + group {
                let x = self.encoded.vectors.slice(s![head, .., ..]).dot(&keys.t());
                let own = self.encoded.self_logits(head..head + 1);
                let found = score(x.view(), own.index_axis(Axis(0), 0));
                best.zip_mut_with(&found, |best, &one| *best = best.max(one));
            }
        };
        let mut scores = Array3::zeros((layers, kv_heads, tokens));
        scores.rows_mut().into_iter().enumerate().collect::<Vec<_>>().into_par_iter().for_each(of_kv_head);
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
        let shown = |always: Vec<bool>| {
            always.into_iter().map(|kept| if kept { 'x' } else { '.' }).collect::<String>()
        };
        let found = eviction.always(tokens, prefix).map(shown);
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{name}"),
            (Err(InvalidRequest::KvBudgetTooSmall { first, last, .. }), Err(expect)) => {
                assert_eq!((first, last), expect, "{name}");
            }
            (found, expect) => panic!("{name}: {found:?} for {expect:?}"),
        }
    }

    #[test]
    fn sinks_and_the_last_tokens() {
        let of = |keep, sinks, recent| Eviction { keep, sinks: Some(sinks), recent: Some(recent) };
        let (half, mass) = (HeadBudget::Ratio(0.5), HeadBudget::Mass(0.1));
        check("both", of(half, 2, 1), (8, 0), Ok("xx.....x"));
        check("special tokens are sinks", of(half, 2, 1), (8, 1), Ok("x......x"));
        check("none", of(half, 0, 0), (4, 1), Ok("...."));
        check("all of it", of(half, 2, 2), (8, 0), Ok("xx....xx"));
        check("one too many", of(half, 3, 2), (8, 0), Err((3, 2)));
        check("more than any", of(half, usize::MAX, usize::MAX), (8, 1), Err((8, 0)));
        check("as many at the end", of(half, 0, usize::MAX), (8, 1), Err((0, 8)));
        check("a mass has room for all", of(mass, 1, usize::MAX), (3, 0), Ok("xxx"));
        check("no tokens", of(mass, 4, 4), (0, 1), Ok(""));
        check("one key", of(HeadBudget::Ratio(0.1), 1, 0), (9, 0), Ok("x........"));
        check("by default none of few", Eviction::of(half), (8, 0), Ok("........"));
        let one = format!("x{}x", ".".repeat(30));
        check("one of sixteen", Eviction::of(half), (32, 0), Ok(&one));
        let four = format!("xxxx{}xxxx", ".".repeat(120));
        check("and four of many", Eviction::of(half), (128, 1), Ok(&four));
        let named = Eviction { recent: Some(5), ..Eviction::of(half) };
        check("one of them named", named, (8, 0), Err((0, 5)));
    }

    #[test]
    fn every_layer_keeps_as_much_and_every_head_something() {
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
