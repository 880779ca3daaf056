//! Reads some tokens of an export again, with the other chunks in sight: those that matter most for the
//! question, by RC. Chunks that were read one by one have not seen each other, which costs a model much of what
//! it would find in a prompt; a share of the tokens brings most of it back. The idea is that of CacheBlend (Yao
//! et al. 2024, arXiv 2405.16444), which chooses tokens by how far their values are from those of a prompt.

use ndarray::{Array3, Axis};

use super::cancel::Cancel;
use super::kv_export::{KvExport, Recomputed, check_model};
use super::validate::InvalidRequest;
use super::{Pipeline, PipelineError};
use crate::model::{ModelError, Past};

/// Checks a share of tokens to compute again.
///
/// # Errors
/// Returns [`InvalidRequest::KvRecomputeOutOfRange`] if it is not from 0 to 1.
pub fn check_share(share: f64) -> Result<(), InvalidRequest> {
    if (0.0..=1.0).contains(&share) { Ok(()) } else { Err(InvalidRequest::KvRecomputeOutOfRange { share }) }
}

/// Returns the tokens to compute again, ascending: of the tokens from `first` on, this share of those with the
/// highest scores, at least one. `scores` is `[layer, kv_head, token]`; a token's score is the sum over all heads.
fn choose(scores: &Array3<f32>, first: usize, share: f64) -> Vec<usize> {
    let of_tokens = scores.sum_axis(Axis(0)).sum_axis(Axis(0));
    let mut tokens: Vec<usize> = (first..of_tokens.len()).collect();
    tokens.sort_by(|&a, &b| of_tokens[b].total_cmp(&of_tokens[a]));
    tokens.truncate(((tokens.len() as f64 * share).round() as usize).max(1));
    tokens.sort_unstable();
    tokens
}

impl Pipeline {
    /// Reads the tokens of `kv_export` with the highest scores again, in their places behind all tokens before them, and puts
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
        if share <= 0.0 || kv_export.is_exact() {
            return Ok(());
        }
        let first = kv_export.tokens.partition_point(|token| token.window == 0);
        let tokens = choose(scores, first, share);
        let past = kv_export.past(info, cancel);
        let ids: Vec<u32> = tokens.iter().map(|&token| kv_export.tokens[token].id).collect();
        let positions: Vec<i64> = tokens.iter().map(|&token| past.positions()[token]).collect();
        let planes =
            match self.model.read_in_place(&ids, &positions, &Others::new(&past, &tokens, info.head_dim)) {
                Err(ModelError::Cancelled) => {
                    return Err(cancel
                        .check()
                        .expect_err("the model stops only if the caller no longer waits"));
                }
                planes => planes?,
            };
        kv_export.recomputed = Some(Recomputed { tokens, planes });
        Ok(())
    }
}

/// A past without the tokens that are computed again.
struct Others<'a> {
    past: &'a dyn Past,
    /// The indices of the tokens that stay.
    kept: Vec<usize>,
    positions: Vec<i64>,
    head_dim: usize,
}

impl<'a> Others<'a> {
    /// Creates the past without `tokens`, which ascend.
    fn new(past: &'a dyn Past, tokens: &[usize], head_dim: usize) -> Self {
        let kept: Vec<usize> =
            (0..past.positions().len()).filter(|token| tokens.binary_search(token).is_err()).collect();
        let positions = kept.iter().map(|&token| past.positions()[token]).collect();
        Self { past, kept, positions, head_dim }
    }
}

impl Past for Others<'_> {
    fn positions(&self) -> &[i64] {
        &self.positions
    }

    fn question_position(&self) -> i64 {
        self.past.question_position()
    }

    fn read_plane(&self, plane: usize, out: &mut [f32]) {
        let dim = self.head_dim;
        let mut all = vec![0.0; self.past.positions().len() * dim];
        self.past.read_plane(plane, &mut all);
        for (row, &token) in out.chunks_exact_mut(dim).zip(&self.kept) {
            row.copy_from_slice(&all[token * dim..(token + 1) * dim]);
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
        let check = |first, share, expect: &[usize]| {
            assert_eq!(choose(&scores, first, share), expect, "{first} {share}")
        };
        check(2, 0.5, &[3, 5]);
        check(2, 1.0, &[2, 3, 4, 5]);
        check(2, 0.01, &[3]);
        check(0, 0.5, &[0, 1, 3]);
    }
}
