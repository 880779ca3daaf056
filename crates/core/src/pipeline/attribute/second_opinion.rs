//! The second opinion: asks a cross-encoder, if the settings name one, what the units that a part was compared with say of it.

use super::evidence::SecondOpinion;
use super::part::Part;
use crate::model::ModelError;
use crate::model::cross::{CrossEncoder, PairOpinion};
use crate::pipeline::PipelineError;
use crate::pipeline::cancel::Cancel;
use crate::text;

/// The probabilities nearest to 0 and 1 that are weighed: log-odds beyond them would outvote everything.
const PROBABILITY_MIN: f32 = 1e-3;

/// The text of an answer and the model to ask about its parts.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub answer: &'a str,
    /// The model; `None` if the settings name none.
    pub model: Option<&'a dyn CrossEncoder>,
}

impl Question<'_> {
    /// Asks the model about a part. `evidence` is the share of the part that its words support. Returns `None` if there is no model, or if it
    /// cannot read the part.
    pub fn ask(
        &self,
        part: &Part,
        evidence: f32,
        cancel: &Cancel,
    ) -> Result<Option<SecondOpinion>, PipelineError> {
        let Some(model) = self.model else { return Ok(None) };
        cancel.check()?;
        let claim = text::without_markers(part.bytes.slice(self.answer));
        let said = match model.judge(&part.text_of_units(), &claim, &|| cancel.go_on()) {
            // It says whether the deadline has passed or the caller no longer waits.
            Err(ModelError::Cancelled) => {
                return Err(cancel.check().err().unwrap_or(PipelineError::Cancelled));
            }
            said => said?,
        };
        let Some(PairOpinion { support, conflict, has_neutral, tokens }) = said else { return Ok(None) };
        cancel.spend(tokens);
        let (own, weights) = (log_odds(evidence), model.weights());
        Ok(Some(SecondOpinion { own, support, conflict, has_neutral, weights }))
    }
}

fn log_odds(probability: f32) -> f32 {
    let p = probability.clamp(PROBABILITY_MIN, 1.0 - PROBABILITY_MIN);
    (p / (1.0 - p)).ln()
}
