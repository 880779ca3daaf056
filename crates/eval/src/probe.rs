//! Trains a probe over the attention mass of a decoder's heads, and measures it.
//!
//! One half of the user's labelled questions trains a probe, and the other half measures it. The probe that is
//! kept is trained on both halves. This module does not know model contracts.

use anyhow::bail;
use ndarray::{Array2, Axis, concatenate};
use thresher_core::model::contract::Around;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::score::probe;
use thresher_core::pipeline::{Pipeline, Reading};

use super::data::LabelledChunk;
use super::estimate::{Estimate, bootstrap_mean};
use super::heads::Question;
use super::logistic::{Fitted, Samples};
use super::methods::bm25;
use super::selection::{ranked, recall};

/// The fewest questions with labels that a probe is trained with. With fewer, the half that measures the
/// probe says almost nothing.
pub const QUESTIONS_MIN: usize = 20;

/// The penalties of which the best is taken, in units of the weight of one question.
const PENALTIES: [f64; 4] = [1.0, 4.0, 16.0, 64.0];

#[derive(Debug, Clone)]
pub struct ProbeRow {
    /// `[chunk, feature]`: standardised attention mass, with the features of [`probe::Features`].
    features: Array2<f64>,
    /// The chunks that the question needs, ascending.
    gold: Vec<usize>,
    /// `[chunk]`: the BM25 score of each chunk, for comparison.
    bm25: Vec<f32>,
}

#[derive(Debug, Clone)]
pub struct Trained {
    pub fitted: Fitted,
    /// R@gold on the held-out half, of the probe that the other half trained.
    pub held_out: Estimate,
    /// R@gold of BM25 on the same half.
    pub held_out_bm25: Estimate,
}

impl ProbeRow {
    /// Computes the features of a question's chunks in the first `heads` heads of the model. `around` is the text
    /// before and after the question.
    ///
    /// # Errors
    /// Fails if the model or tantivy fails.
    pub fn new(
        question: &Question,
        pipeline: &Pipeline,
        reading: &Reading,
        around: Around,
        heads: usize,
    ) -> anyhow::Result<Self> {
        let cancel = Cancel::default();
        let reading = pipeline.read_for_probe(reading, &question.query, around, &cancel)?;
        let features = probe::features(&reading, heads, &cancel)?.chunks;
        let texts: Vec<String> = question.chunks.iter().map(LabelledChunk::full_text).collect();
        Ok(Self {
            features: features.t().mapv(f64::from),
            gold: question.gold.clone(),
            bm25: bm25(&question.query, &texts)?,
        })
    }

    /// Returns R@gold of the ranking by a probe.
    fn recall(&self, fitted: &Fitted) -> f64 {
        let logits: Vec<f32> = self.features.outer_iter().map(|row| fitted.logit(row) as f32).collect();
        recall(&self.gold, &ranked(&logits))
    }
}

/// Returns the questions that a probe can be trained with: those in which some chunks are needed and others
/// are not.
///
/// # Errors
/// Fails if there are fewer than [`QUESTIONS_MIN`].
pub fn usable(questions: Vec<Question>) -> anyhow::Result<Vec<Question>> {
    let all = questions.len();
    let is_usable =
        |question: &Question| !question.gold.is_empty() && question.gold.len() < question.chunks.len();
    let usable: Vec<Question> = questions.into_iter().filter(is_usable).collect();
    if usable.len() < QUESTIONS_MIN {
        bail!(
            "a probe needs at least {QUESTIONS_MIN} questions whose \"gold\" (indices of the needed chunks) names some of their \
             chunks, but not all; {} of these {all} questions are such",
            usable.len()
        );
    }
    Ok(usable)
}

/// Trains a probe with the rows of even index, measures it with the others, and trains the result with all.
pub fn train(rows: &[ProbeRow]) -> Trained {
    let half = |which: usize| rows.iter().skip(which).step_by(2).collect::<Vec<_>>();
    let (trained_on, held_out) = (half(0), half(1));
    let penalty = best_penalty(&trained_on);
    let tested = fit(&trained_on, penalty);
    let recalls = |of: &dyn Fn(&ProbeRow) -> f64| {
        bootstrap_mean(&held_out.iter().map(|row| of(row)).collect::<Vec<_>>())
    };
    Trained {
        held_out: recalls(&|row| row.recall(&tested)),
        held_out_bm25: recalls(&|row| recall(&row.gold, &ranked(&row.bm25))),
        fitted: fit(&rows.iter().collect::<Vec<_>>(), penalty),
    }
}

/// Returns the penalty with the highest likelihood when one half of the rows predicts the other.
fn best_penalty(rows: &[&ProbeRow]) -> f64 {
    let half = |which: usize| rows.iter().skip(which).step_by(2).copied().collect::<Vec<_>>();
    let halves = [half(0), half(1)];
    let loss = |penalty: f64| {
        let [first, second] = [0, 1].map(|train| (fit(&halves[train], penalty), &halves[1 - train]));
        [first, second].iter().map(|(fitted, rows)| samples(rows).loss_of(fitted)).sum::<f64>()
    };
    let losses = PENALTIES.map(|penalty| (loss(penalty), penalty));
    losses.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are penalties").1
}

