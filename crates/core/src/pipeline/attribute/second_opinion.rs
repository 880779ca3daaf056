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
    /// Asks the model about each sentence of a part by itself, and returns the opinion on the one that the sources support least: the sources
    /// support a part if they support all of it. `evidence` is the share of the part that its words support. Returns `None` if there is no
    /// model, or if it cannot read the part.
    pub fn ask(
        &self,
        part: &Part,
        evidence: f32,
        cancel: &Cancel,
    ) -> Result<Option<SecondOpinion>, PipelineError> {
        let Some(model) = self.model else { return Ok(None) };
        let mut least: Option<PairOpinion> = None;
        for sentence in part.by_sentence() {
            cancel.check()?;
            let claim = text::without_markers(sentence.bytes.slice(self.answer));
            let said = match model.judge(&sentence.text_of_units(), &claim, &|| cancel.go_on()) {
                // It says whether the deadline has passed or the caller no longer waits.
                Err(ModelError::Cancelled) => {
                    return Err(cancel.check().err().unwrap_or(PipelineError::Cancelled));
                }
                said => said?,
            };
            let Some(said) = said else { return Ok(None) };
            cancel.spend(said.tokens);
            if least.is_none_or(|least| said.support < least.support) {
                least = Some(said);
            }
        }
        Ok(least.map(|PairOpinion { support, conflict, has_neutral, .. }| SecondOpinion {
            own: log_odds(evidence),
            support,
            conflict,
            has_neutral,
            weights: model.weights(),
        }))
    }
}

fn log_odds(probability: f32) -> f32 {
    let p = probability.clamp(PROBABILITY_MIN, 1.0 - PROBABILITY_MIN);
    (p / (1.0 - p)).ln()
}
