//! The question over the blocks: the peak of every chunk, unit and sentence.

use ndarray::{Array3, Axis, concatenate};

use super::blocks::Blocks;
use super::cancel::Cancel;
use super::units::sentences_of;
use super::{PipelineError, Reading};
use crate::domain::{Granularity, TokenSpan};
use crate::kv::scan::{self, Part};
use crate::model::ModelRuntime;
use crate::rc;

/// What computes logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanBy {
    /// One pass over the blocks where they lie (`kv::scan`).
    #[default]
    Fused,
    /// The model's query graph over decoded keys: slow, and what the other is checked against.
    Onnx,
}

/// Peaks `[head, question_token, segment]`; [`rc::EMPTY`] where a segment holds no token.
#[derive(Debug, Clone, PartialEq)]
pub struct Peaks {
    /// One segment per chunk.
    pub chunks: Array3<f32>,
    /// One per unit.
    pub units: Array3<f32>,
    /// One per sentence of the units ([`sentences_of`]); none unless units are words.
    pub sentences: Array3<f32>,
}

/// Scans all blocks once.
///
/// # Errors
/// A deadline when `cancel` says so.
pub fn peaks(reading: &Reading, cancel: &Cancel) -> Result<Peaks, PipelineError> {
    let units: Vec<(usize, TokenSpan)> = reading.units.iter().map(|unit| (unit.chunk, unit.tokens)).collect();
    let sentences: Vec<(usize, TokenSpan)> = match reading.granularity {
        Granularity::Token => {
            sentences_of(&reading.units).0.iter().map(|&(chunk, s)| (chunk, s.tokens)).collect()
        }
        _ => Vec::new(),
    };
    if let Some(cross) = &reading.graph_logits {
        let of = |segments: &[(usize, TokenSpan)]| {
            let segments: Vec<_> = segments.iter().map(|&(_, tokens)| tokens).collect();
            rc::peaks(cross.view(), &segments).value
        };
        let chunks = rc::peaks(cross.view(), &reading.blocks.spans).value;
        return Ok(Peaks { chunks, units: of(&units), sentences: of(&sentences) });
    }
    let (mut units, mut sentences) = (units.iter().peekable(), sentences.iter().peekable());
    // Each block's segments stand together: the whole chunk, its units, their sentences.
    let (mut segments, mut bounds) = (Vec::new(), Vec::with_capacity(reading.blocks.blocks.len()));
    let (mut unit_columns, mut sentence_columns) = (Vec::new(), Vec::new());
    for (chunk, span) in reading.blocks.spans.iter().enumerate() {
        bounds.push(segments.len());
        segments.push(TokenSpan::new(0, span.end - span.start));
        let mut take = |from: &mut std::iter::Peekable<std::slice::Iter<(usize, TokenSpan)>>,
                        columns: &mut Vec<usize>| {
            while let Some((_, tokens)) = from.next_if(|(of, _)| *of == chunk) {
                columns.push(segments.len());
                segments.push(TokenSpan::new(tokens.start - span.start, tokens.end - span.start));
            }
        };
        take(&mut units, &mut unit_columns);
        take(&mut sentences, &mut sentence_columns);
    }
    let ends = bounds[1..].iter().copied().chain([segments.len()]);
    let part = |((block, &start), end)| Part { block, segments: &segments[start..end] };
    let parts: Vec<Part> = reading.blocks.blocks.iter().zip(&bounds).zip(ends).map(part).collect();
    let found = scan::peaks(&reading.question.vectors, &parts, &|| cancel.go_on());
    let found = found.ok_or_else(|| cancel.check().expect_err("a scan stops only when nobody waits"))?;
    let columns = |columns: &[usize]| found.select(Axis(2), columns);
    Ok(Peaks {
        chunks: columns(&bounds),
        units: columns(&unit_columns),
        sentences: columns(&sentence_columns),
    })
}

/// Raw logits of a question over all blocks' keys by the query graph, `[head, question_token, key]`, window by window.
///
/// # Errors
/// What the model reports.
pub fn by_graph(
    question: &[u32],
    blocks: &Blocks,
    model: &dyn ModelRuntime,
) -> Result<Array3<f32>, PipelineError> {
    let keys: Vec<_> = blocks.blocks.iter().map(|block| block.keys()).collect();
    let keys = joined(&keys);
    let window = |ids| Ok(model.logits(ids, keys.view())?.cross);
    let windows = question.chunks(model.info().window_tokens_max).map(window);
    Ok(joined(&windows.collect::<Result<Vec<_>, PipelineError>>()?))
}

/// Parts one behind the other on the middle axis.
fn joined(parts: &[Array3<f32>]) -> Array3<f32> {
    let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
    concatenate(Axis(1), &views).expect("parts of one model differ in length only")
}
