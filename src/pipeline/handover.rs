//! Chunks as a language model of the same weights takes them over: one behind the other, and of each the keys that a question's RC
//! reaches.
//! Knows nothing of files or transports.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array1, Array2, Array3, ArrayView2, Axis, s};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::blocks::Blocks;
use super::cancel::Cancel;
use super::question::{BlocksAsPast, Piece, Placement, View, views};
use super::tokenize;
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::domain::{ByteRange, Chunk, TokenSpan};
use crate::kv::block::Block;
use crate::model::{DecoderInfo, Encoded, Kept, ModelError, ModelInfo, Past, Said};
use crate::rc;

/// Blocks of chunks at the places that a language model has them at: behind its first tokens, one behind the other.
pub struct Handover {
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

    /// The tokens of each sentence; those of titles are in none.
    fn sentences(&self) -> Vec<TokenSpan> {
        let of_block = |(block, span): (&Block, &TokenSpan)| {
            let shifted: Vec<TokenSpan> = block.sentences().map(|s| s.tokens.shifted(span.start)).collect();
            shifted
        };
        let spans = self.blocks.blocks.iter().zip(&self.blocks.spans).flat_map(of_block);
        spans.filter(|span| !span.is_empty()).collect()
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
        Ok(Handover { blocks, view, tokens, next_place })
    }

    /// The keys that each head keeps of what is handed over: the sentences that a question finds, and what it asks of each head.
    ///
    /// # Errors
    /// [`InvalidRequest::KvBudgetTooSmall`]; else as [`Pipeline::read`].
    pub fn evict(
        &self,
        handover: &Handover,
        question: &[u32],
        eviction: &Eviction,
        cancel: &Cancel,
    ) -> Result<Kept, PipelineError> {
        let always = eviction.always(handover.tokens.len(), self.model.prefix().len_of(Axis(1)));
        eviction.check(handover.tokens.len(), &always)?;
        let asked = self.ask(handover, question, cancel)?;
        let segments = asked.sentences();
        cancel.check()?;
        let scores = asked.keys(|x, _| rc::peak_over_queries(x));
        cancel.check()?;
        Ok(kept(scores, &segments, &always, eviction.keep))
    }

    /// Reads `question` over what is handed over, in all heads of all layers.
    ///
    /// # Errors
    /// As [`Pipeline::read`].
    pub fn ask<'a>(
        &'a self,
        handover: &'a Handover,
        question: &[u32],
        cancel: &'a Cancel,
    ) -> Result<AskedOver<'a>, PipelineError> {
        let info = self.model.info();
        let decoder = check_model(info)?;
        let past = handover.past(info, cancel);
        match self.model.question_in_all_heads(question, &past) {
            Err(ModelError::Stopped) => {
                Err(cancel.check().expect_err("a question stops only when nobody waits"))
            }
            encoded => Ok(AskedOver { handover, decoder, past, encoded: encoded?, head_dim: info.head_dim }),
        }
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

/// A question in all heads, over what is handed over.
pub struct AskedOver<'a> {
    handover: &'a Handover,
    decoder: &'a DecoderInfo,
    past: BlocksAsPast<'a>,
    encoded: Encoded,
    head_dim: usize,
}

impl AskedOver<'_> {
    /// What each key of each key head is worth: `score` is given a query head's raw logits `[question_token, key]` and those over the
    /// question's own keys; the best of the query heads that share a key head counts. `[layer, kv_head, key]`
    pub fn keys(
        &self,
        score: impl Fn(ArrayView2<f32>, ArrayView2<f32>) -> Array1<f32> + Sync,
    ) -> Array3<f32> {
        let DecoderInfo { layers, kv_heads, .. } = *self.decoder;
        let of_kv_head = |kv_head: usize| {
            let mut best = Array1::zeros(self.handover.tokens.len());
            self.each_head(kv_head, |head, x| {
                let own = self.encoded.own(head..head + 1);
                best.zip_mut_with(&score(x.view(), own.index_axis(Axis(0), 0)), |best: &mut f32, &one| {
                    *best = best.max(one);
                });
            });
            best
        };
        let rows: Vec<Array1<f32>> = (0..layers * kv_heads).into_par_iter().map(of_kv_head).collect();
        let mut scores = Array3::zeros((layers, kv_heads, self.handover.tokens.len()));
        scores.rows_mut().into_iter().zip(rows).for_each(|(mut to, row)| to.assign(&row));
        scores
    }

    /// The sentences, by how far the last token of the question, behind which the answer begins, has each above its rivals in the head
    /// that tells them apart best.
    ///
    /// No head has to be chosen for this: a head that finds something is sure of it in its own units, and one that finds nothing is not.
    pub fn sentences(&self) -> Vec<rc::Segment> {
        let DecoderInfo { layers, kv_heads, .. } = *self.decoder;
        let spans = self.handover.sentences();
        let of_kv_head = |kv_head: usize| {
            let mut best = vec![0.0_f32; spans.len()];
            self.each_head(kv_head, |_, x| {
                let Some(last) = x.outer_iter().next_back() else { return };
                let found = rc::ranked_segments(last, &spans);
                best.iter_mut().zip(found).for_each(|(best, one)| *best = best.max(one));
            });
            best
        };
        let rows: Vec<Vec<f32>> = (0..layers * kv_heads).into_par_iter().map(of_kv_head).collect();
        let best = |at: usize| rows.iter().map(|row| row[at]).fold(0.0, f32::max);
        spans.iter().enumerate().map(|(at, &keys)| rc::Segment { keys, rc: best(at) }).collect()
    }

    /// Gives `each` the raw logits `[question_token, key]` of the query heads that share a key head, counted over all layers.
    fn each_head(&self, kv_head: usize, mut each: impl FnMut(usize, Array2<f32>)) {
        let DecoderInfo { heads, kv_heads, .. } = *self.decoder;
        let (layer, group) = (kv_head / kv_heads, heads / kv_heads);
        let mut plane = Array2::zeros((self.handover.tokens.len(), self.head_dim));
        let values = plane.as_slice_mut().expect("a new array is contiguous");
        self.past.read_plane(2 * layer * kv_heads + kv_head % kv_heads, values);
        let first = layer * heads + kv_head % kv_heads * group;
        for head in first..first + group {
            each(head, self.encoded.vectors.slice(s![head, .., ..]).dot(&plane.t()));
        }
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
