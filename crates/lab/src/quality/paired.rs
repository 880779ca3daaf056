//! Paired differences between two models: both score the same rows with the default method, and each row's difference is one value. The
//! interval of their mean is much narrower than the intervals of the two models, because both find the same rows hard.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::Pipeline;

use thresher_eval::data::{self, Rows};
use thresher_eval::estimate::{Estimate, bootstrap_mean};
use thresher_eval::{Values, attribution, selection};

#[derive(Debug, Clone)]
pub struct Comparison {
    data: String,
    rows: usize,
    /// The measures, in the order of the report.
    measures: Vec<Measure>,
}

#[derive(Debug, Clone)]
struct Measure {
    name: &'static str,
    /// The means of the first and the second model.
    means: [f64; 2],
    /// The second model's value less the first one's.
    difference: Estimate,
    /// The number of values that are lower, and that are higher, with the second model.
    changed: [usize; 2],
}

/// Compares two models on one file. The first pipeline has the model that the other is compared with. Both keep blocks in full precision;
/// they are scored as blocks of `codec`. `progress` is called with the numbers of rows done and of all rows, for both models together.
///
/// # Errors
/// Fails if the file cannot be read, if its rows are claims or answerable questions, or if a model fails.
pub fn file(
    path: &Path,
    pipelines: [&Pipeline; 2],
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Comparison> {
    let rows = data::read(path)?;
    let values = |model: usize| -> Result<(usize, Values)> {
        let progress = |done: usize, all: usize| progress(model * all + done, 2 * all);
        match &rows {
            Rows::Selection(rows, _) => {
                Ok((rows.len(), selection::default_values(rows, pipelines[model], codec, &progress)?))
            }
            Rows::Attribution(rows) => {
                Ok((rows.len(), attribution::default_values(rows, pipelines[model], codec, &progress)?))
            }
            Rows::Claims(_) | Rows::Answerable(_) => bail!(
                "{} has no questions with gold and no answers with spans, which are what two models are compared on",
                path.display()
            ),
        }
    };
    let of = |model| values(model).with_context(|| format!("evaluating {}", path.display()));
    let ((rows, first), (_, second)) = (of(0)?, of(1)?);
    let lengths = |values: &Values| values.iter().map(|(_, values)| values.len()).collect::<Vec<_>>();
    ensure!(
        lengths(&first) == lengths(&second),
        "the models do not judge the same spans of {}",
        path.display()
    );
    let measures = first.into_iter().zip(second);
    Ok(Comparison {
        data: path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        rows,
        measures: measures.map(|((name, first), (_, second))| Measure::new(name, &first, &second)).collect(),
    })
}

impl Measure {
    fn new(name: &'static str, first: &[f64], second: &[f64]) -> Self {
        let differences: Vec<f64> = first.iter().zip(second).map(|(first, second)| second - first).collect();
        let count = |is: fn(&f64) -> bool| differences.iter().filter(|difference| is(difference)).count();
        Self {
            name,
            means: [first, second].map(|values| bootstrap_mean(values).mean),
            changed: [count(|difference| *difference < 0.0), count(|difference| *difference > 0.0)],
            difference: bootstrap_mean(&differences),
        }
    }
}

impl Comparison {
    pub fn json(&self) -> Value {
        let measures = self.measures.iter().map(|measure| {
            let Measure { name, means, difference, changed } = measure;
            json!({
                "measure": name, "means": means, "difference": difference.mean,
                "ci95": difference.interval, "lower": changed[0], "higher": changed[1],
            })
        });
        json!({"data": self.data, "rows": self.rows, "measures": measures.collect::<Vec<_>>()})
    }
}

/// Returns the comparison as a table; `names` are those of the models.
pub fn table(comparison: &Comparison, names: [&str; 2]) -> String {
    let mut out =
        format!("{}: {} rows, {} against {}\n", comparison.data, comparison.rows, names[1], names[0]);
    let _ = writeln!(
        out,
        "  {:<10} {:>8} {:>8}  {:<26} {:>6} {:>6}",
        "measure", "against", "model", "difference", "lower", "higher"
    );
    for Measure { name, means, difference, changed } in &comparison.measures {
        let [low, high] = difference.interval;
        let difference = format!("{:+.3} [{low:+.3}, {high:+.3}]", difference.mean);
        let _ = writeln!(
            out,
            "  {name:<10} {:>8.3} {:>8.3}  {difference:<26} {:>6} {:>6}",
            means[0], means[1], changed[0], changed[1]
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_the_interval_of_the_rows_that_differ() {
        let first: Vec<f64> = (0..200).map(|row| f64::from(row % 2)).collect();
        let same = Measure::new("mrr", &first, &first);
        assert_eq!((same.difference.interval, same.changed), ([0.0, 0.0], [0, 0]));
        let mut second = first.clone();
        (second[0], second[1], second[3]) = (1.0, 0.0, 0.0);
        let found = Measure::new("mrr", &first, &second);
        assert_eq!((found.changed, found.means), ([2, 1], [0.5, 0.495]));
        assert!((found.difference.mean + 0.005).abs() < 1e-12, "{}", found.difference.mean);
        assert!(found.difference.interval[0] > -0.03 && found.difference.interval[1] < 0.02);
    }
}
