//! The statistic itself: its exact value when key and reference belong to the same query, and its bounds when
//! only the two marginal distributions are known. Knows nothing of segments' peaks or of how a reference is
//! chosen.

use ndarray::{Array2, ArrayView2, Axis};

use super::{contiguous, for_each_row, saturated};
use crate::domain::TokenSpan;

/// The reference of one query, sorted and with prefix sums, which gives E max(x − y, 0) in O(log m) for a
/// reference of m values.
///
/// Sums are f64, which loses no accuracy for f32 values. Where x − y nearly cancels, all summands have the
/// same exponent, and the 29 spare bits of an f64 hold their sum exactly. Where they do not cancel, x − y is
/// as large as its operands. 2 · `f32::MAX` is far below the largest f64. The same values in any order give
/// the same bits.
#[derive(Debug, Clone, Default)]
pub struct SortedReference {
    /// In ascending order.
    values: Vec<f32>,
    /// `prefix[r]` is the sum of the `r` smallest values.
    prefix: Vec<f64>,
}

impl SortedReference {
    /// Returns the reference with these values, in any order.
    pub fn new(values: &[f32]) -> Self {
        let mut reference = Self::default();
        reference.refill(|buffer| buffer.extend_from_slice(values));
        reference
    }

    /// Replaces the values. `fill` writes the new values into an empty buffer, whose memory is reused.
    pub fn refill(&mut self, fill: impl FnOnce(&mut Vec<f32>)) {
        self.values.clear();
        fill(&mut self.values);
        self.values.sort_unstable_by(f32::total_cmp);
        self.prefix.clear();
        self.prefix.push(0.0);
        let mut sum = 0.0;
        self.prefix.extend(self.values.iter().map(|&y| {
            sum += f64::from(y);
            sum
        }));
    }

    /// Returns the RC of one logit, the mean over the reference of max(x − y, 0). It is 0 for an empty
    /// reference.
    pub fn rc(&self, x: f32) -> f64 {
        self.excess(x) / self.count()
    }

    /// Returns the mean RC of several logits. It is 0 for no logits or an empty reference.
    pub fn rc_mean(&self, xs: &[f32]) -> f64 {
        let excess: f64 = xs.iter().map(|&x| self.excess(x)).sum();
        excess / self.count() / xs.len().max(1) as f64
    }

    /// Returns the sum over the reference of max(x − y, 0).
    fn excess(&self, x: f32) -> f64 {
        let below = self.values.partition_point(|&y| y < x);
        (f64::from(x) * below as f64 - self.prefix[below]).max(0.0)
    }

    /// Returns the number of values, at least 1, as a divisor.
    fn count(&self) -> f64 {
        self.values.len().max(1) as f64
    }
}

/// Returns the RC of each key for each query, `[query, key]`: E over y in Y_j of max(x − y, 0). `x` is
/// `[query, key]`; `y` has the reference Y_j of each query, of any length. Costs O((n + m) log m) per query,
/// for n keys and m reference values.
///
/// # Panics
/// When `y` does not have one reference per query.
pub fn coupled(x: ArrayView2<'_, f32>, y: &[&[f32]]) -> Array2<f32> {
    per_query(x, y, x.ncols(), |reference, row, out| {
        for (out, &x) in out.iter_mut().zip(row) {
            *out = saturated(reference.rc(x));
        }
    })
}

/// Returns the mean of [`coupled`] over the keys of each segment, `[query, segment]`, without allocating the
/// `[query, key]` array. A key is evaluated once per segment that contains it. An empty segment gets 0.
///
/// # Panics
/// When `y` does not have one reference per query, or a segment ends beyond the key axis.
pub fn coupled_means(x: ArrayView2<'_, f32>, y: &[&[f32]], segments: &[TokenSpan]) -> Array2<f32> {
    per_query(x, y, segments.len(), |reference, row, out| {
        for (out, segment) in out.iter_mut().zip(segments) {
            *out = saturated(reference.rc_mean(&row[segment.range()]));
        }
    })
}

/// Returns `[query, width]`. Sorts the reference of each query and calls `each` to write the query's row.
fn per_query(
    x: ArrayView2<'_, f32>,
    y: &[&[f32]],
    width: usize,
    each: impl Fn(&SortedReference, &[f32], &mut [f32]) + Sync + Send,
) -> Array2<f32> {
    assert_eq!(x.nrows(), y.len(), "one reference per query");
    let mut out = Array2::zeros((x.nrows(), width));
    let rows = x.outer_iter().zip(y).zip(out.axis_iter_mut(Axis(0))).collect();
    for_each_row(x.len(), rows, |reference: &mut SortedReference, ((x, y), out)| {
        reference.refill(|buffer| buffer.extend_from_slice(y));
        let out = out.into_slice().expect("rows of a new array are contiguous");
        each(reference, &contiguous(x), out);
    });
    out
}