/// Fits the rows. Needed and other chunks of a question have the same weight together, and so do all
/// questions; otherwise questions with many chunks would decide, and probes would learn that chunks are not
/// needed. The bias is then corrected for the share of chunks that are needed, so that probabilities are not
/// too high.
fn fit(rows: &[&ProbeRow], penalty: f64) -> Fitted {
    let fitted = samples(rows).fit(penalty);
    let needed: usize = rows.iter().map(|row| row.gold.len()).sum();
    let chunks: usize = rows.iter().map(|row| row.features.nrows()).sum();
    Fitted { bias: fitted.bias + (needed as f64 / (chunks - needed) as f64).ln(), ..fitted }
}

fn samples(rows: &[&ProbeRow]) -> Samples {
    let features: Vec<_> = rows.iter().map(|row| row.features.view()).collect();
    let features = concatenate(Axis(0), &features).expect("rows of one model");
    let of_row = |row: &&ProbeRow| {
        let (chunks, needed) = (row.features.nrows(), row.gold.len());
        let of_chunk = |chunk: usize| {
            if row.gold.binary_search(&chunk).is_ok() {
                (true, 0.5 / needed as f64)
            } else {
                (false, 0.5 / (chunks - needed) as f64)
            }
        };
        (0..chunks).map(of_chunk).collect::<Vec<_>>()
    };
    let (labels, weights): (Vec<bool>, Vec<f64>) = rows.iter().flat_map(of_row).unzip();
    Samples::new(&features, &labels, weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feature 0 is high for the needed chunk, feature 1 is noise.
    fn rows(count: usize) -> Vec<ProbeRow> {
        let mut random = fastrand::Rng::with_seed(7);
        let mut row = |i: usize| {
            let gold = i % 4;
            let feature = |(chunk, feature): (usize, usize)| match (feature, chunk == gold) {
                (0, true) => 1.5,
                (0, false) => -0.5,
                _ => f64::from(chunk as u32) - 1.5,
            };
            let noise = random.f64() * 0.1;
            let features = Array2::from_shape_fn((4, 2), feature) + noise;
            ProbeRow { features, gold: vec![gold], bm25: vec![1.0, 0.0, 0.0, 0.0] }
        };
        (0..count).map(&mut row).collect()
    }

    #[test]
    fn a_probe_finds_the_feature_that_tells() {
        let trained = train(&rows(40));
        assert_eq!(trained.held_out.mean, 1.0);
        // The held-out questions need chunks 1 and 3.
        assert_eq!(trained.held_out_bm25.mean, 0.0);
        let weights = &trained.fitted.weights;
        assert!(weights[0] > 10.0 * weights[1].abs(), "{weights}");
        let mean = |of: &dyn Fn(&ProbeRow) -> f64| rows(40).iter().map(of).sum::<f64>() / 40.0;
        let sigmoid = |logit: f64| 1.0 / (1.0 + (-logit).exp());
        let expected = mean(&|row| {
            row.features.outer_iter().map(|chunk| sigmoid(trained.fitted.logit(chunk))).sum::<f64>()
        });
        assert!((0.6..1.6).contains(&expected), "one chunk is needed, but {expected} are expected");
    }

    #[test]
    fn too_few_usable_labels_are_an_error_that_says_how_many_are_needed() {
        let question = |gold: &[usize]| {
            let chunk =
                |text: &str| LabelledChunk { id: String::new(), title: String::new(), text: text.to_owned() };
            Question { query: "q".to_owned(), chunks: vec![chunk("a"), chunk("b")], gold: gold.to_vec() }
        };
        let check = |name: &str, labelled: usize, useless: &[&[usize]], is_enough: bool| {
            let mut questions: Vec<Question> = (0..labelled).map(|i| question(&[i % 2])).collect();
            questions.extend(useless.iter().map(|gold| question(gold)));
            let found = usable(questions);
            assert_eq!(found.is_ok(), is_enough, "{name}");
            match found {
                Ok(usable) => assert_eq!(usable.len(), labelled, "{name}"),
                Err(error) => {
                    let expect =
                        format!("; {labelled} of these {} questions are such", labelled + useless.len());
                    let message = error.to_string();
                    let begins = message.starts_with("a probe needs at least 20 questions");
                    assert!(begins && message.ends_with(&expect), "{message}");
                }
            }
        };
        check("enough", 20, &[], true);
        check("one too few", 19, &[], false);
        check("no labels", 0, &[&[], &[]], false);
        check("all chunks are needed", 19, &[&[0, 1]], false);
    }
}
