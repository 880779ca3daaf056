//! Chunks as a language model of the same weights takes them over: one behind the other, and of each the keys that a question's RC
//! reaches.
//! Knows nothing of files or transports.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView2, Axis, s};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::blocks::Blocks;
use super::cancel::Cancel;
use super::question::{BlocksAsPast, Piece, Placement, View, views};
use super::tokenize;
use super::units::Unit;
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::domain::{ByteRange, Chunk, Granularity};
use crate::model::{DecoderInfo, Kept, ModelError, ModelInfo, Past, Said};
use crate::rc;

/// Blocks of chunks at the places that a language model has them at: behind its first tokens, one behind the other.
pub struct Handover {
    chunks: Vec<Arc<Chunk>>,
    blocks: Blocks,
    view: View,
    /// One for each token, in order, special tokens in front not included.
    pub tokens: Vec<HandoverToken>,
    /// The place of the first token behind them.
    pub next_place: usize,
}

/// A token that is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoverToken {
    /// Its id in the vocabulary.
    pub id: u32,
    /// Index of its chunk among those that are handed over.
    pub chunk: usize,
    /// Number of its window: what was read together sees itself, and nothing else.
    pub window: usize,
    /// Bytes of the chunk's text under it; none for tokens of a title.
    pub bytes: Option<ByteRange>,
}

/// Which keys of each head are handed over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Eviction {
    /// How much is kept.
    pub keep: HeadBudget,
    /// Tokens at the front that every head keeps, special tokens included.
    pub sinks: usize,
    /// Tokens at the end that every head keeps.
    pub recent: usize,
}

/// How much the heads keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadBudget {
    /// In each head the fewest keys that carry this share of its RC.
    Mass(f64),
    /// This share of all keys, shared out among the heads by RC.
    Ratio(f64),
}

impl Eviction {
    /// Tokens at the front that every head keeps unless a request says otherwise.
    pub const SINKS: usize = 4;
    /// Tokens at the end that every head keeps unless a request says otherwise.
    pub const RECENT: usize = 4;
}

/// Whether a model has something to hand over.
///
/// # Errors
/// [`InvalidRequest::KvOfEncoder`], [`InvalidRequest::KvLayersMissing`], [`InvalidRequest::KvFixed`],
/// [`InvalidRequest::KvUnnamed`].
pub fn check_model(info: &ModelInfo) -> Result<&DecoderInfo, InvalidRequest> {
    let model = || info.name.clone();
    let decoder = info.decoder.as_ref().ok_or_else(|| InvalidRequest::KvOfEncoder { model: model() })?;
    match decoder {
        DecoderInfo { depth, layers, .. } if depth < layers => {
            Err(InvalidRequest::KvLayersMissing { model: model(), depth: *depth, layers: *layers })
        }
        DecoderInfo { rotary: None, .. } => Err(InvalidRequest::KvFixed { model: model() }),
        DecoderInfo { weights: None, .. } => Err(InvalidRequest::KvUnnamed { model: model() }),
        _ => Ok(decoder),
    }
}

impl Handover {
    /// Planes `[token, head_dim]`, each of a layer's keys, then each of its values, with what stands in front of them: keys turned to
    /// their places.
    pub fn read_plane(&self, pipeline: &Pipeline, plane: usize, out: &mut [f32]) {
        let cancel = Cancel::default();
        let (prefix, rest) = out.split_at_mut(self.prefix_values(pipeline));
        let of_prefix = pipeline.model.prefix();
        prefix.iter_mut().zip(of_prefix.index_axis(Axis(0), plane)).for_each(|(to, from)| *to = *from);
        self.past(pipeline.model.info(), &cancel).read_plane(plane, rest);
    }

    /// Bytes of the blocks.
    pub fn block_bytes(&self) -> usize {
        self.blocks.blocks.iter().map(|block| block.bytes().len()).sum()
    }

    fn prefix_values(&self, pipeline: &Pipeline) -> usize {
        let (_, tokens, dim) = pipeline.model.prefix().dim();
        tokens * dim
    }

