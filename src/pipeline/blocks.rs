//! Passages to keys: every window read by the model, laid one behind the other on one key axis.

use ndarray::{Array3, Axis};

use super::PipelineError;
use super::cancel::Cancel;
use super::tokenize::Passage;
use crate::domain::TokenSpan;
use crate::model::{ModelError, ModelRuntime};

/// Keys of all passages.
#[derive(Debug)]
pub struct Blocks {
    /// `[head, key, head_dim]`.
    pub keys: Array3<f32>,
    /// Where each passage's tokens stand on the key axis.
    pub passages: Vec<TokenSpan>,
}

/// Reads every passage.
///
/// # Errors
/// What the model reports; a deadline when `cancel` says so.
pub fn read(
    passages: &[Passage],
    model: &dyn ModelRuntime,
    cancel: &Cancel,
) -> Result<Blocks, PipelineError> {
    let info = model.info();
    let windows: Vec<&[u32]> = passages.iter().flat_map(|p| p.windows(info.window_tokens_max)).collect();
    let read = model.read(&windows, &|| cancel.go_on()).map_err(|error| match error {
        ModelError::Stopped => cancel.check().expect_err("the model stops only when work should not go on"),
        other => other.into(),
    })?;
    let views: Vec<_> = read.iter().map(|window| window.view()).collect();
    let keys = match views.is_empty() {
        true => Array3::zeros((info.heads, 0, info.head_dim)),
        false => ndarray::concatenate(Axis(1), &views).expect("windows of one model differ in length only"),
    };
    let mut start = 0;
    let span = |p: &Passage| {
        let span = TokenSpan::new(start, start + p.ids.len());
        start = span.end;
        span
    };
    Ok(Blocks { keys, passages: passages.iter().map(span).collect() })
}
