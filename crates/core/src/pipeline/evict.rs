//! KV eviction: decides which keys and values each head of an export keeps, by their RC for a question. Knows
//! nothing of files and transports.

use ndarray::{Array1, Array2, Array3, ArrayView3, ArrayViewMut1, Axis, s};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::cancel::Cancel;
use super::kv_export::{ExportPast, KvExport, check_model};
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::model::contract::{BudgetScope, EvictionForm};
use crate::model::{DecoderInfo, EncodedQuestion, KeyMask, Past, raw_logits};
use crate::rc::{self, Keep};

/// The number of first tokens, and of last tokens, that every head keeps by default.
const ALWAYS_KEPT_DEFAULT: usize = 4;

/// By default the first tokens that every head keeps are at most one of this many of a head's keys, and so
/// are the last tokens. If few keys are kept, those that the question needs are worth more.
const BUDGET_PER_ALWAYS_KEPT: usize = 16;

/// Which keys each head keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Eviction {
    pub keep: HeadBudget,
    /// The number of tokens at the beginning (attention sinks) that every head keeps, special tokens
    /// included. `None` keeps the special tokens and 4 more, or fewer of a small budget: at most a sixteenth
    /// of it.
    pub sinks: Option<usize>,
    /// The number of tokens at the end that every head keeps. `None` keeps 4, or fewer of a small budget: at
    /// most a sixteenth of it.
    pub recent: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadBudget {
    /// Each head keeps the fewest keys that carry this share of its RC; above 0, at most 1.
    Mass(f64),
    /// This share of all keys is kept; above 0, at most 1. [`EvictionForm::budget`] says which heads share a
    /// budget.
    Ratio(f64),
}

impl Eviction {
    /// Returns an eviction with this budget and the default first and last tokens.
    pub fn with_budget(keep: HeadBudget) -> Self {
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
        if share > 0.0 && share <= 1.0 {
            Ok(())
        } else {
            Err(InvalidRequest::KvShareOutOfRange { share, field })
        }
    }

    /// Returns which keys are kept, `[layer, kv_head, token]`, from `scores` of the same shape. The tokens
    /// follow `prefix_tokens` special tokens, which are always kept and have no scores.
    ///
    /// With [`HeadBudget::Ratio`], the heads that share a budget keep the keys with the largest scores of all
    /// of them together, with a floor for each head: the allocation of Ada-KV (Feng et al. 2024, arXiv
    /// 2407.11550, section 3) with RC in place of attention. With [`HeadBudget::Mass`], each head decides
    /// alone.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::KvBudgetTooSmall`] if the tokens that every head keeps exceed the budget.
    pub fn choose(
        &self,
        scores: &Array3<f32>,
        prefix_tokens: usize,
        form: &EvictionForm,
    ) -> Result<Array3<bool>, InvalidRequest> {
        let (layers, kv_heads, tokens) = scores.dim();
        let always = self.always_kept(tokens, prefix_tokens)?;
        let (keep_in, heads_together): (&dyn Fn(usize) -> Keep, usize) = match self.keep {
            HeadBudget::Mass(share) => (&move |_| Keep::Mass(share), 1),
            HeadBudget::Ratio(share) => {
                let even = even_budget(tokens, share);
                let each = (even as f64 * form.floor) as usize;
                let heads = match form.budget {
                    BudgetScope::Head => 1,
                    BudgetScope::Layer => kv_heads,
                    BudgetScope::Model => layers * kv_heads,
                };
                (&move |heads: usize| Keep::Shared { count: even * heads, each }, heads)
            }
        };
        let heads = scores.to_shape((layers * kv_heads, tokens)).expect("the same number of elements");
        let mut kept = Array2::from_elem(heads.dim(), false);
        let groups = heads.axis_chunks_iter(Axis(0), heads_together.max(1));
        for (scores, mut kept) in groups.zip(kept.axis_chunks_iter_mut(Axis(0), heads_together.max(1))) {
            kept.assign(&rc::keep(scores, &always, keep_in(scores.nrows())));
        }
        Ok(kept.into_shape_with_order(scores.dim()).expect("the same number of elements"))
    }

