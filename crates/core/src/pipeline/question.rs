//! The question as the model sees it: vectors whose products with keys are its raw logits. A decoder's question looks back on the
//! blocks, in groups that its context holds.

mod past;
mod position;

use std::collections::HashMap;
use std::ops::Range;

use ndarray::{Array3, Axis, concatenate, s};

pub use self::past::BlocksAsPast;
pub use self::position::{Placement, View, views};
use super::PipelineError;
use super::blocks::{self, Blocks};
use super::cancel::Cancel;
use super::validate::RequestLimits;
use crate::domain::TokenSpan;
use crate::kv::scan::{self, Look};
use crate::model::contract::Rotary;
use crate::model::{
    DecoderInfo, EncodedQuestion, ModelError, ModelInfo, ModelRuntime, NoPast, Past, SelfAttention,
};

/// Values of questions, turned differently, that are ready at once: 32 MiB of them, and a quarter more in eight bits.
const TURNED_AT_ONCE: usize = 8 << 20;

/// A question that has been through the model.
#[derive(Debug, Clone, Default)]
pub struct QuestionViews {
    /// `[head]`: planes of its keys.
    planes: Vec<usize>,
    rotary: Option<Rotary>,
    /// What it saw, and what became of it there; together all tokens of all blocks, in order. A late model's question sees everything
    /// at once.
    views: Vec<(View, EncodedQuestion)>,
}

/// A slice of a block, as one view of the question meets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSlice {
    /// Index of the block.
    pub block: usize,
    /// Its tokens, counted from the block's first.
    pub tokens: TokenSpan,
    /// How many positions further than its keys lie the question met it.
    pub moved: i64,
}

/// How questions are read.
#[derive(Clone, Copy)]
pub struct EncodeContext<'a> {
    /// By whom.
    pub model: &'a dyn ModelRuntime,
    /// How a decoder's blocks stand in front of them.
    pub placement: Placement,
    /// Bounds of a request.
    pub limits: &'a RequestLimits,
    /// Who waits.
    pub cancel: &'a Cancel,
    /// Whether others are read at the same time for the same request.
    pub side_by_side: bool,
}

impl EncodeContext<'_> {
    fn question(&self, ids: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        match self.side_by_side {
            true => self.model.question_beside(ids, past),
            false => self.model.question(ids, past),
        }
    }
}

/// Reads `ids`, whatever their number.
///
/// # Errors
/// What the model reports; a deadline when `cancel` says so.
pub fn encode(ids: &[u32], blocks: &Blocks, context: EncodeContext) -> Result<QuestionViews, PipelineError> {
    let info = context.model.info();
    let views = match &info.decoder {
        None => vec![(View::of_all(blocks), alone(ids, context)?)],
        Some(decoder) => looking_back(ids, blocks, context, decoder)?,
    };
    let rotary = info.decoder.as_ref().and_then(|decoder| decoder.rotary.clone());
    Ok(QuestionViews { planes: info.readout.clone(), rotary, views })
}

/// A late model's question, apart from the blocks: one that is longer than a window is read in windows, as a chunk is.
fn alone(ids: &[u32], context: EncodeContext) -> Result<EncodedQuestion, PipelineError> {
    let model = context.model;
    let windows: Vec<&[u32]> = ids.chunks(model.info().window_tokens_max).collect();
    let read = |window: &&[u32]| context.question(window, &NoPast);
    let mut parts = windows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    let vectors: Vec<_> = parts.iter().map(|part| part.vectors.view()).collect();
    let vectors = concatenate(Axis(1), &vectors).expect("windows of one model differ in length only");
    // Its own logits reach across windows, which no window has seen: they are taken over the keys of all.
    let keys = blocks::keys_of(&windows, model)?.select(Axis(0), &model.info().readout);
    Ok(EncodedQuestion { vectors, self_attention: SelfAttention::Keys(keys) })
}

