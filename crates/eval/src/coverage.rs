//! Calibrates budgets that promise a coverage, on labelled questions, and measures what the promises cost.
//!
//! A question is covered if its evidence is kept: every needed part, if the row names parts; else something of
//! every needed chunk, and one of the answers in a needed chunk, if the row has answers.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, bail};
use thresher_core::domain::{ByteRange, CompressRequest, Granularity, Lang};
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::decide;
use thresher_core::pipeline::decide::coverage::{CoverageLimits, rows_needed};
use thresher_core::text;

use super::data::{self, LabelledChunk, RowFile, Rows};
use super::estimate::{Estimate, wilson_proportion};
use super::needed::{self, joined};

/// The promises that are measured.
pub const PROMISES: [f64; 4] = [0.8, 0.9, 0.95, 0.98];

/// The folds of the measurement: each is measured with a calibration on the others.
const FOLDS: usize = 5;

const GROUP_ROWS_MIN: usize = 20;

/// The evidence that an answer needs.
struct Need {
    /// The sets of chunks of which one is needed; each chunk must keep something.
    chunk_sets: Vec<Vec<usize>>,
    /// The texts of which one must be kept in a needed chunk; none if any text will do.
    answers: Vec<String>,
    /// The chunk and the byte ranges of every needed part.
    parts: Vec<(usize, Vec<ByteRange>)>,
    /// The letters and digits of texts that must all be kept, each in one chunk.
    facts: Vec<String>,
}

/// A labelled question, and how far down its ranking the evidence lies.
#[derive(Debug, Clone)]
pub struct Ranking {
    /// The effort at which its evidence is complete.
    pub effort: f32,
    /// The share of the tokens that a context has which keeps units down to the evidence.
    pub share: f64,
    /// The effort of every step of the ranking, and the share of the tokens up to it.
    steps: Vec<(f32, f64)>,
    /// The share of the tokens that `auto` keeps, and whether they hold the evidence.
    auto: (f64, bool),
    groups: Groups,
}

/// What a row is like. Promises hold for all rows together, and may be too low or too high for some groups.
#[derive(Debug, Clone, Copy)]
struct Groups {
    tokens: usize,
    is_prose: bool,
    lang: Option<Lang>,
    needed: usize,
}

/// What a promise costs, measured on rows that were not used to calibrate it.
#[derive(Debug, Clone)]
pub struct Promise {
    pub promised: f64,
    /// The share of the rows whose evidence is kept.
    pub covered: Estimate,
    /// The mean share of the tokens that is kept.
    pub tokens: f64,
    /// The mean share of the tokens that the same ratio for all questions keeps, if it reaches the same coverage.
    pub tokens_of_ratio: f64,
    /// The share of covered rows of each group with enough rows, and the number of its rows.
    pub groups: Vec<(String, Estimate, usize)>,
}

pub struct Rankings {
    pub rows: Vec<Ranking>,
    /// How many rows were left out because their evidence is not in their chunks.
    pub without_evidence: usize,
}

/// Ranks the units of all questions of a file.
///
/// # Errors
/// Fails if the file cannot be read or has other rows than questions with `gold` or `needed`, or if the model fails.
pub fn rank(path: &Path, pipeline: &Pipeline, progress: &dyn Fn(usize, usize)) -> Result<Rankings> {
    let rows = read(path)?;
    let (mut ranked, mut without_evidence) = (Vec::new(), 0);
    for (done, (query, chunks, need)) in rows.iter().enumerate() {
        match Ranking::measure(query, chunks, need, pipeline)? {
            Some(ranking) => ranked.push(ranking),
            None => without_evidence += 1,
        }
        progress(done + 1, rows.len());
    }
    if ranked.is_empty() {
        bail!("{}: no row has its evidence in its chunks", path.display());
    }
    Ok(Rankings { rows: ranked, without_evidence })
}

/// Returns whether the rows of a file say what an answer needs.
///
/// # Errors
/// Fails if the file cannot be read or has no row.
pub fn has_needs(path: &Path) -> Result<bool> {
    let file = RowFile::read(path)?;
    Ok(!file.has_field("answerable") && (file.has_field("needed") || file.has_field("gold")))
}

