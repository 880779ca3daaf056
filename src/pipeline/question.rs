//! The question as the model sees it: vectors whose products with keys are its raw logits.

use ndarray::{Array3, Axis, concatenate, s};

use super::PipelineError;
use crate::kv::scan;
use crate::model::{Encoded, ModelRuntime};

/// A question that has been through the model.
#[derive(Debug, Clone)]
pub struct Question {
    /// What is scanned over blocks.
    pub vectors: scan::Question,
    /// Its logits over its own keys, `[head, question_token, question_token]`.
    pub own: Array3<f32>,
}

/// Encodes `ids`, whatever their number: a question longer than a window is read in windows, as a chunk is.
///
/// # Errors
/// What the model reports.
pub fn encode(ids: &[u32], model: &dyn ModelRuntime) -> Result<Question, PipelineError> {
    let windows: Vec<&[u32]> = ids.chunks(model.info().window_tokens_max).collect();
    let mut parts = windows.iter().map(|window| model.question(window)).collect::<Result<Vec<_>, _>>()?;
    if parts.len() == 1 {
        let Encoded { vectors, own } = parts.remove(0);
        return Ok(Question { vectors: scan::Question::new(vectors), own });
    }
    let vectors = joined(parts.iter().map(|part| part.vectors.view()));
    // Its own logits reach across windows, which no window has seen: they are taken over the keys of all.
    let keys = super::blocks::keys_of(&windows, model)?;
    let mut own = Array3::zeros((vectors.dim().0, ids.len(), ids.len()));
    for (head, mut own) in own.outer_iter_mut().enumerate() {
        own.assign(&vectors.slice(s![head, .., ..]).dot(&keys.slice(s![head, .., ..]).t()));
    }
    Ok(Question { vectors: scan::Question::new(vectors), own })
}

fn joined<'a>(parts: impl Iterator<Item = ndarray::ArrayView3<'a, f32>>) -> Array3<f32> {
    concatenate(Axis(1), &parts.collect::<Vec<_>>()).expect("windows of one model differ in length only")
}
