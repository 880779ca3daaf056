//! Export of keys and values: positions the blocks of chunks one after the other, behind a text that the caller
//! may put in front of them, as a language model with the same weights expects them in its cache. Knows nothing of
//! files and transports, nor of which keys each head keeps.

use std::sync::Arc;

use ndarray::{Array3, Axis, s};

use super::blocks::Blocks;
use super::cancel::Cancel;
use super::question::{BlocksAsPast, Placement, SliceRotations, View, views};
use super::tokenize;
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::domain::{ByteRange, Chunk};
use crate::model::rotary::LayerRotations;
use crate::model::{DecoderInfo, ModelInfo, Past};

/// The blocks of chunks at consecutive positions after the special tokens that begin every text of the model.
pub struct KvExport {
    /// The keys and values of the text in front of the chunks, `[plane, token, head_dim]`.
    before: Array3<f32>,
    blocks: Blocks,
    view: View,
    /// What moves the keys of the blocks. Computing it takes longer than reading a plane.
    rotations: SliceRotations,
    /// The exported tokens in order, without the special tokens at the beginning: those in front of the chunks, and those
    /// of the chunks.
    pub tokens: Vec<KvExportToken>,
    /// The position of the next token: the number of special and exported tokens.
    pub next_position: usize,
    /// The tokens that were encoded again, and their keys and values; see [`Pipeline::recompute`].
    pub(super) recomputed: Option<Recomputed>,
}

/// Keys and values that replace those of an export's blocks.
pub(super) struct Recomputed {
    /// The indices of the tokens among the exported ones, ascending.
    pub tokens: Vec<usize>,
    /// Their keys, rotated to their positions, and their values, `[plane, token, head_dim]`.
    pub planes: Array3<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvExportToken {
    pub id: u32,
    /// The index of its chunk among the exported chunks; `None` for a token in front of them.
    pub chunk: Option<usize>,
    /// The index of its window. The tokens of a window attended to each other and to nothing else when the
    /// model read them, except those that were encoded again.
    pub window: usize,
    /// The byte range of the token in the chunk's text; `None` for tokens of the title and those in front of the chunks.
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
        let Some(recomputed) = &self.recomputed else { return };
        let dim = recomputed.planes.len_of(Axis(2));
        let rows = recomputed.planes.index_axis(Axis(0), plane);
        for (&token, row) in recomputed.tokens.iter().zip(rows.rows()) {
            let to = &mut rest[token * dim..(token + 1) * dim];
            to.iter_mut().zip(row).for_each(|(to, from)| *to = *from);
        }
    }

    /// Returns the bytes of memory that the export takes: all blocks as they are cached, the tokens, the text in front of
    /// them, and what was encoded again.
    pub fn bytes(&self) -> usize {
        let blocks: usize = self.blocks.blocks.iter().map(|block| block.bytes().len()).sum();
        let before = self.before.len() * size_of::<f32>();
        let recomputed = self.recomputed.as_ref().map_or(0, |recomputed| {
            size_of_val(&*recomputed.tokens) + recomputed.planes.len() * size_of::<f32>()
        });
        let rotations: usize = self.rotations.iter().flatten().map(LayerRotations::bytes).sum();
        before + blocks + rotations + recomputed + size_of_val(&*self.tokens)
    }

    /// Returns the number of tokens of the first window, which are at the beginning.
    pub fn first_window(&self) -> usize {
        self.tokens.partition_point(|token| token.window == 0)
    }

    /// Returns the indices of the exported tokens that were encoded again, ascending.
    pub fn recomputed(&self) -> &[usize] {
        self.recomputed.as_ref().map_or(&[], |recomputed| &recomputed.tokens)
    }

    /// Returns whether keys and values are those that the model would compute in a prompt: all tokens are of one window, or
    /// all later ones were encoded again.
    pub fn is_exact(&self) -> bool {
        self.tokens.len() - self.first_window() == self.recomputed().len()
    }

    /// Returns how many values the special tokens at the beginning have in one plane.
    fn prefix_values(&self, pipeline: &Pipeline) -> usize {
        let (_, tokens, dim) = pipeline.model.prefix().dim();
        tokens * dim
    }

    /// Returns the exported tokens as the past of a question, with the keys and values of the blocks also for those that
    /// were encoded again.
    pub fn past<'a>(&'a self, info: &'a ModelInfo, cancel: &'a Cancel) -> ExportPast<'a> {
        let decoder = info.decoder.as_ref().expect("only decoders have exports");
        let rotations = Arc::clone(&self.rotations);
        let blocks = BlocksAsPast::new(&self.view, rotations, &self.blocks, info, decoder, cancel);
        let first = decoder.prefix_tokens() as i64;
        let before = first..first + self.before.len_of(Axis(1)) as i64;
        let positions = before.chain(blocks.positions().iter().copied()).collect();
        ExportPast { before: &self.before, blocks, positions }
    }
}

/// The tokens of an export as the past of a question.
pub struct ExportPast<'a> {
    /// Those of the text in front of the chunks, `[plane, token, head_dim]`.
    before: &'a Array3<f32>,
    blocks: BlocksAsPast<'a>,
    positions: Vec<i64>,
}

