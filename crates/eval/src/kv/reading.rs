//! Runs the model on one row: reads its chunks, and computes what the model predicts after the question over
//! all keys or over those that a mask keeps. Knows nothing of how keys are selected.

use anyhow::bail;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, s};
use thresher_core::Engine;
use thresher_core::model::KeyMask;
use thresher_core::model::ort::{DecoderRuntime, ForwardPast, ForwardSequence};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::kv_export::KvExport;

use super::decoder_of;
use super::rows::{KvRow, RowOptions};
use crate::estimate::SplitMix64;

/// The number of tokens that a forward pass aims at. More make the matrix products faster only a little, and
/// the attention masks of a pass grow with them.
const PASS_TOKENS_MAX: usize = 256;

/// What is lost for one question when keys are evicted. With all keys, `kl` is 0 and `agreement` is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Kullback–Leibler divergence from the next-token distribution with all keys to the one with the kept
    /// keys, in nats, averaged over the first answer's tokens.
    pub kl: f64,
    /// The share of the first answer's tokens before which the most likely token is that with all keys.
    pub agreement: f64,
    /// The negative log-likelihood of the first answer, in nats per token.
    pub nll: f64,
    /// 1 if every token of a correct answer is the most likely one, else 0.
    pub correct: f64,
    /// The share of the keys that is kept.
    pub kept: f64,
}

/// A row whose chunks the model has read.
pub struct ReadRow<'a> {
    pub(super) kv_export: KvExport,
    /// The token ids of the question as it is put to the model.
    pub(super) question: Vec<u32>,
    decoder: &'a DecoderRuntime,
    past: ForwardPast,
    /// Token ids of each correct answer.
    answers: Vec<Vec<u32>>,
}

impl<'a> ReadRow<'a> {
    /// Tokenizes a row and reads its chunks.
    ///
    /// # Errors
    /// Fails if the row has no question, no chunk or no answer that has tokens of its own, if it does not fit
    /// into the model's context, or if the model fails.
    pub fn new(row: &KvRow, engine: &'a Engine, options: &RowOptions) -> anyhow::Result<Self> {
        if row.answers.is_empty() {
            bail!("answers is empty; a row needs at least one correct answer");
        }
        let mut read = Self::without_answers(row, engine, options, 0)?;
        let prompt = options.prompt(&row.query);
        let of = |answer: &String| answer_tokens(engine, &prompt, &read.question, answer);
        read.answers = row.answers.iter().map(of).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(read)
    }

    /// Reads the chunks of a row, and lets the model itself choose `tokens` tokens of a chunk as the answer. No
    /// labels are needed. The tokens are drawn from the model's distribution with `seed`, restricted to
    /// passages of the chunks. A free continuation would be of little use: a small model soon repeats itself
    /// or the question, which needs no chunk, and then any keys do.
    ///
    /// # Errors
    /// As [`Self::new`], except that the row needs no answer.
    pub fn with_own_answer(
        row: &KvRow,
        engine: &'a Engine,
        options: &RowOptions,
        tokens: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut read = Self::without_answers(row, engine, options, tokens)?;
        let mut rng = SplitMix64(seed);
        let mut ids = read.question.clone();
        // The places of the chunks where what was chosen so far occurs.
        let mut ends: Vec<usize> = (0..read.tokens()).collect();
        for _ in 0..tokens {
            let sequence = ForwardSequence { tokens: &ids, kept: None };
            let logits = read.decoder.forward(&read.past, &[sequence])?.remove(0);
            let logits = logits.row(ids.len() - 1);
            let follows = |at: &usize| read.kv_export.tokens[*at].id;
            let mut allowed = Array1::from_elem(logits.len(), f32::MIN);
            ends.iter().map(follows).for_each(|id| allowed[id as usize] = logits[id as usize]);
            let next = drawn(log_probabilities(allowed.insert_axis(Axis(0)).view()).row(0), &mut rng);
            ids.push(next);
            ends.retain(|at| follows(at) == next);
            ends.iter_mut().for_each(|at| *at += 1);
            let is_same_chunk = |&at: &usize| {
                let tokens = &read.kv_export.tokens;
                at < tokens.len() && tokens[at].chunk == tokens[at - 1].chunk
            };
            ends.retain(is_same_chunk);
            if ends.is_empty() {
                break;
            }
        }
        read.answers = vec![ids.split_off(read.question.len())];
        Ok(read)
    }

