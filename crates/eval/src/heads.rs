//! Chooses the attention heads of a decoder that best locate the answer to a question.
//!
//! One half of the user's own questions chooses the heads; the other half measures how good the choice is. This
//! module does not know model contracts: heads are numbered as the pipeline numbers them.

use std::path::Path;

use anyhow::{Context, bail};
use ndarray::{Array3, Axis, s};
use serde::Deserialize;
use thresher_core::domain::{CompressRequest, Granularity};
use thresher_core::model::contract::{HeadChoice, QuestionTokens};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::{Pipeline, Reading};
use thresher_core::rc;

use super::data::{self, LabelledChunk, RowFile};
use super::selection::{ranked, recall};

/// A question with its candidate chunks and, optionally, labels.
#[derive(Debug, Clone, Deserialize)]
pub struct Question {
    pub query: String,
    /// The candidate chunks; at least one.
    pub chunks: Vec<LabelledChunk>,
    /// Indices of the needed chunks; empty without labels.
    #[serde(default)]
    pub gold: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct HeadScores {
    /// `[head]`: the mean RC of each head against ranked rivals, in units of the head's raw logits. The units are
    /// comparable because softmax exponentiates raw logits: a head with little contrast between chunks attends
    /// to all of them alike.
    expected: Vec<f64>,
    /// `None` without labels.
    labelled: Option<LabelledScores>,
}

#[derive(Debug, Clone)]
struct LabelledScores {
    /// `[head, token, chunk]`: RC of the question's tokens against ranked rivals.
    rc: Array3<f32>,
    /// Indices of the needed chunks; not empty.
    gold: Vec<usize>,
}

/// The chosen heads, and their quality on questions that had no part in the choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Indices of the chosen heads, ascending.
    pub heads: Vec<usize>,
    /// Which of the question's tokens give the best result with these heads.
    pub question_tokens: QuestionTokens,
    pub by: HeadChoice,
    /// Quality of the chosen heads on the held-out half.
    pub held_out: Measured,
    /// Quality of all heads together on the held-out half.
    pub held_out_all: Measured,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Mean expected RC of the heads, in units of raw logits.
    pub expected_rc: f64,
    /// R@gold: the share of needed chunks among the |gold| best-ranked ones, from 0 to 1; `None` without
    /// labels.
    pub recall_at_gold: Option<f64>,
}

impl Measured {
    /// Returns the value of the criterion `choice`; 0 for accuracy without labels.
    pub fn by(&self, choice: HeadChoice) -> f64 {
        match choice {
            HeadChoice::ExpectedRc => self.expected_rc,
            HeadChoice::Accuracy => self.recall_at_gold.unwrap_or(0.0),
        }
    }
}

/// Reads and checks a file of questions, one JSON object per line. Duplicate gold indices are removed.
///
/// # Errors
/// Fails if the file cannot be read, if it has no row, or if a row has another shape or an invalid label. The
/// error names the row.
pub fn read(path: &Path) -> anyhow::Result<Vec<Question>> {
    let file = RowFile::read(path)?;
    if file.has_answers() {
        bail!("{} has answers; heads and probes need questions", path.display());
    }
    let mut questions: Vec<Question> = file.rows()?;
    for (i, question) in questions.iter_mut().enumerate() {
        let place = || format!("{}, question {}", path.display(), i + 1);
        if question.chunks.is_empty() {
            bail!("{}: chunks is empty; a question needs at least one chunk", place());
        }
        data::distinct_gold(&mut question.gold, &question.chunks).with_context(place)?;
    }
    Ok(questions)
}

/// Reads all questions with the model and calls `score` on each. `progress` is called after each question with
/// the number done and the number of all.
///
/// # Errors
/// Fails if the pipeline or `score` fails; the error names the question.
pub fn observe<T>(
    questions: &[Question],
    pipeline: &Pipeline,
    progress: &dyn Fn(usize, usize),
    score: impl Fn(&Reading, &Question) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let score_question = |(i, question): (usize, &Question)| {
        let chunks = data::request_chunks(&question.chunks);
        let request = CompressRequest {
            granularity: Granularity::Chunk,
            ..CompressRequest::new(&question.query, chunks)
        };
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start());
        let scored = reading.map_err(anyhow::Error::from).and_then(|reading| score(&reading, question));
        let scored = scored.with_context(|| format!("question {}", i + 1))?;
        progress(i + 1, questions.len());
        Ok(scored)
    };
    questions.iter().enumerate().map(score_question).collect()
}

