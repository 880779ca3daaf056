//! The scan stage: computes the raw logits of the question over all blocks, and their peaks: the largest
//! logit of each chunk, unit and sentence. Knows nothing of RC.

use std::iter::Peekable;
use std::ops::Range;
use std::slice;

use ndarray::{Array2, Array3, Axis, concatenate, s};

use super::cancel::Cancel;
use super::question::BlockSlice;
use super::units::sentences_of;
use super::{PipelineError, Reading};
use crate::domain::{Granularity, TokenSpan};
use crate::kv::scan::{self, Look, Part};
use crate::model::RawLogits;
use crate::rc::{self, HeadMean};

/// The peaks of all segments: `[head, question_token, segment]` each, [`rc::EMPTY`] for a segment without
/// tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentPeaks {
    /// The peaks of the chunks, those of their titles included.
    pub chunks: Array3<f32>,
    pub units: Array3<f32>,
    /// The peaks of the sentences that contain the units, as [`sentences_of`] returns them. There are none
    /// unless units are words.
    pub sentences: Array3<f32>,
}

/// The segments of all blocks, block by block: the whole chunk, then its units, then their sentences.
struct Segments {
    /// `[segment]`: tokens counted from the block's first token.
    spans: Vec<TokenSpan>,
    /// `[chunk]`: the index in `spans` of the whole chunk, which is the block's first segment.
    chunks: Vec<usize>,
    /// `[unit]`: the index in `spans` of the unit.
    units: Vec<usize>,
    /// `[sentence]`: the index in `spans` of the sentence.
    sentences: Vec<usize>,
}

impl Segments {
    fn locate(reading: &Reading) -> Self {
        let units: Vec<(usize, TokenSpan)> =
            reading.units.iter().map(|unit| (unit.chunk, unit.tokens)).collect();
        let sentences = sentence_spans(reading);
        let (mut next_units, mut next_sentences) = (units.iter().peekable(), sentences.iter().peekable());
        let chunks = Vec::with_capacity(reading.blocks.blocks.len());
        let mut all = Self { spans: Vec::new(), chunks, units: Vec::new(), sentences: Vec::new() };
        for (chunk, span) in reading.blocks.spans.iter().enumerate() {
            all.chunks.push(all.spans.len());
            all.spans.push(TokenSpan::new(0, span.end - span.start));
            let mut take = |from: &mut Peekable<slice::Iter<(usize, TokenSpan)>>,
                            indices: &mut Vec<usize>| {
                while let Some((_, tokens)) = from.next_if(|(of, _)| *of == chunk) {
                    indices.push(all.spans.len());
                    all.spans.push(TokenSpan::new(tokens.start - span.start, tokens.end - span.start));
                }
            };
            take(&mut next_units, &mut all.units);
            take(&mut next_sentences, &mut all.sentences);
        }
        all
    }

    /// Returns the range of indices in [`Self::spans`] of a block's segments.
    fn of_block(&self, block: usize) -> Range<usize> {
        self.chunks[block]..self.chunks.get(block + 1).copied().unwrap_or(self.spans.len())
    }
}

/// Returns the sentences of the units, each with the index of its chunk; none unless units are words.
fn sentence_spans(reading: &Reading) -> Vec<(usize, TokenSpan)> {
    match reading.granularity {
        Granularity::Word => {
            sentences_of(&reading.units).0.iter().map(|&(chunk, sentence)| (chunk, sentence.tokens)).collect()
        }
        Granularity::Chunk | Granularity::Sentence => Vec::new(),
    }
}

/// Returns the peaks of all segments in some heads. Each key is read once.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn peaks(reading: &Reading, heads: Range<usize>, cancel: &Cancel) -> Result<SegmentPeaks, PipelineError> {
    let segments = Segments::locate(reading);
    // The block of each slice, in the order of the scan.
    let mut blocks = Vec::with_capacity(reading.blocks.blocks.len());
    let scan = |batch: &[(BlockSlice, Look)]| {
        blocks.extend(batch.iter().map(|(slice, _)| slice.block));
        let parts = batch
            .iter()
            .map(|&(slice, look)| Part { look, segments: &segments.spans[segments.of_block(slice.block)] });
        scan::peaks(&parts.collect::<Vec<_>>(), &|| cancel.go_on())
    };
    let found = reading.question.scan_in_batches(heads.clone(), &reading.blocks, scan);
    let found =
        found.ok_or_else(|| cancel.check().expect_err("a scan stops only if the caller no longer waits"))?;
    let found = concatenated(found, Axis(2));
    cancel.check()?;
    let found = if blocks.len() == segments.chunks.len() {
        found
    } else {
        merged_over_slices(&found, &blocks, &segments)
    };
    Ok(SegmentPeaks {
        chunks: select_columns(&found, &segments.chunks, cancel)?,
        units: select_columns(&found, &segments.units, cancel)?,
        sentences: select_columns(&found, &segments.sentences, cancel)?,
    })
}

