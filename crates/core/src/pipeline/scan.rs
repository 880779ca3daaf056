//! The question over the blocks: the peak of every chunk, unit and sentence.

use std::ops::Range;

use ndarray::{Array2, Array3, Axis, concatenate, s};

use super::blocks::Blocks;
use super::cancel::Cancel;
use super::question::BlockSlice;
use super::units::sentences_of;
use super::{PipelineError, Reading};
use crate::domain::{Granularity, TokenSpan};
use crate::kv::scan::{self, Look, Part};
use crate::model::ModelRuntime;
use crate::rc::{self, HeadMean};

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

/// SegmentPeaks `[head, question_token, segment]`; [`rc::EMPTY`] where a segment holds no token.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentPeaks {
    /// One segment per chunk.
    pub chunks: Array3<f32>,
    /// One per unit.
    pub units: Array3<f32>,
    /// One per sentence of the units ([`sentences_of`]); none unless units are words.
    pub sentences: Array3<f32>,
}

/// Segments of all blocks, those of each block together: the whole chunk, its units, their sentences. Counted from the block's
/// first token.
struct Segments {
    spans: Vec<TokenSpan>,
    /// Where each block's begin, which is its whole.
    chunks: Vec<usize>,
    units: Vec<usize>,
    sentences: Vec<usize>,
}

impl Segments {
    fn of(reading: &Reading) -> Self {
        let units: Vec<(usize, TokenSpan)> =
            reading.units.iter().map(|unit| (unit.chunk, unit.tokens)).collect();
        let sentences: Vec<(usize, TokenSpan)> = match reading.granularity {
            Granularity::Token => {
                sentences_of(&reading.units).0.iter().map(|&(chunk, s)| (chunk, s.tokens)).collect()
            }
            _ => Vec::new(),
        };
        let (mut of_units, mut of_sentences) = (units.iter().peekable(), sentences.iter().peekable());
        let chunks = Vec::with_capacity(reading.blocks.blocks.len());
        let mut all = Self { spans: Vec::new(), chunks, units: Vec::new(), sentences: Vec::new() };
        for (chunk, span) in reading.blocks.spans.iter().enumerate() {
            all.chunks.push(all.spans.len());
            all.spans.push(TokenSpan::new(0, span.end - span.start));
            let mut take = |from: &mut std::iter::Peekable<std::slice::Iter<(usize, TokenSpan)>>,
                            columns: &mut Vec<usize>| {
                while let Some((_, tokens)) = from.next_if(|(of, _)| *of == chunk) {
                    columns.push(all.spans.len());
                    all.spans.push(TokenSpan::new(tokens.start - span.start, tokens.end - span.start));
                }
            };
            take(&mut of_units, &mut all.units);
            take(&mut of_sentences, &mut all.sentences);
        }
        all
    }

    /// Where in [`Self::spans`] those of a block stand.
    fn of_block(&self, block: usize) -> Range<usize> {
        self.chunks[block]..self.chunks.get(block + 1).copied().unwrap_or(self.spans.len())
    }
}

/// Scans all blocks once, for some heads of the question.
///
/// # Errors
/// A deadline when `cancel` says so.
pub fn peaks(reading: &Reading, heads: Range<usize>, cancel: &Cancel) -> Result<SegmentPeaks, PipelineError> {
    if let Some(cross) = &reading.graph_logits {
        let cross = cross.slice(s![heads, .., ..]);
        let of = |spans: &[TokenSpan]| rc::peaks(cross, spans).value;
        let units: Vec<TokenSpan> = reading.units.iter().map(|unit| unit.tokens).collect();
        let sentences: Vec<TokenSpan> = match reading.granularity {
            Granularity::Token => sentences_of(&reading.units).0.iter().map(|(_, s)| s.tokens).collect(),
            _ => Vec::new(),
        };
        return Ok(SegmentPeaks {
            chunks: of(&reading.blocks.spans),
            units: of(&units),
            sentences: of(&sentences),
        });
    }
    let segments = Segments::of(reading);
    let mut blocks = Vec::with_capacity(reading.blocks.blocks.len());
    let scan = |looks: &[(BlockSlice, Look)]| {
        blocks.extend(looks.iter().map(|(slice, _)| slice.block));
        let parts = looks
            .iter()
            .map(|&(slice, look)| Part { look, segments: &segments.spans[segments.of_block(slice.block)] });
        scan::peaks(&parts.collect::<Vec<_>>(), &|| cancel.go_on())
    };
    let found = reading.question.each(heads.clone(), &reading.blocks, scan);
    let found = found.ok_or_else(|| cancel.check().expect_err("a scan stops only when nobody waits"))?;
    let found = joined(found, Axis(2));
    let found = if blocks.len() == segments.chunks.len() { found } else { whole(&found, &blocks, &segments) };
    let columns = |columns: &[usize]| found.select(Axis(2), columns);
    Ok(SegmentPeaks {
        chunks: columns(&segments.chunks),
        units: columns(&segments.units),
        sentences: columns(&segments.sentences),
    })
}

