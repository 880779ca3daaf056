//! Budgets that promise a coverage: how far down the ranking a context has to go, so that it holds the evidence
//! that an answer needs with at least the promised probability.
//!
//! This is split conformal prediction (Vovk et al., Algorithmic Learning in a Random World, 2005; Angelopoulos and
//! Bates, arXiv 2107.07511, section 1). The score of a labelled row is the *effort* of its last needed unit. A
//! promise p takes the ceil((n + 1) p)-th smallest effort of n rows as its limit, and keeps all units up to that
//! limit. If the rows and a new question are exchangeable, the new question's evidence is kept with at least
//! that probability, whatever the scores are worth. Poor scores make contexts longer; they do not break the
//! promise. `docs/verdicts.md` has the measurements.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The schema version of calibration files.
const SCHEMA: u32 = 1;

/// The promises that a calibration can have limits for, in hundredths.
const PROMISES: std::ops::RangeInclusive<usize> = 50..=99;

/// Scores below this share of the best one count as this share, so that every effort is finite.
const RELATIVE_MIN: f32 = 1e-3;

/// The limits of [`Calibration::of_default_model`]: nq20, xquad, hotpot, musique and wiki2 of `docs/evaluation.md`
/// together, 923 questions in English.
const DEFAULT_LIMITS: [f32; 50] = [
    1.000, 1.000, 1.000, 1.000, 2.018, 2.043, 2.080, 2.110, 2.157, 2.204, 2.276, 2.332, 2.398, 2.549, 2.633,
    2.840, 3.118, 3.272, 3.378, 3.519, 3.774, 3.981, 4.457, 4.873, 5.182, 5.596, 6.232, 6.851, 7.649, 8.732,
    9.701, 10.662, 11.265, 13.043, 15.284, 16.363, 19.673, 22.836, 26.750, 30.286, 35.371, 40.675, 48.796,
    67.935, 79.238, 94.618, 110.999, 172.040, 295.168, 694.580,
];

/// The number of rows behind [`DEFAULT_LIMITS`].
const DEFAULT_ROWS: usize = 923;

/// The limits of the promises, found on labelled rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    schema: u32,
    pub model: String,
    /// The fingerprint of the model; empty if the calibration comes with Thresher.
    pub fingerprint: String,
    /// The name of the scoring method.
    pub estimator: String,
    pub rows: usize,
    /// The SHA-256 of the file with the rows, in hexadecimal.
    pub data: String,
    /// `[promise]`: the limits of the promises 0.50, 0.51 and so on, as far as there are enough rows.
    limits: Vec<f32>,
}

/// The calibration of a model, in its folder.
pub const CALIBRATION_FILE: &str = "calibration.toml";

/// The error of a calibration that cannot be used.
#[derive(Debug, Error)]
pub enum CalibrationError {
    #[error("cannot read or write the calibration {}: {cause}", file.display())]
    File { file: PathBuf, cause: io::Error },
    #[error("{} is no calibration: {reason}; run `thresher calibrate --coverage` again", file.display())]
    Malformed { file: PathBuf, reason: String },
    #[error(
        "{} was made with {found}, but the daemon runs {expected}; run `thresher calibrate --coverage` again with \
         these settings, or remove the file",
        file.display()
    )]
    OtherModel {
        file: PathBuf,
        /// The model and scoring method of the file.
        found: String,
        expected: String,
    },
}

/// Returns the effort of keeping a unit: its rank, counted from 1, divided by the root of its score relative to the
/// best one. It grows along the ranking. Of ranks, tokens, score shares and their products, this one needed the
/// fewest tokens over all sets (`docs/verdicts.md`).
pub fn effort(rank: usize, relative: f32) -> f32 {
    // A comparison that treats NaN as the least score.
    let relative = if relative > RELATIVE_MIN { relative.min(1.0) } else { RELATIVE_MIN };
    rank as f32 / relative.sqrt()
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

/// What a calibration was made with.
#[derive(Debug, Clone, Copy, Default)]
pub struct MadeWith<'a> {
    /// The name of the model.
    pub model: &'a str,
    /// The fingerprint of the model.
    pub fingerprint: &'a str,
    /// The name of the scoring method.
    pub estimator: &'a str,
}

impl fmt::Display for MadeWith<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, fingerprint, estimator } = self;
        write!(f, "{model} ({}, {estimator})", fingerprint.get(..12).unwrap_or(fingerprint))
    }
}

impl Calibration {
    /// Returns the calibration that comes with Thresher, for all-MiniLM-L6-v2.
    pub fn of_default_model() -> Self {
        Self {
            schema: SCHEMA,
            model: "all-MiniLM-L6-v2".to_owned(),
            fingerprint: String::new(),
            estimator: "peak/ranked+coverage".to_owned(),
            rows: DEFAULT_ROWS,
            data: String::new(),
            limits: DEFAULT_LIMITS.to_vec(),
        }
    }

