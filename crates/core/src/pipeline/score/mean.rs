//! The estimator of the RCStat paper (arXiv 2506.19549), `mean/self`: the mean RC of all keys of a chunk or unit against the question's
//! own keys. A unit's score is the sum of its own RC and its chunk's.

use ndarray::{Array3, ArrayView3};

use super::{Scorer, Scores, Wants, measure_relevance, measured};
use crate::domain::TokenSpan;
use crate::model::RawLogits;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::clock::Clock;
use crate::pipeline::{PipelineError, Reading};
use crate::rc::{self, HeadMean};

pub struct MeanRc;

impl Scorer for MeanRc {
    fn wants(&self) -> Wants<'_> {
        Wants { all_logits: true, ..Wants::default() }
    }

    fn score(&self, reading: &Reading, cancel: &Cancel, clock: &mut Clock) -> Result<Scores, PipelineError> {
        clock.stage("scan", || by_all_keys(reading, rc::mean_rc, cancel))
    }
}

/// Computes RC of segments from the logits of all keys, `[head, query, segment]`, as [`rc::mean_rc`] does.
type OfSegments = fn(ArrayView3<'_, f32>, ArrayView3<'_, f32>, &[TokenSpan]) -> Array3<f32>;

/// Scores chunks and units by the RC of all their keys.
pub(super) fn by_all_keys(
    reading: &Reading,
    rc_of: OfSegments,
    cancel: &Cancel,
) -> Result<Scores, PipelineError> {
    let Reading { blocks, units, .. } = reading;
    let unit_spans: Vec<TokenSpan> = units.iter().map(|unit| unit.tokens).collect();
    let (mut chunk_means, mut unit_means) = (HeadMean::default(), HeadMean::default());
    let mut chunk_peaks = HeadMean::default();
    for heads in reading.head_groups(blocks.tokens()) {
        cancel.check()?;
        let RawLogits { cross, self_logits } = reading.logits(heads);
        chunk_means.add(rc_of(cross.view(), self_logits.view(), &blocks.spans));
        unit_means.add(rc_of(cross.view(), self_logits.view(), &unit_spans));
        chunk_peaks.add(rc::peaks(cross.view(), &blocks.spans).value);
    }
    let chunks = rc::mean_over_queries(chunk_means.finish().view());
    let unit_rc = unit_means.finish();
    let mean_rc = rc::mean_over_queries(unit_rc.view());
    Ok(Scores {
        units: units.iter().zip(mean_rc).map(|(unit, rc)| rc + chunks[unit.chunk]).collect(),
        chunks,
        unit_rc,
        relevance: reading.logits_have_fixed_scale.then(|| measure_relevance(chunk_peaks.finish().view())),
        chunk_relevances: Vec::new(),
        measured: measured(reading),
        are_probabilities: false,
    })
}
