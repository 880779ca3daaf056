//! Kernels: compute the rows of logits of one block with the instructions that the processor has. Know
//! nothing of segments or threads.

use std::ops::Range;
use std::sync::OnceLock;

use super::{Look, Scratch};
use crate::domain::TokenSpan;
use crate::kv::codec::LANES;

/// The number of question tokens that are multiplied with a tile at once.
pub(super) const QUERIES: usize = 8;

/// The number of values of a key that one instruction multiplies.
pub(super) const GROUP: usize = 4;

/// The dot products of a batch of queries with the keys of a tile, `[query, key]`.
pub(super) type Sums = [[i32; LANES]; QUERIES];

/// The instruction set with which quantized keys are scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl Kernel {
    /// Returns the kernels that this processor supports, the slowest first.
    pub fn available() -> Vec<Self> {
        let all = [
            Self::Portable,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni,
        ];
        all.into_iter().filter(|kernel| kernel.is_available()).collect()
    }

    /// Returns whether this processor supports the kernel. The standard library queries the processor only
    /// once.
    pub(super) fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }

    /// Returns the fastest kernel that this processor supports.
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().expect("the portable kernel is always available"))
    }
}

pub(super) fn tiles_of(tokens: TokenSpan) -> Range<usize> {
    tokens.start / LANES..tokens.end.div_ceil(LANES).max(tokens.start / LANES)
}

/// Computes the rows of logits, until `take` returns false, from the dot products that `tile_sums` returns for each tile. The key values
/// in these products are too large by `offset`, which is corrected here. The function is inlined into a
/// function for each instruction set.
#[inline(always)]
pub(super) fn quantized_rows(
    Look { question, block, tokens }: Look,
    scratch: &mut Scratch,
    offset: i32,
    mut take: impl FnMut(usize, usize, &[f32]) -> bool,
    tile_sums: impl Fn(&[u8], &[[i32; QUERIES]]) -> Sums,
) {
    let (_, _, dim) = block.shape();
    let tiles = tiles_of(tokens);
    let (padded, before) = (LANES * tiles.len(), tokens.start - LANES * tiles.start);
    let tile_bytes = block.codec().step_bytes(dim);
    for (head, (query_head, &plane)) in question.heads.iter().zip(&question.planes).enumerate() {
        let keys = &block.head_keys(plane)[tile_bytes * tiles.start..tile_bytes * tiles.end];
        let scales = &block.head_scales(plane).as_chunks::<4>().0[LANES * tiles.start..];
        for (batch, packed) in query_head.packed.iter().enumerate() {
            let first = batch * QUERIES;
            let queries = QUERIES.min(query_head.scales.len() - first);
            for (tile, keys) in keys.chunks_exact(tile_bytes).enumerate() {
                let sums = tile_sums(keys, packed);
                let scales: &[[u8; 4]; LANES] =
                    scales[tile * LANES..].first_chunk().expect("scales are filled up to whole tiles");
                for (j, sums) in sums[..queries].iter().enumerate() {
                    let (scale, added) = (query_head.scales[first + j], offset * query_head.sums[first + j]);
                    let row: &mut [f32; LANES] = scratch.rows[j * padded + tile * LANES..]
                        .first_chunk_mut()
                        .expect("rows hold whole tiles");
                    for lane in 0..LANES {
                        row[lane] = (sums[lane] - added) as f32 * (f32::from_le_bytes(scales[lane]) * scale);
                    }
                }
            }
            for j in 0..queries {
                if !take(head, first + j, &scratch.rows[j * padded + before..][..tokens.len()]) {
                    return;
                }
            }
        }
    }
}

/// Returns the largest of `logits`, or `f32::MIN` if there are none. Each lane keeps a maximum of its own, so
/// that the compiler can use vectors.
#[inline(always)]
pub(super) fn peak(logits: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (blocks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::MIN; LANES];
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] = larger(block[lane], lanes[lane]);
        }
    }
    let of_rest = rest.iter().copied().fold(f32::MIN, larger);
    lanes.into_iter().fold(of_rest, larger)
}

pub(super) fn int8_tile(keys: &[u8], packed: &[[i32; QUERIES]]) -> Sums {
    let mut sums = [[0; LANES]; QUERIES];
    for (keys, queries) in keys.chunks_exact(GROUP * LANES).zip(packed) {
        add(&mut sums, queries, |lane, i| i32::from(keys[GROUP * lane + i]));
    }
    sums
}

#[inline(always)]
fn add(sums: &mut Sums, queries: &[i32; QUERIES], key: impl Fn(usize, usize) -> i32) {
    for (sums, query) in sums.iter_mut().zip(queries) {
        let query = query.to_le_bytes().map(|v| i32::from(v as i8));
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += (0..GROUP).map(|i| query[i] * key(lane, i)).sum::<i32>();
        }
    }
}
