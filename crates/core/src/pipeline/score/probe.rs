//! The probe, `probe`: computes the attention mass of chunks and units in every head of a decoder, and from it
//! the probability that the question needs them. Knows neither how a probe is trained nor budgets.

use std::sync::Arc;

use ndarray::{Array2, Array3, Axis, concatenate, s};

use super::{Scorer, Scores, Wants, measured};
use crate::domain::{Granularity, TokenSpan};
use crate::model::RawLogits;
use crate::model::contract::{Probe, around_question};
use crate::pipeline::cancel::Cancel;
use crate::pipeline::clock::Clock;
use crate::pipeline::question::EncodedHeads;
use crate::pipeline::units::{Unit, sentences_of};
use crate::pipeline::{PipelineError, Reading};
use crate::rc;

/// The smallest standard deviation by which a feature is divided. A feature that varies less is 0 for all
/// segments.
const DEVIATION_MIN: f64 = 1e-9;

/// The standardised attention mass of all segments of a request.
///
/// A row is one feature: first the mean over the question's own tokens in each head, then the last token of
/// all in each head. Over the segments of one kind, every row has mean 0 and variance 1, or is 0 if it is constant.
#[derive(Debug, Clone, PartialEq)]
pub struct Features {
    /// `[2 * heads, chunk]`: the features of chunks.
    pub chunks: Array2<f32>,
    /// `[2 * heads, unit]`; empty if units are chunks.
    pub units: Array2<f32>,
    /// `[2 * heads, sentence]`; empty unless units are words.
    pub sentences: Array2<f32>,
}

/// The probabilities that a probe gives to the segments of a request, from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Probabilities {
    /// `[chunk]`: the probability of each chunk.
    pub chunks: Vec<f32>,
    /// `[unit]`; empty if units are chunks.
    pub units: Vec<f32>,
    /// `[sentence]`; empty unless units are words.
    pub sentences: Vec<f32>,
}

/// The scorer of a decoder with a probe:
///
/// - A chunk's score is its probability.
/// - A sentence's score is its own probability times the square root of its chunk's.
/// - A word's score is the score of its sentence, times (1 + the word's own probability).
pub struct ProbeScorer(pub Arc<Probe>);

impl Scorer for ProbeScorer {
    fn wants(&self) -> Wants<'_> {
        // Probes were trained with questions that stand alone.
        Wants {
            around: around_question(&self.0.template).unwrap_or_default(),
            history: false,
            heads: EncodedHeads::All,
            all_logits: true,
        }
    }

    fn score(&self, reading: &Reading, cancel: &Cancel, clock: &mut Clock) -> Result<Scores, PipelineError> {
        clock.stage("scan", || self.scores(reading, cancel))
    }
}

impl ProbeScorer {
    fn scores(&self, reading: &Reading, cancel: &Cancel) -> Result<Scores, PipelineError> {
        let Probabilities { chunks, units: own, sentences } = probabilities(reading, &self.0, cancel)?;
        let units = &reading.units;
        let weighted_by_chunk = |(unit, own): (&Unit, f32)| own * chunks[unit.chunk].sqrt();
        let (scores, own) = match reading.granularity {
            Granularity::Chunk => {
                let of_chunk: Vec<f32> = units.iter().map(|unit| chunks[unit.chunk]).collect();
                (of_chunk.clone(), of_chunk)
            }
            Granularity::Sentence => {
                (units.iter().zip(own.iter().copied()).map(weighted_by_chunk).collect(), own)
            }
            Granularity::Word => {
                let (_, sentence_of) = sentences_of(units);
                let of_sentence = sentence_of.iter().map(|&sentence| sentences[sentence]);
                let in_sentence = of_sentence.zip(&own).map(|(sentence, word)| sentence * (1.0 + word));
                (units.iter().zip(in_sentence).map(weighted_by_chunk).collect(), own)
            }
        };
        let unit_rc = Array2::from_shape_vec((1, own.len()), own).expect("one row");
        let measured = measured(reading);
        Ok(Scores {
            chunks,
            units: scores,
            unit_rc,
            relevance: None,
            chunk_relevances: Vec::new(),
            measured,
            are_probabilities: true,
        })
    }
}

