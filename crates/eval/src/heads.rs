//! Chooses the attention heads of a decoder that best locate the answer to a question, or the source of a part
//! of an answer.
//!
//! One half of the user's own questions or answers chooses the heads; the other half measures how good the
//! choice is. This module does not know model contracts: heads are numbered as the pipeline numbers them.

use std::path::Path;

use anyhow::{Context, bail};
use ndarray::{Array3, Axis, s};
use serde::Deserialize;
use thresher_core::domain::{ByteRange, CompressRequest, Granularity};
use thresher_core::model::contract::{HeadChoice, QuestionTokens};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::{Pipeline, Reading};
use thresher_core::rc;
use thresher_core::text;

use super::attribution;
use super::data::{self, AttributionRow, LabelledChunk, RowFile};
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

/// Questions or answers with their chunks.
pub enum CalibrationRows {
    /// Questions, of which the needed chunks may be labelled.
    Questions(Vec<Question>),
    /// Answers with the chunk that each span came from.
    Answers(Vec<AttributionRow>),
}

/// Scores of all heads on one question or answer.
#[derive(Debug, Clone)]
pub struct HeadScores {
    /// `[head]`: the mean RC of each head against ranked rivals, in units of the head's raw logits. The units are
    /// comparable because softmax exponentiates raw logits: a head with little contrast between chunks attends
    /// to all of them alike.
    expected: Vec<f64>,
    /// The labelled parts: the whole question, or each labelled span of the answer. Empty without labels.
    parts: Vec<LabelledPart>,
}

