//! The encoded question: query vectors whose dot products with the chunks' keys are the raw logits. Knows
//! nothing of scores.
//!
//! An encoder encodes the question without the chunks. A decoder's question attends to the chunks, so it is
//! encoded with their blocks as its past. If the blocks do not fit into the model's context together, they
//! are divided into groups. A group with the positions of its blocks is a *view*, and the question is encoded
//! once per view.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array3, Axis, concatenate, s};
use rayon::prelude::*;

use super::PipelineError;
use super::blocks::{self, Blocks};
use super::cancel::Cancel;
use super::validate::RequestLimits;
use crate::domain::TokenSpan;
use crate::kv::block::Block;
use crate::kv::scan::{Look, ScanQueries};
use crate::model::rotary::{LayerRotary, LayerRotations};
use crate::model::{
    DecoderInfo, EncodedQuestion, ModelError, ModelInfo, ModelRuntime, NoPast, Past, PlaneLayout,
    SelfAttention,
};

/// How many values the rotated copies of a question's vectors have at a time: 8 Mi, which take 32 MiB, and a
/// quarter more for their eight-bit copies.
const ROTATED_VALUES_MAX: usize = 8 << 20;

/// The fewest slices for which another thread decodes part of a plane.
const SLICES_PER_TASK_MIN: usize = 8;

/// How the blocks of a view are positioned. If the model's positions are learned, keys cannot be moved, and each block begins at
/// the position where the model read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// Side by side: each block ends at the position where the question begins, so that no chunk is nearer to the question than
    /// another. Questions are read so.
    Parallel,
    /// One after the other, as in a prompt. Exports of keys and values are laid out so.
    Sequence,
}

/// A group of block slices that a question attends to at once, and the positions of slices and question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The slices of the group, in the order of the blocks.
    pub slices: Vec<BlockSlice>,
    pub question_position: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSlice {
    pub block: usize,
    /// The tokens of the slice, counted from the block's first token.
    pub tokens: TokenSpan,
    /// How many positions later than where the model read them the slice's keys are in the view.
    pub shift: i64,
}

/// A question as the model encoded it, once per view.
#[derive(Debug, Clone, Default)]
pub struct QuestionViews {
    /// `[head]`: the plane of a block that holds the head's keys.
    planes: Vec<usize>,
    /// How keys rotate with their position; `None` for models without rotary positions.
    rotation: Option<KeyRotation>,
    /// The views with the question's encoding in each. Together the views have all tokens of all blocks, in
    /// order. With an encoder there is one view.
    views: Vec<(View, EncodedQuestion)>,
}

/// How the keys of each plane rotate with their position.
#[derive(Debug, Clone)]
struct KeyRotation {
    rotary: LayerRotary,
    layout: PlaneLayout,
}

/// What encoding a question needs besides the question and the blocks.
#[derive(Clone, Copy)]
pub struct EncodeContext<'a> {
    pub model: &'a dyn ModelRuntime,
    pub limits: &'a RequestLimits,
    pub cancel: &'a Cancel,
    /// Whether other questions are encoded at the same time for the same request. Each then runs on one
    /// thread.
    pub is_concurrent: bool,
    pub heads: EncodedHeads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodedHeads {
    /// The heads that RC is computed from ([`ModelInfo::readout`]).
    Readout,
    /// All heads of the layers that are run, as a decoder's probe needs them. For an encoder these are the
    /// readout heads.
    All,
}

impl View {
    /// Returns the view of an encoder: all blocks, at the positions where the model read them.
    pub fn of_all(blocks: &Blocks) -> Self {
        let slice = |(block, span): (usize, &TokenSpan)| BlockSlice {
            block,
            tokens: TokenSpan::new(0, span.end - span.start),
            shift: 0,
        };
        Self { slices: blocks.spans.iter().enumerate().map(slice).collect(), question_position: 0 }
    }