    /// Keys of one window's tokens as they were read, behind the special tokens: `[token, head_dim]`.
    pub fn window_keys(&self, pipeline: &Pipeline, plane: usize, tokens: Range<usize>) -> Array2<f32> {
        let (_, prefix, dim) = pipeline.model.prefix().dim();
        let mut keys = Array2::zeros((prefix + tokens.len(), dim));
        keys.slice_mut(s![..prefix, ..]).assign(&pipeline.model.prefix().index_axis(Axis(0), plane));
        let piece = |piece: &&Piece| {
            let start = self.blocks.spans[piece.block].start + piece.tokens.start;
            (start..start + piece.tokens.len()) == tokens
        };
        let piece = self.view.pieces.iter().find(piece).expect("a window is a piece");
        let own = keys.as_slice_mut().expect("a new array is contiguous");
        self.blocks.blocks[piece.block].read_plane(plane, piece.tokens, &mut own[prefix * dim..]);
        keys
    }

    /// This as a question looks back on it.
    pub fn past<'a>(&'a self, info: &'a ModelInfo, cancel: &'a Cancel) -> BlocksAsPast<'a> {
        let decoder = info.decoder.as_ref().expect("only a decoder's are made");
        BlocksAsPast::new(&self.view, &self.blocks, (info, decoder), cancel)
    }
}

impl Pipeline {
    /// The blocks of `chunks` as they are handed over, in this order. `beside` tokens have to fit behind them.
    ///
    /// # Errors
    /// A model that has nothing to hand over, chunks that its context does not hold together; else as [`Pipeline::read`].
    pub fn handover(
        &self,
        chunks: &[Arc<Chunk>],
        beside: usize,
        cancel: &Cancel,
    ) -> Result<Handover, PipelineError> {
        let info = self.model.info();
        let decoder = check_model(info)?;
        let blocks = self.reader.blocks(chunks, &self.settings.limits, cancel)?;
        cancel.check()?;
        let room = decoder.context_tokens_max.saturating_sub(decoder.prefix_tokens() + beside);
        if blocks.tokens() > room {
            return Err(InvalidRequest::KvTooLong { found: blocks.tokens(), max: room }.into());
        }
        let mut tokens = Vec::with_capacity(blocks.tokens());
        let mut windows = 0;
        for (index, chunk) in chunks.iter().enumerate() {
            let passage = tokenize::passage(chunk, &self.tokenizer)?;
            for (i, &id) in passage.ids.iter().enumerate() {
                let bytes = i.checked_sub(passage.title_tokens).map(|i| passage.offsets[i]);
                let window = windows + i / info.window_tokens_max;
                tokens.push(HandoverToken { id, chunk: index, window, bytes });
            }
            windows += passage.ids.len().div_ceil(info.window_tokens_max);
        }
        let mut views = views(&blocks, (info, decoder), beside, Placement::Sequence);
        let view = views.pop().expect("a question always has a view");
        debug_assert!(views.is_empty(), "what fits is one group");
        let next_place = decoder.prefix_tokens() + tokens.len();
        Ok(Handover { chunks: chunks.to_vec(), blocks, view, tokens, next_place })
    }

    /// The keys that each head keeps of what is handed over: the sentences that answer `query` best, and what it asks of each head.
    ///
    /// # Errors
    /// [`InvalidRequest::KvBudgetTooSmall`]; else as [`Pipeline::read`].
    pub fn evict(
        &self,
        handover: &Handover,
        query: &str,
        eviction: &Eviction,
        cancel: &Cancel,
    ) -> Result<Kept, PipelineError> {
        let always = eviction.always(handover.tokens.len(), self.model.prefix().len_of(Axis(1)));
        eviction.check(handover.tokens.len(), &always)?;
        if handover.tokens.is_empty() {
            let decoder = check_model(self.model.info())?;
            return Ok(Kept::new(Array3::from_elem((decoder.layers, decoder.kv_heads, 0), true)));
        }
        let (reading, scores) = self.scored(query, &handover.chunks, Granularity::Sentence, cancel)?;
        let rc = rc::mean_over_queries(scores.unit_rc.view());
        let segment = |(unit, rc): (&Unit, f32)| rc::Segment { keys: unit.tokens, rc };
        let segments: Vec<rc::Segment> = reading.units.iter().zip(rc).map(segment).collect();
        let question = &reading.tokens.ids;
        let scores = self.key_scores(handover, question, cancel, |x, _| rc::peak_over_queries(x))?;
        Ok(kept(scores, &segments, &always, eviction.keep))
    }

