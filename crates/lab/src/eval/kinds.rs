//! Whether the parts of a text that a reader needs are kept, for texts of every kind: code, tables, logs and
//! others. docs/evaluation.md defines the metrics.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use thresher_core::domain::{Budget, ByteRange, Chunk, CompressRequest, Format, KeptSpan, Kind};
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::fit::Fitted;
use thresher_core::pipeline::{Pipeline, PipelineError};

use super::data::{LabelledChunk, RowFile};
use super::estimate::{Estimate, bootstrap_mean, wilson_proportion};
use super::methods::{Method, RowReading, Texts, of};
use super::report::{cell_or_dash, number};
use super::selection::texts;

/// The share of tokens that a context may have: one in four.
const RATIO: f64 = 0.25;

/// A question, its chunks, and the parts of them that its answer needs.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Row {
    pub query: String,
    pub chunks: Vec<LabelledChunk>,
    needed: Vec<NeededPart>,
    /// Parts that mislead a reader who sees only some of them.
    #[serde(default)]
    whole: Vec<NeededPart>,
    /// Parts that mislead a reader who does not see another one.
    #[serde(default)]
    pairs: Vec<Pair>,
}

/// A part of a chunk, and what a reader needs besides to understand it: a number and the label of its row.
#[derive(Debug, Clone, Deserialize)]
struct Pair {
    part: NeededPart,
    needs: NeededPart,
}

/// A part of a chunk that the answer needs.
#[derive(Debug, Clone, Deserialize)]
struct NeededPart {
    /// Index of the chunk.
    chunk: usize,
    #[serde(flatten)]
    place: Place,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    /// The first and the last line, counted from 1.
    Lines(usize, usize),
    /// A text that occurs once in the chunk.
    Text(String),
}