    /// Checks that the tokens that every head keeps fit into the budget of an export.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::KvBudgetTooSmall`] if they do not.
    pub fn check_budget(&self, kv_export: &KvExport) -> Result<(), InvalidRequest> {
        let tokens = kv_export.tokens.len();
        self.always_kept(tokens, kv_export.next_position - tokens).map(drop)
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
    /// Returns the RC of each key of an export for the question with the token ids `question`, `[layer, kv_head, key]`, in
    /// the form that the model's contract names. See [`rc::key_rc`] for the score of a key.
    ///
    /// # Errors
    /// Fails as [`Pipeline::read`] does.
    pub fn rc_of_export(
        &self,
        kv_export: &KvExport,
        question: &[u32],
        cancel: &Cancel,
    ) -> Result<Array3<f32>, PipelineError> {
        let attention = self.attend_export(kv_export, question, cancel)?;
        cancel.check()?;
        let scores = attention.rc_of_keys(&attention.decoder.eviction);
        cancel.check()?;
        Ok(scores)
    }

    /// Returns which keys of an export each head keeps, by the `scores` that [`Self::rc_of_export`] returned.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::KvBudgetTooSmall`] if the tokens that every head keeps exceed the budget.
    pub fn evict(&self, scores: &Array3<f32>, eviction: &Eviction) -> Result<KeyMask, InvalidRequest> {
        let decoder = check_model(self.model.info())?;
        let kept = eviction.choose(scores, decoder.prefix_tokens(), &decoder.eviction)?;
        Ok(decoder.mask_of_all_layers(&kept))
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
        let encoded = self.model.encode_question_in_all_heads(question, &past);
        let encoded = encoded.map_err(|error| cancel.or(error))?;
        Ok(ExportAttention { decoder, past, encoded, head_dim: info.head_dim })
    }
}

/// A question that was encoded with an export as its past, in all heads of all layers.
pub struct ExportAttention<'a> {
    decoder: &'a DecoderInfo,
    past: ExportPast<'a>,
    encoded: EncodedQuestion,
    head_dim: usize,
}

