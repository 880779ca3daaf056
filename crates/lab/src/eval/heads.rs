//! Which heads of a decoder say most about where a question's answer stands: measured on the user's own questions, one half to
//! choose by, the other to say how good the choice is.
//! Knows nothing of contracts; heads are numbered as the pipeline has them.

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

use super::data::{self, LabelledChunk};
use super::selection::{ranked, recall};

/// A question with its candidates; what is needed of them, where somebody has said so.
#[derive(Debug, Clone, Deserialize)]
pub struct Question {
    /// The question.
    pub query: String,
    /// The candidates.
    pub chunks: Vec<LabelledChunk>,
    /// Indices of the chunks that are needed.
    #[serde(default)]
    pub gold: Vec<usize>,
}

/// What each head makes of a question.
#[derive(Debug, Clone)]
pub struct Seen {
    /// `[head, question_token, chunk]`: RC against ranked rivals.
    rc: Array3<f32>,
    /// `[head]`: its mean. In the head's own units: a raw logit is what softmax exponentiates, so a head that contrasts chunks by
    /// little attends to all alike.
    expected: Vec<f64>,
    gold: Vec<usize>,
}

/// Heads, and how well they do on questions that had no part in the choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Ascending.
    pub heads: Vec<usize>,
    /// The tokens of a question that do best with them.
    pub question_tokens: QuestionTokens,
    /// By what they were chosen.
    pub by: HeadChoice,
    /// Theirs.
    pub held_out: Measured,
    /// That of all heads together.
    pub held_out_all: Measured,
}

/// How well some heads do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Mean of their expected RC.
    pub expected_rc: f64,
    /// Share of the needed chunks among as many best; none without labels.
    pub recall_at_gold: Option<f64>,
}

impl Measured {
    /// What the choice was by.
    pub fn by(&self, choice: HeadChoice) -> f64 {
        match choice {
            HeadChoice::ExpectedRc => self.expected_rc,
            HeadChoice::Accuracy => self.recall_at_gold.unwrap_or(0.0),
        }
    }
}

/// Reads questions, one JSON object a line.
///
/// # Errors
/// With the line's number, when it does not fit.
pub fn read(path: &Path) -> anyhow::Result<Vec<Question>> {
    let mut questions: Vec<Question> = data::read_lines(path)?;
    for (i, question) in questions.iter_mut().enumerate() {
        if question.chunks.is_empty() {
            bail!("{}, question {}: chunks is empty", path.display(), i + 1);
        }
        // Named twice, a chunk is needed once.
        question.gold.sort_unstable();
        question.gold.dedup();
        if let Some(gold) = question.gold.iter().find(|&&gold| gold >= question.chunks.len()) {
            let chunks = question.chunks.len();
            bail!("{}, question {}: gold names chunk {gold} of {chunks}", path.display(), i + 1);
        }
    }
    Ok(questions)
}

/// Asks all questions. `progress` is told after each how many are done.
///
/// # Errors
/// What the pipeline reports, with the question's number.
pub fn observe(
    questions: &[Question],
    pipeline: &Pipeline,
    progress: &dyn Fn(usize, usize),
) -> anyhow::Result<Vec<Seen>> {
    let ask = |(i, question): (usize, &Question)| {
        let numbered = |(index, chunk): (usize, &LabelledChunk)| {
            let mut chunk = chunk.chunk();
            chunk.id = index.to_string();
            chunk
        };
        let chunks = question.chunks.iter().enumerate().map(numbered).collect();
        let request = CompressRequest {
            granularity: Granularity::Chunk,
            ..CompressRequest::new(&question.query, chunks)
        };
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start());
        let reading = reading.with_context(|| format!("question {}", i + 1))?;
        progress(i + 1, questions.len());
        Ok(Seen::new(&reading, &question.gold))
    };
    questions.iter().enumerate().map(ask).collect()
}