    /// Returns the rotations that move the slices' keys to their positions in the view.
    pub(super) fn rotations(&self, decoder: &DecoderInfo) -> SliceRotations {
        let first = decoder.prefix_tokens() as i64;
        let of_slice = |slice: &BlockSlice| {
            let rotary = decoder.rotary.as_ref().filter(|_| slice.shift != 0)?;
            Some(rotary.rotations(slice.tokens.len(), first, first + slice.shift))
        };
        self.slices.par_iter().map(of_slice).collect::<Vec<_>>().into()
    }

    /// Moves all slices and the question to positions that are later by `tokens`.
    pub(super) fn move_by(&mut self, tokens: i64) {
        self.slices.iter_mut().for_each(|slice| slice.shift += tokens);
        self.question_position += tokens;
    }

    /// Returns the view of one group of slices. The positions after the prefix, which has `prefix_tokens`
    /// tokens, are free. Only the keys of a movable group can be shifted.
    fn of_group(
        group: &[(usize, TokenSpan)],
        prefix_tokens: usize,
        placement: Placement,
        is_movable: bool,
    ) -> Self {
        let longest = group.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
        let mut end = 0;
        let slice = |&(block, tokens): &(usize, TokenSpan)| {
            let shift = match placement {
                _ if !is_movable => 0,
                Placement::Parallel => longest - tokens.len(),
                Placement::Sequence => end,
            };
            end += tokens.len();
            BlockSlice { block, tokens, shift: shift as i64 }
        };
        let slices = group.iter().map(slice).collect();
        let length = if is_movable && placement == Placement::Sequence { end } else { longest };
        Self { slices, question_position: (prefix_tokens + length) as i64 }
    }
}

/// Divides the blocks into views for a decoder's question of `question_tokens` tokens. Each view has as many
/// consecutive windows of blocks as the model's context holds beside the question. A question without any
/// block still has one view.
pub(super) fn views(
    blocks: &Blocks,
    model: &ModelInfo,
    decoder: &DecoderInfo,
    question_tokens: usize,
    placement: Placement,
) -> Vec<View> {
    let tokens_max = decoder.context_tokens_max - decoder.prefix_tokens() - question_tokens;
    let window = model.window_tokens_max;
    let windows = blocks.spans.iter().enumerate().flat_map(|(block, span)| {
        let tokens = span.end - span.start;
        // A block without tokens gets a slice, too, because every block must have one.
        let starts = (0..tokens.max(1)).step_by(window);
        starts.map(move |start| (block, TokenSpan::new(start, (start + window).min(tokens))))
    });
    let mut groups: Vec<Vec<(usize, TokenSpan)>> = vec![Vec::new()];
    let mut group_tokens = 0;
    for (block, tokens) in windows {
        if group_tokens + tokens.len() > tokens_max {
            groups.push(Vec::new());
            group_tokens = 0;
        }
        group_tokens += tokens.len();
        groups.last_mut().expect("there is at least one group").push((block, tokens));
    }
    let (prefix_tokens, is_movable) = (decoder.prefix_tokens(), decoder.rotary.is_some());
    groups.iter().map(|group| View::of_group(group, prefix_tokens, placement, is_movable)).collect()
}

/// Returns the largest number of question tokens that a decoder's context holds beside a window of a chunk,
/// or `None` for an encoder, whose question may have any length.
pub fn tokens_max(model: &ModelInfo) -> Option<usize> {
    model.decoder.as_ref().map(|decoder| decoder.question_tokens_max(model.window_tokens_max))
}

/// Encodes the question with the token ids `ids`. A decoder's question must have at most [`tokens_max`]
/// tokens.
///
/// # Errors
/// Returns [`GroupsTooMany`](super::validate::InvalidRequest::GroupsTooMany) if the question's vectors for
/// all views are too many, the error of `cancel` if it stops the work, and [`PipelineError::Model`] if the
/// model fails.
pub fn encode(ids: &[u32], blocks: &Blocks, context: EncodeContext) -> Result<QuestionViews, PipelineError> {
    let info = context.model.info();
    let views = match &info.decoder {
        None => vec![(View::of_all(blocks), encode_alone(ids, context)?)],
        Some(decoder) => encode_views(ids, blocks, context, decoder)?,
    };
    let rotation = info
        .decoder
        .as_ref()
        .and_then(|decoder| Some(KeyRotation { rotary: decoder.rotary.clone()?, layout: decoder.planes() }));
    Ok(QuestionViews { planes: context.planes(), rotation, views })
}

