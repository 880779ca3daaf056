//! Whether any chunk is related to the question. It informs: what is kept depends on it only if a request wants related text only.

use std::sync::Arc;

use super::answerable::Answerable;
use super::calibration::Calibration;
use super::outcome::Relevance;
use super::score::{Measured, Scores};
use crate::domain::Chunk;

/// The least share of the question's words and n-grams that a related chunk has, where the model does not know the question's script, over
/// texts of 3,000 bytes and more. Below it, the share of unrelated texts is reached by chance (`docs/evaluation.md`).
const LEXICAL_MIN: f32 = 0.35;

/// Returns whether any chunk is related to the question: its relevance reaches what the model's `calibration` names, or the chunks answer
/// the question. `None` for models whose logits have no fixed scale, and for models without a calibration.
pub fn measure_related(
    chunks: &[Arc<Chunk>],
    scores: &Scores,
    answerable: Option<&Answerable>,
    calibration: Option<&Calibration>,
) -> Option<Relevance> {
    let value = scores.relevance?;
    let fitted = calibration.and_then(|calibration| calibration.related);
    let least = match scores.measured {
        Measured::Prose => fitted?.prose,
        Measured::Structured => fitted?.structured,
        Measured::Lexical => LEXICAL_MIN * lexical_share(chunks),
    };
    let related = value >= least || answerable.is_some_and(|answerable| answerable.answerable);
    Some(Relevance { value, related, least })
}

/// Returns the share of [`LEXICAL_MIN`] that holds for texts of this length: the longer they are, the more words of
/// any question they have by chance. It grows with the logarithm, from 1/2 at 300 bytes to 1 at 3,000.
fn lexical_share(chunks: &[Arc<Chunk>]) -> f32 {
    let bytes: usize = chunks.iter().map(|chunk| chunk.text.len()).sum();
    (0.5 + 0.5 * (bytes as f32 / 300.0).log10()).clamp(0.5, 1.0)
}