/// How a text is divided and scored.
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
    /// Number of questions.
    pub questions: usize,
    /// Results by division.
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
        let row_reading = RowReading::new(pipeline.read(&request, &cancel, &mut Clock::start())?);
        let method = match division {
            Division::Bm25 => Method::Bm25,
            Division::ByKind | Division::Sentences => of(pipeline, codec)[0],
        };
        let texts: Texts = texts(&row.chunks, &request, &row_reading.reading);
        let scores = method.scores(&row.query, &row_reading, &texts)?;
        let fit = |budget| {
            let request = CompressRequest { budget, ..request.clone() };
            match pipeline.fit(&request, &row_reading.reading, &scores, None, &cancel) {
                Ok(fitted) => Ok(Some(fitted)),
                Err(PipelineError::Invalid(_)) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let at_ratio = fit(Budget::Ratio(RATIO))?;
        let found = row.found(at_ratio.as_ref())?;
        self.parts.push(share(&found));
        self.all_parts.push(all(&found));
        self.misleads.push(row.misleads(at_ratio.as_ref())?);
        self.parses.extend(at_ratio.iter().flat_map(|fitted| parses(row, fitted)));
        // Only RC tells how much is enough.
        if division != Division::Bm25 {
            let auto = fit(Budget::Auto)?;
            self.auto_all_parts.push(all(&row.found(auto.as_ref())?));
            self.auto_misleads.push(row.misleads(auto.as_ref())?);
            let tokens =
                |fitted: &Fitted| fitted.usage.tokens_out as f64 / fitted.usage.tokens_in.max(1) as f64;
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
        |(index, chunk): (usize, &LabelledChunk)| Chunk { id: index.to_string(), kind, ..chunk.chunk() };
    let chunks = row.chunks.iter().enumerate().map(numbered).collect();
    CompressRequest { format: Format::Plain, ..CompressRequest::new(&row.query, chunks) }
}

fn all(found: &[bool]) -> f64 {
    f64::from(u8::from(found.iter().all(|found| *found)))
}

fn share(found: &[bool]) -> f64 {
    found.iter().filter(|found| **found).count() as f64 / found.len().max(1) as f64
}

impl Row {
    /// Returns for each needed part whether it is kept. Nothing is kept if the budget could not be met.
    fn found(&self, fitted: Option<&Fitted>) -> Result<Vec<bool>> {
        let is_kept = |part: &NeededPart| -> Result<bool> {
            let Some(fitted) = fitted else { return Ok(false) };
            Ok(self.kept(fitted, part)? == Kept::Whole)
        };
        self.needed.iter().map(is_kept).collect()
    }

    /// All parts that the row describes.
    fn parts(&self) -> impl Iterator<Item = &NeededPart> {
        let of_pairs = self.pairs.iter().flat_map(|pair| [&pair.part, &pair.needs]);
        self.needed.iter().chain(&self.whole).chain(of_pairs)
    }

    /// Returns how much of a part is kept.
    fn kept(&self, fitted: &Fitted, part: &NeededPart) -> Result<Kept> {
        let spans = fitted.spans[part.chunk].iter().map(|span| span.source);
        let kept = joined(spans, &self.chunks[part.chunk].text);
        let is_inside =
            |range: &ByteRange| kept.iter().any(|kept| kept.start <= range.start && range.end <= kept.end);
        let ranges = part.ranges(&self.chunks)?;
        let is_touched = |range: &ByteRange| kept.iter().any(|kept| kept.overlaps(*range));
        Ok(match () {
            () if ranges.iter().all(is_inside) => Kept::Whole,
            () if ranges.iter().any(is_touched) => Kept::Partly,
            () => Kept::Nothing,
        })
    }

    /// Returns 1 if a context misleads, and 0 if it does not or if there is none.
    fn misleads(&self, fitted: Option<&Fitted>) -> Result<f64> {
        let Some(fitted) = fitted else { return Ok(0.0) };
        let has_warning =
            |chunk: usize| fitted.rows_left_out.contains(&chunk) || fitted.groups_cut.contains(&chunk);
        let mut misleads = self.joins_silently(fitted);
        for part in &self.whole {
            misleads |= self.kept(fitted, part)? == Kept::Partly;
        }
        for Pair { part, needs } in self.pairs.iter().filter(|pair| !has_warning(pair.part.chunk)) {
            let is_shown = self.kept(fitted, part)? != Kept::Nothing;
            misleads |= is_shown && self.kept(fitted, needs)? != Kept::Whole;
        }
        Ok(f64::from(u8::from(misleads)))
    }

    /// Returns whether two spans of a chunk that is not JSON, whole or cut off, stand side by side without a mark for what is between them.
    fn joins_silently(&self, fitted: &Fitted) -> bool {
        self.chunks.iter().zip(&fitted.spans).filter(|(chunk, _)| !has_json(&chunk.text)).any(
            |(chunk, spans)| {
                spans.windows(2).any(|pair| {
                    let is_gap = !chunk.text[pair[0].source.end..pair[1].source.start].trim().is_empty();
                    is_gap && !fitted.context[pair[0].output.end..pair[1].output.start].contains('…')
                })
            },
        )
    }
}

/// How much of a part is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Nothing,
    Partly,
    Whole,
}

impl Row {
    /// Returns the chunk and the byte ranges of every needed part.
    pub fn needed_ranges(&self) -> Result<Vec<(usize, Vec<ByteRange>)>> {
        self.needed.iter().map(|part| Ok((part.chunk, part.ranges(&self.chunks)?))).collect()
    }
}

impl NeededPart {
    /// Returns the byte ranges of the part's lines in its chunk, without the blanks around each line.
    fn ranges(&self, chunks: &[LabelledChunk]) -> Result<Vec<ByteRange>> {
        let Some(chunk) = chunks.get(self.chunk) else {
            bail!("\"needed\" names chunk {} of {}; indices start at 0", self.chunk, chunks.len());
        };
        let text = &chunk.text;
        let (start, part) = match &self.place {
            Place::Text(part) => match text.match_indices(part.as_str()).collect::<Vec<_>>()[..] {
                [(start, part)] => (start, part),
                ref found => {
                    bail!("{part:?} occurs {} times in chunk {}; once is needed", found.len(), self.chunk)
                }
            },
            Place::Lines(first, last) => {
                let ends: Vec<usize> = std::iter::once(0)
                    .chain(text.split_inclusive('\n').scan(0, |at, line| {
                        *at += line.len();
                        Some(*at)
                    }))
                    .collect();
                if *first < 1 || first > last || *last >= ends.len() {
                    bail!(
                        "lines {first} to {last} are not in chunk {}, which has {}",
                        self.chunk,
                        ends.len() - 1
                    );
                }
                (ends[first - 1], &text[ends[first - 1]..ends[*last]])
            }
        };
        let line = |(at, line): (usize, &str)| {
            let begin = at + (line.len() - line.trim_start().len());
            let bare = line.trim();
            (!bare.is_empty()).then(|| ByteRange::new(begin, begin + bare.len()))
        };
        let lines = part.split_inclusive('\n').scan(start, |at, line| {
            let begin = *at;
            *at += line.len();
            Some((begin, line))
        });
        Ok(lines.filter_map(line).collect())
    }
}

/// Returns the ranges of the spans, with those joined that only blanks divide.
pub(super) fn joined(spans: impl Iterator<Item = ByteRange>, text: &str) -> Vec<ByteRange> {
    let mut found: Vec<ByteRange> = Vec::new();
    for span in spans {
        match found.last_mut().filter(|last| text[last.end..span.start].trim().is_empty()) {
            Some(last) => last.end = last.end.max(span.end),
            None => found.push(span),
        }
    }
    found
}

/// Returns for each kept chunk that is valid JSON whether what is kept of it is valid JSON.
fn parses(row: &Row, fitted: &Fitted) -> Vec<f64> {
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

    fn chunk(text: &str) -> LabelledChunk {
        LabelledChunk { id: String::new(), title: String::new(), text: text.to_owned() }
    }

    fn part(json: Value) -> NeededPart {
        serde_json::from_value(json).expect("a part")
    }

    #[test]
    fn a_needed_part_is_its_lines_without_the_blanks_around_them() {
        let chunks = [chunk("def f():\n    return 1\n\n  # end")];
        let of =
            |json| part(json).ranges(&chunks).map(|found| found.iter().map(|r| (r.start, r.end)).collect());
        let check = |json, expected: Vec<(usize, usize)>| assert_eq!(of(json).ok(), Some(expected));
        check(json!({"chunk": 0, "lines": [2, 4]}), vec![(13, 21), (25, 30)]);
        check(json!({"chunk": 0, "text": "return 1"}), vec![(13, 21)]);
    }

    #[test]
    fn a_part_that_is_not_in_its_chunk_is_refused() {
        let chunks = [chunk("one\ntwo two")];
        let error = |json| part(json).ranges(&chunks).expect_err("refused").to_string();
        assert!(error(json!({"chunk": 1, "lines": [1, 1]})).contains("chunk 1 of 1"));
        assert!(error(json!({"chunk": 0, "lines": [1, 3]})).contains("which has 2"));
        assert!(error(json!({"chunk": 0, "text": "two"})).contains("occurs 2 times"));
    }

    #[test]
    fn several_values_are_json_and_a_half_one_is_not() {
        assert!(is_json("{\"a\": 1}\n[2]\n"));
        assert!(!is_json("{\"a\": 1}\n{\"b\""));
        assert!(!is_json("12 apples"));
    }
}
