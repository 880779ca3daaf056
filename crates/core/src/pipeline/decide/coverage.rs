//! Budgets that promise a coverage: how far down the ranking a context has to go, so that it holds the evidence
//! that an answer needs with at least the promised probability.
//!
//! This is split conformal prediction (Vovk et al., Algorithmic Learning in a Random World, 2005; Angelopoulos and
//! Bates, arXiv 2107.07511, section 1). The score of a labelled row is the *effort* of its last needed unit. A
//! promise p takes the ceil((n + 1) p)-th smallest effort of n rows as its limit, and keeps all units up to that
//! limit. If the rows and a new question are exchangeable, the new question's evidence is kept with at least
//! that probability, whatever the scores are worth. Poor scores make contexts longer; they do not break the
//! promise. `docs/verdicts.md` has the measurements.

use serde::{Deserialize, Serialize};

/// The promises that a calibration can have limits for, in hundredths.
const PROMISES: std::ops::RangeInclusive<usize> = 50..=99;

/// A promise is reported as not made if questions that need several passages fall short of it by more than this.
const SHORTFALL_MAX: f64 = 0.03;

/// The fewest questions that need several passages from which their coverage is told.
const SEVERAL_ROWS_MIN: usize = 20;

/// Scores below this share of the best one count as this share, so that every effort is finite.
const RELATIVE_MIN: f32 = 1e-3;

/// The limits of the promises, found on labelled rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoverageLimits {
    pub estimator: String,
    pub rows: usize,
    /// The SHA-256 of the file with the rows, in hexadecimal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    data: String,
    /// `[promise]`: the limits of the promises 0.50, 0.51 and so on, as far as there are enough rows.
    limits: Vec<f32>,
    /// What the promises are worth for questions that need several passages; `None` if too few rows do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    several: Option<Several>,
}

/// How often the limits keep all evidence of questions that need several passages. A promise holds for all questions together, not for
/// these alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Several {
    rows: usize,
    /// `[promise]`: the share of these rows whose evidence is kept, beside `limits`.
    covered: Vec<f32>,
}

/// A promise that questions which need several passages do not get.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shortfall {
    pub promised: f64,
    /// The share of such labelled questions whose evidence is kept.
    pub covered: f32,
    pub rows: usize,
    /// The least promise that keeps the evidence of as many of them as were promised; `None` if there is none.
    pub sufficient: Option<f64>,
}

/// Returns the effort of keeping a unit after `before` tokens of the model, of `all` that the chunks have: these relative to the root of
/// all, plus one, divided by the root of the unit's score relative to the best one. It grows along the ranking.
///
/// The root of all tokens makes a context grow with its chunks, but more slowly: twice the chunks hold less than twice the evidence. Ranks,
/// tokens, shares of tokens and shares of the score were compared with it on ten sets; it loses the least evidence for the same tokens, and
/// two wordings of one question keep about the same (`docs/decisions/selection.md`).
pub fn effort(before: usize, all: usize, relative: f32) -> f32 {
    // A comparison that treats NaN as the least score.
    let relative = if relative > RELATIVE_MIN { relative.min(1.0) } else { RELATIVE_MIN };
    (1.0 + before as f32 / (all.max(1) as f32).sqrt()) / relative.sqrt()
}

/// Returns the number of rows that a promise needs: n with ceil((n + 1) p) <= n.
pub fn rows_needed(promise: f64) -> usize {
    (1..).find(|&rows| rank(promise, rows).is_some()).expect("a promise below 1 needs finitely many rows")
}

/// Returns the index of the limit for a promise among the efforts of so many rows in ascending order: that of the
/// ceil((n + 1) p)-th; `None` if there are too few rows.
fn rank(promise: f64, rows: usize) -> Option<usize> {
    // 0.95 * 20 is a little more than 19 in binary.
    let rank = ((rows + 1) as f64 * promise - 1e-9).ceil() as usize;
    rank.checked_sub(1).filter(|&rank| rank < rows)
}