/// SegmentPeaks of segments whose block was met in slices, the largest of each slice's. `blocks` are those of the slices, whose columns
/// stand one behind the other in `found`.
fn whole(found: &Array3<f32>, blocks: &[usize], segments: &Segments) -> Array3<f32> {
    let (heads, queries, _) = found.dim();
    let mut whole = Array3::from_elem((heads, queries, segments.spans.len()), rc::EMPTY);
    let mut from = 0;
    for &block in blocks {
        let to = segments.of_block(block);
        let met = found.slice(s![.., .., from..from + to.len()]);
        from += to.len();
        whole.slice_mut(s![.., .., to]).zip_mut_with(&met, |whole, &met| *whole = whole.max(met));
    }
    whole
}

/// Raw logits of some heads of the question over all blocks' keys, `[head, question_token, key]`.
pub fn logits(reading: &Reading, heads: Range<usize>) -> Array3<f32> {
    if let Some(cross) = &reading.graph_logits {
        return cross.slice(s![heads, .., ..]).to_owned();
    }
    let scan = |looks: &[(BlockSlice, Look)]| {
        Some(scan::logits(&looks.iter().map(|(_, look)| *look).collect::<Vec<_>>()))
    };
    joined(reading.question.each(heads, &reading.blocks, scan).expect("this scan never stops"), Axis(2))
}

/// Raw logits over some tokens of one block, mean over heads, `[question_token, key]`.
pub fn logits_in(reading: &Reading, block: usize, tokens: TokenSpan) -> Array2<f32> {
    let first = reading.blocks.spans[block].start;
    let mut mean = HeadMean::default();
    for heads in reading.heads_at_once(tokens.len()) {
        if let Some(cross) = &reading.graph_logits {
            mean.add(cross.slice(s![heads, .., tokens.shifted(first).range()]).to_owned());
            continue;
        }
        let scan = |looks: &[(BlockSlice, Look)]| {
            let inside =
                looks.iter().filter(|(slice, _)| slice.block == block).filter_map(|&(slice, look)| {
                    let start = tokens.start.max(slice.tokens.start);
                    let end = tokens.end.min(slice.tokens.end);
                    (start < end).then(|| Look { tokens: TokenSpan::new(start, end), ..look })
                });
            let inside: Vec<Look> = inside.collect();
            Some((!inside.is_empty()).then(|| scan::logits(&inside)))
        };
        let found = reading.question.each(heads, &reading.blocks, scan).expect("this scan never stops");
        mean.add(joined(found.into_iter().flatten().collect(), Axis(2)));
    }
    mean.finish()
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
    let keys = joined(blocks.blocks.iter().map(|block| block.keys()).collect(), Axis(1));
    let window = |ids| Ok(model.logits(ids, keys.view())?.cross);
    let windows = question.chunks(model.info().window_tokens_max).map(window);
    Ok(joined(windows.collect::<Result<Vec<_>, PipelineError>>()?, Axis(1)))
}

/// Parts one behind the other.
fn joined(mut parts: Vec<Array3<f32>>, axis: Axis) -> Array3<f32> {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
    concatenate(axis, &views).expect("parts of one request differ in length only")
}