/// Encodes an encoder's question. A question longer than a window is encoded in windows, as a chunk is.
fn encode_alone(ids: &[u32], context: EncodeContext) -> Result<EncodedQuestion, PipelineError> {
    let model = context.model;
    let windows: Vec<&[u32]> = ids.chunks(model.info().window_tokens_max).collect();
    let encode = |window: &&[u32]| context.encode(window, &NoPast);
    let mut parts = windows.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    let vectors: Vec<_> = parts.iter().map(|part| part.vectors.view()).collect();
    let vectors = concatenate(Axis(1), &vectors).expect("windows of one model differ in length only");
    // No window has seen the self logits between windows, so they are computed from the keys of all windows.
    let keys = blocks::keys_of(&windows, model)?.select(Axis(0), &model.info().readout);
    Ok(EncodedQuestion { vectors, self_attention: SelfAttention::Keys(keys) })
}

/// Encodes a decoder's question once for each view of the blocks.
fn encode_views(
    ids: &[u32],
    blocks: &Blocks,
    context: EncodeContext,
    decoder: &DecoderInfo,
) -> Result<Vec<(View, EncodedQuestion)>, PipelineError> {
    let EncodeContext { model, limits, cancel, .. } = context;
    let views = views(blocks, model.info(), decoder, ids.len(), Placement::Parallel);
    limits.check_groups(views.len(), ids.len(), context.planes().len(), model.info().head_dim)?;
    let encode = |view: View| {
        let past = BlocksAsPast::new(&view, view.rotations(decoder), blocks, model.info(), decoder, cancel);
        context.encode(ids, &past).map(|encoded| (view, encoded)).map_err(|error| cancel.or(error))
    };
    let mut views = views.into_iter().map(encode).collect::<Result<Vec<_>, PipelineError>>()?;
    // Only the self logits of the first view are used, so the others need not keep theirs.
    views
        .iter_mut()
        .skip(1)
        .for_each(|(_, encoded)| encoded.self_attention = SelfAttention::Keys(Array3::zeros((0, 0, 0))));
    Ok(views)
}

impl EncodeContext<'_> {
    fn encode(&self, ids: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        match (self.heads, self.is_concurrent) {
            (EncodedHeads::All, _) => self.model.encode_question_in_all_heads(ids, past),
            (EncodedHeads::Readout, true) => self.model.encode_question_on_one_thread(ids, past),
            (EncodedHeads::Readout, false) => self.model.encode_question(ids, past),
        }
    }

    /// Returns the plane of the keys of each encoded head.
    fn planes(&self) -> Vec<usize> {
        let info = self.model.info();
        match (self.heads, &info.decoder) {
            (EncodedHeads::All, Some(decoder)) => decoder.planes_of_all_heads(),
            (EncodedHeads::All, None) | (EncodedHeads::Readout, _) => info.readout.clone(),
        }
    }
}

impl QuestionViews {
    /// Returns the question with its last token only. The token's vectors stay those that were computed with
    /// the other tokens before it.
    pub fn with_last_token_only(&self) -> Self {
        let views = self.views.iter().map(|(view, encoded)| (view.clone(), encoded.of_last_token()));
        Self { planes: self.planes.clone(), rotation: self.rotation.clone(), views: views.collect() }
    }

    /// Returns the question without its first `count` tokens. The vectors of the others stay those that were
    /// computed with the first ones before them.
    pub fn without_first(self, count: usize) -> Self {
        if count == 0 {
            return self;
        }
        let views = self.views.into_iter().map(|(view, encoded)| (view, encoded.without_first(count)));
        Self { views: views.collect(), ..self }
    }