    /// Returns the calibration for the efforts of labelled rows. `model` is the model's name and fingerprint, and
    /// `data` the hash of the file with the rows.
    ///
    /// # Errors
    /// Returns the number of rows that are needed if there are too few for any promise.
    pub fn of_efforts(mut efforts: Vec<f32>, made: MadeWith, data: String) -> Result<Self, usize> {
        efforts.sort_by(f32::total_cmp);
        let limit = |percent: usize| rank(percent as f64 / 100.0, efforts.len()).map(|rank| efforts[rank]);
        let limits: Vec<f32> = PROMISES.map_while(limit).collect();
        if limits.is_empty() {
            return Err(rows_needed(*PROMISES.start() as f64 / 100.0));
        }
        Ok(Self {
            schema: SCHEMA,
            model: made.model.to_owned(),
            fingerprint: made.fingerprint.to_owned(),
            estimator: made.estimator.to_owned(),
            rows: efforts.len(),
            data,
            limits,
        })
    }

    /// Returns the largest effort of units that a promise keeps. A promise between two hundredths is rounded up.
    ///
    /// # Errors
    /// Returns the largest promise that the rows allow if this one is larger.
    pub fn limit(&self, promise: f64) -> Result<f32, f64> {
        let percent = ((promise * 100.0 - 1e-9).ceil() as usize).max(*PROMISES.start());
        let largest = PROMISES.start() + self.limits.len() - 1;
        self.limits.get(percent - PROMISES.start()).copied().ok_or(largest as f64 / 100.0)
    }

    /// Reads a calibration that was made with a model and a scoring method.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is no calibration, or was made with another model or scoring method.
    pub fn load(file: &Path, made: &MadeWith) -> Result<Self, CalibrationError> {
        let text = fs::read_to_string(file)
            .map_err(|cause| CalibrationError::File { file: file.to_owned(), cause })?;
        let malformed = |reason: String| CalibrationError::Malformed { file: file.to_owned(), reason };
        let found: Self = toml::from_str(&text).map_err(|error| malformed(error.message().to_owned()))?;
        if found.schema != SCHEMA {
            return Err(malformed(format!("its schema is {}, not {SCHEMA}", found.schema)));
        }
        let is_ascending = found.limits.is_sorted() && found.limits.iter().all(|limit| *limit >= 1.0);
        if found.limits.is_empty() || found.limits.len() > PROMISES.count() || !is_ascending {
            return Err(malformed(
                "limits are 1 to 50 numbers from 1 upwards, in ascending order".to_owned(),
            ));
        }
        let Self { model, fingerprint, estimator, .. } = &found;
        if fingerprint != made.fingerprint || estimator != made.estimator {
            let found = MadeWith { model, fingerprint, estimator };
            return Err(CalibrationError::OtherModel {
                file: file.to_owned(),
                found: found.to_string(),
                expected: made.to_string(),
            });
        }
        Ok(found)
    }

    /// Writes the calibration to a file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save(&self, file: &Path) -> Result<(), CalibrationError> {
        let text = toml::to_string(self).expect("a calibration has only types of TOML");
        fs::write(file, text).map_err(|cause| CalibrationError::File { file: file.to_owned(), cause })
    }
}

#[cfg(test)]
mod tests {
    const MADE: MadeWith = MadeWith { model: "m", fingerprint: "f", estimator: "e" };

    use super::*;

    fn calibration(rows: usize) -> Result<Calibration, usize> {
        let efforts = (1..=rows).rev().map(|effort| effort as f32).collect();
        Calibration::of_efforts(efforts, MADE, String::new())
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
        let efforts: Vec<f32> = (0..2_000).map(|_| effort(random.usize(1..40), random.f32())).collect();
        let of = |rows: &[f32]| Calibration::of_efforts(rows.to_vec(), MADE, String::new()).expect("enough");
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
    fn effort_grows_along_the_ranking() {
        let scores = [1.0, 1.0, 0.7, 0.2, 0.0, f32::NAN];
        let efforts: Vec<f32> = scores.iter().enumerate().map(|(at, &score)| effort(at + 1, score)).collect();
        assert!(efforts.is_sorted_by(|a, b| a < b), "{efforts:?}");
    }

    #[test]
    fn files_are_read_back_and_wrong_ones_are_refused() {
        let dir = tempfile::TempDir::new().expect("a folder");
        let file = dir.path().join("calibration.toml");
        let saved = calibration(40).expect("enough rows");
        saved.save(&file).expect("it can be written");
        assert_eq!(Calibration::load(&file, &MADE).expect("as it was written"), saved);
        let refusal = |text: Option<&str>, fingerprint: &str| {
            text.iter().for_each(|text| fs::write(&file, text).expect("it can be written"));
            Calibration::load(&file, &MadeWith { fingerprint, ..MADE }).expect_err("refused").to_string()
        };
        assert!(refusal(None, "other").contains("was made with m (f, e)"));
        assert!(refusal(Some("schema = 1"), "f").contains("is no calibration"));
        let descending = toml::to_string(&Calibration { limits: vec![3.0, 2.0], ..saved }).expect("TOML");
        assert!(refusal(Some(&descending), "f").contains("ascending"));
    }
}
