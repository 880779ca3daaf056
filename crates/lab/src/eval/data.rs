//! The shapes of labelled data: one JSON object a line.

use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;
use thresher_core::domain::Chunk;

/// A file's rows; all of them have the same shape.
pub enum Rows {
    /// Questions with the chunks that answer them, and how many had none.
    Selection(Vec<SelectionRow>, usize),
    /// Answers with the chunk that each span came from.
    Attribution(Vec<AttributionRow>),
}

/// A question, its candidates and what is right.
#[derive(Debug, Clone, Deserialize)]
pub struct SelectionRow {
    /// The question.
    pub query: String,
    /// The candidates.
    pub chunks: Vec<LabelledChunk>,
    /// Indices of the chunks that are needed; none of a question that nothing answers, which says nothing about selection.
    pub gold: Vec<usize>,
    /// Other sufficient sets, where there are any.
    #[serde(default)]
    pub gold_sets: Vec<Vec<usize>>,
    /// Texts of which one must survive compression.
    #[serde(default)]
    pub answers: Vec<String>,
}

/// An answer whose spans are tied to chunks.
#[derive(Debug, Clone, Deserialize)]
pub struct AttributionRow {
    /// The answer.
    pub answer: String,
    /// Its labelled spans.
    pub spans: Vec<LabelledSpan>,
    /// The candidates.
    pub chunks: Vec<LabelledChunk>,
}

/// A span of an answer, in code points, and the chunk it came from.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct LabelledSpan {
    /// First code point.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// Index of the chunk; none where it came from none or nobody says.
    #[serde(default)]
    pub chunk: Option<usize>,
    /// Whether the chunks say what it says, where somebody judged that.
    #[serde(default)]
    pub supported: Option<bool>,
}

/// A candidate.
#[derive(Debug, Clone, Deserialize)]
pub struct LabelledChunk {
    /// Its name, possibly empty.
    #[serde(default, deserialize_with = "or_empty")]
    pub id: String,
    /// Its title, possibly empty.
    #[serde(default, deserialize_with = "or_empty")]
    pub title: String,
    /// Its text.
    pub text: String,
}

fn or_empty<'de, D: serde::Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

impl LabelledChunk {
    /// As a request holds it.
    pub fn chunk(&self) -> Chunk {
        let title = Some(self.title.clone()).filter(|title| !title.is_empty());
        Chunk { id: self.id.clone(), title, text: self.text.clone(), metadata: None }
    }

    /// What a lexical method reads: the title, then the text.
    pub fn full_text(&self) -> String {
        if self.title.is_empty() { self.text.clone() } else { format!("{}. {}", self.title, self.text) }
    }
}

/// Reads a file; the first row says which shape it has.
///
/// # Errors
/// With the line's number, when it does not fit.
pub fn read(path: &Path) -> anyhow::Result<Rows> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<_> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    let Some((_, first)) = lines.first() else { bail!("{} holds no row", path.display()) };
    let is_attribution =
        serde_json::from_str::<serde_json::Value>(first).is_ok_and(|row| row.get("spans").is_some());
    match is_attribution {
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
                check(row).with_context(|| format!("{}:{}", path.display(), line + 1))?;
            }
            let all = rows.len();
            let labelled: Vec<_> = rows.into_iter().filter(|row| !row.gold.is_empty()).collect();
            if labelled.is_empty() {
                bail!("{}: gold names no chunk in any row", path.display());
            }
            let unlabelled = all - labelled.len();
            Ok(Rows::Selection(labelled, unlabelled))
        }
    }
}

/// The rows of a file, whatever their shape.
///
/// # Errors
/// With the line's number, when one does not fit; when there is none.
pub fn read_lines<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<_> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        bail!("{} holds no row", path.display());
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
            bail!("span {start}..{end} is no part of an answer of {characters} characters");
        }
        if let Some(chunk) = chunk.filter(|&chunk| chunk >= row.chunks.len()) {
            bail!("span {start}..{end} names chunk {chunk} of {}", row.chunks.len());
        }
    }
    Ok(())
}

fn check(row: &SelectionRow) -> anyhow::Result<()> {
    match row.gold.iter().chain(row.gold_sets.iter().flatten()).find(|&&gold| gold >= row.chunks.len()) {
        Some(gold) => bail!("gold names chunk {gold} of {}", row.chunks.len()),
        None => Ok(()),
    }
}