impl ExportAttention<'_> {
    /// Returns the encoded question: its vectors are `[layer * heads + head, question_token, head_dim]`.
    pub fn encoded(&self) -> &EncodedQuestion {
        &self.encoded
    }

    /// Returns the RC of each key for the question, `[layer, kv_head, key]`, in the layers with full attention,
    /// reduced over the question, averaged over neighbouring keys and scaled as `form` says.
    pub fn rc_of_keys(&self, form: &EvictionForm) -> Array3<f32> {
        self.key_scores(|logits, self_logits| {
            let scores = rc::key_rc(logits, self_logits, form.reference, form.over_question);
            let scores = rc::average_over_neighbours(scores.view(), form.neighbours);
            rc::divided_by_mean(scores.view(), form.scale.exponent())
        })
    }

    /// Returns the score of each key, `[layer, kv_head, key]`, in the layers with full attention: keys of other
    /// layers are not evicted. `score` computes the scores of all keys of a key head, `[key]`, from the raw
    /// logits of the query heads that share it: over the exported keys, `[query_head, question_token, key]`,
    /// and over the question's own keys, `[query_head, question_token, question_token]`.
    fn key_scores(
        &self,
        score: impl Fn(ArrayView3<f32>, ArrayView3<f32>) -> Array1<f32> + Sync,
    ) -> Array3<f32> {
        let kv_heads = self.decoder.kv_heads;
        let layers = self.decoder.full_layers();
        let tokens = self.past.positions().len();
        let score_kv_head = |(index, mut scores): (usize, ArrayViewMut1<f32>)| {
            // The caller of a cancelled request gets an error, not these scores.
            if !self.past.go_on() {
                return;
            }
            let (layer, kv_head) = (layers[index / kv_heads], index % kv_heads);
            let mut keys = Array3::zeros((1, tokens, self.head_dim));
            let values = keys.as_slice_mut().expect("a new array is contiguous");
            self.past.read_plane(self.decoder.planes().keys(layer).start + kv_head, values);
            let heads = self.decoder.query_heads(layer, kv_head);
            let vectors = self.encoded.vectors.slice(s![heads.clone(), .., ..]);
            let logits = raw_logits(vectors, keys.view());
            scores.assign(&score(logits.view(), self.encoded.self_logits(heads).view()));
        };
        let mut scores = Array3::zeros((layers.len(), kv_heads, tokens));
        let rows = scores.rows_mut().into_iter().enumerate().collect::<Vec<_>>();
        rows.into_par_iter().for_each(score_kv_head);
        scores
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::contract::KeyScale;
    use crate::rc::{OverQuestion, Reference};

    fn check(
        name: &str,
        eviction: Eviction,
        tokens: usize,
        prefix: usize,
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
        check("two sinks and one recent token", of(half, 2, 1), 8, 0, Ok("xx.....x"));
        check("special tokens count as sinks", of(half, 2, 1), 8, 1, Ok("x......x"));
        check("neither", of(half, 0, 0), 4, 1, Ok("...."));
        check("the whole budget", of(half, 2, 2), 8, 0, Ok("xx....xx"));
        check("one more than the budget", of(half, 3, 2), 8, 0, Err((3, 2)));
        check("more sinks than tokens", of(half, usize::MAX, usize::MAX), 8, 1, Err((8, 0)));
        check("more recent tokens than tokens", of(half, 0, usize::MAX), 8, 1, Err((0, 8)));
        check("a share of RC has no budget", of(mass, 1, usize::MAX), 3, 0, Ok("xxx"));
        check("no tokens", of(mass, 4, 4), 0, 1, Ok(""));
        check("one key", of(HeadBudget::Ratio(0.1), 1, 0), 9, 0, Ok("x........"));
        check("by default no token of a small budget", Eviction::with_budget(half), 8, 0, Ok("........"));
        let one = format!("x{}x", ".".repeat(30));
        check("by default one token of a budget of 16", Eviction::with_budget(half), 32, 0, Ok(&one));
        let four = format!("xxxx{}xxxx", ".".repeat(120));
        check("by default four tokens of a large budget", Eviction::with_budget(half), 128, 1, Ok(&four));
        let recent = Eviction { recent: Some(5), ..Eviction::with_budget(half) };
        check("recent tokens alone exceed the budget", recent, 8, 0, Err((0, 5)));
    }

    #[test]
    fn heads_that_share_a_budget_keep_the_best_keys_of_all_of_them() {
        let scores = Array3::from_shape_fn((2, 2, 20), |(layer, head, key)| {
            (100 * layer + 10 * head + key % 7) as f32
        });
        let check = |budget, keep, expect: [usize; 4]| {
            let eviction = Eviction { sinks: Some(0), recent: Some(0), ..Eviction::with_budget(keep) };
            let form = EvictionForm {
                reference: Reference::Rivals,
                over_question: OverQuestion::Peak,
                neighbours: 1,
                scale: KeyScale::Logit,
                budget,
                floor: 0.2,
            };
            let kept = eviction.choose(&scores, 0, &form).unwrap();
            let of = |layer, head| kept.slice(s![layer, head, ..]).iter().filter(|kept| **kept).count();
            assert_eq!([of(0, 0), of(0, 1), of(1, 0), of(1, 1)], expect, "{budget:?}");
        };
        let half = HeadBudget::Ratio(0.5);
        check(BudgetScope::Head, half, [10; 4]);
        check(BudgetScope::Layer, half, [2, 18, 2, 18]);
        check(BudgetScope::Model, half, [2, 2, 16, 20]);
        let all = HeadBudget::Mass(1.0);
        check(BudgetScope::Model, all, [17, 20, 20, 20]);
    }
}
