//! Measures selection, compression and attribution on labelled questions, through the pipeline that answers requests.
//! Every quality claim of the project is printed here, with its interval.

pub mod data;
mod attribution;
mod bootstrap;
pub mod heads;
pub mod kv;
mod methods;
mod perturb;
mod plot;
mod prefilter;
mod report;
mod selection;
mod support;

use std::path::Path;

use anyhow::Context;
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::Pipeline;

pub use self::plot::svg;
pub use self::report::{Report, table};

/// Evaluates one file. The `pipeline` keeps blocks as the model gives them; `codec` is what the default method is measured
/// with, and the others beside it. `progress` is told after every row how many are done.
///
/// # Errors
/// A file that cannot be read or is not of the shapes known here, with the line; a failure of the model.
pub fn file(
    path: &Path,
    pipeline: &Pipeline,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> anyhow::Result<Report> {
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let report = match data::read(path)? {
        data::Rows::Selection(rows, unlabelled) => {
            let report = selection::evaluate(&rows, pipeline, codec, progress);
            report.map(|report| Report { unlabelled, ..report })
        }
        data::Rows::Attribution(rows) => attribution::evaluate(&rows, pipeline, codec, progress),
    };
    let mut report = report.with_context(|| format!("evaluating {}", path.display()))?;
    report.data = name;
    Ok(report)
}
