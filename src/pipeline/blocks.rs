//! Passages to keys: every window read by the model, laid one behind the other on one key axis.

use ndarray::{Array3, Axis, s};

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
    let keys = side_by_side(read, (info.heads, info.head_dim));
    let mut start = 0;
    let span = |p: &Passage| {
        let span = TokenSpan::new(start, start + p.ids.len());
        start = span.end;
        span
    };
    Ok(Blocks { keys, passages: passages.iter().map(span).collect() })
}

/// Windows `[head, token, head_dim]` one behind the other. Each is freed once copied: all keys are in memory once, not
/// twice.
fn side_by_side(windows: Vec<Array3<f32>>, (heads, head_dim): (usize, usize)) -> Array3<f32> {
    let tokens = windows.iter().map(|window| window.len_of(Axis(1))).sum();
    let mut keys = Array3::zeros((heads, tokens, head_dim));
    let mut start = 0;
    for window in windows {
        let end = start + window.len_of(Axis(1));
        keys.slice_mut(s![.., start..end, ..]).assign(&window);
        start = end;
    }
    keys
}
