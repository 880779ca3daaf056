//! Follows each word of a sentence to the unit that its neighbourhood came from: a word that was put among others belongs where they
//! came from, not where else it may be found.

use ndarray::{Array1, Array2, Axis, Zip, s};

use super::candidates::Candidates;
use super::sentence_scores::{SentenceScores, TermScores};

/// What a token says of its neighbour, in proportion to what it says of itself.
const NEIGHBOUR: f32 = 0.9;

/// A raw logit from which on a word is taken to be what another says, and one up to which it is not. Of unit readouts: cosines.
const NEAR: [f32; 2] = [0.35, 0.85];

/// The most that nearness says without the same word.
const NEAR_MAX: f32 = 0.7;

/// Mean nearness of the words around one from which on they are taken to say what the unit says in other words, and up to which they are
/// not; and the most that this says for a word that is neither number nor name nor negation.
const PARAPHRASE: [f32; 2] = [0.4, 0.75];
const PARAPHRASE_MAX: f32 = 0.9;

/// What it says that the chunk has the word elsewhere.
const ELSEWHERE: f32 = 0.7;

/// Where a word came from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trace {
    pub chunk: usize,
    /// None where the chunk has none.
    pub unit: Option<usize>,
    /// From 0, nothing there says it, to 1, it is there.
    pub evidence: f32,
    /// Whether the unit has the very word; whether the chunk has.
    pub in_unit: bool,
    pub in_chunk: bool,
}

/// One per term of the sentence; none without chunks.
pub(super) fn terms(candidates: &Candidates, scores: &SentenceScores) -> Vec<Trace> {
    if candidates.chunks.is_empty() {
        return Vec::new();
    }
    let (chunks, units) = (around(&scores.chunks, &scores.weight), around(&scores.units, &scores.weight));
    let neighbourhood = scores.nearness.as_ref().map(|nearness| around(nearness, &scores.weight));
    let trace = |term: &TermScores| {
        let of_term = |of: &Array2<f32>, column: usize| of.slice(s![term.tokens.range(), column]).sum();
        let chunk = best(0..candidates.len(), |chunk| of_term(&chunks, chunk)).unwrap_or(0);
        let unit = best(candidates.sentences(chunk), |unit| of_term(&units, unit));
        // What nothing speaks for came from nowhere.
        let unit = unit.filter(|_| of_term(&chunks, chunk) > 0.0);
        let in_unit = unit.is_some_and(|unit| candidates.unit_has(unit, term.id));
        let in_chunk = candidates.chunk_has(chunk, term.id);
        let elsewhere = if in_chunk { ELSEWHERE } else { 0.0 };
        let like = || {
            let (nearness, unit) = (scores.nearness.as_ref()?, unit?);
            let worst =
                nearness.slice(s![term.tokens.range(), unit]).iter().copied().fold(f32::MAX, f32::min);
            Some(NEAR_MAX * share(worst, NEAR))
        };
        let paraphrased = || {
            let mean = of_term(neighbourhood.as_ref()?, unit?) / term.tokens.len() as f32;
            Some(PARAPHRASE_MAX * share(mean, PARAPHRASE))
        };
        let evidence = match () {
            () if in_unit => 1.0,
            // A number that is near another is another number.
            () if term.is_number => elsewhere,
            () if term.is_name || term.is_negation => like().unwrap_or(0.0).max(elsewhere),
            () => like().unwrap_or(0.0).max(paraphrased().unwrap_or(0.0)).max(elsewhere),
        };
        Trace { chunk, unit, evidence, in_unit, in_chunk }
    };
    scores.terms.iter().map(trace).collect()
}

/// How far a value is on the way from one to another, from 0 to 1.
fn share(value: f32, [from, to]: [f32; 2]) -> f32 {
    ((value - from) / (to - from)).clamp(0.0, 1.0)
}

/// The first of the best.
pub(super) fn best(of: impl Iterator<Item = usize>, score: impl Fn(usize) -> f32) -> Option<usize> {
    of.map(|index| (index, score(index)))
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map(|(i, _)| i)
}

/// Mean over all tokens of a sentence, `[token, segment]`, each weighed by [`NEIGHBOUR`] to the power of its distance: two passes, one
/// from either end.
fn around(values: &Array2<f32>, weight: &[f32]) -> Array2<f32> {
    let (tokens, segments) = values.dim();
    let mut out = Array2::<f32>::zeros((tokens, segments));
    let mut weights = vec![0.0; tokens];
    for forward in [true, false] {
        let (mut sum, mut held) = (Array1::<f32>::zeros(segments), 0.0);
        for step in 0..tokens {
            let token = if forward { step } else { tokens - 1 - step };
            let own = values.index_axis(Axis(0), token);
            if !forward {
                // Its own value was counted on the way there.
                Zip::from(out.index_axis_mut(Axis(0), token))
                    .and(&sum)
                    .for_each(|out, &sum| *out += NEIGHBOUR * sum);
                weights[token] += NEIGHBOUR * held;
            }
            Zip::from(&mut sum).and(own).for_each(|sum, &own| *sum = NEIGHBOUR * *sum + weight[token] * own);
            held = NEIGHBOUR * held + weight[token];
            if forward {
                out.index_axis_mut(Axis(0), token).assign(&sum);
                weights[token] = held;
            }
        }
    }
    for (mut row, weight) in out.outer_iter_mut().zip(weights) {
        row /= weight.max(f32::MIN_POSITIVE);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_passes_give_the_mean_by_definition() {
        let values = Array2::from_shape_fn((7, 3), |(j, i)| ((j * 5 + i * 3) % 7) as f32);
        let weight: Vec<f32> = (0..7).map(|j| 0.1 + (j % 3) as f32).collect();
        let found = around(&values, &weight);
        for j in 0..7 {
            for i in 0..3 {
                let w = |k: usize| weight[k] * NEIGHBOUR.powi(k.abs_diff(j) as i32);
                let sum: f32 = (0..7).map(|k| w(k) * values[[k, i]]).sum();
                let expect = sum / (0..7).map(w).sum::<f32>();
                assert!((found[[j, i]] - expect).abs() < 1e-5, "{j} {i}: {} for {expect}", found[[j, i]]);
            }
        }
    }
}