impl Seen {
    fn new(reading: &Reading, gold: &[usize]) -> Self {
        let spans = &reading.blocks.spans;
        let heads = reading.question.heads();
        let mut rc = Array3::zeros((heads, reading.question.tokens(), spans.len()));
        let mut expected = Vec::with_capacity(heads);
        for some in reading.heads_at_once(reading.blocks.tokens()) {
            let peaks = rc::peaks(reading.logits(some.clone()).cross.view(), spans);
            let of_some = rc::ranked_rivals(peaks.value.view());
            expected.extend(of_some.outer_iter().map(|head| f64::from(head.mean().unwrap_or(0.0))));
            rc.slice_mut(s![some, .., ..]).assign(&of_some);
        }
        Self { rc, expected, gold: gold.to_vec() }
    }

    /// Share of the needed chunks among as many that `heads` rank best by `tokens`.
    fn recall(&self, heads: &[usize], tokens: QuestionTokens) -> f64 {
        let first = match tokens {
            QuestionTokens::All => 0,
            QuestionTokens::Last => self.rc.len_of(Axis(1)).saturating_sub(1),
        };
        let rc = rc::mean_over_heads(self.rc.slice(s![.., first.., ..]).select(Axis(0), heads));
        recall(&self.gold, &ranked(&rc::with_coverage(&rc)))
    }
}

/// The best heads, at most so many: by labels where all questions have them, unless `by` says otherwise.
///
/// # Errors
/// Too few questions, or none of the labels that `by` asks for.
pub fn choose(seen: &[Seen], by: Option<HeadChoice>, heads_max: usize) -> anyhow::Result<Choice> {
    if seen.len() < 2 {
        bail!(
            "{} questions: at least two are needed, one to choose by and one to try the choice",
            seen.len()
        );
    }
    let labelled = seen.iter().all(|seen| !seen.gold.is_empty());
    let by = by.unwrap_or(if labelled { HeadChoice::Accuracy } else { HeadChoice::ExpectedRc });
    if by == HeadChoice::Accuracy && !labelled {
        bail!(
            "heads are chosen by accuracy only where every question has \"gold\", the chunks that are needed"
        );
    }
    let half = |which: usize| seen.iter().skip(which).step_by(2).collect::<Vec<_>>();
    let (known, held_out) = (half(0), half(1));
    let (heads, question_tokens) = match by {
        HeadChoice::ExpectedRc => (by_expected_rc(&known, heads_max), QuestionTokens::All),
        HeadChoice::Accuracy => by_accuracy(&known, heads_max),
    };
    let all: Vec<usize> = (0..seen[0].expected.len()).collect();
    let measure = |heads: &[usize], tokens: QuestionTokens| Measured {
        expected_rc: mean(held_out.iter().map(|seen| mean(heads.iter().map(|&head| seen.expected[head])))),
        recall_at_gold: labelled.then(|| mean(held_out.iter().map(|seen| seen.recall(heads, tokens)))),
    };
    let (held_out, held_out_all) = (measure(&heads, question_tokens), measure(&all, QuestionTokens::All));
    Ok(Choice { heads, question_tokens, by, held_out, held_out_all })
}

fn by_expected_rc(seen: &[&Seen], heads_max: usize) -> Vec<usize> {
    let mut best = best_first(seen, |head| mean(seen.iter().map(|seen| seen.expected[head])));
    best.truncate(heads_max);
    best.sort_unstable();
    best
}

/// The best heads by themselves, as many of them as do best together, by all tokens or, where that does better, the last. Trying more
/// sets finds some that fit these questions and no others.
fn by_accuracy(seen: &[&Seen], heads_max: usize) -> (Vec<usize>, QuestionTokens) {
    let best_of = |tokens: QuestionTokens| {
        let recall = |heads: &[usize]| mean(seen.iter().map(|seen| seen.recall(heads, tokens)));
        let mut order = best_first(seen, |head| recall(&[head]));
        let sets = (1..=heads_max.min(order.len())).map(|count| (count, recall(&order[..count])));
        let best = sets.reduce(|best, next| if next.1 > best.1 { next } else { best });
        let (count, recall) = best.unwrap_or_default();
        order.truncate(count);
        order.sort_unstable();
        (recall, order)
    };
    let [all, last] = [QuestionTokens::All, QuestionTokens::Last].map(best_of);
    if last.0 > all.0 { (last.1, QuestionTokens::Last) } else { (all.1, QuestionTokens::All) }
}

