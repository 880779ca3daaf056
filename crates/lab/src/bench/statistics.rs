//! Medians and quantiles of a few dozen numbers.

/// Median and quartiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Half of the rounds are below.
    pub median: f64,
    /// A quarter is below.
    pub low: f64,
    /// A quarter is above.
    pub high: f64,
}

/// Of at least one number.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Spread {
    let sorted = sorted(values);
    Spread { median: quantile(&sorted, 0.5), low: quantile(&sorted, 0.25), high: quantile(&sorted, 0.75) }
}

/// Ascending.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// The value that a share `q` of `sorted` does not exceed, interpolated.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_cases() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Spread { median: 2.0, low: 1.5, high: 2.5 });
        assert_eq!(spread([7.0]), Spread { median: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(quantile(&sorted([0.0, 100.0]), 0.99), 99.0);
    }
}