    /// What each key of each key head is worth: `score` is given a query head's raw logits `[question_token, key]` and those over the
    /// question's own keys; the best of the query heads that share a key head counts. `[layer, kv_head, key]`
    ///
    /// # Errors
    /// As [`Pipeline::read`].
    pub fn key_scores(
        &self,
        handover: &Handover,
        question: &[u32],
        cancel: &Cancel,
        score: impl Fn(ArrayView2<f32>, ArrayView2<f32>) -> ndarray::Array1<f32> + Sync,
    ) -> Result<Array3<f32>, PipelineError> {
        let info = self.model.info();
        let decoder = check_model(info)?;
        let past = handover.past(info, cancel);
        let encoded = match self.model.question_in_all_heads(question, &past) {
            Err(ModelError::Stopped) => {
                return Err(cancel.check().expect_err("a question stops only when nobody waits"));
            }
            encoded => encoded?,
        };
        let (keys, dim) = (handover.tokens.len(), info.head_dim);
        let group = decoder.heads / decoder.kv_heads;
        let mut scores = Array3::zeros((decoder.layers, decoder.kv_heads, keys));
        let mut rows: Vec<_> = scores.rows_mut().into_iter().enumerate().collect();
        rows.par_iter_mut().for_each(|(row, best)| {
            let (layer, kv_head) = (*row / decoder.kv_heads, *row % decoder.kv_heads);
            let mut plane = Array2::zeros((keys, dim));
            let values = plane.as_slice_mut().expect("a new array is contiguous");
            past.read_plane(2 * layer * decoder.kv_heads + kv_head, values);
            for head in kv_head * group..(kv_head + 1) * group {
                let head = layer * decoder.heads + head;
                let x = encoded.vectors.slice(s![head, .., ..]).dot(&plane.t());
                let own = encoded.own(head..head + 1);
                let of_head = score(x.view(), own.index_axis(Axis(0), 0));
                best.zip_mut_with(&of_head, |best: &mut f32, &one| *best = best.max(one));
            }
        });
        cancel.check()?;
        Ok(scores)
    }

    /// What the model says behind each of `tokens` where it has taken `kept` of this over, and what it asks with.
    ///
    /// # Errors
    /// What the model reports.
    pub fn tell(
        &self,
        handover: &Handover,
        tokens: &[u32],
        kept: Option<&Kept>,
    ) -> Result<Said, PipelineError> {
        let cancel = Cancel::default();
        Ok(self.model.tell(tokens, &handover.past(self.model.info(), &cancel), kept)?)
    }
}

/// Draws the line under scores `[layer, kv_head, key]`, and under `segments` of keys.
pub fn kept(scores: Array3<f32>, segments: &[rc::Segment], always: &[bool], keep: HeadBudget) -> Kept {
    let (layers, kv_heads, keys) = scores.dim();
    let scores = scores.into_shape_with_order((layers * kv_heads, keys)).expect("the same values");
    let how = match keep {
        HeadBudget::Mass(share) => rc::Keep::Mass(share),
        HeadBudget::Ratio(share) => rc::Keep::Count((scores.len() as f64 * share) as usize),
    };
    let kept = rc::keep(scores.view(), segments, always, how);
    Kept::new(kept.into_shape_with_order((layers, kv_heads, keys)).expect("the same values"))
}

impl Eviction {
    /// `[token]`: what every head keeps, of `tokens` behind so many special ones.
    pub fn always(&self, tokens: usize, prefix: usize) -> Vec<bool> {
        let sinks = self.sinks.saturating_sub(prefix);
        (0..tokens).map(|token| token < sinks || token + self.recent >= tokens).collect()
    }

    fn check(&self, tokens: usize, always: &[bool]) -> Result<(), InvalidRequest> {
        let (share, field) = match self.keep {
            HeadBudget::Mass(share) => (share, "mass"),
            HeadBudget::Ratio(share) => (share, "ratio"),
        };
        if !(share > 0.0 && share <= 1.0) {
            return Err(InvalidRequest::KvShareOutOfRange { share, field });
        }
        let fixed = always.iter().filter(|kept| **kept).count();
        let budget = (tokens as f64 * share) as usize;
        match self.keep {
            HeadBudget::Ratio(_) if budget < fixed => {
                let last = self.recent.min(tokens);
                Err(InvalidRequest::KvBudgetTooSmall { budget, tokens, first: fixed - last, last })
            }
            _ => Ok(()),
        }
    }
}