fn read(path: &Path) -> Result<Vec<(String, Vec<LabelledChunk>, Need)>> {
    let file = RowFile::read(path)?;
    if file.has_field("needed") {
        let row = |row: needed::Row| {
            let parts = row.needed_ranges()?;
            let need = Need { chunk_sets: Vec::new(), answers: Vec::new(), parts, facts: Vec::new() };
            Ok((row.query, row.chunks, need))
        };
        return file
            .checked_rows(|row: &needed::Row| row.needed_ranges().map(drop))?
            .into_iter()
            .map(row)
            .collect();
    }
    let Rows::Selection(rows, _) = data::read(path)? else {
        bail!("{} has no questions with \"gold\" or \"needed\" (docs/evaluation.md)", path.display());
    };
    let row = |row: data::SelectionRow| {
        let answers = row.answers.iter().filter(|answer| !answer.is_empty());
        let answers = answers.map(|answer| answer.to_lowercase()).collect();
        // The facts say more closely what is needed of the chunks.
        let chunk_sets =
            if row.facts.is_empty() { [vec![row.gold], row.gold_sets].concat() } else { Vec::new() };
        let facts = row.facts.iter().map(|fact| letters(fact)).collect();
        (row.query, row.chunks, Need { chunk_sets, answers, parts: Vec::new(), facts })
    };
    Ok(rows.into_iter().map(row).collect())
}

/// Returns the letters and digits of a text, in lower case.
fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

impl Need {
    /// Returns whether what is kept holds the evidence. `kept` `[chunk]` are ascending ranges.
    fn is_met(&self, kept: &[Vec<ByteRange>], chunks: &[LabelledChunk]) -> bool {
        let joined = |chunk: usize| joined(kept[chunk].iter().copied(), &chunks[chunk].text);
        let has_part = |(chunk, ranges): &(usize, Vec<ByteRange>)| {
            let spans = joined(*chunk);
            let is_inside = |range: &ByteRange| spans.iter().any(|span| span.encloses(*range));
            ranges.iter().all(is_inside)
        };
        let has_answer = |chunk: usize| {
            let has = |span: &ByteRange| {
                let text = span.slice(&chunks[chunk].text).to_lowercase();
                self.answers.iter().any(|answer| text.contains(answer))
            };
            joined(chunk).iter().any(has)
        };
        let is_kept = |set: &Vec<usize>| {
            set.iter().all(|&chunk| !kept[chunk].is_empty())
                && (self.answers.is_empty() || set.iter().any(|&chunk| has_answer(chunk)))
        };
        let letters_of = |chunk: usize| -> String {
            kept[chunk].iter().map(|range| letters(range.slice(&chunks[chunk].text))).collect()
        };
        let has_facts = || {
            let texts: Vec<String> = (0..chunks.len()).map(letters_of).collect();
            self.facts.iter().all(|fact| texts.iter().any(|text| text.contains(fact)))
        };
        self.parts.iter().all(has_part)
            && (self.facts.is_empty() || has_facts())
            && (self.chunk_sets.is_empty() || self.chunk_sets.iter().any(is_kept))
    }
}

