//! Chunks as a language model of the same weights takes them over: one behind the other.
//! Knows nothing of files or transports, nor of which keys each head keeps.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, Axis, s};

use super::blocks::Blocks;
use super::cancel::Cancel;
use super::question::{BlockSlice, BlocksAsPast, Placement, View, views};
use super::tokenize::{self, Passage};
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::domain::{ByteRange, Chunk};
use crate::kv::block::Block;
use crate::model::{DecoderInfo, ModelInfo, Past};

/// Blocks of chunks at the positions that a language model has them at: behind its first tokens, one behind the other.
pub struct KvExport {
    blocks: Blocks,
    view: View,
    /// One for each token, in order, special tokens in front not included.
    pub tokens: Vec<KvExportToken>,
    /// The position of the first token behind them.
    pub next_position: usize,
}

/// A token that is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvExportToken {
    /// Its id in the vocabulary.
    pub id: u32,
    /// Index of its chunk among those that are handed over.
    pub chunk: usize,
    /// Number of its window: what was read together sees itself, and nothing else.
    pub window: usize,
    /// Bytes of the chunk's text under it; none for tokens of a title.
    pub bytes: Option<ByteRange>,
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

impl KvExport {
    /// Planes `[token, head_dim]`, each of a layer's keys, then each of its values, with what stands in front of them: keys turned to
    /// their positions.
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
        let slice = |slice: &&BlockSlice| {
            let start = self.blocks.spans[slice.block].start + slice.tokens.start;
            (start..start + slice.tokens.len()) == tokens
        };
        let slice = self.view.slices.iter().find(slice).expect("a window is a slice");
        let own = keys.as_slice_mut().expect("a new array is contiguous");
        self.blocks.blocks[slice.block].read_plane(plane, slice.tokens, &mut own[prefix * dim..]);
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
    pub fn kv_export(
        &self,
        chunks: &[Arc<Chunk>],
        beside: usize,
        cancel: &Cancel,
    ) -> Result<KvExport, PipelineError> {
        let info = self.model.info();
        let decoder = check_model(info)?;
        let mut blocks = self.reader.blocks(chunks, &self.settings.limits, cancel)?;
        cancel.check()?;
        let passages = chunks.iter().map(|chunk| tokenize::passage(chunk, &self.tokenizer));
        let passages = passages.collect::<Result<Vec<_>, _>>()?;
        // Every key is handed over with the id of its token. A block that another program wrote to a disk or to a server may have
        // more or fewer keys than its chunk has tokens.
        let fits = |(block, passage): (&Block, &Passage)| block.token_counts() == passage.token_counts();
        if !blocks.blocks.iter().zip(&passages).all(fits) {
            blocks = self.reader.blocks_of_passages(chunks, &passages, &self.settings.limits, cancel)?;
        }
        let room = decoder.context_tokens_max.saturating_sub(decoder.prefix_tokens() + beside);
        if blocks.tokens() > room {
            return Err(InvalidRequest::KvTooLong { found: blocks.tokens(), max: room }.into());
        }
        let mut tokens = Vec::with_capacity(blocks.tokens());
        let mut windows = 0;
        for (index, passage) in passages.iter().enumerate() {
            for (i, &id) in passage.ids.iter().enumerate() {
                let bytes = i.checked_sub(passage.title_tokens).map(|i| passage.offsets[i]);
                let window = windows + i / info.window_tokens_max;
                tokens.push(KvExportToken { id, chunk: index, window, bytes });
            }
            windows += passage.ids.len().div_ceil(info.window_tokens_max);
        }
        let mut views = views(&blocks, (info, decoder), beside, Placement::Sequence);
        let view = views.pop().expect("a question always has a view");
        debug_assert!(views.is_empty(), "what fits is one group");
        let next_position = decoder.prefix_tokens() + tokens.len();
        Ok(KvExport { blocks, view, tokens, next_position })
    }
}
