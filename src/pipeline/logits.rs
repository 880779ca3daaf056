//! Question over keys: raw logits, whatever the question's length.

use ndarray::{Array3, ArrayView3, Axis, concatenate, s};

use super::PipelineError;
use crate::model::{Logits, ModelRuntime};

/// Raw logits of `question` over `keys` `[head, key, head_dim]` and over its own keys.
///
/// A question longer than a window is read in windows, as a chunk is. Its own logits then have to reach across them, so
/// its keys are read first and stand behind the chunks' on the key axis.
///
/// # Errors
/// What the model reports.
pub fn of_question(
    question: &[u32],
    keys: ArrayView3<f32>,
    model: &dyn ModelRuntime,
) -> Result<Logits, PipelineError> {
    let window = model.info().window_tokens_max;
    if question.len() <= window {
        return Ok(model.logits(question, keys)?);
    }
    let windows: Vec<&[u32]> = question.chunks(window).collect();
    let own_keys = model.read(&windows, &|| true)?;
    let all_keys: Vec<ArrayView3<f32>> =
        std::iter::once(keys).chain(own_keys.iter().map(|k| k.view())).collect();
    let all_keys = concatenate(Axis(1), &all_keys).expect("keys of one model differ in length only");
    let parts = windows
        .iter()
        .map(|ids| Ok(model.logits(ids, all_keys.view())?.cross))
        .collect::<Result<Vec<Array3<f32>>, PipelineError>>()?;
    let parts: Vec<_> = parts.iter().map(|part| part.view()).collect();
    let all = concatenate(Axis(1), &parts).expect("every window saw the same keys");
    let chunks = keys.len_of(Axis(1));
    Ok(Logits {
        cross: all.slice(s![.., .., ..chunks]).to_owned(),
        own: all.slice(s![.., .., chunks..]).to_owned(),
    })
}
