//! Means with 95 % intervals: by resampling rows, the same for the same rows; of shares by Wilson's formula.

/// A mean and its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The mean; NaN without values.
    pub mean: f64,
    /// 95 %: 2.5 % and 97.5 % of the means of resampled rows, or Wilson's.
    pub interval: [f64; 2],
}

const RESAMPLES: usize = 2_000;
const SEED: u64 = 0x7E5E_ED00;

/// Mean of `values` and its interval.
pub fn estimate(values: &[f64]) -> Estimate {
    let mean = mean(values.iter().copied(), values.len());
    if values.is_empty() {
        return Estimate { mean, interval: [mean, mean] };
    }
    let mut random = SplitMix(SEED);
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| mean_of_resample(values, &mut random)).collect();
    means.sort_unstable_by(f64::total_cmp);
    Estimate { mean, interval: [means[RESAMPLES * 25 / 1000], means[RESAMPLES * 975 / 1000 - 1]] }
}

/// Share of `values`, each 0 or 1, with Wilson's interval (1927): where all are alike, resampling knows no other value.
pub fn proportion(values: &[f64]) -> Estimate {
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

fn mean_of_resample(values: &[f64], random: &mut SplitMix) -> f64 {
    mean((0..values.len()).map(|_| values[random.below(values.len())]), values.len())
}

fn mean(values: impl Iterator<Item = f64>, len: usize) -> f64 {
    values.sum::<f64>() / len as f64
}

/// SplitMix64: small, and the same on every machine.
pub struct SplitMix(pub u64);

impl SplitMix {
    /// A number from 0 to `n` − 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_uncertain_where_all_are_alike() {
        let check = |right: usize, n: usize, expect: [f64; 2]| {
            let values: Vec<f64> = (0..n).map(|i| f64::from(u8::from(i < right))).collect();
            let found = proportion(&values).interval;
            let off = (found[0] - expect[0]).abs().max((found[1] - expect[1]).abs());
            assert!(off < 1e-4, "{right} of {n}: {found:?}");
        };
        // Wilson 1927, as R's prop.test without correction has them.
        check(200, 200, [0.9812, 1.0]);
        check(15, 20, [0.5313, 0.8881]);
        check(0, 10, [0.0, 0.2775]);
        assert!(proportion(&[]).mean.is_nan());
    }

    #[test]
    fn the_interval_holds_the_mean_and_narrows_with_rows() {
        let few: Vec<f64> = (0..20).map(|i| f64::from(i % 2)).collect();
        let many: Vec<f64> = (0..2_000).map(|i| f64::from(i % 2)).collect();
        let (few, many) = (estimate(&few), estimate(&many));
        assert_eq!((few.mean, many.mean), (0.5, 0.5));
        assert!(few.interval[0] < 0.5 && few.interval[1] > 0.5);
        assert!(many.interval[1] - many.interval[0] < few.interval[1] - few.interval[0]);
    }
}