impl CoverageLimits {
    /// Returns the limits for the efforts of labelled rows. `estimator` is the scoring method, and `data` the hash of the file with the rows.
    ///
    /// # Errors
    /// Returns the number of rows that are needed if there are too few for any promise.
    pub fn of_efforts(mut efforts: Vec<f32>, estimator: String, data: String) -> Result<Self, usize> {
        efforts.sort_by(f32::total_cmp);
        let limit = |percent: usize| rank(percent as f64 / 100.0, efforts.len()).map(|rank| efforts[rank]);
        let limits: Vec<f32> = PROMISES.map_while(limit).collect();
        if limits.is_empty() {
            return Err(rows_needed(*PROMISES.start() as f64 / 100.0));
        }
        Ok(Self { estimator, rows: efforts.len(), data, limits, several: None })
    }

    /// Adds what the promises are worth for questions that need several passages, from the efforts of these rows.
    #[must_use]
    pub fn with_several(mut self, efforts: &[f32]) -> Self {
        let covered = |limit: &f32| {
            let kept = efforts.iter().filter(|effort| *effort <= limit).count();
            kept as f32 / efforts.len() as f32
        };
        let is_enough = efforts.len() >= SEVERAL_ROWS_MIN;
        self.several = is_enough
            .then(|| Several { rows: efforts.len(), covered: self.limits.iter().map(covered).collect() });
        self
    }

    /// Returns how often a promise keeps all evidence of questions that need several passages if that is clearly less than promised; `None`
    /// otherwise, or if it was not measured.
    pub fn shortfall(&self, promised: f64) -> Option<Shortfall> {
        let several = self.several.as_ref()?;
        let covered = *several.covered.get(Self::index(promised))?;
        let is_missed = f64::from(covered) < promised - SHORTFALL_MAX;
        let sufficient = several.covered.iter().position(|covered| f64::from(*covered) >= promised);
        let sufficient = sufficient.map(|index| (PROMISES.start() + index) as f64 / 100.0);
        is_missed.then_some(Shortfall { promised, covered, rows: several.rows, sufficient })
    }

    /// Returns the index of a promise in `limits`. One between two hundredths is rounded up.
    fn index(promise: f64) -> usize {
        ((promise * 100.0 - 1e-9).ceil() as usize).saturating_sub(*PROMISES.start())
    }

    /// Returns the largest effort of units that the largest promise keeps. What lies beyond is hardly ever needed.
    pub fn largest(&self) -> f32 {
        self.limits.last().copied().unwrap_or(f32::INFINITY)
    }

    /// Returns the largest effort of units that a promise keeps.
    ///
    /// # Errors
    /// Returns the largest promise that the rows allow if this one is larger.
    pub fn limit(&self, promise: f64) -> Result<f32, f64> {
        let largest = PROMISES.start() + self.limits.len() - 1;
        self.limits.get(Self::index(promise)).copied().ok_or(largest as f64 / 100.0)
    }

