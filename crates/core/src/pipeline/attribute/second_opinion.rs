//! The second opinion: asks a cross-encoder, if the settings name one, whether the sentences that a part was compared with
//! support it, and combines its answer with the probability that was computed without it.

use super::candidates::Candidates;
use super::judge::Judgement;
use crate::model::ModelError;
use crate::model::cross::CrossEncoder;
use crate::pipeline::PipelineError;
use crate::pipeline::cancel::Cancel;

/// The probabilities nearest to 0 and 1 that are weighed: log-odds beyond them would outvote everything.
const PROBABILITY_MIN: f32 = 1e-3;

/// A part of the answer and the model to ask about it.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub claim: &'a str,
    /// The model; `None` if the settings name none.
    pub model: Option<&'a dyn CrossEncoder>,
}

/// What two judges say of a part, as log-odds that the sources support it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SecondOpinion {
    pub own: f32,
    /// What the cross-encoder says.
    pub model: f32,
}

impl Question<'_> {
    /// Returns the probability that the sources support the part, and what it was computed from. `own` is the probability
    /// without the model, which is returned if there is no model.
    pub(super) fn support(
        &self,
        candidates: &Candidates,
        judgement: &Judgement,
        own: f32,
        cancel: &Cancel,
    ) -> Result<(f32, Option<SecondOpinion>), PipelineError> {
        let Some(model) = self.model else { return Ok((own, None)) };
        cancel.check()?;
        let said = model.support(&evidence(candidates, &judgement.units), self.claim, &|| cancel.go_on());
        let said = match said {
            // It says whether the deadline has passed or the caller no longer waits.
            Err(ModelError::Cancelled) => {
                return Err(cancel.check().err().unwrap_or(PipelineError::Cancelled));
            }
            said => said?,
        };
        cancel.spend(said.tokens);
        let opinion = SecondOpinion { own: log_odds(own), model: said.log_odds };
        let weights = model.weights();
        let combined = weights.bias + weights.own * opinion.own + weights.model * opinion.model;
        Ok((1.0 / (1.0 + (-combined).exp()), Some(opinion)))
    }
}

/// Returns the sentences in the order of the chunks, each chunk's own text in its order.
fn evidence(candidates: &Candidates, units: &[usize]) -> String {
    let mut units: Vec<_> = units.iter().map(|&unit| &candidates.units[unit]).collect();
    units.sort_by_key(|unit| (unit.chunk, unit.bytes.start));
    let texts = units.iter().map(|unit| unit.bytes.of(&candidates.chunks[unit.chunk].text).trim());
    texts.collect::<Vec<_>>().join(" ")
}

fn log_odds(probability: f32) -> f32 {
    let p = probability.clamp(PROBABILITY_MIN, 1.0 - PROBABILITY_MIN);
    (p / (1.0 - p)).ln()
}
