//! Attention mass: the share of a question token's attention that goes to a segment, after the softmax over
//! all keys. It is no form of RC; the probe of a decoder (`pipeline::probe`) is computed from it.

use ndarray::{Array3, ArrayView3};

use super::{contiguous, for_each_row, heads_and_queries};
use crate::domain::TokenSpan;

/// Returns the attention mass of every segment per head and query, `[head, query, segment]`. It is a share
/// between 0 and 1. The softmax is taken over the keys of `cross` `[head, query, key]` and the question's own
/// keys in `self_logits` `[head, query, own key]`, where a key that the query does not see is
/// [`EMPTY`](super::EMPTY). Segments may be empty, overlap or nest.
///
/// # Panics
/// When `cross` and `self_logits` differ in heads or queries, or a segment ends beyond the key axis.
pub fn attention_mass(
    cross: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    segments: &[TokenSpan],
) -> Array3<f32> {
    let (heads, queries) = heads_and_queries(cross, self_logits);
    let mut out = Array3::zeros((heads, queries, segments.len()));
    let rows = cross.rows().into_iter().zip(self_logits.rows()).zip(out.rows_mut()).collect();
    for_each_row(cross.len(), rows, |powers: &mut Vec<f32>, ((cross, own), mut out)| {
        let (cross, own) = (contiguous(cross), contiguous(own));
        let largest = cross.iter().chain(&*own).copied().fold(f32::MIN, f32::max);
        powers.clear();
        powers.extend(cross.iter().map(|logit| (logit - largest).exp()));
        let of_question = own.iter().map(|logit| f64::from((logit - largest).exp())).sum::<f64>();
        let total = of_question + sum(powers);
        for (out, segment) in out.iter_mut().zip(segments) {
            *out = (sum(&powers[segment.range()]) / total.max(f64::MIN_POSITIVE)) as f32;
        }
    });
    out
}

fn sum(values: &[f32]) -> f64 {
    values.iter().copied().map(f64::from).sum()
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::super::EMPTY;
    use super::*;

    #[test]
    fn masses_are_shares_of_the_softmax() {
        let ln = f32::ln;
        let check =
            |name: &str, cross: [f32; 3], own: [f32; 2], segments: &[(usize, usize)], expect: &[f32]| {
                let (cross, own) = (array![[[cross[0], cross[1], cross[2]]]], array![[[own[0], own[1]]]]);
                let segments: Vec<_> =
                    segments.iter().map(|&(start, end)| TokenSpan::new(start, end)).collect();
                let found = attention_mass(cross.view(), own.view(), &segments);
                let distance = found.iter().zip(expect).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
                assert!(found.len() == expect.len() && distance < 1e-6, "{name}: {found} is not {expect:?}");
            };
        let powers = [ln(1.0), ln(2.0), ln(3.0)];
        check("all keys", powers, [ln(4.0), ln(10.0)], &[(0, 1), (1, 3), (0, 3)], &[0.05, 0.25, 0.3]);
        check("a key that the query does not see", powers, [ln(4.0), EMPTY], &[(0, 3)], &[0.6]);
        check("an empty segment", powers, [0.0, 0.0], &[(1, 1)], &[0.0]);
        check("large logits", [3e4, 3e4, -3e4], [EMPTY, EMPTY], &[(0, 1), (2, 3)], &[0.5, 0.0]);
    }
}