impl HeadScores {
    /// Scores every head of the reading on a question.
    pub fn of_question(reading: &Reading, question: &Question) -> Self {
        let rc = rc_of_heads(reading);
        let expected = rc.outer_iter().map(|head| f64::from(head.mean().unwrap_or(0.0))).collect();
        let labelled =
            (!question.gold.is_empty()).then(|| LabelledScores { rc, gold: question.gold.clone() });
        Self { expected, labelled }
    }
}

impl LabelledScores {
    /// Returns the R@gold of the ranking by `heads` over the question's tokens that `tokens` names.
    fn recall(&self, heads: &[usize], tokens: QuestionTokens) -> f64 {
        let first = match tokens {
            QuestionTokens::All => 0,
            QuestionTokens::Last => self.rc.len_of(Axis(1)).saturating_sub(1),
        };
        let rc = self.rc.slice(s![.., first.., ..]);
        let rc = rc::mean_over_heads(rc.select(Axis(0), heads));
        recall(&self.gold, &ranked(&rc::with_coverage(&rc)))
    }
}

/// Returns the mean R@gold of questions with labels; 0 without any.
fn mean_recall(scores: &[&HeadScores], heads: &[usize], tokens: QuestionTokens) -> f64 {
    let labelled = scores.iter().filter_map(|scores| scores.labelled.as_ref());
    mean(labelled.map(|labelled| labelled.recall(heads, tokens)))
}

/// Returns the RC of a question's tokens against ranked rivals, `[head, token, chunk]`.
fn rc_of_heads(reading: &Reading) -> Array3<f32> {
    let spans = &reading.blocks.spans;
    let mut rc = Array3::zeros((reading.question.heads(), reading.question.tokens(), spans.len()));
    for group in reading.head_groups(reading.blocks.tokens()) {
        let peaks = rc::peaks(reading.logits(group.clone()).cross.view(), spans);
        rc.slice_mut(s![group, .., ..]).assign(&rc::ranked_rivals(peaks.value.view()));
    }
    rc
}

/// Chooses at most `heads_max` heads, and one of `tokens`: by accuracy if all questions have labels, else by
/// expected RC over all tokens, unless `by` names a criterion.
///
/// # Errors
/// Fails if there are fewer than two questions, or if `by` is accuracy and a question has no label.
pub fn choose(
    scores: &[HeadScores],
    by: Option<HeadChoice>,
    heads_max: usize,
    tokens: &[QuestionTokens],
) -> anyhow::Result<Choice> {
    if scores.len() < 2 {
        bail!(
            "the file has {} question; at least two are needed: one half chooses the heads, the other half tests them",
            scores.len()
        );
    }
    let labelled = scores.iter().all(|scores| scores.labelled.is_some());
    let by = by.unwrap_or(if labelled { HeadChoice::Accuracy } else { HeadChoice::ExpectedRc });
    if by == HeadChoice::Accuracy && !labelled {
        bail!(
            "heads can be chosen by accuracy only where every question has \"gold\" (indices of the needed chunks)"
        );
    }
    let half = |which: usize| scores.iter().skip(which).step_by(2).collect::<Vec<_>>();
    let (chosen_on, held_out) = (half(0), half(1));
    let (heads, question_tokens) = match by {
        HeadChoice::ExpectedRc => (by_expected_rc(&chosen_on, heads_max), QuestionTokens::All),
        HeadChoice::Accuracy => by_accuracy(&chosen_on, heads_max, tokens),
    };
    let all: Vec<usize> = (0..scores[0].expected.len()).collect();
    let measure = |heads: &[usize], tokens: QuestionTokens| Measured {
        expected_rc: mean(
            held_out.iter().map(|scores| mean(heads.iter().map(|&head| scores.expected[head]))),
        ),
        recall_at_gold: labelled.then(|| mean_recall(&held_out, heads, tokens)),
    };
    let (held_out, held_out_all) = (measure(&heads, question_tokens), measure(&all, QuestionTokens::All));
    Ok(Choice { heads, question_tokens, by, held_out, held_out_all })
}

fn by_expected_rc(scores: &[&HeadScores], heads_max: usize) -> Vec<usize> {
    let mut best = best_first(scores, |head| mean(scores.iter().map(|scores| scores.expected[head])));
    best.truncate(heads_max);
    best.sort_unstable();
    best
}