    fn without_answers(
        row: &KvRow,
        engine: &'a Engine,
        options: &RowOptions,
        tokens_after: usize,
    ) -> anyhow::Result<Self> {
        let pipeline = engine.pipeline();
        if row.chunks.is_empty() {
            bail!("chunks is empty; a row needs at least one chunk");
        }
        if row.query.trim().is_empty() {
            bail!("query is empty");
        }
        let question = pipeline.tokens_of_prompt(&options.prompt(&row.query))?;
        if question.is_empty() {
            bail!("query has no token");
        }
        let decoder = decoder_of(engine)?;
        let chunks: Vec<_> = row.chunks.iter().map(|chunk| chunk.chunk().into()).collect();
        let longest = row.answers.iter().map(String::len).max().unwrap_or(0).max(tokens_after);
        let kv_export = pipeline.kv_export(&[], &chunks, question.len() + longest, &Cancel::default())?;
        let Some(last) = kv_export.tokens.last() else { bail!("the chunks have no tokens") };
        if options.one_prompt && last.window > 0 {
            let (tokens, max) = (kv_export.tokens.len(), pipeline.model().window_tokens_max);
            bail!("the chunks have {tokens} tokens together; at most {max} can be read as one prompt");
        }
        let past = decoder.forward_past(&kv_export.past(pipeline.model(), &Cancel::default()))?;
        Ok(Self { kv_export, question, decoder, past, answers: Vec::new() })
    }

    pub fn tokens(&self) -> usize {
        self.kv_export.tokens.len()
    }

    /// Returns the loss with all keys and the loss with the keys of each mask.
    ///
    /// # Errors
    /// Returns errors of the model.
    pub fn losses(&self, masks: &[KeyMask]) -> anyhow::Result<(Loss, Vec<Loss>)> {
        let (full, correct) = self.predictions(None)?;
        check_finite(&full)?;
        let of_full = self.loss(&full, &full, correct, None);
        let mut losses = Vec::with_capacity(masks.len());
        let per_pass = (PASS_TOKENS_MAX / self.tokens_of_answers()).max(1);
        for masks in masks.chunks(per_pass) {
            for (mask, (reduced, correct)) in masks.iter().zip(self.predictions_of(masks)?) {
                check_finite(&reduced)?;
                losses.push(self.loss(&full, &reduced, correct, Some(mask)));
            }
        }
        Ok((of_full, losses))
    }

    /// The number of tokens of one pass over the question with every answer.
    fn tokens_of_answers(&self) -> usize {
        self.answers.iter().map(|answer| self.question.len() + answer.len()).sum()
    }

    fn loss(&self, full: &Array2<f32>, reduced: &Array2<f32>, correct: f64, kept: Option<&KeyMask>) -> Loss {
        let answer = &self.answers[0];
        let same = full.outer_iter().zip(reduced.outer_iter());
        let same = same.filter(|(full, reduced)| most_likely(*full) == most_likely(*reduced)).count();
        let likelihood = reduced.outer_iter().zip(answer).map(|(row, &token)| f64::from(row[token as usize]));
        Loss {
            kl: kl_divergence(full.view(), reduced.view()),
            agreement: same as f64 / answer.len() as f64,
            nll: -likelihood.sum::<f64>() / answer.len() as f64,
            correct,
            kept: kept.map_or(1.0, KeyMask::share),
        }
    }

    fn predictions(&self, kept: Option<&KeyMask>) -> anyhow::Result<(Array2<f32>, f64)> {
        let sequences = self.sequences();
        let sequences: Vec<_> = sequences.iter().map(|tokens| ForwardSequence { tokens, kept }).collect();
        Ok(self.judge(&self.decoder.forward(&self.past, &sequences)?))
    }

    /// Returns for each mask the log-probabilities of the next token before each token of the first answer,
    /// `[answer_token, vocab]`, and 1 if one of the correct answers would be generated greedily, else 0.
    fn predictions_of(&self, masks: &[KeyMask]) -> anyhow::Result<Vec<(Array2<f32>, f64)>> {
        let tokens = self.sequences();
        let sequence = |mask| tokens.iter().map(move |tokens| ForwardSequence { tokens, kept: Some(mask) });
        let sequences: Vec<_> = masks.iter().flat_map(sequence).collect();
        let logits = self.decoder.forward(&self.past, &sequences)?;
        Ok(logits.chunks(self.answers.len()).map(|of_mask| self.judge(of_mask)).collect())
    }

    /// The question with each answer, without the answer's last token, which predicts nothing.
    fn sequences(&self) -> Vec<Vec<u32>> {
        let of = |answer: &Vec<u32>| [&self.question, &answer[..answer.len() - 1]].concat();
        self.answers.iter().map(of).collect()
    }

    /// Returns the log-probabilities of the first answer, and whether one of the answers is generated, from
    /// the logits `[token, vocab]` of the question with each answer.
    fn judge(&self, logits: &[Array2<f32>]) -> (Array2<f32>, f64) {
        let behind =
            |logits: &Array2<f32>| log_probabilities(logits.slice(s![self.question.len() - 1.., ..]));
        let first = behind(&logits[0]);
        let is_correct =
            |(logits, answer): (&Array2<f32>, &Vec<u32>)| is_greedy(behind(logits).view(), answer);
        let correct = logits.iter().zip(&self.answers).any(is_correct);
        (first, f64::from(u8::from(correct)))
    }
}