/// Fréchet–Hoeffding bounds of E max(X − Y, 0), where only the marginal distributions F_X and F_Y are known,
/// and its value for independent X and Y. lower ≤ exact ≤ upper and lower ≤ independent ≤ upper hold up to
/// rounding of about 1e-13 of the values' range.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounds {
    /// ∫ max(0, F_Y − F_X): the value if X and Y increase together.
    pub lower: f64,
    /// ∫ (1 − F_X) F_Y: the value if X and Y are independent.
    pub independent: f64,
    /// ∫ min(1 − F_X, F_Y): the value if X increases as Y decreases.
    pub upper: f64,
}

/// A value of a marginal distribution with its probability mass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighted {
    /// The value, a raw logit.
    pub value: f32,
    /// The mass at this value; at least 0.
    pub weight: f64,
}

/// Returns bounds of the mean of [`coupled`] over all of `x` `[query, key]`; `y` has one reference, of any
/// length, per query.
///
/// The marginals have the weights of the exact coupling: a key of query j has the weight 1 / (q · n), a
/// reference value 1 / (q · |Y_j|). The exact coupling is therefore one of those that the bounds range over,
/// even if the references differ in length. A query with an empty reference has RC 0 and is left out of both
/// marginals, whose mass is then below 1.
///
/// # Panics
/// When `y` does not have one reference per query.
pub fn bounds(x: ArrayView2<'_, f32>, y: &[&[f32]]) -> Bounds {
    assert_eq!(x.nrows(), y.len(), "one reference per query");
    let query_weight = 1.0 / x.nrows().max(1) as f64;
    let (mut xs, mut ys) = (Vec::with_capacity(x.len()), Vec::new());
    for (x, y) in x.outer_iter().zip(y).filter(|(_, y)| !y.is_empty()) {
        let weight = query_weight / x.len().max(1) as f64;
        xs.extend(x.iter().map(|&value| Weighted { value, weight }));
        let weight = query_weight / y.len() as f64;
        ys.extend(y.iter().map(|&value| Weighted { value, weight }));
    }
    bounds_of_marginals(xs, ys)
}

/// Returns bounds from two marginals of equal mass, in O((n + m) log(n + m)). They are zero when either
/// marginal is empty. For a mass M other than 1, M replaces the 1 in the integrals, and the product in the
/// independent value is divided by M.
pub fn bounds_of_marginals(mut x: Vec<Weighted>, mut y: Vec<Weighted>) -> Bounds {
    let mass = total(&x).min(total(&y));
    if mass <= 0.0 {
        return Bounds::default();
    }
    x.sort_unstable_by(|a, b| a.value.total_cmp(&b.value));
    y.sort_unstable_by(|a, b| a.value.total_cmp(&b.value));
    let mut bounds = Bounds::default();
    let (mut x_left, mut y_left) = (x.as_slice(), y.as_slice());
    let (mut x_below, mut y_below) = (0.0, 0.0);
    // Between two neighbouring values both distribution functions are constant. Beyond the last x, 1 − F_X is
    // 0, and before the first y, F_Y is 0, so the integrals get no contribution there.
    while let Some(&Weighted { value: from, .. }) = x_left.first() {
        let from = y_left.first().map_or(from, |y| earlier(y.value, from));
        x_below += take_until(&mut x_left, from);
        y_below += take_until(&mut y_left, from);
        let Some(next_x) = x_left.first() else { break };
        let to = y_left.first().map_or(next_x.value, |y| earlier(y.value, next_x.value));
        let width = f64::from(to) - f64::from(from);
        let x_above = (mass - x_below).max(0.0);
        bounds.lower += (y_below - x_below).max(0.0) * width;
        bounds.independent += x_above * y_below / mass * width;
        bounds.upper += x_above.min(y_below) * width;
    }
    bounds
}

fn total(samples: &[Weighted]) -> f64 {
    samples.iter().map(|sample| sample.weight).sum()
}

/// Returns the smaller value in the order of the sort. The walk above therefore advances for all values, NaN
/// included.
fn earlier(a: f32, b: f32) -> f32 {
    std::cmp::min_by(a, b, f32::total_cmp)
}

