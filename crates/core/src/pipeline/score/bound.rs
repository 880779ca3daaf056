//! The upper bound of the RCStat paper's estimator (arXiv 2506.19549), `bound/self`: it needs to know which logits and which values of
//! the reference occur for the question, but not for which of its tokens.

use super::mean::by_all_keys;
use super::{Scorer, Scores, Wants};
use crate::pipeline::cancel::Cancel;
use crate::pipeline::clock::Clock;
use crate::pipeline::{PipelineError, Reading};
use crate::rc;

pub struct MeanRcBound;

impl Scorer for MeanRcBound {
    fn wants(&self) -> Wants<'_> {
        Wants { all_logits: true, ..Wants::default() }
    }

    fn score(&self, reading: &Reading, cancel: &Cancel, clock: &mut Clock) -> Result<Scores, PipelineError> {
        clock.stage("scan", || by_all_keys(reading, rc::mean_rc_bound, cancel))
    }
}
