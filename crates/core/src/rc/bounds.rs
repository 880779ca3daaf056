//! What the two marginals alone say of E max(X − Y, 0): Fréchet–Hoeffding bounds and the independent value between.
//! Knows nothing of which query a value came from, once it is weighed.

use ndarray::ArrayView2;

/// lower ≤ exact ≤ upper and lower ≤ independent ≤ upper, up to rounding of about 1e-13 of the values' range.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounds {
    /// ∫ max(0, F_Y − F_X): X and Y move together.
    pub lower: f64,
    /// ∫ (1 − F_X) F_Y: X and Y know nothing of each other.
    pub independent: f64,
    /// ∫ min(1 − F_X, F_Y): X and Y move against each other.
    pub upper: f64,
}

/// A value of a marginal and its share of the mass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighted {
    /// Where.
    pub value: f32,
    /// How much; at least 0.
    pub weight: f64,
}

/// Bounds of the mean of [`coupled`](super::coupled) over x `[query, key]`, one reference (of any length) per query.
///
/// The marginals carry the coupling's own weights: a key of query j weighs 1 / (q · n), a reference 1 / (q · |Y_j|). So
/// the coupling is one of those that the bounds range over, however ragged the references. A query without reference
/// has RC 0 and is left out of both marginals, whose mass is then below 1.
///
/// # Panics
/// When there is not one reference per query.
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

/// Bounds from two marginals of equal mass, in O((n + m) log(n + m)); zero when either is empty.
/// Where the mass M is not 1, the 1 in the integrals is M, and the product is divided by it.
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
    // Between two neighbouring values both distribution functions are constant. Beyond the last x, 1 − F_X is 0, and
    // before the first y, F_Y is 0: nothing to add there.
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

/// The smaller in the order of the sort: whatever the values are, the walk above moves on.
fn earlier(a: f32, b: f32) -> f32 {
    std::cmp::min_by(a, b, f32::total_cmp)
}

/// Drops the samples up to and including `value` from the front, and returns their weight.
fn take_until(samples: &mut &[Weighted], value: f32) -> f64 {
    let end = samples.iter().take_while(|sample| sample.value.total_cmp(&value).is_le()).count();
    let (taken, left) = samples.split_at(end);
    *samples = left;
    total(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, (x, y): (&[&[f32]], &[&[f32]]), expect: (f64, f64, f64)) {
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
    fn small_cases() {
        check("nothing", (&[], &[]), (0.0, 0.0, 0.0));
        check("no keys", (&[&[]], &[&[1.0]]), (0.0, 0.0, 0.0));
        check("no reference", (&[&[1.0]], &[&[]]), (0.0, 0.0, 0.0));
        check("a point above a point", (&[&[3.0]], &[&[1.0]]), (2.0, 2.0, 2.0));
        check("a point below a point", (&[&[1.0]], &[&[3.0]]), (0.0, 0.0, 0.0));
        check("a tie", (&[&[1.0]], &[&[1.0]]), (0.0, 0.0, 0.0));
        check("{0, 1} against {0, 1}", (&[&[0.0, 1.0]], &[&[0.0, 1.0]]), (0.0, 0.25, 0.5));
        // X is 0 or 2, each half; Y is 1 with 1/2 (query one) and 0, 3 with 1/4 each (query two).
        check("ragged", (&[&[0.0], &[2.0]], &[&[1.0], &[0.0, 3.0]]), (0.25, 0.5, 0.75));
        check("zeros tie whatever their sign", (&[&[0.0]], &[&[-0.0]]), (0.0, 0.0, 0.0));
        check("half the queries have no reference", (&[&[3.0], &[9.0]], &[&[1.0], &[]]), (1.0, 1.0, 1.0));
    }

    #[test]
    fn nan_does_not_hang() {
        let x = ndarray::array![[f32::NAN, 1.0, -f32::NAN]];
        bounds(x.view(), &[&[f32::NAN, 0.0, -f32::NAN]]);
    }
}