    /// Checks limits that were read from a file.
    ///
    /// # Errors
    /// Returns what is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        let is_ascending = self.limits.is_sorted() && self.limits.iter().all(|limit| *limit >= 1.0);
        if self.limits.is_empty() || self.limits.len() > PROMISES.count() || !is_ascending {
            return Err("coverage.limits are 1 to 50 numbers from 1 upwards, in ascending order".to_owned());
        }
        let is_share = |covered: &f32| (0.0..=1.0).contains(covered);
        let is_wrong = |several: &Several| {
            several.covered.len() != self.limits.len() || !several.covered.iter().all(is_share)
        };
        if self.several.as_ref().is_some_and(is_wrong) {
            return Err(
                "coverage.several.covered are as many numbers from 0 to 1 as coverage.limits".to_owned()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration(rows: usize) -> Result<CoverageLimits, usize> {
        let efforts = (1..=rows).rev().map(|effort| effort as f32).collect();
        CoverageLimits::of_efforts(efforts, String::new(), String::new())
    }

    #[test]
    fn limits_have_the_correction_for_finite_samples() {
        let hundred = calibration(100).expect("enough rows");
        assert_eq!(hundred.limit(0.9), Ok(91.0), "ceil(101 * 0.9)");
        assert_eq!(hundred.limit(0.895), Ok(91.0), "rounded up");
        assert_eq!(hundred.limit(0.3), hundred.limit(0.5), "the least promise");
        assert_eq!(hundred.limit(0.99), Ok(100.0));
        assert_eq!(calibration(19).expect("enough rows").limit(0.95), Ok(19.0), "ceil(20 * 0.95)");
        assert_eq!(calibration(18).expect("enough rows").limit(0.95), Err(0.94));
    }

    #[test]
    fn a_promise_needs_enough_rows() {
        let needed = [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99)];
        needed.iter().for_each(|&(promise, rows)| assert_eq!(rows_needed(promise), rows, "{promise}"));
        assert_eq!(calibration(0), Err(1));
    }

    #[test]
    fn the_promise_holds_on_new_rows() {
        // Efforts of 2,000 rows in a fixed random order: the first 200 calibrate, the others are new.
        let mut random = fastrand::Rng::with_seed(7);
        let efforts: Vec<f32> = (0..2_000).map(|_| effort(random.usize(1..400), 400, random.f32())).collect();
        let of = |rows: &[f32]| {
            CoverageLimits::of_efforts(rows.to_vec(), String::new(), String::new()).expect("enough")
        };
        for promise in [0.8, 0.9, 0.95] {
            let covered: usize = efforts
                .chunks(200)
                .map(|rows| {
                    let limit = of(rows).limit(promise).expect("enough rows");
                    efforts.iter().filter(|&&effort| effort <= limit).count()
                })
                .sum();
            let share = covered as f64 / (10.0 * efforts.len() as f64);
            assert!((promise - 0.005..promise + 0.02).contains(&share), "{promise}: {share}");
        }
    }

    #[test]
    fn questions_that_need_several_passages_may_miss_a_promise() {
        let limits = calibration(100).expect("enough rows");
        assert_eq!(limits.clone().with_several(&[99.0; 19]).shortfall(0.9), None, "too few rows");
        // The limits of 0.8 and 0.9 are 81 and 91.
        let efforts: Vec<f32> = (0..20).map(|row| if row < 14 { 50.0 } else { 90.0 }).collect();
        let limits = limits.with_several(&efforts);
        let missed = Shortfall { promised: 0.8, covered: 0.7, rows: 20, sufficient: Some(0.89) };
        assert_eq!(limits.shortfall(0.8), Some(missed));
        assert_eq!(limits.shortfall(0.9), None, "all are covered");
        assert_eq!(limits.shortfall(0.72), None, "0.7 is near enough");
        assert_eq!(limits.check(), Ok(()));
        let several = Some(Several { rows: 20, covered: vec![0.5] });
        assert!(CoverageLimits { several, ..limits }.check().is_err(), "one share for many limits");
    }

    #[test]
    fn effort_grows_along_the_ranking() {
        let scores = [1.0, 1.0, 0.7, 0.2, 0.0, f32::NAN];
        let efforts: Vec<f32> =
            scores.iter().enumerate().map(|(at, &score)| effort(20 * at, 400, score)).collect();
        assert!(efforts.is_sorted_by(|a, b| a < b), "{efforts:?}");
        assert_eq!(effort(0, 0, 1.0), 1.0, "no text");
    }

    #[test]
    fn limits_of_a_file_are_checked() {
        let limits =
            |limits: &[f32]| CoverageLimits { limits: limits.to_vec(), ..calibration(40).expect("enough") };
        assert_eq!(limits(&[1.0, 1.0, 2.5]).check(), Ok(()));
        for wrong in [&[][..], &[3.0, 2.0], &[0.5], &[1.0; 51], &[f32::NAN]] {
            assert!(limits(wrong).check().is_err(), "{wrong:?}");
        }
    }
}
