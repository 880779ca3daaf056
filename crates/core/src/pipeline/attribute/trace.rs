//! Traces: finds for each word of a sentence the chunk and the unit that it came from, by the evidence of the
//! words around it. A word belongs to the source of its neighbours, not to another source that happens to
//! contain it, too.

use ndarray::{Array1, Array2, Axis, Zip, s};

use super::candidates::Candidates;
use super::sentence_scores::{SentenceScores, Trace, best};
use crate::pipeline::PipelineError;
use crate::pipeline::cancel::Cancel;

/// The weight of a token's neighbour relative to the token itself. The weight at distance d is its d-th
/// power.
const NEIGHBOUR_DECAY: f32 = 0.9;

/// The evidence for a word that the chunk contains, but not the unit to which the word was traced.
pub(super) const IN_CHUNK_EVIDENCE: f32 = 0.7;

/// The similarities (cosines) between which the evidence for a word that the unit does not contain rises from
/// 0 to [`SIMILARITY_EVIDENCE_MAX`].
const SIMILARITY_RANGE: [f32; 2] = [0.35, 0.85];
const SIMILARITY_EVIDENCE_MAX: f32 = 0.7;

/// The mean similarities of the words around a word between which the unit is increasingly taken for a
/// paraphrase of them. The evidence for the word then rises from 0 to [`PARAPHRASE_EVIDENCE_MAX`], unless the
/// word is a number, a name or a negation.
const PARAPHRASE_RANGE: [f32; 2] = [0.4, 0.75];
const PARAPHRASE_EVIDENCE_MAX: f32 = 0.9;

/// Returns `[term]`, the trace of each word of a sentence; empty if there are no chunks.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub(super) fn terms(
    candidates: &Candidates,
    scores: &SentenceScores,
    cancel: &Cancel,
) -> Result<Vec<Trace>, PipelineError> {
    if candidates.chunks.is_empty() {
        return Ok(Vec::new());
    }
    let mean = |values: &Array2<f32>| neighbourhood_mean(values, &scores.token_weights, cancel);
    let chunks = mean(&scores.chunk_evidence)?;
    let units = mean(&scores.unit_evidence)?;
    let similarities = scores.similarity.as_ref().map(mean).transpose()?;
    let mut traces: Vec<Trace> = Vec::with_capacity(scores.terms.len());
    for term in &scores.terms {
        cancel.check()?;
        let sum = |of: &Array2<f32>, column: usize| of.slice(s![term.tokens.range(), column]).sum();
        let chunk = best(0..candidates.len(), |chunk| sum(&chunks, chunk)).unwrap_or(0);
        let unit = best(candidates.sentences(chunk), |unit| sum(&units, unit));
        // Without any evidence for the chunk, the word came from no unit.
        let unit = unit.filter(|_| sum(&chunks, chunk) > 0.0);
        let in_unit = unit.is_some_and(|unit| term.is_in(|id| candidates.unit_has(unit, id)));
        let in_chunk = term.is_in(|id| candidates.chunk_has(chunk, id));
        let by_chunk = if in_chunk { IN_CHUNK_EVIDENCE } else { 0.0 };
        let by_similarity = || {
            let (similarity, unit) = (scores.similarity.as_ref()?, unit?);
            let tokens = similarity.slice(s![term.tokens.range(), unit]);
            let smallest = tokens.iter().copied().fold(f32::MAX, f32::min);
            Some(SIMILARITY_EVIDENCE_MAX * position_in(smallest, SIMILARITY_RANGE))
        };
        let by_paraphrase = || {
            let mean = sum(similarities.as_ref()?, unit?) / term.tokens.len() as f32;
            Some(PARAPHRASE_EVIDENCE_MAX * position_in(mean, PARAPHRASE_RANGE))
        };
        let evidence = if in_unit {
            1.0
        } else if term.is_number {
            // A number that is similar to this one is a different number.
            by_chunk
        } else if term.is_name || term.is_negation {
            by_similarity().unwrap_or(0.0).max(by_chunk)
        } else {
            by_similarity().unwrap_or(0.0).max(by_paraphrase().unwrap_or(0.0)).max(by_chunk)
        };
        traces.push(Trace { chunk, unit, evidence, in_unit, in_chunk });
    }
    // If the source has the same amount in another unit, it need not have this unit.
    for at in 1..traces.len() {
        if scores.terms[at].is_unit && traces[at - 1].in_unit {
            traces[at].evidence = traces[at - 1].evidence;
        }
    }
    Ok(traces)
}

/// Returns the position of a value in a range: 0 at its start and below, 1 at its end and above.
fn position_in(value: f32, [from, to]: [f32; 2]) -> f32 {
    ((value - from) / (to - from)).clamp(0.0, 1.0)
}

/// Returns for each token j the weighted mean of `values` `[token, segment]` over all tokens k of the
/// sentence, in the same shape: Σ_k w_jk · values_k / Σ_k w_jk with w_jk = weights_k · [`NEIGHBOUR_DECAY`]^|j
/// − k|. Two passes, one in each direction, compute it in linear time.
fn neighbourhood_mean(
    values: &Array2<f32>,
    weights: &[f32],
    cancel: &Cancel,
) -> Result<Array2<f32>, PipelineError> {
    let (tokens, segments) = values.dim();
    let mut out = Array2::<f32>::zeros((tokens, segments));
    let mut weight_sums = vec![0.0; tokens];
    for forward in [true, false] {
        let (mut sum, mut weight_sum) = (Array1::<f32>::zeros(segments), 0.0);
        for step in 0..tokens {
            cancel.check()?;
            let token = if forward { step } else { tokens - 1 - step };
            let row = values.index_axis(Axis(0), token);
            if !forward {
                // The token itself was counted in the forward pass.
                Zip::from(out.index_axis_mut(Axis(0), token))
                    .and(&sum)
                    .for_each(|out, &sum| *out += NEIGHBOUR_DECAY * sum);
                weight_sums[token] += NEIGHBOUR_DECAY * weight_sum;
            }
            Zip::from(&mut sum)
                .and(row)
                .for_each(|sum, &value| *sum = NEIGHBOUR_DECAY * *sum + weights[token] * value);
            weight_sum = NEIGHBOUR_DECAY * weight_sum + weights[token];
            if forward {
                out.index_axis_mut(Axis(0), token).assign(&sum);
                weight_sums[token] = weight_sum;
            }
        }
    }
    for (mut row, weight_sum) in out.outer_iter_mut().zip(weight_sums) {
        row /= weight_sum.max(f32::MIN_POSITIVE);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbourhood_mean_equals_its_definition() {
        let values = Array2::from_shape_fn((7, 3), |(j, i)| ((j * 5 + i * 3) % 7) as f32);
        let weights: Vec<f32> = (0..7).map(|j| 0.1 + (j % 3) as f32).collect();
        let found = neighbourhood_mean(&values, &weights, &Cancel::default()).expect("no deadline");
        for j in 0..7 {
            for i in 0..3 {
                let w = |k: usize| weights[k] * NEIGHBOUR_DECAY.powi(k.abs_diff(j) as i32);
                let sum: f32 = (0..7).map(|k| w(k) * values[[k, i]]).sum();
                let expect = sum / (0..7).map(w).sum::<f32>();
                assert!((found[[j, i]] - expect).abs() < 1e-5, "{j} {i}: {} for {expect}", found[[j, i]]);
            }
        }
    }
}
