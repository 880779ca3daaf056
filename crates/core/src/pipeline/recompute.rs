//! Encodes some tokens of an export again, attending to all tokens before them: those that matter most for the
//! question, by RC. Chunks that are encoded one by one do not attend to each other, and a model that answers from
//! their keys loses much of what it would find in a prompt; a share of the tokens brings most of it back. The idea is
//! that of CacheBlend (Yao et al. 2024, arXiv 2405.16444), which chooses tokens by how far their values are from
//! those of a prompt.

use ndarray::{Array2, Array3, ArrayView3, Axis, s};

use super::cancel::Cancel;
use super::kv_export::{KvExport, Recomputed, check_model};
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::model::Past;

/// Checks a share of tokens to compute again.
///
/// # Errors
/// Returns [`InvalidRequest::KvRecomputeOutOfRange`] if it is not from 0 to 1.
pub fn check_share(share: f64) -> Result<(), InvalidRequest> {
    if (0.0..=1.0).contains(&share) { Ok(()) } else { Err(InvalidRequest::KvRecomputeOutOfRange { share }) }
}

/// The largest number of tokens that are encoded in one pass, whose attention masks take memory for each token and each
/// key before it.
const TOKENS_PER_PASS: usize = 512;

/// Returns how many of `later` tokens behind the first window are encoded again for `share`: at least one, unless `share` is 0.
fn count(later: usize, share: f64) -> usize {
    if share <= 0.0 { 0 } else { ((later as f64 * share).round() as usize).clamp(later.min(1), later) }
}

/// Returns the tokens to encode again, ascending: the `count` of those from `first` on with the highest scores. `scores` is
/// `[layer, kv_head, token]`; a token's score is the sum over all heads.
fn choose(scores: &Array3<f32>, first: usize, count: usize) -> Vec<usize> {
    let of_tokens = scores.sum_axis(Axis(0)).sum_axis(Axis(0));
    let mut tokens: Vec<usize> = (first..of_tokens.len()).collect();
    tokens.sort_by(|&a, &b| of_tokens[b].total_cmp(&of_tokens[a]));
    tokens.truncate(count);
    tokens.sort_unstable();
    tokens
}

impl Pipeline {
    /// Returns the bytes of memory that `kv_export` will take when this share of its tokens has been encoded again.
    pub fn bytes_recomputed(&self, kv_export: &KvExport, share: f64) -> usize {
        let info = self.model.info();
        let count = count(kv_export.tokens.len() - kv_export.first_window(), share);
        kv_export.bytes() + count * (info.planes * info.head_dim * size_of::<f32>() + size_of::<usize>())
    }

    /// Encodes the tokens of `kv_export` with the highest scores again, in their places behind all tokens before them, and puts
    /// their keys and values in place of those of the blocks. `share`, from 0 to 1, is that of the tokens behind the first
    /// window: those of the first window are in a prompt as they are here. `scores` are those of
    /// [`ExportAttention::rc_of_keys`](super::evict::ExportAttention::rc_of_keys).
    ///
    /// # Errors
    /// Fails as [`Pipeline::read`] does.
    pub fn recompute(
        &self,
        kv_export: &mut KvExport,
        scores: &Array3<f32>,
        share: f64,
        cancel: &Cancel,
    ) -> Result<(), PipelineError> {
        let info = self.model.info();
        check_model(info)?;
        let first = kv_export.first_window();
        let count = count(kv_export.tokens.len() - first, share);
        if count == 0 {
            return Ok(());
        }
        let tokens = choose(scores, first, count);
        let past = kv_export.past(info, cancel);
        let mut planes = Array3::zeros((info.planes, count, info.head_dim));
        for start in (0..count).step_by(TOKENS_PER_PASS) {
            let end = (start + TOKENS_PER_PASS).min(count);
            let (done, rest) = tokens.split_at(start);
            let pass = &rest[..end - start];
            let ids: Vec<u32> = pass.iter().map(|&token| kv_export.tokens[token].id).collect();
            let positions: Vec<i64> = pass.iter().map(|&token| past.positions()[token]).collect();
            let encoded = planes.slice(s![.., ..start, ..]);
            let before = PastWithout::new(&past, (done, encoded), rest, info.head_dim);
            let read =
                self.model.read_in_place(&ids, &positions, &before).map_err(|error| cancel.or(error))?;
            planes.slice_mut(s![.., start..end, ..]).assign(&read);
        }
        kv_export.recomputed = Some(Recomputed { tokens, planes });
        Ok(())
    }
}

/// A past without the tokens that are still to be encoded again, and with those that have been.
struct PastWithout<'a> {
    past: &'a dyn Past,
    /// The tokens that have been encoded again, and their planes, `[plane, token, head_dim]`.
    encoded: (&'a [usize], ArrayView3<'a, f32>),
    /// The indices of the tokens of this past.
    kept: Vec<usize>,
    positions: Vec<i64>,
    head_dim: usize,
}

impl<'a> PastWithout<'a> {
    /// Creates the past without the tokens `left_out`, which ascend.
    fn new(
        past: &'a dyn Past,
        encoded: (&'a [usize], ArrayView3<'a, f32>),
        left_out: &[usize],
        head_dim: usize,
    ) -> Self {
        let is_kept = |token: &usize| left_out.binary_search(token).is_err();
        let kept: Vec<usize> = (0..past.positions().len()).filter(is_kept).collect();
        let positions = kept.iter().map(|&token| past.positions()[token]).collect();
        Self { past, encoded, kept, positions, head_dim }
    }
}

impl Past for PastWithout<'_> {
    fn positions(&self) -> &[i64] {
        &self.positions
    }

    fn question_position(&self) -> i64 {
        self.past.question_position()
    }

    fn read_plane(&self, plane: usize, out: &mut [f32]) {
        let dim = self.head_dim;
        let mut all = Array2::zeros((self.past.positions().len(), dim));
        self.past.read_plane(plane, all.as_slice_mut().expect("a new array is contiguous"));
        let (tokens, planes) = &self.encoded;
        for (&token, row) in tokens.iter().zip(planes.index_axis(Axis(0), plane).rows()) {
            all.row_mut(token).assign(&row);
        }
        for (to, &token) in out.chunks_exact_mut(dim).zip(&self.kept) {
            to.iter_mut().zip(all.row(token)).for_each(|(to, from)| *to = *from);
        }
    }

    fn go_on(&self) -> bool {
        self.past.go_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_with_the_highest_sums_are_chosen_in_order() {
        let scores = Array3::from_shape_fn((2, 1, 6), |(layer, _, token)| {
            [[9.0, 9.0, 1.0, 2.0, 0.0, 3.0], [9.0, 9.0, 1.0, 4.0, 0.0, 0.0]][layer][token]
        });
        let check = |first, count, expect: &[usize]| {
            assert_eq!(choose(&scores, first, count), expect, "{first} {count}")
        };
        check(2, 2, &[3, 5]);
        check(2, 4, &[2, 3, 4, 5]);
        check(2, 1, &[3]);
        check(0, 3, &[0, 1, 3]);
        check(6, 0, &[]);
    }

    #[test]
    fn a_share_is_at_least_one_token() {
        let check = |later, share, expect| assert_eq!(count(later, share), expect, "{later} {share}");
        check(10, 0.0, 0);
        check(10, 0.01, 1);
        check(10, 0.25, 3);
        check(10, 1.0, 10);
        check(0, 1.0, 0);
    }
}
