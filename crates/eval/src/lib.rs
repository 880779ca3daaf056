//! Measures the quality of selection, compression and attribution on labelled questions, with the same
//! pipeline that answers requests.
//!
//! Every quality claim of the project is one of these metrics, printed with its 95 % interval.
//! docs/evaluation.md defines the metrics and records the results.

pub mod data;
pub mod needed;
pub mod attribution;
mod bm25;
pub mod calibration;
pub mod coverage;
pub mod estimate;
pub mod heads;
pub mod judged;
pub mod kv;
mod logistic;
pub mod methods;
mod perturb;
pub mod probe;
pub mod reader;
pub mod report;
pub mod selection;
pub mod verdicts;

use std::path::Path;

use anyhow::Context;
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::Pipeline;

pub use self::estimate::Estimate;
use self::methods::Methods;
pub use self::report::{Report, table};

/// The values of the default method, one list per measure with one value per row or span.
pub type Values = Vec<(&'static str, Vec<f64>)>;

/// Evaluates one file of labelled rows and returns its report.
///
/// The `pipeline` must keep blocks in full precision (`f32`), as the model produces them. The default method
/// is measured with blocks of `codec`; one more row of the report is added for each other codec. `progress`
/// is called after every row with the number of rows done and the number of all rows.
///
/// # Errors
/// Fails if the file cannot be read, if a line has none of the known shapes (the error names the line), or if
/// the model fails.
pub fn file(
    path: &Path,
    pipeline: &Pipeline,
    methods: &Methods,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> anyhow::Result<Report> {
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let report =
        match data::read(path)? {
            data::Rows::Selection(rows, unlabelled) => {
                let report = selection::evaluate(&rows, pipeline, &methods.questions, codec, progress);
                report.map(|report| Report { unlabelled, ..report })
            }
            data::Rows::Attribution(rows) => {
                attribution::evaluate(&rows, pipeline, &methods.spans, codec, progress)
            }
            data::Rows::Claims(rows) => judged::claims(&rows, pipeline, codec, progress)
                .map(|judged| Report { rows: rows.len(), judged: Some(judged), ..Report::default() }),
            data::Rows::Answerable(rows) => judged::questions(&rows, pipeline, progress)
                .map(|judged| Report { rows: rows.len(), judged: Some(judged), ..Report::default() }),
        };
    let mut report = report.with_context(|| format!("evaluating {}", path.display()))?;
    report.data = name;
    Ok(report)
}
