//! The second opinion: asks a cross-encoder, if the settings name one, what the units that a part was compared with say of it.

use super::evidence::SecondOpinion;
use super::part::Part;
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

impl Question<'_> {
    /// Asks the model about a part. `evidence` is the share of the part that its words support. Returns `None` if there is no model, or if it cannot read the part.
    pub fn ask(
        &self,
        part: &Part,
        evidence: f32,
        cancel: &Cancel,
    ) -> Result<Option<SecondOpinion>, PipelineError> {
        let Some(model) = self.model else { return Ok(None) };
        cancel.check()?;
        let said = match model.judge(&part.text_of_units(), self.claim, &|| cancel.go_on()) {
            // It says whether the deadline has passed or the caller no longer waits.
            Err(ModelError::Cancelled) => {
                return Err(cancel.check().err().unwrap_or(PipelineError::Cancelled));
            }
            said => said?,
        };
        let Some(said) = said else { return Ok(None) };
        cancel.spend(said.tokens);
        let (support, conflict, has_neutral) = (said.support, said.conflict, said.has_neutral);
        let weights = model.weights();
        Ok(Some(SecondOpinion { own: log_odds(evidence), support, conflict, has_neutral, weights }))
    }
}

fn log_odds(probability: f32) -> f32 {
    let p = probability.clamp(PROBABILITY_MIN, 1.0 - PROBABILITY_MIN);
    (p / (1.0 - p)).ln()
}