/// All heads, the one that does best first; of equal ones the earlier.
fn best_first(seen: &[&Seen], score: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut order: Vec<(usize, f64)> = (0..seen[0].expected.len()).map(|head| (head, score(head))).collect();
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

    /// Head 1 finds the needed chunk, head 2 the wrong one, head 0 none; expected RC says otherwise.
    fn seen(gold: usize) -> Seen {
        let of_head = |head: usize, chunk: usize| match head {
            1 if chunk == gold => 1.0,
            2 if chunk != gold => 0.5,
            _ => 0.0,
        };
        let rc = Array3::from_shape_fn((3, 2, 2), |(head, _, chunk)| of_head(head, chunk));
        Seen { rc, expected: vec![0.1, 0.2, 0.3], gold: vec![gold] }
    }

    fn unlabelled() -> Seen {
        Seen { gold: Vec::new(), ..seen(0) }
    }

    #[test]
    fn labels_and_no_labels_choose_their_own_heads() {
        let rows: Vec<Seen> = (0..8).map(|i| seen(i / 2 % 2)).collect();
        let by_labels = choose(&rows, None, 2).unwrap();
        assert_eq!((&by_labels.heads[..], by_labels.by), (&[1][..], HeadChoice::Accuracy));
        assert_eq!(by_labels.held_out.recall_at_gold, Some(1.0));
        let without = choose(&rows, Some(HeadChoice::ExpectedRc), 2).unwrap();
        assert_eq!(without.heads, [1, 2]);
        assert!((without.held_out.expected_rc - 0.25).abs() < 1e-12);
        assert!((without.held_out_all.expected_rc - 0.2).abs() < 1e-12);
        let no_labels: Vec<Seen> = (0..4).map(|_| unlabelled()).collect();
        let free = choose(&no_labels, None, 1).unwrap();
        assert_eq!(
            (&free.heads[..], free.by, free.held_out.recall_at_gold),
            (&[2][..], HeadChoice::ExpectedRc, None)
        );
    }

    #[test]
    fn the_last_token_counts_alone_where_that_finds_more() {
        let misled = |gold: usize| {
            let seen = seen(gold);
            let first =
                Array3::from_shape_fn((3, 1, 2), |(_, _, chunk)| if chunk == gold { 0.0 } else { 3.0 });
            Seen { rc: concatenate![Axis(1), first, seen.rc.slice(s![.., 1.., ..])], ..seen }
        };
        let rows: Vec<Seen> = (0..8).map(|i| misled(i / 2 % 2)).collect();
        let chosen = choose(&rows, None, 1).unwrap();
        assert_eq!((&chosen.heads[..], chosen.question_tokens), (&[1][..], QuestionTokens::Last));
        assert_eq!(chosen.held_out.recall_at_gold, Some(1.0));
        let alike: Vec<Seen> = (0..8).map(|i| seen(i / 2 % 2)).collect();
        assert_eq!(
            choose(&alike, None, 1).unwrap().question_tokens,
            QuestionTokens::All,
            "where it does not"
        );
    }

    #[test]
    fn what_cannot_be_chosen_by_is_said() {
        let said = |rows: &[Seen], by| choose(rows, by, 1).unwrap_err().to_string();
        assert!(said(&[seen(0)], None).contains("at least two"));
        assert!(said(&[seen(0), unlabelled()], Some(HeadChoice::Accuracy)).contains("\"gold\""));
    }
}