/// Ranks heads by their own recall, then takes as many of the best ones as do best together, over those of
/// `tokens` that do best; the first of equals. Trying more sets would overfit these questions.
fn by_accuracy(
    scores: &[&HeadScores],
    heads_max: usize,
    tokens: &[QuestionTokens],
) -> (Vec<usize>, QuestionTokens) {
    let best_of = |tokens: QuestionTokens| {
        let recall = |heads: &[usize]| mean_recall(scores, heads, tokens);
        let mut order = best_first(scores, |head| recall(&[head]));
        let sets = (1..=heads_max.min(order.len())).map(|count| (count, recall(&order[..count])));
        let best = sets.reduce(|best, next| if next.1 > best.1 { next } else { best });
        let (count, recall) = best.unwrap_or_default();
        order.truncate(count);
        order.sort_unstable();
        (recall, order, tokens)
    };
    let best = tokens.iter().map(|&tokens| best_of(tokens));
    let best = best.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map_or_else(|| (Vec::new(), QuestionTokens::All), |(_, order, tokens)| (order, tokens))
}

/// Returns all heads, best first; among equals the smaller index first.
fn best_first(scores: &[&HeadScores], score: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut order: Vec<(usize, f64)> =
        (0..scores[0].expected.len()).map(|head| (head, score(head))).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.into_iter().map(|(head, _)| head).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use ndarray::concatenate;

    use super::*;

    /// Head 1 finds the needed chunk, head 2 the wrong one, head 0 none; expected RC ranks them differently.
    fn scores(gold: usize) -> HeadScores {
        let of_head = |head: usize, chunk: usize| match head {
            1 if chunk == gold => 1.0,
            2 if chunk != gold => 0.5,
            _ => 0.0,
        };
        let rc = Array3::from_shape_fn((3, 2, 2), |(head, _, chunk)| of_head(head, chunk));
        HeadScores { expected: vec![0.1, 0.2, 0.3], labelled: Some(LabelledScores { rc, gold: vec![gold] }) }
    }

    fn unlabelled() -> HeadScores {
        HeadScores { labelled: None, ..scores(0) }
    }

    fn choose(scores: &[HeadScores], by: Option<HeadChoice>, heads_max: usize) -> anyhow::Result<Choice> {
        super::choose(scores, by, heads_max, &[QuestionTokens::All, QuestionTokens::Last])
    }

    #[test]
    fn labels_and_expected_rc_choose_different_heads() {
        let rows: Vec<HeadScores> = (0..8).map(|i| scores(i / 2 % 2)).collect();
        let by_labels = choose(&rows, None, 2).unwrap();
        assert_eq!((&by_labels.heads[..], by_labels.by), (&[1][..], HeadChoice::Accuracy));
        assert_eq!(by_labels.held_out.recall_at_gold, Some(1.0));
        let without = choose(&rows, Some(HeadChoice::ExpectedRc), 2).unwrap();
        assert_eq!(without.heads, [1, 2]);
        assert!((without.held_out.expected_rc - 0.25).abs() < 1e-12);
        assert!((without.held_out_all.expected_rc - 0.2).abs() < 1e-12);
        let no_labels: Vec<HeadScores> = (0..4).map(|_| unlabelled()).collect();
        let free = choose(&no_labels, None, 1).unwrap();
        assert_eq!(
            (&free.heads[..], free.by, free.held_out.recall_at_gold),
            (&[2][..], HeadChoice::ExpectedRc, None)
        );
    }

    #[test]
    fn the_last_token_is_used_alone_where_its_recall_is_higher() {
        let misled = |gold: usize| {
            let first =
                Array3::from_shape_fn((3, 1, 2), |(_, _, chunk)| if chunk == gold { 0.0 } else { 3.0 });
            let labelled = scores(gold).labelled.expect("labels");
            let rc = concatenate![Axis(1), first, labelled.rc.slice(s![.., 1.., ..])];
            HeadScores { labelled: Some(LabelledScores { rc, ..labelled }), ..scores(gold) }
        };
        let rows: Vec<HeadScores> = (0..8).map(|i| misled(i / 2 % 2)).collect();
        let chosen = choose(&rows, None, 1).unwrap();
        assert_eq!((&chosen.heads[..], chosen.question_tokens), (&[1][..], QuestionTokens::Last));
        assert_eq!(chosen.held_out.recall_at_gold, Some(1.0));
        let equal: Vec<HeadScores> = (0..8).map(|i| scores(i / 2 % 2)).collect();
        assert_eq!(choose(&equal, None, 1).unwrap().question_tokens, QuestionTokens::All, "equal recall");
    }

    #[test]
    fn missing_labels_and_too_few_questions_are_errors() {
        let error = |rows: &[HeadScores], by| choose(rows, by, 1).unwrap_err().to_string();
        assert!(error(&[scores(0)], None).contains("at least two"));
        assert!(error(&[scores(0), unlabelled()], Some(HeadChoice::Accuracy)).contains("\"gold\""));
    }
}