/// Computes the features of all segments in the first `heads` heads of the reading.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn features(reading: &Reading, heads: usize, cancel: &Cancel) -> Result<Features, PipelineError> {
    let (spans, counts) = segments(reading);
    // `[head, segment]`.
    let mut mean = Array2::zeros((heads, spans.len()));
    let mut last = mean.clone();
    for group in reading.head_groups(reading.blocks.tokens()) {
        let group = group.start..group.end.min(heads);
        if group.is_empty() {
            break;
        }
        cancel.check()?;
        let RawLogits { cross, self_logits } = reading.logits(group.clone());
        let mass: Array3<f32> = rc::attention_mass(cross.view(), self_logits.view(), &spans);
        if let Some(of_query) = mass.slice(s![.., reading.query.range(), ..]).mean_axis(Axis(1)) {
            mean.slice_mut(s![group.clone(), ..]).assign(&of_query);
            last.slice_mut(s![group, ..]).assign(&mass.slice(s![.., -1, ..]));
        }
    }
    let all = concatenate(Axis(0), &[mean.view(), last.view()]).expect("both have a column per segment");
    let part = |from: usize, count: usize| standardised(all.slice(s![.., from..from + count]).to_owned());
    let [chunks, units, sentences] = counts;
    Ok(Features {
        chunks: part(0, chunks),
        units: part(chunks, units),
        sentences: part(chunks + units, sentences),
    })
}

/// Scores all segments of a reading with a probe.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn probabilities(
    reading: &Reading,
    probe: &Probe,
    cancel: &Cancel,
) -> Result<Probabilities, PipelineError> {
    let Features { chunks, units, sentences } = features(reading, probe.mean.len(), cancel)?;
    let of = |features: Array2<f32>| probabilities_of(&features, probe);
    Ok(Probabilities { chunks: of(chunks), units: of(units), sentences: of(sentences) })
}

/// Returns the probability of each column of `features` `[2 * heads, segment]`.
pub fn probabilities_of(features: &Array2<f32>, probe: &Probe) -> Vec<f32> {
    let weights = || probe.mean.iter().chain(&probe.last);
    let logit = |column: ndarray::ArrayView1<f32>| {
        let products = weights().zip(column).map(|(&weight, &value)| f64::from(weight) * f64::from(value));
        f64::from(probe.bias) + products.sum::<f64>()
    };
    features.columns().into_iter().map(|column| (1.0 / (1.0 + (-logit(column)).exp())) as f32).collect()
}

/// Returns the spans of all chunks, units and sentences on the key axis, and how many there are of each.
/// Units are left out if they are chunks, and sentences unless units are words.
fn segments(reading: &Reading) -> (Vec<TokenSpan>, [usize; 3]) {
    let chunks = reading.blocks.spans.iter().copied();
    let units: &[Unit] = if reading.granularity == Granularity::Chunk { &[] } else { &reading.units };
    let sentences = match reading.granularity {
        Granularity::Word => sentences_of(units).0.iter().map(|(_, sentence)| sentence.tokens).collect(),
        Granularity::Chunk | Granularity::Sentence => Vec::new(),
    };
    let counts = [chunks.len(), units.len(), sentences.len()];
    (chunks.chain(units.iter().map(|unit| unit.tokens)).chain(sentences).collect(), counts)
}

/// Subtracts the mean of each row and divides it by its standard deviation.
fn standardised(mut rows: Array2<f32>) -> Array2<f32> {
    let count = rows.ncols().max(1) as f64;
    for mut row in rows.outer_iter_mut() {
        let mean = row.iter().copied().map(f64::from).sum::<f64>() / count;
        let variance = row.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
        let deviation = variance.sqrt();
        let scale = if deviation > DEVIATION_MIN { 1.0 / deviation } else { 0.0 };
        row.mapv_inplace(|value| ((f64::from(value) - mean) * scale) as f32);
    }
    rows
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;
    use crate::model::contract::ProbeFeatures;

    #[test]
    fn rows_are_standardised_and_constant_rows_are_zero() {
        let found = standardised(array![[1.0, 3.0], [0.25, 0.25], [0.0, 1e-12]]);
        assert_eq!(found, array![[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]);
        assert_eq!(standardised(Array2::zeros((2, 0))).dim(), (2, 0), "no segments");
    }

    #[test]
    fn probabilities_are_those_of_a_logistic_regression() {
        let probe = Probe {
            features: ProbeFeatures::AttentionMass,
            template: String::new(),
            layers: 1,
            bias: -1.0,
            mean: vec![2.0],
            last: vec![0.5],
            held_out: 0.0,
            questions: 0,
            data: String::new(),
            weights: String::new(),
        };
        let found = probabilities_of(&array![[0.0, 1.0], [2.0, -200.0]], &probe);
        assert!((found[0] - 0.5).abs() < 1e-7 && found[1] < 1e-30, "{found:?}");
    }
}