impl Ranking {
    /// Returns the ranking of a question; `None` if its evidence is not in its chunks.
    fn measure(
        query: &str,
        chunks: &[LabelledChunk],
        need: &Need,
        pipeline: &Pipeline,
    ) -> Result<Option<Self>> {
        let request = CompressRequest {
            granularity: Granularity::Sentence,
            ..CompressRequest::new(query, data::request_chunks(chunks))
        };
        let cancel = Cancel::default();
        let reading = pipeline.read(&request, &cancel, &mut Clock::start())?;
        let scores = pipeline.scorer()?.score(&reading, &cancel, &mut Clock::start())?;
        let tokens_of = |unit: usize| reading.units[unit].tokens.len();
        let all = (0..reading.units.len()).map(tokens_of).sum::<usize>().max(1);
        let mut kept = vec![Vec::new(); chunks.len()];
        let (mut tokens, mut steps, mut found) = (0, Vec::new(), None);
        for step in decide::choices(&request, &reading, &scores, &cancel)? {
            for &unit in &step.units {
                let ranges: &mut Vec<ByteRange> = &mut kept[reading.units[unit].chunk];
                let bytes = reading.units[unit].bytes;
                ranges.insert(ranges.partition_point(|range| range.start < bytes.start), bytes);
                tokens += tokens_of(unit);
            }
            let share = tokens as f64 / all as f64;
            steps.push((step.effort, share));
            if found.is_none() && need.is_met(&kept, chunks) {
                found = Some((step.effort, share));
            }
        }
        let Some((effort, share)) = found else { return Ok(None) };
        let fitted = pipeline.decide(&request, &reading, &scores, None, &cancel)?;
        let spans: Vec<Vec<ByteRange>> =
            fitted.spans.iter().map(|spans| spans.iter().map(|span| span.source).collect()).collect();
        let auto_tokens: usize = fitted.spans.iter().flatten().map(|span| span.tokens.len()).sum();
        let auto = (auto_tokens as f64 / all as f64, need.is_met(&spans, chunks));
        let sets = need.chunk_sets.first().map_or(need.facts.len(), Vec::len);
        let groups = Groups {
            tokens: all,
            is_prose: reading.outlines.is_prose(),
            lang: text::lang_of(query)
                .or_else(|| reading.blocks.blocks.first().and_then(|block| block.lang())),
            needed: sets.max(need.parts.len()),
        };
        Ok(Some(Self { effort, share, steps, auto, groups }))
    }

    /// Returns the share of the tokens that a limit of the effort keeps.
    fn tokens_up_to(&self, limit: f32) -> f64 {
        let after = self.steps.partition_point(|(effort, _)| *effort <= limit);
        after.checked_sub(1).map_or(0.0, |last| self.steps[last].1)
    }

    /// Returns the share of the tokens that a ratio keeps: units in their order, as far as they fit.
    fn tokens_within(&self, ratio: f64) -> f64 {
        let after = self.steps.partition_point(|(_, share)| *share <= ratio);
        after.checked_sub(1).map_or(0.0, |last| self.steps[last].1)
    }
}

impl Groups {
    /// Returns the names of the groups that a row belongs to. `lengths` are the limits of short and long contexts.
    fn names(&self, lengths: (usize, usize)) -> Vec<String> {
        let length = match self.tokens {
            tokens if tokens <= lengths.0 => format!("up to {} tokens", lengths.0),
            tokens if tokens <= lengths.1 => format!("{} to {} tokens", lengths.0 + 1, lengths.1),
            _ => format!("over {} tokens", lengths.1),
        };
        let kind = if self.is_prose { "prose" } else { "not prose" }.to_owned();
        let lang = self.lang.map_or_else(|| "language unknown".to_owned(), |lang| lang.code().to_owned());
        let needed = format!("{} needed", if self.needed > 1 { "several" } else { "one" });
        vec![length, kind, lang, needed]
    }
}

impl Rankings {
    /// Returns the limits that all rows give. `estimator` is the scoring method, and `data` the hash of their file.
    ///
    /// # Errors
    /// Fails if there are too few rows for any promise.
    pub fn limits(&self, estimator: String, data: String) -> Result<CoverageLimits> {
        let efforts = self.rows.iter().map(|row| row.effort).collect();
        let several = self.rows.iter().filter(|row| row.groups.needed > 1);
        let several: Vec<f32> = several.map(|row| row.effort).collect();
        CoverageLimits::of_efforts(efforts, estimator, data)
            .map(|limits| limits.with_several(&several))
            .map_err(|needed| anyhow::anyhow!("at least {needed} rows are needed, found {}", self.rows.len()))
    }