/// A question or a part of an answer, and the chunks that it should find.
#[derive(Debug, Clone)]
struct LabelledPart {
    /// `[head, token, chunk]`: RC of the part's tokens against ranked rivals.
    rc: Array3<f32>,
    /// Indices of chunks; not empty.
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

/// Reads and checks a file of questions or answers, one JSON object per line. Rows with `spans` are answers.
/// Duplicate gold indices are removed.
///
/// # Errors
/// Fails if the file cannot be read, if it has no row, or if a row has another shape or an invalid label. The
/// error names the row.
pub fn read(path: &Path) -> anyhow::Result<CalibrationRows> {
    let file = RowFile::read(path)?;
    if file.has_answers() {
        return Ok(CalibrationRows::Answers(file.answers()?));
    }
    let mut questions: Vec<Question> = file.rows()?;
    for (i, question) in questions.iter_mut().enumerate() {
        let place = || format!("{}, question {}", path.display(), i + 1);
        if question.chunks.is_empty() {
            bail!("{}: chunks is empty; a question needs at least one chunk", place());
        }
        data::distinct_gold(&mut question.gold, &question.chunks).with_context(place)?;
    }
    Ok(CalibrationRows::Questions(questions))
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

/// Reads the sentences of all labelled spans with the model, each by itself as attribution does, and scores every
/// head on the spans. Answers without a labelled span are left out. `progress` is called after each answer with
/// the number done and the number of all.
///
/// # Errors
/// Fails if the pipeline fails; the error names the answer.
pub fn observe_answers(
    rows: &[AttributionRow],
    pipeline: &Pipeline,
    progress: &dyn Fn(usize, usize),
) -> anyhow::Result<Vec<HeadScores>> {
    let score = |(i, row): (usize, &AttributionRow)| {
        let scores = HeadScores::of_answer(row, pipeline).with_context(|| format!("answer {}", i + 1));
        progress(i + 1, rows.len());
        scores.transpose()
    };
    rows.iter().enumerate().filter_map(score).collect()
}

/// Returns the sentences that a span of an answer overlaps, as one range of bytes.
fn sentences_of(answer: &str, span: ByteRange) -> ByteRange {
    let sentences = text::arrived(answer);
    let overlapped = sentences.filter(|sentence| sentence.start < span.end && span.start < sentence.end);
    overlapped.reduce(|first, last| ByteRange::new(first.start, last.end)).unwrap_or(span)
}

impl HeadScores {
    /// Scores every head of the reading on a question.
    pub fn of_question(reading: &Reading, question: &Question) -> Self {
        let rc = rc_of_heads(reading);
        let expected = mean_by_head(&rc);
        let part = LabelledPart { rc, gold: question.gold.clone() };
        Self { expected, parts: Some(part).filter(|part| !part.gold.is_empty()).into_iter().collect() }
    }

    /// Scores every head on the labelled spans of an answer; `None` if it has none with a token.
    fn of_answer(row: &AttributionRow, pipeline: &Pipeline) -> anyhow::Result<Option<Self>> {
        let mut parts = Vec::new();
        // Spans of one sentence share its reading and its RC.
        let mut read: Option<(ByteRange, Reading, Array3<f32>)> = None;
        for span in &row.spans {
            let Some(chunk) = span.chunk else { continue };
            let bytes = attribution::bytes(row, span)?;
            let sentences = sentences_of(&row.answer, bytes);
            let (_, reading, rc) = match read.take().filter(|(of, ..)| *of == sentences) {
                Some(same) => read.insert(same),
                None => {
                    let request = data::request(sentences.slice(&row.answer), &row.chunks);
                    let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start())?;
                    let rc = rc_of_heads(&reading);
                    read.insert((sentences, reading, rc))
                }
            };
            let within = ByteRange::new(
                bytes.start.saturating_sub(sentences.start),
                bytes.end.min(sentences.end) - sentences.start,
            );
            let Some(tokens) = attribution::tokens_in(reading, within) else { continue };
            let rc = rc.slice(s![.., tokens.range(), ..]).to_owned();
            parts.push(LabelledPart { rc, gold: vec![chunk] });
        }
        let Some(first) = parts.first() else { return Ok(None) };
        let mut expected = vec![0.0; first.rc.len_of(Axis(0))];
        for part in &parts {
            let of_part = mean_by_head(&part.rc).into_iter();
            expected.iter_mut().zip(of_part).for_each(|(sum, mean)| *sum += mean / parts.len() as f64);
        }
        Ok(Some(Self { expected, parts }))
    }

    /// Returns the mean R@gold, over all parts, of the rankings by `heads` over the part's tokens that `tokens`
    /// names.
    fn recall(&self, heads: &[usize], tokens: QuestionTokens) -> f64 {
        let of_part = |part: &LabelledPart| {
            let first = match tokens {
                QuestionTokens::All => 0,
                QuestionTokens::Last => part.rc.len_of(Axis(1)).saturating_sub(1),
            };
            let rc = part.rc.slice(s![.., first.., ..]);
            let rc = rc::mean_over_heads(rc.select(Axis(0), heads));
            recall(&part.gold, &ranked(&rc::with_coverage(&rc)))
        };
        mean(self.parts.iter().map(of_part))
    }
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

/// Returns the mean over tokens and chunks of `[head, token, chunk]`.
fn mean_by_head(rc: &Array3<f32>) -> Vec<f64> {
    rc.outer_iter().map(|head| f64::from(head.mean().unwrap_or(0.0))).collect()
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
    let labelled = scores.iter().all(|scores| !scores.parts.is_empty());
    let by = by.unwrap_or(if labelled { HeadChoice::Accuracy } else { HeadChoice::ExpectedRc });
    if by == HeadChoice::Accuracy && !labelled {
        bail!(
            "heads can be chosen by accuracy only where every question has \"gold\" (indices of the needed chunks) or every \
             answer has a span with \"chunk\""
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
        recall_at_gold: labelled.then(|| mean(held_out.iter().map(|scores| scores.recall(heads, tokens)))),
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
        let recall = |heads: &[usize]| mean(scores.iter().map(|scores| scores.recall(heads, tokens)));
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

    #[test]
    fn a_span_is_read_within_its_own_sentences() {
        let answer = "The tide rises. The moon pulls it. It falls at night.";
        let check = |span: &str, expect: &str| {
            let start = answer.find(span).expect("a part of the answer");
            let found = sentences_of(answer, ByteRange::new(start, start + span.len()));
            assert_eq!(found.slice(answer), expect, "{span}");
        };
        check("moon", "The moon pulls it.");
        check("it. It falls", "The moon pulls it. It falls at night.");
        check(answer, answer);
    }

    /// Head 1 finds the needed chunk, head 2 the wrong one, head 0 none; expected RC ranks them differently.
    fn scores(gold: usize) -> HeadScores {
        let of_head = |head: usize, chunk: usize| match head {
            1 if chunk == gold => 1.0,
            2 if chunk != gold => 0.5,
            _ => 0.0,
        };
        let rc = Array3::from_shape_fn((3, 2, 2), |(head, _, chunk)| of_head(head, chunk));
        HeadScores { expected: vec![0.1, 0.2, 0.3], parts: vec![LabelledPart { rc, gold: vec![gold] }] }
    }

    fn unlabelled() -> HeadScores {
        HeadScores { parts: Vec::new(), ..scores(0) }
    }

    fn choose(scores: &[HeadScores], by: Option<HeadChoice>, heads_max: usize) -> anyhow::Result<Choice> {
        super::choose(scores, by, heads_max, &[QuestionTokens::All, QuestionTokens::Last])
    }

    #[test]
    fn every_labelled_span_of_an_answer_counts() {
        // Of two spans, head 1 finds the chunk of the first, head 2 that of the second.
        let answer = || {
            let rc = Array3::from_shape_fn((3, 2, 2), |(head, token, chunk)| match (head, token) {
                (1, 0) | (2, 1) => chunk as f32,
                (1, 1) => 0.5 - 0.5 * chunk as f32,
                _ => 0.0,
            });
            let part = |token: usize| LabelledPart {
                rc: rc.slice(s![.., token..=token, ..]).to_owned(),
                gold: vec![1],
            };
            HeadScores { expected: vec![0.0; 3], parts: vec![part(0), part(1)] }
        };
        assert_eq!(answer().recall(&[1], QuestionTokens::All), 0.5);
        assert_eq!(answer().recall(&[1, 2], QuestionTokens::All), 1.0);
        let rows: Vec<HeadScores> = (0..4).map(|_| answer()).collect();
        let chosen = super::choose(&rows, None, 2, &[QuestionTokens::All]).unwrap();
        assert_eq!((&chosen.heads[..], chosen.held_out.recall_at_gold), (&[1, 2][..], Some(1.0)));
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
            let scores = scores(gold);
            let first =
                Array3::from_shape_fn((3, 1, 2), |(_, _, chunk)| if chunk == gold { 0.0 } else { 3.0 });
            let rc = concatenate![Axis(1), first, scores.parts[0].rc.slice(s![.., 1.., ..])];
            HeadScores { parts: vec![LabelledPart { rc, gold: vec![gold] }], ..scores }
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