/// A decoder's question, over each group of blocks that fits its context.
fn looking_back(
    ids: &[u32],
    blocks: &Blocks,
    context: EncodeContext,
    decoder: &DecoderInfo,
) -> Result<Vec<(View, EncodedQuestion)>, PipelineError> {
    let EncodeContext { model, placement, limits, cancel, .. } = context;
    let views = position::views(blocks, (model.info(), decoder), ids.len(), placement);
    limits.check_groups(views.len(), (ids.len(), model.info().readout.len(), model.info().head_dim))?;
    let look = |view: View| {
        let past = BlocksAsPast::new(&view, blocks, (model.info(), decoder), cancel);
        match context.question(ids, &past) {
            Ok(encoded) => Ok((view, encoded)),
            Err(ModelError::Stopped) => {
                Err(cancel.check().expect_err("a question stops only when nobody waits"))
            }
            Err(error) => Err(error.into()),
        }
    };
    let mut views = views.into_iter().map(look).collect::<Result<Vec<_>, PipelineError>>()?;
    // Its own keys are asked for as they were in front of the first group.
    views
        .iter_mut()
        .skip(1)
        .for_each(|(_, encoded)| encoded.self_attention = SelfAttention::Keys(Array3::zeros((0, 0, 0))));
    Ok(views)
}

/// Longest question that a model reads beside a window.
pub fn tokens_max(model: &ModelInfo) -> Option<usize> {
    model.decoder.as_ref().map(|decoder| decoder.question_tokens_max(model.window_tokens_max))
}

impl QuestionViews {
    /// Its last token alone, which has looked back on the others.
    pub fn of_last_token(&self) -> Self {
        let views = self.views.iter().map(|(view, encoded)| (view.clone(), encoded.of_last_token()));
        Self { planes: self.planes.clone(), rotary: self.rotary.clone(), views: views.collect() }
    }

    /// Heads that RC is taken over.
    pub fn heads(&self) -> usize {
        self.planes.len()
    }

    /// Tokens of the question.
    pub fn tokens(&self) -> usize {
        self.views.first().map_or(0, |(_, encoded)| encoded.vectors.len_of(Axis(1)))
    }

    /// Raw logits of some heads over the question's own keys, `[head, question_token, question_token]`: where it saw several groups,
    /// as it was in front of the first.
    pub fn self_logits(&self, heads: Range<usize>) -> Array3<f32> {
        match self.views.first() {
            Some((_, encoded)) => encoded.self_logits(heads),
            None => Array3::zeros((heads.len(), 0, 0)),
        }
    }

    /// Gives `scan` all slices in order, some at a time, each with some heads of the question as it met them; none when `scan` gave
    /// none.
    pub fn each<T>(
        &self,
        heads: Range<usize>,
        blocks: &Blocks,
        mut scan: impl FnMut(&[(BlockSlice, Look)]) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut found = Vec::new();
        for (view, encoded) in &self.views {
            let (_, tokens, dim) = encoded.vectors.dim();
            let turned_at_once = (TURNED_AT_ONCE / (heads.len() * tokens * dim).max(1)).max(1);
            let mut rest = &view.slices[..];
            while !rest.is_empty() {
                let mut turns: HashMap<i64, usize> = HashMap::new();
                let known = rest.iter().take_while(|slice| {
                    let next = turns.len();
                    turns.entry(slice.moved).or_insert(next);
                    turns.len() <= turned_at_once
                });
                let (now, later) = rest.split_at(known.count());
                turns.retain(|_, at| *at < turned_at_once);
                let mut by_turn: Vec<(usize, i64)> = turns.iter().map(|(moved, at)| (*at, *moved)).collect();
                by_turn.sort_unstable();
                let questions: Vec<scan::ScanQueries> =
                    by_turn.iter().map(|&(_, moved)| self.turned(encoded, heads.clone(), moved)).collect();
                let look = |slice: &BlockSlice| {
                    let question = &questions[turns[&slice.moved]];
                    (*slice, Look { question, block: &blocks.blocks[slice.block], tokens: slice.tokens })
                };
                found.push(scan(&now.iter().map(look).collect::<Vec<_>>())?);
                rest = later;
            }
        }
        Some(found)
    }

    /// Some heads of the question, for keys that lie so many positions before where it met them.
    fn turned(&self, encoded: &EncodedQuestion, heads: Range<usize>, moved: i64) -> scan::ScanQueries {
        let mut vectors = encoded.vectors.slice(s![heads.clone(), .., ..]).to_owned();
        if let Some(rotary) = self.rotary.as_ref().filter(|_| moved != 0) {
            let dim = vectors.len_of(Axis(2));
            rotary.turn_all(vectors.as_slice_mut().expect("a new array is contiguous"), dim, -moved);
        }
        scan::ScanQueries::new(vectors, &self.planes[heads])
    }
}
