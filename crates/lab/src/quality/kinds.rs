//! Whether the parts of a text that a reader needs are kept, for texts of every kind: code, tables, logs and
//! others. docs/evaluation.md defines the metrics.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use thresher_core::domain::{
    Budget, ByteRange, Chunk, CompressRequest, Format, KeptSpan, Kind, TokenizerName,
};
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::decide::Decision;
use thresher_core::pipeline::{Pipeline, PipelineError};

use thresher_eval::data::{LabelledChunk, RowFile};
use thresher_eval::estimate::{Estimate, bootstrap_mean, wilson_proportion};
use thresher_eval::methods::{Bm25, Configured, Method};
use thresher_eval::needed::{NeededPart, Pair, Row, joined};
use thresher_eval::report::{cell_or_dash, number};
use thresher_eval::selection::texts;

/// The share of tokens that a context may have: one in four.
const RATIO: f64 = 0.25;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Division {
    /// By its kind, scored as requests are.
    ByKind,
    /// Into sentences, whatever its kind, scored as requests are.
    Sentences,
    /// By its kind, scored by BM25.
    Bm25,
}

const DIVISIONS: [(Division, &str); 3] =
    [(Division::ByKind, "by kind"), (Division::Sentences, "sentences"), (Division::Bm25, "by kind, bm25")];

