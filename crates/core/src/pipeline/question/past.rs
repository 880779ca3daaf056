//! Blocks as a decoder looks back on them: decoded, moved to their positions.
//! Knows nothing of which blocks stand where.

use rayon::prelude::*;

use super::{BlockSlice, Blocks, Cancel, View};
use crate::kv::block::Block;
use crate::model::rotary::Turn;
use crate::model::{DecoderInfo, ModelInfo, Past, PlaneLayout};

/// What one view of a question looks back on.
pub struct BlocksAsPast<'a> {
    slices: Vec<Moved<'a>>,
    positions: Vec<i64>,
    question_position: i64,
    /// Values per token and plane.
    dim: usize,
    layout: PlaneLayout,
    cancel: &'a Cancel,
}

struct Moved<'a> {
    block: &'a Block,
    slice: BlockSlice,
    /// None where it is looked at where it was read.
    turn: Option<Turn>,
}

impl<'a> BlocksAsPast<'a> {
    /// The slices of `view`, moved to where it has them.
    pub fn new(
        view: &View,
        blocks: &'a Blocks,
        (model, decoder): (&ModelInfo, &DecoderInfo),
        cancel: &'a Cancel,
    ) -> Self {
        let first = decoder.prefix_tokens() as i64;
        let moved = |slice: &BlockSlice| {
            let rotary = decoder.rotary.as_ref().filter(|_| slice.moved != 0);
            let turn = rotary.map(|rotary| rotary.turn(slice.tokens.len(), first, first + slice.moved));
            Moved { block: &blocks.blocks[slice.block], slice: *slice, turn }
        };
        let positions = view.slices.iter().flat_map(|slice| {
            let start = first + slice.moved;
            start..start + slice.tokens.len() as i64
        });
        Self {
            positions: positions.collect(),
            slices: view.slices.par_iter().map(moved).collect(),
            question_position: view.question_position,
            dim: model.head_dim,
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
        let is_key = self.layout.is_key(plane);
        let mut parts = Vec::with_capacity(self.slices.len());
        for moved in &self.slices {
            let (part, rest) = out.split_at_mut(moved.slice.tokens.len() * self.dim);
            parts.push((moved, part));
            out = rest;
        }
        let read = |(moved, part): (&Moved, &mut [f32])| {
            moved.block.read_plane(plane, moved.slice.tokens, part);
            if let Some(turn) = moved.turn.as_ref().filter(|_| is_key) {
                turn.apply_all(part, self.dim);
            }
        };
        parts.into_par_iter().with_min_len(8).for_each(read);
    }

    fn go_on(&self) -> bool {
        self.cancel.go_on()
    }
}