    /// Measures a promise on rows that did not calibrate it; `None` if there are too few rows.
    pub fn measure(&self, promised: f64) -> Option<Promise> {
        // Rows of a file may be sorted by source, so that folds take every fifth.
        let mut outcomes: Vec<(bool, f64)> = vec![(false, 0.0); self.rows.len()];
        for fold in 0..FOLDS {
            let is_inside = |row: usize| row % FOLDS == fold;
            let others = self.rows.iter().enumerate().filter(|(row, _)| !is_inside(*row));
            let efforts = others.map(|(_, row)| row.effort).collect();
            let limits = CoverageLimits::of_efforts(efforts, String::new(), String::new()).ok()?;
            let limit = limits.limit(promised).ok()?;
            for (at, row) in self.rows.iter().enumerate().filter(|(at, _)| is_inside(*at)) {
                outcomes[at] = (row.effort <= limit, row.tokens_up_to(limit));
            }
        }
        let count = self.rows.len() as f64;
        let covered = outcomes.iter().filter(|(covered, _)| *covered).count();
        let mut shares: Vec<f64> = self.rows.iter().map(|row| row.share).collect();
        shares.sort_by(f64::total_cmp);
        let ratio = covered.checked_sub(1).map_or(0.0, |last| shares[last]);
        let mut lengths: Vec<usize> = self.rows.iter().map(|row| row.groups.tokens).collect();
        lengths.sort_unstable();
        let lengths = (lengths[lengths.len() / 3], lengths[2 * lengths.len() / 3]);
        let mut groups: Vec<(String, Vec<f64>)> = Vec::new();
        for (row, (covered, _)) in self.rows.iter().zip(&outcomes) {
            for name in row.groups.names(lengths) {
                let value = f64::from(u8::from(*covered));
                match groups.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, values)) => values.push(value),
                    None => groups.push((name, vec![value])),
                }
            }
        }
        groups.sort_by(|a, b| a.0.cmp(&b.0));
        let groups =
            groups.into_iter().map(|(name, values)| (name, wilson_proportion(&values), values.len()));
        let values: Vec<f64> = outcomes.iter().map(|(covered, _)| f64::from(u8::from(*covered))).collect();
        Some(Promise {
            promised,
            covered: wilson_proportion(&values),
            tokens: outcomes.iter().map(|(_, tokens)| tokens).sum::<f64>() / count,
            tokens_of_ratio: self.rows.iter().map(|row| row.tokens_within(ratio)).sum::<f64>() / count,
            groups: groups.collect(),
        })
    }

    pub fn table(&self) -> String {
        let mut out = format!(
            "{} rows; each fifth is measured with the limits of the others\n{:>9} {:>24} {:>8} {:>22}\n",
            self.rows.len(),
            "coverage",
            "covered",
            "tokens",
            "tokens of a fixed ratio"
        );
        let mut last = None;
        for promised in PROMISES {
            match self.measure(promised) {
                Some(promise) => {
                    let Estimate { mean, interval: [low, high] } = promise.covered;
                    let _ = writeln!(
                        out,
                        "{promised:>9} {:>24} {:>7.1}% {:>21.1}%",
                        format!("{mean:.3} [{low:.3}, {high:.3}]"),
                        100.0 * promise.tokens,
                        100.0 * promise.tokens_of_ratio
                    );
                    last = Some(promise);
                }
                None => {
                    let needed = rows_needed(promised);
                    let _ = writeln!(
                        out,
                        "{promised:>9} can be used from {needed} rows on, and measured from {} rows on",
                        (needed * FOLDS).div_ceil(FOLDS - 1)
                    );
                }
            }
        }
        let count = self.rows.len() as f64;
        let of_auto = self.rows.iter().map(|row| row.auto.0).sum::<f64>() / count;
        let kept = self.rows.iter().filter(|row| row.auto.1).count() as f64 / count;
        let _ = writeln!(out, "{:>9} {kept:>24.3} {:>7.1}%", "auto", 100.0 * of_auto);
        if let Some(promise) = last {
            let _ = writeln!(out, "covered by group, of {} promised:", promise.promised);
            for (name, Estimate { mean, interval: [low, high] }, rows) in &promise.groups {
                let _ = if *rows < GROUP_ROWS_MIN {
                    writeln!(out, "  {name:<24} {rows:>5} rows: too few to measure")
                } else {
                    writeln!(out, "  {name:<24} {rows:>5} rows  {mean:.3} [{low:.3}, {high:.3}]")
                };
            }
        }
        out
    }
}
