//! Export of keys and values: positions the blocks of chunks one after the other, as a language model with
//! the same weights expects them in its cache. Knows nothing of files and transports, nor of which keys each
//! head keeps.

use std::sync::Arc;

use ndarray::Axis;

use super::blocks::Blocks;
use super::cancel::Cancel;
use super::question::{BlocksAsPast, Placement, View, views};
use super::tokenize;
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::domain::{ByteRange, Chunk};
use crate::model::{DecoderInfo, ModelInfo, Past};

/// The blocks of chunks at consecutive positions after the special tokens that begin every text of the model.
pub struct KvExport {
    blocks: Blocks,
    view: View,
    /// The exported tokens in order, without the special tokens at the beginning.
    pub tokens: Vec<KvExportToken>,
    /// The position of the next token: the number of special and exported tokens.
    pub next_position: usize,
}

/// An exported token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvExportToken {
    pub id: u32,
    /// The index of its chunk among the exported chunks.
    pub chunk: usize,
    /// The index of its window. The tokens of a window attended to each other and to nothing else when the
    /// model read them.
    pub window: usize,
    /// The byte range of the token in the chunk's text; `None` for tokens of the title.
    pub bytes: Option<ByteRange>,
}

/// Checks that the keys and values of a model can be exported.
///
/// # Errors
/// Returns [`InvalidRequest::KvOfEncoder`] for an encoder, [`InvalidRequest::KvLayersMissing`] for a decoder
/// of which not all layers are loaded, [`InvalidRequest::KvPositionsLearned`] for one without rotary
/// positions, and [`InvalidRequest::KvWeightsUnknown`] for one whose contract does not identify its weights.
pub fn check_model(info: &ModelInfo) -> Result<&DecoderInfo, InvalidRequest> {
    let model = || info.name.clone();
    let decoder = info.decoder.as_ref().ok_or_else(|| InvalidRequest::KvOfEncoder { model: model() })?;
    match decoder {
        DecoderInfo { depth, layers, .. } if depth < layers => {
            Err(InvalidRequest::KvLayersMissing { model: model(), depth: *depth, layers: *layers })
        }
        DecoderInfo { rotary: None, .. } => Err(InvalidRequest::KvPositionsLearned { model: model() }),
        DecoderInfo { weights: None, .. } => Err(InvalidRequest::KvWeightsUnknown { model: model() }),
        _ => Ok(decoder),
    }
}

impl KvExport {
    /// Writes one plane to `out`, `[token, head_dim]`, for the special tokens at the beginning and then the
    /// exported tokens. A plane holds the keys of one key head of a layer, rotated to their positions, or its
    /// values; [`PlaneLayout`](crate::model::PlaneLayout) says how planes are numbered.
    pub fn read_plane(&self, pipeline: &Pipeline, plane: usize, out: &mut [f32]) {
        let cancel = Cancel::default();
        let (prefix, rest) = out.split_at_mut(self.prefix_values(pipeline));
        let prefix_plane = pipeline.model.prefix();
        let prefix_plane = prefix_plane.index_axis(Axis(0), plane);
        prefix.iter_mut().zip(prefix_plane).for_each(|(to, from)| *to = *from);
        self.past(pipeline.model.info(), &cancel).read_plane(plane, rest);
    }

    /// Returns the size of all blocks in bytes, as they are cached.
    pub fn block_bytes(&self) -> usize {
        self.blocks.blocks.iter().map(|block| block.bytes().len()).sum()
    }

    /// Returns how many values the special tokens at the beginning have in one plane.
    fn prefix_values(&self, pipeline: &Pipeline) -> usize {
        let (_, tokens, dim) = pipeline.model.prefix().dim();
        tokens * dim
    }

    /// Returns the exported blocks as the past of a question.
    pub fn past<'a>(&'a self, info: &'a ModelInfo, cancel: &'a Cancel) -> BlocksAsPast<'a> {
        let decoder = info.decoder.as_ref().expect("only decoders have exports");
        BlocksAsPast::new(&self.view, &self.blocks, info, decoder, cancel)
    }
}

impl Pipeline {
    /// Returns the keys and values of `chunks` for export, in this order. The model's context must have room
    /// for `tokens_after` more tokens after them, such as those of the question.
    ///
    /// # Errors
    /// Returns the error of [`check_model`] if the model's keys and values cannot be exported, and
    /// [`InvalidRequest::KvTooLong`] if the model's context does not hold all chunks together; otherwise
    /// fails as [`Pipeline::read`] does.
    pub fn kv_export(
        &self,
        chunks: &[Arc<Chunk>],
        tokens_after: usize,
        cancel: &Cancel,
    ) -> Result<KvExport, PipelineError> {
        let info = self.model.info();
        let decoder = check_model(info)?;
        let tokenized = chunks.iter().map(|chunk| tokenize::chunk(chunk, &self.tokenizer));
        let tokenized = tokenized.collect::<Result<Vec<_>, _>>()?;
        cancel.check()?;
        // Too many tokens are refused before the model reads any.
        let found = tokenized.iter().map(|passage| passage.ids.len()).sum();
        let max = decoder.context_tokens_max.saturating_sub(decoder.prefix_tokens() + tokens_after);
        if found > max {
            return Err(InvalidRequest::KvTooLong { found, max, after: tokens_after }.into());
        }
        // Every key is exported with the id of its token. A block that another program wrote to a disk or a
        // server may have more or fewer keys than its chunk has tokens; such a block is not used.
        let blocks = self.reader.blocks_of_tokenized(chunks, &tokenized, cancel)?;
        cancel.check()?;
        let mut tokens = Vec::with_capacity(blocks.tokens());
        let mut windows = 0;
        for (chunk, passage) in tokenized.iter().enumerate() {
            for (i, &id) in passage.ids.iter().enumerate() {
                let bytes = i.checked_sub(passage.title_tokens).map(|i| passage.offsets[i]);
                let window = windows + i / info.window_tokens_max;
                tokens.push(KvExportToken { id, chunk, window, bytes });
            }
            windows += passage.ids.len().div_ceil(info.window_tokens_max);
        }
        let mut views = views(&blocks, info, decoder, tokens_after, Placement::Sequence);
        let view = views.pop().expect("there is always a view");
        debug_assert!(views.is_empty(), "blocks that fit into the context are one view");
        let next_position = decoder.prefix_tokens() + tokens.len();
        // Whoever keeps the export counts its bytes.
        let blocks = blocks.counted_elsewhere();
        Ok(KvExport { blocks, view, tokens, next_position })
    }
}
