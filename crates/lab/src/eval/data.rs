//! Labelled data of `eval`: JSON Lines, one object per line, in one of two shapes (selection or attribution).

use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;
use thresher_core::domain::Chunk;

/// The rows of one file. All rows of a file have the same shape.
pub enum Rows {
    /// Questions with the chunks that answer them, and the number of rows left out because their `gold` is
    /// empty.
    Selection(Vec<SelectionRow>, usize),
    /// Answers with the chunk that each span came from.
    Attribution(Vec<AttributionRow>),
}

/// A question with its candidate chunks and the labels of the needed ones.
#[derive(Debug, Clone, Deserialize)]
pub struct SelectionRow {
    /// The question's text.
    pub query: String,
    /// The candidate chunks, in the order in which they are sent.
    pub chunks: Vec<LabelledChunk>,
    /// Indices of the needed chunks. Empty for a question that no chunk answers; such rows are left out
    /// because they say nothing about selection.
    pub gold: Vec<usize>,
    /// Other sufficient sets of chunk indices. If not empty, R@gold takes the best of these sets.
    #[serde(default)]
    pub gold_sets: Vec<Vec<usize>>,
    /// Accepted answer texts, of which at least one must survive compression. Empty if there is no answer
    /// text.
    #[serde(default)]
    pub answers: Vec<String>,
}

/// An answer with labelled spans.
#[derive(Debug, Clone, Deserialize)]
pub struct AttributionRow {
    /// The answer's text.
    pub answer: String,
    /// The labelled spans of the answer.
    pub spans: Vec<LabelledSpan>,
    /// The candidate chunks.
    pub chunks: Vec<LabelledChunk>,
}

/// A span of an answer, in Unicode code points, and the chunk that it came from.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct LabelledSpan {
    /// Index of the first code point.
    pub start: usize,
    /// Index one past the last code point.
    pub end: usize,
    /// Index of the source chunk. `None` if the span came from no chunk, or if there is no label.
    #[serde(default)]
    pub chunk: Option<usize>,
    /// Whether the chunks support the span's statement, if someone judged that.
    #[serde(default)]
    pub supported: Option<bool>,
}

/// A candidate chunk.
#[derive(Debug, Clone, Deserialize)]
pub struct LabelledChunk {
    /// Identifier of the chunk; may be empty.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub id: String,
    /// Title of the chunk; may be empty.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub title: String,
    /// Text of the chunk.
    pub text: String,
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

impl LabelledChunk {
    /// Converts the chunk to the type that requests use. An empty title becomes `None`.
    pub fn chunk(&self) -> Chunk {
        let title = Some(self.title.clone()).filter(|title| !title.is_empty());
        Chunk { id: self.id.clone(), title, text: self.text.clone(), metadata: None }
    }

    /// Returns the text that lexical methods read: the title, a full stop, then the text; without a title,
    /// the text alone.
    pub fn full_text(&self) -> String {
        if self.title.is_empty() { self.text.clone() } else { format!("{}. {}", self.title, self.text) }
    }
}

/// Returns whether the first row of a file is an answer with labelled spans.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn has_answers(path: &Path) -> anyhow::Result<bool> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().find(|line| !line.trim().is_empty()).is_some_and(is_answer))
}

fn is_answer(row: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(row).is_ok_and(|row| row.get("spans").is_some())
}

/// Reads and checks a file. The first row decides which shape all rows must have: a row with `spans` is an
/// attribution row.
///
/// # Errors
/// Fails if the file cannot be read, if it has no row, or if a row has another shape or invalid labels. The
/// error names the line.
pub fn read(path: &Path) -> anyhow::Result<Rows> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<_> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    let Some((_, first)) = lines.first() else {
        bail!("{} holds no row (one JSON object per line)", path.display())
    };
    match is_answer(first) {
        true => {
            let rows: Vec<AttributionRow> = parse(path, &lines)?;
            for (row, (line, _)) in rows.iter().zip(&lines) {
                check_spans(row).with_context(|| format!("{}:{}", path.display(), line + 1))?;
            }
            Ok(Rows::Attribution(rows))
        }
        false => {
            let rows: Vec<SelectionRow> = parse(path, &lines)?;
            for (row, (line, _)) in rows.iter().zip(&lines) {
                check_gold(row.gold.iter().chain(row.gold_sets.iter().flatten()), &row.chunks)
                    .with_context(|| format!("{}:{}", path.display(), line + 1))?;
            }
            let all = rows.len();
            let labelled: Vec<_> = rows.into_iter().filter(|row| !row.gold.is_empty()).collect();
            if labelled.is_empty() {
                bail!(
                    "{}: gold is empty in every row; at least one question needs a gold chunk",
                    path.display()
                );
            }
            let unlabelled = all - labelled.len();
            Ok(Rows::Selection(labelled, unlabelled))
        }
    }
}

/// Reads the rows of a file in the shape `T`.
///
/// # Errors
/// Fails if the file cannot be read, if it has no row, or if a row has another shape. The error names the
/// line.
pub fn read_lines<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<_> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        bail!("{} holds no row (one JSON object per line)", path.display());
    }
    parse(path, &lines)
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, lines: &[(usize, &str)]) -> anyhow::Result<Vec<T>> {
    let row = |(line, text): &(usize, &str)| {
        serde_json::from_str(text).with_context(|| format!("{}:{}", path.display(), line + 1))
    };
    lines.iter().map(row).collect()
}

fn check_spans(row: &AttributionRow) -> anyhow::Result<()> {
    let characters = row.answer.chars().count();
    for LabelledSpan { start, end, chunk, .. } in &row.spans {
        if start >= end || *end > characters {
            bail!("span {start}..{end} is empty or outside the answer, which has {characters} characters");
        }
        if let Some(chunk) = chunk.filter(|&chunk| chunk >= row.chunks.len()) {
            bail!("span {start}..{end} names chunk {chunk} of {}; indices start at 0", row.chunks.len());
        }
    }
    Ok(())
}

/// Sorts the indices of needed chunks and removes duplicates: a chunk that is named twice is needed once.
///
/// # Errors
/// Fails if an index names no chunk.
pub fn distinct_gold(gold: &mut Vec<usize>, chunks: &[LabelledChunk]) -> anyhow::Result<()> {
    gold.sort_unstable();
    gold.dedup();
    check_gold(gold.iter(), chunks)
}

fn check_gold<'a>(mut gold: impl Iterator<Item = &'a usize>, chunks: &[LabelledChunk]) -> anyhow::Result<()> {
    match gold.find(|&&gold| gold >= chunks.len()) {
        Some(gold) => bail!("gold names chunk {gold} of {}; indices start at 0", chunks.len()),
        None => Ok(()),
    }
}