    /// Returns the number of heads that RC is averaged over.
    pub fn heads(&self) -> usize {
        self.planes.len()
    }

    pub fn tokens(&self) -> usize {
        self.views.first().map_or(0, |(_, encoded)| encoded.vectors.len_of(Axis(1)))
    }

    /// Returns the raw logits of some heads over the question's own keys, `[head, question_token,
    /// question_token]`. If the question has several views, these are the logits of the first one.
    pub fn self_logits(&self, heads: Range<usize>) -> Array3<f32> {
        match self.views.first() {
            Some((_, encoded)) => encoded.self_logits(heads),
            None => Array3::zeros((heads.len(), 0, 0)),
        }
    }

    /// Calls `scan` with all slices of all views, in order, in batches. Each slice comes with the part of its
    /// block to scan and with the query vectors of `heads`, rotated so that their products with the keys are
    /// those of the slice's position in its view. Returns the results of all calls, or `None` as soon as
    /// `scan` returns `None`.
    pub fn scan_in_batches<T>(
        &self,
        heads: Range<usize>,
        blocks: &Blocks,
        mut scan: impl FnMut(&[(BlockSlice, Look)]) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut results = Vec::new();
        for (view, encoded) in &self.views {
            let (_, tokens, dim) = encoded.vectors.dim();
            // Every distinct shift needs a rotated copy of the vectors. A batch has as many shifts as copies
            // fit into memory.
            let shifts_max = (ROTATED_VALUES_MAX / (heads.len() * tokens * dim).max(1)).max(1);
            let mut rest = &view.slices[..];
            while !rest.is_empty() {
                let mut index_of: HashMap<i64, usize> = HashMap::new();
                let fitting = rest.iter().take_while(|slice| {
                    let next = index_of.len();
                    index_of.entry(slice.shift).or_insert(next);
                    index_of.len() <= shifts_max
                });
                let (batch, later) = rest.split_at(fitting.count());
                index_of.retain(|_, index| *index < shifts_max);
                let mut shifts: Vec<(usize, i64)> =
                    index_of.iter().map(|(shift, index)| (*index, *shift)).collect();
                shifts.sort_unstable();
                let questions: Vec<ScanQueries> =
                    shifts.iter().map(|&(_, shift)| self.rotated(encoded, heads.clone(), shift)).collect();
                let look = |slice: &BlockSlice| {
                    let question = &questions[index_of[&slice.shift]];
                    (*slice, Look { question, block: &blocks.blocks[slice.block], tokens: slice.tokens })
                };
                results.push(scan(&batch.iter().map(look).collect::<Vec<_>>())?);
                rest = later;
            }
        }
        Some(results)
    }

    /// Returns the query vectors of some heads for keys that a view shifts by `shift` positions. Rotating the
    /// vectors back has the same effect as rotating all keys forward.
    fn rotated(&self, encoded: &EncodedQuestion, heads: Range<usize>, shift: i64) -> ScanQueries {
        let mut vectors = encoded.vectors.slice(s![heads.clone(), .., ..]).to_owned();
        let planes = &self.planes[heads];
        if let Some(KeyRotation { rotary, layout }) = self.rotation.as_ref().filter(|_| shift != 0) {
            let (rotations, dim) = (rotary.shift(-shift), vectors.len_of(Axis(2)));
            for (mut of_head, &plane) in vectors.outer_iter_mut().zip(planes) {
                let of_head = of_head.as_slice_mut().expect("a new array is contiguous");
                rotations.of_layer(layout.layer(plane)).apply_to_all(of_head, dim);
            }
        }
        ScanQueries::new(vectors, planes)
    }
}

