//! One pass of a decoder over tokens that attend to the special tokens, the cached past and themselves: those of a
//! question, or those of chunks that are read again. Knows nothing of sessions for windows or of scheduling.

use std::ops::Range;

use ndarray::{Array2, Array3, ArrayView3, ArrayView4, Axis, Ix4, s};
use ort::memory::Allocator;
use ort::value::{DynValue, Tensor};

use super::super::ort_error;
use super::super::stages::{LayerPast, Projection, StagedTokens, Stages, TokenBatch};
use super::{DecoderShape, check_finite, four_axes};
use crate::model::{EncodedQuestion, Past, SelfAttention};

/// Tokens and their past.
///
/// Many tokens go through each stage in tiles. The tensors with the past of a layer then have space for
/// their keys and values after those of prefix and past, and each tile writes its own there, so that the tiles after
/// it attend to them.
pub struct TokenPass<'a> {
    /// The part of the decoder that is run.
    pub shape: &'a DecoderShape,
    /// The keys and values of the special tokens, `[plane, prefix_token, head_dim]`.
    pub prefix: ArrayView3<'a, f32>,
    pub ids: &'a [u32],
    /// The position of each token, ascending.
    pub positions: Vec<i64>,
    /// The cached keys and values that the tokens attend to, if their positions are not later.
    pub past: &'a dyn Past,
    /// The largest number of tokens of a tile.
    pub tile_tokens: usize,
}

/// Consecutive tokens that go through the stages together.
struct Tile {
    tokens: Range<usize>,
    staged: StagedTokens,
}

