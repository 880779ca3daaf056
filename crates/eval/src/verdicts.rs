//! Fits how the opinion of a cross-encoder is weighed in verdicts, on labelled claims, and measures what it adds.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ndarray::Array2;
use thresher_core::kv::codec::Codec;
use thresher_core::model::contract::VerdictWeights;
use thresher_core::pipeline::Pipeline;

use super::data::{self, Rows};
use super::judged::{self, Judged, JudgedReport};
use super::logistic::{Fitted, Samples};

/// The folds of the measurement: each is measured with the weights of the others.
const FOLDS: usize = 5;

/// The fewest claims of each label. With fewer, the three weights follow chance.
const LABELLED_MIN: usize = 30;

/// The strength of the L2 penalty, in rows.
const PENALTY: f64 = 1.0;

#[derive(Debug, Clone)]
pub struct VerdictFit {
    /// The weights, fitted on all claims.
    pub weights: VerdictWeights,
    /// The number of claims with an opinion of both judges.
    pub rows: usize,
    /// The number of claims without one, because no sentence has enough of their words.
    pub without_evidence: usize,
    /// What is compared, each with its measurement on claims that had no part in the fit.
    compared: Vec<(&'static str, JudgedReport)>,
}

#[derive(Debug, Clone, Copy)]
struct Opinions {
    own: f64,
    model: f64,
    truth: bool,
}

/// Fits the weights on the claims of a file. The `pipeline` must have a cross-encoder and keep blocks in full precision.
///
/// # Errors
/// Fails if the file has no claims, if fewer than 30 of them have one of the two labels, or if a model fails.
pub fn fit(path: &Path, pipeline: &Pipeline, progress: &dyn Fn(usize, usize)) -> Result<VerdictFit> {
    let Rows::Claims(rows) = data::read(path)? else {
        bail!("{} has no claims; a row is {{\"claim\", \"chunks\", \"label\"}}", path.display());
    };
    let judged = judged::claims(&rows, pipeline, Codec::F32, progress)
        .with_context(|| format!("judging {}", path.display()))?;
    let opinions: Vec<Opinions> = judged.rows.iter().filter_map(Opinions::read).collect();
    for truth in [true, false] {
        let found = opinions.iter().filter(|row| row.truth == truth).count();
        if found < LABELLED_MIN {
            let label = if truth { "supported" } else { "refuted" };
            bail!("{found} claims that can be judged are {label}; at least {LABELLED_MIN} are needed");
        }
    }
    let mut together = vec![0.0; opinions.len()];
    for fold in 0..FOLDS {
        let others: Vec<Opinions> =
            opinions.iter().enumerate().filter(|(row, _)| row % FOLDS != fold).map(|(_, row)| *row).collect();
        let fitted = fit_rows(&others);
        for row in (fold..opinions.len()).step_by(FOLDS) {
            together[row] = opinions[row].weighed(&fitted);
        }
    }
    let report = |values: &dyn Fn(usize) -> f64| {
        let rows = opinions.iter().enumerate().map(|(row, opinions)| Judged {
            value: 1.0 / (1.0 + (-values(row)).exp()),
            truth: opinions.truth,
            evidence: None,
        });
        JudgedReport::summarize("claims", rows.collect())
    };
    let compared = vec![
        ("without the model", report(&|row| opinions[row].own)?),
        ("the model alone", report(&|row| opinions[row].model)?),
        ("both, weighed", report(&|row| together[row])?),
    ];
    let fitted = fit_rows(&opinions);
    let weights = VerdictWeights {
        bias: fitted.bias as f32,
        own: fitted.weights[0] as f32,
        model: fitted.weights[1] as f32,
    };
    let (rows, without_evidence) = (opinions.len(), judged.rows.len() - opinions.len());
    Ok(VerdictFit { weights, rows, without_evidence, compared })
}

impl Opinions {
    fn read(row: &Judged) -> Option<Self> {
        let opinion = row.evidence?.second_opinion?;
        Some(Self { own: opinion.own.into(), model: opinion.support.into(), truth: row.truth })
    }

    fn weighed(&self, fitted: &Fitted) -> f64 {
        fitted.bias + fitted.weights[0] * self.own + fitted.weights[1] * self.model
    }
}

fn fit_rows(rows: &[Opinions]) -> Fitted {
    let features =
        Array2::from_shape_fn(
            (rows.len(), 2),
            |(row, of)| if of == 0 { rows[row].own } else { rows[row].model },
        );
    let labels: Vec<bool> = rows.iter().map(|row| row.truth).collect();
    Samples::new(&features, &labels, vec![1.0; rows.len()]).fit(PENALTY)
}

impl VerdictFit {
    /// Returns whether both judges together rank claims that had no part in the fit better than Thresher does alone.
    pub fn helps(&self) -> bool {
        let auroc = |at: usize| self.compared[at].1.auroc.mean;
        auroc(2) > auroc(0)
    }

    /// Returns a table of what is compared, and the weights.
    pub fn table(&self) -> String {
        let mut out =
            format!("{} claims; each fifth is measured with the weights of the others\n", self.rows);
        if self.without_evidence > 0 {
            let _ = writeln!(
                out,
                "{} more are left out, because no sentence has enough of their words",
                self.without_evidence
            );
        }
        for (name, report) in &self.compared {
            let _ = write!(out, "{name}\n{}", report.table());
        }
        let VerdictWeights { bias, own, model } = self.weights;
        let _ = write!(out, "weights: bias {bias:.3}, own {own:.3}, model {model:.3}");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_judge_that_guesses_gets_no_weight() {
        // The first judge is right; the second says yes to every other claim, true or false.
        let row = |at: usize| {
            let truth = at % 4 < 2;
            Opinions {
                own: if truth { 1.0 } else { -1.0 },
                model: if at.is_multiple_of(2) { 3.0 } else { -3.0 },
                truth,
            }
        };
        let rows: Vec<Opinions> = (0..80).map(row).collect();
        let fitted = fit_rows(&rows);
        assert!(fitted.weights[0] > 2.0, "{fitted:?}");
        assert!(fitted.weights[1].abs() < 1e-6, "{fitted:?}");
        assert!(rows.iter().all(|row| (row.weighed(&fitted) > 0.0) == row.truth));
    }
}