/// The blocks of one view as the past of a decoder's question: keys and values are decoded on demand, and
/// keys are rotated to their positions in the view.
pub struct BlocksAsPast<'a> {
    slices: Vec<PastSlice<'a>>,
    rotations: SliceRotations,
    positions: Vec<i64>,
    question_position: i64,
    head_dim: usize,
    layout: PlaneLayout,
    cancel: &'a Cancel,
}

struct PastSlice<'a> {
    block: &'a Block,
    tokens: TokenSpan,
}

/// `[slice]`: the rotation of the slice's keys in each layer; `None` if they are not shifted.
pub(super) type SliceRotations = Arc<[Option<LayerRotations>]>;

impl<'a> BlocksAsPast<'a> {
    /// Returns the past that consists of the slices of `view`, whose keys `rotations` move. The past tells the model to stop
    /// when `cancel` does.
    pub(super) fn new(
        view: &View,
        rotations: SliceRotations,
        blocks: &'a Blocks,
        model: &ModelInfo,
        decoder: &DecoderInfo,
        cancel: &'a Cancel,
    ) -> Self {
        let first = decoder.prefix_tokens() as i64;
        let past_slice =
            |slice: &BlockSlice| PastSlice { block: &blocks.blocks[slice.block], tokens: slice.tokens };
        let positions = view.slices.iter().flat_map(|slice| {
            let start = first + slice.shift;
            start..start + slice.tokens.len() as i64
        });
        Self {
            positions: positions.collect(),
            slices: view.slices.iter().map(past_slice).collect(),
            rotations,
            question_position: view.question_position,
            head_dim: model.head_dim,
            layout: decoder.planes(),
            cancel,
        }
    }
}

impl Past for BlocksAsPast<'_> {
    fn positions(&self) -> &[i64] {
        &self.positions
    }

    fn question_position(&self) -> i64 {
        self.question_position
    }

    fn read_plane(&self, plane: usize, mut out: &mut [f32]) {
        let (is_key, layer) = (self.layout.is_key(plane), self.layout.layer(plane));
        let mut parts = Vec::with_capacity(self.slices.len());
        for (past, rotations) in self.slices.iter().zip(&*self.rotations) {
            let (part, rest) = out.split_at_mut(past.tokens.len() * self.head_dim);
            parts.push((past, rotations, part));
            out = rest;
        }
        let read = |(past, rotations, part): (&PastSlice, &Option<LayerRotations>, &mut [f32])| {
            past.block.read_plane(plane, past.tokens, part);
            if let Some(rotations) = rotations.as_ref().filter(|_| is_key) {
                rotations.of_layer(layer).apply(part, self.head_dim);
            }
        };
        parts.into_par_iter().with_min_len(SLICES_PER_TASK_MIN).for_each(read);
    }

    fn go_on(&self) -> bool {
        self.cancel.go_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(lengths: &[usize]) -> Vec<(usize, TokenSpan)> {
        lengths.iter().map(|&tokens| TokenSpan::new(0, tokens)).enumerate().collect()
    }

    #[test]
    fn slices_are_positioned_by_the_placement() {
        use Placement::{Parallel, Sequence};
        let check =
            |name: &str, (placement, is_movable), lengths: &[usize], shifts: &[i64], position: i64| {
                let view = View::of_group(&group(lengths), 1, placement, is_movable);
                let found: Vec<i64> = view.slices.iter().map(|slice| slice.shift).collect();
                assert_eq!((&found[..], view.question_position), (shifts, position), "{name}");
            };
        check("parallel: each ends where the question begins", (Parallel, true), &[3, 5, 1], &[2, 0, 4], 6);
        check("sequence: one after the other", (Sequence, true), &[3, 5, 1], &[0, 3, 8], 10);
        check("parallel with learned positions", (Parallel, false), &[3, 5, 1], &[0, 0, 0], 6);
        check("sequence with learned positions", (Sequence, false), &[3, 5, 1], &[0, 0, 0], 6);
        check("no slices", (Parallel, true), &[], &[], 1);
        check("a slice without tokens", (Sequence, true), &[0, 2], &[0, 0], 3);
    }
}