impl TokenPass<'_> {
    /// Computes the queries and the keys of the tokens in `heads`, (layer, head) each. Returns `None` if
    /// [`Past::go_on`] returned false.
    pub fn encode(
        &self,
        stages: &mut Stages,
        heads: &[(usize, usize)],
    ) -> Result<Option<EncodedQuestion>, ort::Error> {
        let mut vectors = Array3::zeros((heads.len(), self.ids.len(), self.shape.decoder.head_dim));
        let mut keys = vectors.clone();
        let ran = self.run(stages, |layer, tokens, computed| {
            let rows = s![tokens, ..];
            let of_layer = heads.iter().enumerate().filter(|(_, (of, _))| *of == layer);
            for (at, &(_, head)) in of_layer {
                let kv_head = self.shape.kv_head(head);
                let mut vectors = vectors.index_axis_mut(Axis(0), at);
                vectors.slice_mut(&rows).assign(&computed[0].slice(s![0, head, .., ..]));
                let mut keys = keys.index_axis_mut(Axis(0), at);
                keys.slice_mut(&rows).assign(&computed[1].slice(s![0, kv_head, .., ..]));
            }
        })?;
        Ok(ran.then_some(EncodedQuestion { vectors, self_attention: SelfAttention::CausalKeys(keys) }))
    }

    /// Computes the keys and values of the tokens in all layers that are run, `[plane, token, head_dim]`. Returns `None`
    /// if [`Past::go_on`] returned false.
    pub fn read(&self, stages: &mut Stages) -> Result<Option<Array3<f32>>, ort::Error> {
        let shape = self.shape;
        let mut planes = Array3::zeros((shape.planes(), self.ids.len(), shape.decoder.head_dim));
        let ran = self.run(stages, |layer, tokens, computed| {
            for (range, computed) in [shape.keys(layer), shape.values(layer)].into_iter().zip(&computed[1..])
            {
                planes.slice_mut(s![range, tokens.clone(), ..]).assign(&computed.index_axis(Axis(0), 0));
            }
        })?;
        Ok(ran.then_some(planes))
    }

    /// Calls `on_computed` with a layer, a range of the tokens, and their queries, keys and values in this layer,
    /// `[1, heads or kv_heads, token, head_dim]` each. Returns false if [`Past::go_on`] returned false; not all tokens
    /// were read then.
    ///
    /// The outer loop is over stages and the inner loop over tiles. Only the past of one stage is in memory
    /// at a time, and only the logits of one tile over it.
    fn run(
        &self,
        stages: &mut Stages,
        mut on_computed: impl FnMut(usize, Range<usize>, &[ArrayView4<f32>]),
    ) -> Result<bool, ort::Error> {
        let mut tiles = self.start(stages)?;
        for layers in stages.layers() {
            if !self.past.go_on() {
                return Ok(false);
            }
            let mut past: Vec<LayerPast> = Vec::with_capacity(layers.len());
            for layer in layers.clone().filter(|&layer| stages.attends(layer)) {
                if !self.past.go_on() {
                    return Ok(false);
                }
                past.push(self.layer_past(layer, self.reserved_tokens(), stages.allocator())?);
            }
            for tile in &mut tiles {
                if !self.past.go_on() {
                    return Ok(false);
                }
                let projections = [Projection::Query, Projection::Key, Projection::Value];
                let computed = stages.run_stage(layers.start, &mut tile.staged, &past, &projections)?;
                for (i, (layer, computed)) in layers.clone().zip(computed).enumerate() {
                    let computed = computed.iter().map(four_axes).collect::<Result<Vec<_>, _>>()?;
                    for values in &computed {
                        check_finite(values.view(), "queries, keys or values")?;
                    }
                    on_computed(layer, tile.tokens.clone(), &computed);
                    if let Some(past) = past.get_mut(i) {
                        self.append_to_past(past, &computed[1..], tile.tokens.clone())?;
                    }
                }
            }
        }
        Ok(true)
    }

    pub fn past_positions(&self) -> Vec<i64> {
        (0..self.prefix.len_of(Axis(1)) as i64).chain(self.past.positions().iter().copied()).collect()
    }

    /// Returns the keys and values of prefix and past in one layer, with space for `reserved` tokens after
    /// them: `[1, kv_heads, past_tokens + reserved, head_dim]` each.
    pub fn layer_past(
        &self,
        layer: usize,
        reserved: usize,
        allocator: &Allocator,
    ) -> Result<LayerPast, ort::Error> {
        let tensor = |planes| self.past_tensor(planes, reserved, allocator);
        Ok([tensor(self.shape.keys(layer))?, tensor(self.shape.values(layer))?])
    }

    /// Copies the `planes` of prefix and past, the keys or the values of one layer, into a tensor
    /// `[1, kv_heads, past_tokens + reserved, head_dim]`. The reserved part is zero.
    fn past_tensor(
        &self,
        planes: Range<usize>,
        reserved: usize,
        allocator: &Allocator,
    ) -> Result<DynValue, ort::Error> {
        let (kv_heads, dim) = (planes.len(), self.shape.decoder.head_dim);
        let (prefix_tokens, past_tokens) = (self.prefix.len_of(Axis(1)), self.past_tokens());
        let tokens = past_tokens + reserved;
        // Where pinned memory is used up, other memory does, more slowly.
        let shape = [1, kv_heads, tokens, dim];
        let mut tensor = Tensor::<f32>::new(allocator, shape)
            .or_else(|_| Tensor::<f32>::new(&Allocator::default(), shape))?;
        let (_, values) = tensor.try_extract_tensor_mut::<f32>()?;
        for (plane, values) in planes.zip(values.chunks_exact_mut((tokens * dim).max(1))) {
            let (values, reserved) = values.split_at_mut(past_tokens * dim);
            let (prefix, past) = values.split_at_mut(prefix_tokens * dim);
            prefix.iter_mut().zip(self.prefix.index_axis(Axis(0), plane)).for_each(|(to, from)| *to = *from);
            self.past.read_plane(plane, past);
            reserved.fill(0.0);
        }
        Ok(tensor.into_dyn())
    }

    /// Writes the keys and values of a tile, `[1, kv_heads, t, head_dim]` each, to the reserved part of a
    /// layer's past.
    fn append_to_past(
        &self,
        past: &mut LayerPast,
        computed: &[ArrayView4<f32>],
        tokens: Range<usize>,
    ) -> Result<(), ort::Error> {
        if self.reserved_tokens() == 0 {
            return Ok(());
        }
        let past_tokens = self.past_tokens();
        for (past, computed) in past.iter_mut().zip(computed) {
            let past = past.try_extract_array_mut::<f32>()?;
            let mut past = past.into_dimensionality::<Ix4>().map_err(ort_error)?;
            past.slice_mut(s![.., .., past_tokens + tokens.start..past_tokens + tokens.end, ..])
                .assign(computed);
        }
        Ok(())
    }

    /// The number of tokens to reserve in each layer's past: none if all tokens are one tile.
    fn reserved_tokens(&self) -> usize {
        if self.ids.len() > self.tile_tokens { self.ids.len() } else { 0 }
    }

    fn past_tokens(&self) -> usize {
        self.prefix.len_of(Axis(1)) + self.past.positions().len()
    }

    /// Splits the tokens into tiles and computes the input of the first stage for each.
    fn start(&self, stages: &mut Stages) -> Result<Vec<Tile>, ort::Error> {
        let position = |token: usize| self.positions[token];
        let past_positions = self.past_positions();
        let tile = |start: usize| {
            let tokens = start..(start + self.tile_tokens).min(self.ids.len());
            // Of the reserved part, only the tokens of earlier tiles are there. Position -1 masks the others.
            let reserved = 0..self.reserved_tokens();
            let reserved = reserved.map(|token| if token < start { position(token) } else { -1 });
            let key_positions =
                past_positions.iter().copied().chain(reserved).chain(tokens.clone().map(position));
            let row = |values: Vec<i64>| {
                Array2::from_shape_vec((1, values.len()), values)
                    .expect("the shape has as many elements as the values")
            };
            let batch = TokenBatch {
                ids: row(self.ids[tokens.clone()].iter().map(|&id| i64::from(id)).collect()),
                positions: row(tokens.clone().map(position).collect()),
                key_positions: row(key_positions.collect()),
            };
            Ok(Tile { staged: stages.start(&batch)?, tokens })
        };
        (0..self.ids.len()).step_by(self.tile_tokens).map(tile).collect()
    }
}