/// Returns some columns of `[head, question_token, column]`. Row by row, which is several times as fast as `select` of ndarray.
fn select_columns(
    found: &Array3<f32>,
    columns: &[usize],
    cancel: &Cancel,
) -> Result<Array3<f32>, PipelineError> {
    let (heads, queries, _) = found.dim();
    let mut selected = Array3::zeros((heads, queries, columns.len()));
    for (mut selected, found) in selected.rows_mut().into_iter().zip(found.rows()) {
        cancel.check()?;
        for (value, &column) in selected.iter_mut().zip(columns) {
            *value = found[column];
        }
    }
    Ok(selected)
}

/// Returns the peaks of segments whose block was scanned in several slices: for each segment the largest peak
/// of all slices. `blocks` `[slice]` is the block of each slice; `found` has the columns of all slices, one
/// slice after the other.
fn merged_over_slices(found: &Array3<f32>, blocks: &[usize], segments: &Segments) -> Array3<f32> {
    let (heads, queries, _) = found.dim();
    let mut merged = Array3::from_elem((heads, queries, segments.spans.len()), rc::EMPTY);
    let mut from = 0;
    for &block in blocks {
        let to = segments.of_block(block);
        let peaks = found.slice(s![.., .., from..from + to.len()]);
        from += to.len();
        merged.slice_mut(s![.., .., to]).zip_mut_with(&peaks, |merged, &peak| *merged = merged.max(peak));
    }
    merged
}

impl Reading {
    /// Returns the raw logits of some heads: `cross` over the chunks' keys and `self_logits` over the
    /// question's own keys. The default scoring does not call this; it works on peaks.
    pub fn logits(&self, heads: Range<usize>) -> RawLogits {
        RawLogits { cross: logits(self, heads.clone()), self_logits: self.question.self_logits(heads) }
    }
}

/// Returns the raw logits of some heads over the keys of all blocks, `[head, question_token, key]`.
fn logits(reading: &Reading, heads: Range<usize>) -> Array3<f32> {
    let scan = |batch: &[(BlockSlice, Look)]| {
        Some(scan::logits(&batch.iter().map(|(_, look)| *look).collect::<Vec<_>>()))
    };
    let found = reading.question.scan_in_batches(heads, &reading.blocks, scan);
    concatenated(found.expect("this scan never stops early"), Axis(2))
}

/// Returns the mean over heads of the raw logits over some tokens of one block, `[question_token, key]`.
/// `tokens` are counted from the block's first token.
pub fn mean_logits(reading: &Reading, block: usize, tokens: TokenSpan) -> Array2<f32> {
    let mut mean = HeadMean::default();
    for heads in reading.head_groups(tokens.len()) {
        let scan = |batch: &[(BlockSlice, Look)]| {
            let inside =
                batch.iter().filter(|(slice, _)| slice.block == block).filter_map(|&(slice, look)| {
                    let start = tokens.start.max(slice.tokens.start);
                    let end = tokens.end.min(slice.tokens.end);
                    (start < end).then(|| Look { tokens: TokenSpan::new(start, end), ..look })
                });
            let inside: Vec<Look> = inside.collect();
            Some((!inside.is_empty()).then(|| scan::logits(&inside)))
        };
        let found = reading.question.scan_in_batches(heads, &reading.blocks, scan);
        let found = found.expect("this scan never stops early");
        mean.add(concatenated(found.into_iter().flatten().collect(), Axis(2)));
    }
    mean.finish()
}

/// Concatenates arrays along an axis. A single array is not copied.
fn concatenated(mut parts: Vec<Array3<f32>>, axis: Axis) -> Array3<f32> {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
    concatenate(axis, &views).expect("parts of one request differ in length only")
}