impl Past for ExportPast<'_> {
    fn positions(&self) -> &[i64] {
        &self.positions
    }

    fn question_position(&self) -> i64 {
        self.blocks.question_position()
    }

    fn read_plane(&self, plane: usize, out: &mut [f32]) {
        let before = self.before.index_axis(Axis(0), plane);
        let (front, rest) = out.split_at_mut(before.len());
        front.iter_mut().zip(before).for_each(|(to, from)| *to = *from);
        self.blocks.read_plane(plane, rest);
    }

    fn go_on(&self) -> bool {
        self.blocks.go_on()
    }
}

/// The past of a text at the beginning of a sequence.
struct EmptyPast<'a>(&'a Cancel);

impl Past for EmptyPast<'_> {
    fn positions(&self) -> &[i64] {
        &[]
    }

    fn question_position(&self) -> i64 {
        0
    }

    fn read_plane(&self, _plane: usize, _out: &mut [f32]) {}

    fn go_on(&self) -> bool {
        self.0.go_on()
    }
}

impl Pipeline {
    /// Returns the keys and values of the tokens `before` and of `chunks` for export, in this order. `before` is read as in a
    /// prompt; each window of a chunk is read alone. The model's context must have room for `tokens_after` more tokens after
    /// them, such as those of the question.
    ///
    /// # Errors
    /// Returns the error of [`check_model`] if the model's keys and values cannot be exported, and
    /// [`InvalidRequest::KvTooLong`] if the model's context does not hold all chunks together; otherwise
    /// fails as [`Pipeline::read`] does.
    pub fn kv_export(
        &self,
        before: &[u32],
        chunks: &[Arc<Chunk>],
        tokens_after: usize,
        cancel: &Cancel,
    ) -> Result<KvExport, PipelineError> {
        let info = self.model.info();
        let decoder = check_model(info)?;
        let tokenized = chunks.iter().map(|chunk| tokenize::chunk(chunk, &self.tokenizer, cancel));
        let tokenized = tokenized.collect::<Result<Vec<_>, _>>()?;
        cancel.check()?;
        // Too many tokens are refused before the model reads any.
        let found = before.len() + tokenized.iter().map(|passage| passage.ids.len()).sum::<usize>();
        let max = decoder.context_tokens_max.saturating_sub(decoder.prefix_tokens() + tokens_after);
        if found > max {
            return Err(InvalidRequest::KvTooLong { found, max, after: tokens_after }.into());
        }
        // Every key is exported with the id of its token. A block that another program wrote to a disk or a
        // server may have more or fewer keys than its chunk has tokens; such a block is not used.
        let blocks = self.reader.blocks_of_tokenized(chunks, &tokenized, cancel)?;
        cancel.check()?;
        let in_front = |&id: &u32| KvExportToken { id, chunk: None, window: 0, bytes: None };
        let mut tokens: Vec<KvExportToken> = before.iter().map(in_front).collect();
        let mut windows = usize::from(!before.is_empty());
        for (chunk, passage) in tokenized.iter().enumerate() {
            for (i, &id) in passage.ids.iter().enumerate() {
                let bytes = i.checked_sub(passage.title_tokens).map(|i| passage.offsets[i]);
                let window = windows + i / info.window_tokens_max;
                tokens.push(KvExportToken { id, chunk: Some(chunk), window, bytes });
            }
            windows += passage.ids.len().div_ceil(info.window_tokens_max);
        }
        let mut views = views(&blocks, info, decoder, tokens_after, Placement::Sequence);
        let mut view = views.pop().expect("there is always a view");
        view.move_by(before.len() as i64);
        debug_assert!(views.is_empty(), "blocks that fit into the context are one view");
        let next_position = decoder.prefix_tokens() + tokens.len();
        let before = self.read_at_the_beginning(before, cancel)?;
        // Whoever keeps the export counts its bytes.
        let blocks = blocks.counted_elsewhere();
        let rotations = view.rotations(decoder);
        Ok(KvExport { before, blocks, view, rotations, tokens, next_position, recomputed: None })
    }

    /// Returns the text of `chunks`, which `export` holds behind `before`, if a prompt of both has the tokens of the export.
    /// Chunks are tokenized apart, so this is so if each ends where a token ends in any text, such as with a line break, and
    /// has no title.
    ///
    /// # Errors
    /// Returns [`PipelineError::Model`] if the tokenizer fails.
    pub fn text_of_export(
        &self,
        before: &str,
        chunks: &[Arc<Chunk>],
        export: &KvExport,
    ) -> Result<Option<String>, PipelineError> {
        let text: String = chunks.iter().map(|chunk| tokenize::text_of(chunk)).collect();
        let prompt = self.tokens_of_prompt(&[before, &text].concat())?;
        Ok(prompt.iter().eq(export.tokens.iter().map(|token| &token.id)).then_some(text))
    }

    /// Reads tokens behind the special tokens at the beginning of a sequence. Returns their keys and values,
    /// `[plane, token, head_dim]`.
    fn read_at_the_beginning(&self, ids: &[u32], cancel: &Cancel) -> Result<Array3<f32>, PipelineError> {
        let prefix = self.model.prefix();
        if ids.is_empty() {
            return Ok(prefix.slice(s![.., ..0, ..]).to_owned());
        }
        let first = prefix.len_of(Axis(1)) as i64;
        let positions: Vec<i64> = (first..).take(ids.len()).collect();
        self.model.read_in_place(ids, &positions, &EmptyPast(cancel)).map_err(|error| cancel.or(error))
    }
}
