//! Blocks as a decoder looks back on them: decoded, moved to their positions.
//! Knows nothing of which blocks stand where.

use rayon::prelude::*;

use super::{Blocks, Cancel, Piece, View};
use crate::kv::block::Block;
use crate::model::rotary::Turn;
use crate::model::{DecoderInfo, ModelInfo, Past};

/// What one view of a question looks back on.
pub struct BlocksAsPast<'a> {
    pieces: Vec<Moved<'a>>,
    positions: Vec<i64>,
    question_place: i64,
    /// Values per token and plane.
    dim: usize,
    /// Planes of a layer: its keys, then as many of values.
    layer_planes: usize,
    cancel: &'a Cancel,
}

struct Moved<'a> {
    block: &'a Block,
    piece: Piece,
    /// None where it is looked at where it was read.
    turn: Option<Turn>,
}

impl<'a> BlocksAsPast<'a> {
    /// The pieces of `view`, moved to where it has them.
    pub fn new(
        view: &View,
        blocks: &'a Blocks,
        (model, decoder): (&ModelInfo, &DecoderInfo),
        cancel: &'a Cancel,
    ) -> Self {
        let first = decoder.prefix_tokens() as i64;
        let moved = |piece: &Piece| {
            let rotary = decoder.rotary.as_ref().filter(|_| piece.moved != 0);
            let turn = rotary.map(|rotary| rotary.turn(piece.tokens.len(), first, first + piece.moved));
            Moved { block: &blocks.blocks[piece.block], piece: *piece, turn }
        };
        let positions = view.pieces.iter().flat_map(|piece| {
            let start = first + piece.moved;
            start..start + piece.tokens.len() as i64
        });
        Self {
            positions: positions.collect(),
            pieces: view.pieces.par_iter().map(moved).collect(),
            question_place: view.question_place,
            dim: model.head_dim,
            layer_planes: 2 * decoder.kv_heads,
            cancel,
        }
    }
}

impl Past for BlocksAsPast<'_> {
    fn positions(&self) -> &[i64] {
        &self.positions
    }

    fn question_place(&self) -> i64 {
        self.question_place
    }

    fn read_plane(&self, plane: usize, mut out: &mut [f32]) {
        let is_key = plane % self.layer_planes < self.layer_planes / 2;
        let mut parts = Vec::with_capacity(self.pieces.len());
        for moved in &self.pieces {
            let (part, rest) = out.split_at_mut(moved.piece.tokens.len() * self.dim);
            parts.push((moved, part));
            out = rest;
        }
        let read = |(moved, part): (&Moved, &mut [f32])| {
            moved.block.read_plane(plane, moved.piece.tokens, part);
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