/// Returns the tokens of `answer` where it follows the question.
fn answer_tokens(engine: &Engine, prompt: &str, question: &[u32], answer: &str) -> anyhow::Result<Vec<u32>> {
    let text = format!("{prompt}{}", RowOptions::continuation(prompt, answer));
    let mut joined = engine.pipeline().tokens_of_prompt(&text)?;
    if answer.trim().is_empty() || !joined.starts_with(question) || joined.len() == question.len() {
        bail!(
            "answer {answer:?} is not read as tokens of its own after the question; it must not be blank or merge with the question's last token"
        );
    }
    Ok(joined.split_off(question.len()))
}

fn log_probabilities(logits: ArrayView2<f32>) -> Array2<f32> {
    let mut logits = logits.to_owned();
    for mut row in logits.rows_mut() {
        let most = row.fold(f32::MIN, |most, &logit| most.max(logit));
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - most).exp()).sum();
        let log_sum = (f64::from(most) + sum.ln()) as f32;
        row.mapv_inplace(|logit| logit - log_sum);
    }
    logits
}

/// Fails if a log-probability is not finite: its divergence would be no number, and could pass for a small one.
fn check_finite(logs: &Array2<f32>) -> anyhow::Result<()> {
    if !logs.iter().all(|log| log.is_finite()) {
        bail!("the model's output contains a value that is not finite");
    }
    Ok(())
}

/// Returns whether every token of the answer is the most likely one, so that greedy decoding would generate
/// the answer.
fn is_greedy(next: ArrayView2<f32>, answer: &[u32]) -> bool {
    next.outer_iter().zip(answer).all(|(row, &wanted)| most_likely(row) == wanted)
}

fn most_likely(row: ArrayView1<f32>) -> u32 {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(id, _)| id as u32)
}

fn drawn(row: ArrayView1<f32>, rng: &mut SplitMix64) -> u32 {
    const STEPS: usize = 1 << 24;
    let mut left = rng.below(STEPS) as f64 / STEPS as f64;
    for (id, &log) in row.iter().enumerate() {
        left -= f64::from(log).exp();
        if left < 0.0 {
            return id as u32;
        }
    }
    most_likely(row)
}

/// Returns KL(full ‖ reduced) of log-probabilities in nats, averaged over rows.
fn kl_divergence(full: ArrayView2<f32>, reduced: ArrayView2<f32>) -> f64 {
    let of = |(&p, &q): (&f32, &f32)| f64::from(p).exp() * f64::from(p - q);
    let sum: f64 = full.iter().zip(reduced.iter()).map(of).sum();
    (sum / full.nrows().max(1) as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    #[test]
    fn kl_divergence_matches_its_definition() {
        let logs = |p: Array2<f32>| p.mapv(f32::ln);
        let (p, q) = (logs(array![[0.5, 0.5], [0.25, 0.75]]), logs(array![[0.25, 0.75], [0.25, 0.75]]));
        let expect = (0.5 * 2.0_f64.ln() + 0.5 * (0.5_f64 / 0.75).ln()) / 2.0;
        assert!((kl_divergence(p.view(), q.view()) - expect).abs() < 1e-6);
        assert_eq!(kl_divergence(p.view(), p.view()), 0.0);
    }

    #[test]
    fn an_answer_is_correct_if_each_of_its_tokens_is_the_most_likely() {
        let next = array![[0.0, 2.0, 1.0], [3.0, 3.0, 1.0]];
        assert!(is_greedy(next.view(), &[1, 0]), "ties go to the smaller id");
        assert!(!is_greedy(next.view(), &[1, 1]));
        assert!(!is_greedy(next.view(), &[2, 0]));
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let logs = array![0.5_f32, 0.0, 0.25, 0.25].mapv(f32::ln);
        let mut rng = SplitMix64(3);
        let mut counts = [0; 4];
        (0..4_000).for_each(|_| counts[drawn(logs.view(), &mut rng) as usize] += 1);
        assert!((1_900..2_100).contains(&counts[0]) && counts[1] == 0, "{counts:?}");
    }

    #[test]
    fn an_output_that_is_not_finite_is_an_error() {
        assert!(check_finite(&array![[0.0, -1.0]]).is_ok());
        for value in [f32::NAN, f32::NEG_INFINITY] {
            assert!(check_finite(&array![[0.0, value]]).is_err(), "{value}");
        }
    }

    #[test]
    fn log_probabilities_sum_to_one() {
        let logs = log_probabilities(array![[1.0, 2.0, 3.0], [1e30, 0.0, 0.0]].view());
        for row in logs.rows() {
            assert!((row.mapv(f32::exp).sum() - 1.0).abs() < 1e-6);
        }
    }
}
