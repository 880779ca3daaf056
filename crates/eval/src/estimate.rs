//! Estimates with 95 % intervals: means with bootstrap intervals over rows, proportions with Wilson
//! intervals, and the area under the ROC curve. Equal inputs give equal intervals, because the seed is fixed.

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The mean of the values; NaN if there are none.
    pub mean: f64,
    /// Lower and upper bound: the 2.5 % and 97.5 % quantiles of the resampled means, or Wilson's bounds.
    pub interval: [f64; 2],
}

const RESAMPLES: usize = 2_000;
const SEED: u64 = 0x7E5E_ED00;

/// Returns the mean of `values` with its bootstrap interval: 2,000 resamples of the rows with a fixed seed.
pub fn bootstrap_mean(values: &[f64]) -> Estimate {
    let mean = mean(values.iter().copied(), values.len());
    if values.is_empty() {
        return Estimate { mean, interval: [mean, mean] };
    }
    let mut rng = SplitMix64(SEED);
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| resampled_mean(values, &mut rng)).collect();
    means.sort_unstable_by(f64::total_cmp);
    Estimate { mean, interval: [means[RESAMPLES * 25 / 1000], means[RESAMPLES * 975 / 1000 - 1]] }
}

/// Returns the share of ones among `values`, each 0 or 1, with Wilson's interval (Wilson 1927). A bootstrap
/// interval would have no width if all values are equal.
pub fn wilson_proportion(values: &[f64]) -> Estimate {
    let n = values.len() as f64;
    let mean = mean(values.iter().copied(), values.len());
    if values.is_empty() {
        return Estimate { mean, interval: [mean, mean] };
    }
    let z2 = 1.959_964_f64.powi(2);
    let middle = (mean + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = (z2 * (mean * (1.0 - mean) / n + z2 / (4.0 * n * n))).sqrt() / (1.0 + z2 / n);
    Estimate { mean, interval: [(middle - half).max(0.0), (middle + half).min(1.0)] }
}

fn resampled_mean(values: &[f64], rng: &mut SplitMix64) -> f64 {
    mean((0..values.len()).map(|_| values[rng.below(values.len())]), values.len())
}

fn mean(values: impl Iterator<Item = f64>, len: usize) -> f64 {
    values.sum::<f64>() / len as f64
}

/// Returns the area under the ROC curve: the share of (supported, unsupported) pairs in which the supported
/// value is greater; ties count half. The interval is the bootstrap interval of the mean over the unsupported
/// values.
pub fn auroc(supported: &[f64], others: &[f64]) -> Estimate {
    let mut sorted = supported.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let above = |other: &f64| {
        let below = sorted.partition_point(|value| value < other);
        let up_to = sorted.partition_point(|value| value <= other);
        (sorted.len() as f64 - (below + up_to) as f64 / 2.0) / sorted.len() as f64
    };
    bootstrap_mean(&others.iter().map(above).collect::<Vec<_>>())
}

/// SplitMix64 generator with its state. Published intervals and perturbations depend on this exact sequence,
/// so it is not replaced by a crate's generator.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Draws a number from 0 to `n` − 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * n as u128) >> 64) as usize
    }
}

/// Writes a mean with its interval.
pub fn cell(e: Estimate) -> String {
    format!("{:.3} [{:.3}, {:.3}]", e.mean, e.interval[0], e.interval[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_intervals_have_width_when_all_values_are_equal() {
        let check = |right: usize, n: usize, expect: [f64; 2]| {
            let values: Vec<f64> = (0..n).map(|i| f64::from(u8::from(i < right))).collect();
            let found = wilson_proportion(&values).interval;
            let error = (found[0] - expect[0]).abs().max((found[1] - expect[1]).abs());
            assert!(error < 1e-4, "{right} of {n}: {found:?}");
        };
        // Reference values: R's prop.test without continuity correction.
        check(200, 200, [0.9812, 1.0]);
        check(15, 20, [0.5313, 0.8881]);
        check(0, 10, [0.0, 0.2775]);
        assert!(wilson_proportion(&[]).mean.is_nan());
    }

    #[test]
    fn the_interval_contains_the_mean_and_narrows_with_more_rows() {
        let few: Vec<f64> = (0..20).map(|i| f64::from(i % 2)).collect();
        let many: Vec<f64> = (0..2_000).map(|i| f64::from(i % 2)).collect();
        let (few, many) = (bootstrap_mean(&few), bootstrap_mean(&many));
        assert_eq!((few.mean, many.mean), (0.5, 0.5));
        assert!(few.interval[0] < 0.5 && few.interval[1] > 0.5);
        assert!(many.interval[1] - many.interval[0] < few.interval[1] - few.interval[0]);
    }

    #[test]
    fn auroc_of_small_samples() {
        let check = |name: &str, (supported, others): (&[f64], &[f64]), expect: f64| {
            assert_eq!(auroc(supported, others).mean, expect, "{name}");
        };
        check("separated", (&[0.9, 0.8], &[0.1]), 1.0);
        check("reversed", (&[0.1], &[0.9, 0.8]), 0.0);
        check("the same", (&[0.5], &[0.5]), 0.5);
        check("between", (&[0.2, 0.6], &[0.4]), 0.5);
    }
}