/// Results of one file, which has questions about texts of one kind.
#[derive(Debug, Clone)]
pub struct Report {
    /// Name of the file, without its extension.
    pub kind: String,
    pub questions: usize,
    pub divisions: Vec<(&'static str, DivisionReport)>,
}

/// Results of one division of the texts. All shares are from 0 to 1.
#[derive(Debug, Clone, Copy)]
pub struct DivisionReport {
    /// Share of questions of which every needed part is in a context of a quarter of the tokens.
    pub all_parts: Estimate,
    /// Share of a question's needed parts that are in this context, averaged over the questions.
    pub parts: Estimate,
    /// Share of questions of which this context misleads: text is joined without a mark, or a part of the chunks is cut, or a part
    /// stands without what it needs and no warning says so.
    pub misleads: Estimate,
    /// Share of the chunks that are valid JSON and have something in this context, of which what is kept is
    /// valid JSON too. The mean is NaN without such chunks.
    pub parses: Estimate,
    /// Share of questions of which every needed part is kept without a budget (`auto`). NaN for BM25, as are
    /// the next two.
    pub auto_all_parts: Estimate,
    /// Share of questions of which the context without a budget misleads.
    pub auto_misleads: Estimate,
    /// Share of the tokens that are kept without a budget.
    pub auto_tokens: Estimate,
}

/// Samples of one division. One value per question, but `parses` has one per chunk of a context.
#[derive(Debug, Default)]
struct Samples {
    all_parts: Vec<f64>,
    parts: Vec<f64>,
    misleads: Vec<f64>,
    parses: Vec<f64>,
    auto_all_parts: Vec<f64>,
    auto_misleads: Vec<f64>,
    auto_tokens: Vec<f64>,
}

/// Measures which needed parts are kept for the questions of one file.
///
/// The `pipeline` must keep blocks in full precision (`f32`); what is measured uses blocks of `codec`.
/// `progress` is called after every question with the number of questions done and the number of all.
///
/// # Errors
/// Fails if the file cannot be read, if a question's needed parts are not in its chunks (the error names the
/// line), or if the model fails.
pub fn evaluate(
    path: &Path,
    pipeline: &Pipeline,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Report> {
    let rows: Vec<Row> = RowFile::read(path)?
        .checked_rows(|row: &Row| row.parts().try_for_each(|part| part.ranges(&row.chunks).map(|_| ())))?;
    let mut samples = DIVISIONS.map(|_| Samples::default());
    for (done, row) in rows.iter().enumerate() {
        for ((division, _), samples) in DIVISIONS.iter().zip(&mut samples) {
            samples
                .add(row, *division, pipeline, codec)
                .with_context(|| format!("the question {:?}", row.query))?;
        }
        progress(done + 1, rows.len());
    }
    Ok(Report {
        kind: path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        questions: rows.len(),
        divisions: DIVISIONS
            .iter()
            .zip(&samples)
            .map(|((_, name), samples)| (*name, samples.report()))
            .collect(),
    })
}

impl Samples {
    fn add(&mut self, row: &Row, division: Division, pipeline: &Pipeline, codec: Codec) -> Result<()> {
        let request = request(row, division);
        let cancel = Cancel::default();
        let reading = pipeline.read(&request, &cancel, &mut Clock::start())?;
        let texts = texts(&row.chunks, &request, &reading);
        let scores = match division {
            Division::Bm25 => Bm25.scores(&row.query, &reading, &texts)?,
            Division::ByKind | Division::Sentences => {
                Configured::new(pipeline, codec)?.scores(&row.query, &reading, &texts)?
            }
        };
        let fit = |budget| {
            let request = CompressRequest { budget, ..request.clone() };
            match pipeline.decide(&request, &reading, &scores, None, &cancel) {
                Ok(fitted) => Ok(Some(fitted)),
                Err(PipelineError::Invalid(_)) => Ok(None),
                Err(error) => Err(error),
            }
        };
        // Nothing is kept, and nothing misleads, if the budget could not be met.
        let judge = |fitted: Option<&Decision>| -> Result<(Vec<bool>, f64)> {
            let Some(fitted) = fitted else { return Ok((vec![false; row.needed.len()], 0.0)) };
            let kept = KeptParts { row, fitted };
            Ok((kept.found()?, f64::from(u8::from(kept.misleads()?))))
        };
        let at_ratio = fit(Budget::ratio(RATIO))?;
        let (found, misleads) = judge(at_ratio.as_ref())?;
        self.parts.push(share(&found));
        self.all_parts.push(all(&found));
        self.misleads.push(misleads);
        self.parses.extend(at_ratio.iter().flat_map(|fitted| parses(row, fitted)));
        // Only RC tells how much is enough.
        if division != Division::Bm25 {
            let auto = fit(Budget::default())?;
            let (found, misleads) = judge(auto.as_ref())?;
            self.auto_all_parts.push(all(&found));
            self.auto_misleads.push(misleads);
            let tokens =
                |fitted: &Decision| fitted.usage.tokens_out as f64 / fitted.usage.tokens_in.max(1) as f64;
            self.auto_tokens.push(auto.as_ref().map_or(0.0, tokens));
        }
        Ok(())
    }

    fn report(&self) -> DivisionReport {
        DivisionReport {
            all_parts: wilson_proportion(&self.all_parts),
            parts: bootstrap_mean(&self.parts),
            misleads: wilson_proportion(&self.misleads),
            parses: wilson_proportion(&self.parses),
            auto_all_parts: wilson_proportion(&self.auto_all_parts),
            auto_misleads: wilson_proportion(&self.auto_misleads),
            auto_tokens: bootstrap_mean(&self.auto_tokens),
        }
    }
}

/// Converts the row to a request in plain format, so that the token count covers the row's text only.
fn request(row: &Row, division: Division) -> CompressRequest {
    let kind = match division {
        Division::Sentences => Kind::Prose,
        Division::ByKind | Division::Bm25 => Kind::Auto,
    };
    let numbered =
        |(index, chunk): (usize, &LabelledChunk)| Chunk { id: format!("c{index}"), kind, ..chunk.chunk() };
    let chunks = row.chunks.iter().enumerate().map(numbered).collect();
    let tokenizer = TokenizerName::Model;
    CompressRequest { format: Format::Plain, tokenizer, ..CompressRequest::new(&row.query, chunks) }
}

fn all(found: &[bool]) -> f64 {
    f64::from(u8::from(found.iter().all(|found| *found)))
}

fn share(found: &[bool]) -> f64 {
    found.iter().filter(|found| **found).count() as f64 / found.len().max(1) as f64
}

struct KeptParts<'a> {
    row: &'a Row,
    fitted: &'a Decision,
}

impl KeptParts<'_> {
    /// Returns for each needed part whether it is kept.
    fn found(&self) -> Result<Vec<bool>> {
        self.row.needed.iter().map(|part| Ok(self.kept(part)? == Kept::Whole)).collect()
    }

    fn kept(&self, part: &NeededPart) -> Result<Kept> {
        let spans = self.fitted.spans[part.chunk].iter().map(|span| span.source);
        let kept = joined(spans, &self.row.chunks[part.chunk].text);
        let is_inside = |range: &ByteRange| kept.iter().any(|kept| kept.encloses(*range));
        let ranges = part.ranges(&self.row.chunks)?;
        let is_touched = |range: &ByteRange| kept.iter().any(|kept| kept.overlaps(*range));
        Ok(if ranges.iter().all(is_inside) {
            Kept::Whole
        } else if ranges.iter().any(is_touched) {
            Kept::Partly
        } else {
            Kept::Nothing
        })
    }