/// Removes the samples up to and including `value` from the front, and returns their total weight.
fn take_until(samples: &mut &[Weighted], value: f32) -> f64 {
    let end = samples.iter().take_while(|sample| sample.value.total_cmp(&value).is_le()).count();
    let (taken, left) = samples.split_at(end);
    *samples = left;
    total(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, (x, y): (f32, &[f32]), expect: f64) {
        assert_eq!(SortedReference::new(y).rc(x), expect, "{name}");
    }

    #[test]
    fn rc_of_small_cases() {
        check("no reference", (3.0, &[]), 0.0);
        check("one below", (3.0, &[1.0]), 2.0);
        check("one above", (1.0, &[3.0]), 0.0);
        check("tie", (2.0, &[2.0, 2.0]), 0.0);
        check("tie among others", (2.0, &[2.0, 0.0, 5.0, 1.0]), 0.75);
        check("negative", (-1.0, &[-3.0, -1.0]), 1.0);
        check("signed zeros tie", (0.0, &[-0.0, 0.0]), 0.0);
        check("common offset of 2^23", (8_388_609.0, &[8_388_608.0, 8_388_610.0]), 0.5);
        check("twice the largest", (f32::MAX, &[f32::MIN]), 2.0 * f64::from(f32::MAX));
    }

    #[test]
    fn ragged_references() {
        let x = ndarray::array![[1.0, 4.0], [1.0, 4.0], [1.0, 4.0]];
        let rc = coupled(x.view(), &[&[0.0], &[], &[3.0, 0.0]]);
        assert_eq!(rc, ndarray::array![[1.0, 4.0], [0.0, 0.0], [0.5, 2.5]]);
    }

    #[test]
    fn means_of_segments() {
        let x = ndarray::array![[1.0, 4.0, 7.0]];
        let segments = [(0, 2), (1, 1), (0, 3), (2, 3)].map(|(a, b)| TokenSpan::new(a, b));
        let means = coupled_means(x.view(), &[&[3.0]], &segments);
        assert_eq!(means, ndarray::array![[0.5, 0.0, 5.0 / 3.0, 4.0]]);
    }

    #[test]
    fn results_beyond_f32_saturate() {
        let x = ndarray::array![[f32::MAX]];
        assert_eq!(coupled(x.view(), &[&[f32::MIN]])[[0, 0]], f32::MAX);
    }

    fn check_bounds(name: &str, (x, y): (&[&[f32]], &[&[f32]]), expect: (f64, f64, f64)) {
        let width = x.first().map_or(0, |row| row.len());
        let x = ndarray::Array2::from_shape_vec((x.len(), width), x.concat()).expect("equal rows");
        let found = bounds(x.view(), y);
        for (found, expect) in
            [(found.lower, expect.0), (found.independent, expect.1), (found.upper, expect.2)]
        {
            assert!((found - expect).abs() < 1e-12, "{name}: {found} is not {expect}");
        }
    }

    #[test]
    fn bounds_of_small_cases() {
        check_bounds("nothing", (&[], &[]), (0.0, 0.0, 0.0));
        check_bounds("no keys", (&[&[]], &[&[1.0]]), (0.0, 0.0, 0.0));
        check_bounds("no reference", (&[&[1.0]], &[&[]]), (0.0, 0.0, 0.0));
        check_bounds("a point above a point", (&[&[3.0]], &[&[1.0]]), (2.0, 2.0, 2.0));
        check_bounds("a point below a point", (&[&[1.0]], &[&[3.0]]), (0.0, 0.0, 0.0));
        check_bounds("a tie", (&[&[1.0]], &[&[1.0]]), (0.0, 0.0, 0.0));
        check_bounds("{0, 1} against {0, 1}", (&[&[0.0, 1.0]], &[&[0.0, 1.0]]), (0.0, 0.25, 0.5));
        // X is 0 or 2, each half; Y is 1 with 1/2 (query one) and 0, 3 with 1/4 each (query two).
        check_bounds("ragged", (&[&[0.0], &[2.0]], &[&[1.0], &[0.0, 3.0]]), (0.25, 0.5, 0.75));
        check_bounds("zeros tie whatever their sign", (&[&[0.0]], &[&[-0.0]]), (0.0, 0.0, 0.0));
        check_bounds(
            "half the queries have no reference",
            (&[&[3.0], &[9.0]], &[&[1.0], &[]]),
            (1.0, 1.0, 1.0),
        );
    }

    #[test]
    fn bounds_of_nan_end() {
        let x = ndarray::array![[f32::NAN, 1.0, -f32::NAN]];
        bounds(x.view(), &[&[f32::NAN, 0.0, -f32::NAN]]);
    }
}
