//! An upper bound of the mean RC, E max(X − Y, 0), from two distributions alone: that of the logits X and that
//! of the reference values Y, each over all queries (RCStat, arXiv 2506.19549). Which query a value belongs to
//! does not matter.

use ndarray::{Array3, ArrayView3, s};

use super::exact::seen;
use super::{for_each_row, heads_and_queries, saturated};
use crate::domain::TokenSpan;

/// Returns the upper bound of [`mean_rc`](super::mean_rc), averaged over queries, of every segment per head, `[head, query, segment]`.
/// Every query gets the same value. The arguments are those of `mean_rc`.
///
/// # Panics
/// As `mean_rc`.
pub fn mean_rc_bound(
    cross: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    segments: &[TokenSpan],
) -> Array3<f32> {
    let (heads, queries) = heads_and_queries(cross, self_logits);
    let mut out = Array3::zeros((heads, queries, segments.len()));
    let heads = cross.outer_iter().zip(self_logits.outer_iter()).zip(out.outer_iter_mut()).collect();
    for_each_row(cross.len(), heads, |logits: &mut Vec<f32>, ((cross, own), mut out)| {
        let references: Vec<Vec<f32>> = own.outer_iter().map(|own| seen(own).copied().collect()).collect();
        let pooled = PooledReference::new(&references);
        for (segment, mut out) in segments.iter().zip(out.columns_mut()) {
            logits.clear();
            for (row, _) in cross.outer_iter().zip(&references).filter(|(_, reference)| !reference.is_empty())
            {
                logits.extend(row.slice(s![segment.range()]));
            }
            out.fill(saturated(pooled.upper_bound(logits)));
        }
    });
    out
}

/// The references of several queries as one distribution, sorted and with prefix sums.
#[derive(Debug, Clone, Default)]
pub struct PooledReference {
    values: Vec<f32>,
    /// `mass[r]` is the mass of the `r` smallest values.
    mass: Vec<f64>,
    /// `weighted[r]` is the sum of the `r` smallest values, each times its mass.
    weighted: Vec<f64>,
}

impl PooledReference {
    /// Pools the references of queries, of any lengths and in any order. Each query has the mass 1 / number of
    /// queries, which its values share evenly. A query with an empty reference has no mass.
    pub fn new<R: AsRef<[f32]>>(references: &[R]) -> Self {
        let of_query = |reference: &R| {
            let mass = 1.0 / references.len() as f64 / reference.as_ref().len() as f64;
            reference.as_ref().iter().map(|&value| (value, mass)).collect::<Vec<_>>()
        };
        let mut values: Vec<(f32, f64)> = references.iter().flat_map(of_query).collect();
        values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let (mut mass, mut weighted) = (vec![0.0], vec![0.0]);
        for (r, &(value, of_value)) in values.iter().enumerate() {
            mass.push(mass[r] + of_value);
            weighted.push(weighted[r] + f64::from(value) * of_value);
        }
        Self { values: values.into_iter().map(|(value, _)| value).collect(), mass, weighted }
    }

    /// Returns the upper bound, ∫ min(1 − F_X, F_Y), of the mean RC of `logits`. They are those of all queries
    /// that have a reference, in any order; all have the same mass. It is 0 without logits or references. Costs
    /// O(n log n + log n log m) for n logits and m reference values. Sorts `logits`.
    pub fn upper_bound(&self, logits: &mut [f32]) -> f64 {
        let total = self.mass.last().copied().unwrap_or_default();
        if logits.is_empty() || total <= 0.0 {
            return 0.0;
        }
        logits.sort_unstable_by(f32::total_cmp);
        let each = total / logits.len() as f64;
        let from = |k: usize| (logits.len() - k) as f64 * each;
        // min(1 − F_X, F_Y) is F_Y up to the place t where the two cross, and 1 − F_X from there on. So the
        // integral is E max(t − Y, 0) + E max(X − t, 0). Any other t gives more, so a rounded t is no fault.
        let k = partition_point(logits.len(), |k| self.mass_below(logits[k]) < from(k));
        let at_least = self.mass[1..].partition_point(|&mass| mass < from(k));
        let mut t = self.values[at_least.min(self.values.len() - 1)];
        if let Some(&next) = logits.get(k) {
            t = t.min(next);
        }
        if let Some(&last) = k.checked_sub(1).and_then(|k| logits.get(k)) {
            t = t.max(last);
        }
        let t = f64::from(t);
        let above: f64 = logits.iter().map(|&x| (f64::from(x) - t).max(0.0)).sum();
        let below = self.values.partition_point(|&y| f64::from(y) < t);
        above * each + (t * self.mass[below] - self.weighted[below]).max(0.0)
    }

    /// Returns the mass of the values up to and including `x`.
    fn mass_below(&self, x: f32) -> f64 {
        self.mass[self.values.partition_point(|y| y.total_cmp(&x).is_le())]
    }
}

/// Returns the first of `0..n` for which `is_before` does not hold, if it holds for none after that; otherwise
/// `n`.
fn partition_point(n: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = usize::midpoint(low, high);
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, x: &[f32], y: &[&[f32]], expect: f64) {
        let found = PooledReference::new(y).upper_bound(&mut x.to_vec());
        assert!((found - expect).abs() < 1e-12, "{name}: {found} is not {expect}");
    }

    #[test]
    fn small_cases() {
        check("nothing", &[], &[], 0.0);
        check("no logits", &[], &[&[1.0]], 0.0);
        check("no reference", &[1.0], &[&[]], 0.0);
        check("a point above a point", &[3.0], &[&[1.0]], 2.0);
        check("a point below a point", &[1.0], &[&[3.0]], 0.0);
        check("a tie", &[1.0], &[&[1.0]], 0.0);
        check("{0, 1} against {0, 1}", &[0.0, 1.0], &[&[0.0, 1.0]], 0.5);
        // X is 0 or 2, each half; Y is 1 with 1/2 (query one) and 0, 3 with 1/4 each (query two).
        check("references of two lengths", &[0.0, 2.0], &[&[1.0], &[0.0, 3.0]], 0.75);
        check("zeros tie whatever their sign", &[0.0], &[&[-0.0]], 0.0);
        check("half of the queries have no reference", &[3.0], &[&[1.0], &[]], 1.0);
        check("all logits above", &[5.0, 7.0], &[&[1.0, 3.0]], 4.0);
        check("the largest numbers", &[f32::MAX], &[&[f32::MIN]], 2.0 * f64::from(f32::MAX));
    }

    #[test]
    fn values_that_are_no_numbers_cause_no_panic() {
        let mut x = [f32::NAN, 1.0, -f32::NAN, f32::INFINITY];
        PooledReference::new(&[[f32::NAN, 0.0, -f32::NAN]]).upper_bound(&mut x);
    }
}