    fn misleads(&self) -> Result<bool> {
        let Self { row, fitted } = self;
        let has_warning =
            |chunk: usize| fitted.rows_left_out.contains(&chunk) || fitted.groups_cut.contains(&chunk);
        let mut misleads = self.joins_silently();
        for part in &row.whole {
            misleads |= self.kept(part)? == Kept::Partly;
        }
        for Pair { part, needs } in row.pairs.iter().filter(|pair| !has_warning(pair.part.chunk)) {
            misleads |= self.kept(part)? != Kept::Nothing && self.kept(needs)? != Kept::Whole;
        }
        Ok(misleads)
    }

    /// Returns whether two spans of a chunk that is not JSON, whole or cut off, stand side by side without a mark for what is between them.
    fn joins_silently(&self) -> bool {
        let Self { row, fitted } = self;
        row.chunks.iter().zip(&fitted.spans).filter(|(chunk, _)| !has_json(&chunk.text)).any(
            |(chunk, spans)| {
                spans.windows(2).any(|pair| {
                    let is_gap = !chunk.text[pair[0].source.end..pair[1].source.start].trim().is_empty();
                    is_gap && !fitted.context[pair[0].output.end..pair[1].output.start].contains('…')
                })
            },
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Nothing,
    Partly,
    Whole,
}

/// Returns for each kept chunk that is valid JSON whether what is kept of it is valid JSON.
fn parses(row: &Row, fitted: &Decision) -> Vec<f64> {
    let kept = |(chunk, spans): (&LabelledChunk, &Vec<KeptSpan>)| {
        let (first, last) = (spans.first()?, spans.last()?);
        let kept = &fitted.context[first.output.start..last.output.end];
        is_json(&chunk.text).then(|| f64::from(u8::from(is_json(kept))))
    };
    row.chunks.iter().zip(&fitted.spans).filter_map(kept).collect()
}

/// Returns whether a text is JSON, or a part of it, in which a mark would be a mistake.
fn has_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) || text.trim_end().ends_with(['}', ']'])
}

/// Returns whether a text is one or several JSON objects or arrays.
fn is_json(text: &str) -> bool {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>().peekable();
    values.peek().is_some()
        && values.all(|value| value.is_ok_and(|value| value.is_object() || value.is_array()))
}

impl Report {
    /// Returns the report of one file as a JSON object.
    pub fn json(&self) -> Value {
        let mut report = json!({"kind": self.kind, "questions": self.questions, "divisions": {}});
        for (name, division) in &self.divisions {
            for (metric, estimate) in division.columns() {
                report["divisions"][name][metric] = number(estimate.mean);
                report["divisions"][name]["ci95"][metric] = json!(estimate.interval.map(number));
            }
        }
        report
    }
}

impl DivisionReport {
    fn columns(&self) -> [(&'static str, Estimate); 7] {
        [
            ("all_parts", self.all_parts),
            ("parts", self.parts),
            ("misleads", self.misleads),
            ("parses", self.parses),
            ("auto_all_parts", self.auto_all_parts),
            ("auto_misleads", self.auto_misleads),
            ("auto_tokens", self.auto_tokens),
        ]
    }
}

/// Renders the report of one file as rows of a text table with 95 % intervals; the first report of a table has
/// a header.
pub fn table(report: &Report, has_header: bool) -> String {
    let mut out = String::new();
    if has_header {
        let titles = [
            "all parts @4x",
            "parts @4x",
            "misleads @4x",
            "parses @4x",
            "auto: all parts",
            "auto: misleads",
            "auto: tokens",
        ];
        let _ = write!(out, "{:<10} {:>9}  {:<14}", "kind", "questions", "divided");
        titles.iter().for_each(|title| _ = write!(out, " {title:>22}"));
        out.push('\n');
    }
    for (name, division) in &report.divisions {
        let _ = write!(out, "{:<10} {:>9}  {name:<14}", report.kind, report.questions);
        for (_, estimate) in division.columns() {
            let _ = write!(out, " {:>22}", cell_or_dash(estimate));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_values_are_json_and_a_half_one_is_not() {
        assert!(is_json("{\"a\": 1}\n[2]\n"));
        assert!(!is_json("{\"a\": 1}\n{\"b\""));
        assert!(!is_json("12 apples"));
    }
}
