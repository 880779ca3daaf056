//! Labelled data of `eval`: JSON Lines, one object per line, in one of five shapes (selection, attribution,
//! needed parts, claims or answerable questions). A line may also hold several questions about the same chunks.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;
use thresher_core::domain::{Chunk, CompressRequest, Granularity};

/// The rows of one file. All rows of a file have the same shape.
pub enum Rows {
    /// Questions with the chunks that answer them, and the number of rows left out because their `gold` is
    /// empty.
    Selection(Vec<SelectionRow>, usize),
    /// Answers with the chunk that each span came from.
    Attribution(Vec<AttributionRow>),
    /// Claims that the chunks support or not.
    Claims(Vec<ClaimRow>),
    /// Questions that a chunk answers or not.
    Answerable(Vec<AnswerableRow>),
}

/// A question with its candidate chunks and the labels of the needed ones.
#[derive(Debug, Clone, Deserialize)]
pub struct SelectionRow {
    pub query: String,
    /// The turns of the conversation before the question, oldest first.
    #[serde(default)]
    pub history: Vec<LabelledTurn>,
    /// The candidate chunks, in the order in which they are sent.
    pub chunks: Vec<LabelledChunk>,
    /// Indices of the needed chunks. Empty for a question that no chunk answers; such rows are left out
    /// because they say nothing about selection.
    pub gold: Vec<usize>,
    /// Other sufficient sets of chunk indices. If not empty, R@gold takes the best of these sets.
    #[serde(default)]
    pub gold_sets: Vec<Vec<usize>>,
    /// Accepted answer texts, of which at least one must survive compression. Empty if there is no answer
    /// text. A row may also name a single one as `answer`.
    #[serde(default, alias = "answer", deserialize_with = "one_or_many")]
    pub answers: Vec<String>,
    /// Texts of the chunks that an answer needs all. Only their letters and digits are compared.
    #[serde(default)]
    pub facts: Vec<String>,
}

impl SelectionRow {
    /// Returns whether the question needs a chunk, alone or together with others.
    pub fn needs(&self, chunk: usize) -> bool {
        self.gold.contains(&chunk) || self.gold_sets.iter().flatten().any(|&gold| gold == chunk)
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct LabelledTurn {
    pub content: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct AttributionRow {
    pub answer: String,
    pub spans: Vec<LabelledSpan>,
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

/// A candidate chunk: an object, or its text.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(remote = "Self")]
pub struct LabelledChunk {
    /// Identifier of the chunk; may be empty.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub id: String,
    /// Title of the chunk; may be empty.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub title: String,
    pub text: String,
}

impl<'de> Deserialize<'de> for LabelledChunk {
    fn deserialize<D: serde::Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        match Value::deserialize(value)? {
            Value::String(text) => Ok(Self { text, ..Self::default() }),
            value @ Value::Object(_) => Self::deserialize(value).map_err(D::Error::custom),
            value => Err(D::Error::custom(format_args!(
                "a chunk is an object with \"text\", or a text, not {value}"
            ))),
        }
    }
}

/// Reads a text, or a list of texts. A number counts as its text.
pub(crate) fn one_or_many<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let text = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(D::Error::custom(format_args!("an answer is a text, not {other}"))),
    };
    match Value::deserialize(value)? {
        Value::Null => Ok(Vec::new()),
        Value::Array(answers) => answers.into_iter().map(text).collect(),
        answer => Ok(vec![text(answer)?]),
    }
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

impl LabelledChunk {
    /// Converts the chunk to the type that requests use. An empty title becomes `None`.
    pub fn chunk(&self) -> Chunk {
        let title = Some(self.title.clone()).filter(|title| !title.is_empty());
        Chunk { title, ..Chunk::new(self.id.clone(), self.text.clone()) }
    }

    /// Returns the text that lexical methods read: the title, a full stop, then the text; without a title,
    /// the text alone.
    pub fn full_text(&self) -> String {
        if self.title.is_empty() { self.text.clone() } else { format!("{}. {}", self.title, self.text) }
    }
}

/// Converts chunks to the type that requests use. They keep their ids, which say which turns of a dialogue are neighbours, if each has one
/// of its own; otherwise their indices are their ids.
pub fn request_chunks<'a>(chunks: impl IntoIterator<Item = &'a LabelledChunk>) -> Vec<Chunk> {
    let chunks: Vec<&LabelledChunk> = chunks.into_iter().collect();
    let ids: HashSet<&str> = chunks.iter().map(|chunk| &*chunk.id).filter(|id| !id.is_empty()).collect();
    let has_ids = ids.len() == chunks.len();
    let of_request = |(index, labelled): (usize, &LabelledChunk)| {
        let chunk = labelled.chunk();
        if has_ids { chunk } else { Chunk { id: index.to_string(), ..chunk } }
    };
    chunks.into_iter().enumerate().map(of_request).collect()
}

/// A file of rows, one JSON object per line. Its first row says which shape all rows have.
pub struct RowFile<'a> {
    path: &'a Path,
    text: String,
}

impl<'a> RowFile<'a> {
    /// Reads a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or if it has no row.
    pub fn read(path: &'a Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        // Some programs begin a file with a byte order mark.
        let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
        let file = Self { path, text };
        let begins_list = file.lines().next().map(|(_, row)| row.trim_start().starts_with('['));
        match begins_list {
            None => bail!("{} holds no row (one JSON object per line)", path.display()),
            Some(true) => bail!(
                "{} begins with a list: each row is a JSON object on a line of its own, as `jq -c '.[]'` writes them",
                path.display()
            ),
            Some(false) => Ok(file),
        }
    }

    /// Returns whether the first row is an answer: a row with `spans`.
    pub fn has_answers(&self) -> bool {
        self.has_field("spans")
    }

    pub fn has_field(&self, name: &str) -> bool {
        let first = self.lines().next().map(|(_, row)| serde_json::from_str::<Value>(row));
        first.is_some_and(|row| row.is_ok_and(|row| row.get(name).is_some()))
    }

    /// Returns the rows in the shape `T`.
    ///
    /// # Errors
    /// Fails if a row has another shape. The error names the line.
    pub fn rows<T: serde::de::DeserializeOwned>(&self) -> anyhow::Result<Vec<T>> {
        self.checked_rows(|_| Ok(()))
    }

    /// Returns the rows as answers with labelled spans.
    ///
    /// # Errors
    /// Fails if a row has another shape or invalid labels. The error names the line.
    pub fn answers(&self) -> anyhow::Result<Vec<AttributionRow>> {
        self.checked_rows(check_spans)
    }

    /// Returns the rows in the shape `T`, each of which passes `check`.
    ///
    /// # Errors
    /// Fails if a row has another shape or fails the check. The error names the line.
    pub fn checked_rows<T: serde::de::DeserializeOwned>(
        &self,
        check: impl Fn(&T) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<T>> {
        let mut rows = Vec::new();
        for (line, text) in self.lines() {
            let place = || format!("{}:{}", self.path.display(), line + 1);
            for row in questions(serde_json::from_str(text).with_context(place)?) {
                if !row.is_object() {
                    bail!("{}: a row is a JSON object, not {row}", place());
                }
                let row = serde_json::from_value(row).with_context(place)?;
                check(&row).with_context(place)?;
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// Returns the lines that have text, with their indices.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty())
    }
}

/// What all questions of a line share: the chunks, and which parts of them mislead a reader.
const SHARED: [&str; 3] = ["chunks", "whole", "pairs"];

/// Returns the questions of a line as one row each. A line with `questions` has several about the same chunks;
/// every other line is a row itself.
fn questions(line: Value) -> Vec<Value> {
    let Value::Object(mut group) = line else { return vec![line] };
    let Some(Value::Array(mut questions)) = group.remove("questions") else {
        return vec![Value::Object(group)];
    };
    for question in questions.iter_mut().filter_map(Value::as_object_mut) {
        for (name, value) in group.iter().filter(|(name, _)| SHARED.contains(&name.as_str())) {
            question.insert(name.clone(), value.clone());
        }
    }
    questions
}

/// Reads and checks a file of questions or answers.
///
/// # Errors
/// Fails if the file cannot be read, if it has no row, or if a row has another shape or invalid labels. The
/// error names the line.
pub fn read(path: &Path) -> anyhow::Result<Rows> {
    let file = RowFile::read(path)?;
    if file.has_answers() {
        return Ok(Rows::Attribution(file.answers()?));
    }
    if file.has_field("claim") {
        return Ok(Rows::Claims(file.rows()?));
    }
    if file.has_field("answerable") {
        return Ok(Rows::Answerable(file.rows()?));
    }
    let mut rows: Vec<SelectionRow> = file.checked_rows(|row: &SelectionRow| {
        check_gold(row.gold.iter().chain(row.gold_sets.iter().flatten()), &row.chunks)
    })?;
    let all = rows.len();
    for row in &mut rows {
        row.gold_sets.iter_mut().chain([&mut row.gold]).for_each(distinct);
    }
    let labelled: Vec<_> = rows.into_iter().filter(|row| !row.gold.is_empty()).collect();
    if labelled.is_empty() {
        bail!("{}: gold is empty in every row; at least one question needs a gold chunk", path.display());
    }
    let unlabelled = all - labelled.len();
    Ok(Rows::Selection(labelled, unlabelled))
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
    distinct(gold);
    check_gold(gold.iter(), chunks)
}

fn distinct(gold: &mut Vec<usize>) {
    gold.sort_unstable();
    gold.dedup();
}

fn check_gold<'a>(mut gold: impl Iterator<Item = &'a usize>, chunks: &[LabelledChunk]) -> anyhow::Result<()> {
    match gold.find(|&&gold| gold >= chunks.len()) {
        Some(gold) => bail!("gold names chunk {gold} of {}; indices start at 0", chunks.len()),
        None => Ok(()),
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct ClaimRow {
    pub claim: String,
    pub chunks: Vec<LabelledChunk>,
    pub label: Label,
}

/// What a person said of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Label {
    #[serde(rename = "SUPPORTS")]
    Supports,
    #[serde(rename = "REFUTES")]
    Refutes,
    #[serde(rename = "NOT ENOUGH INFO")]
    NotEnoughInfo,
}

#[derive(Debug, Clone, Deserialize)]
pub struct AnswerableRow {
    pub query: String,
    pub chunks: Vec<LabelledChunk>,
    pub answerable: bool,
}

/// Returns the request that makes a pipeline read `text`, an answer or a part of it, as it reads questions.
pub fn request(text: &str, chunks: &[LabelledChunk]) -> CompressRequest {
    let chunks = chunks.iter().map(LabelledChunk::chunk).collect();
    let granularity = Granularity::Chunk;
    CompressRequest { granularity, ..CompressRequest::new(text, chunks) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{LabelledChunk, Rows, read};

    fn rows(text: &str) -> anyhow::Result<Rows> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), text)?;
        read(Path::new(file.path()))
    }

    #[test]
    fn rows_are_read_as_people_write_them() {
        let text =
            "\u{feff}{\"query\": \"How many?\", \"chunks\": [\"Two.\"], \"gold\": [0, 0], \"answers\": 2}";
        let Ok(Rows::Selection(read, 0)) = rows(text) else { panic!("not read") };
        assert_eq!((&*read[0].gold, &*read[0].answers), (&[0][..], &["2".to_owned()][..]));
        for (text, says) in [
            ("[{\"query\": \"How many?\"}]", "each row is a JSON object on a line of its own"),
            ("3", ":1: a row is a JSON object, not 3"),
            (
                "{\"query\": \"a\", \"chunks\": [], \"gold\": [], \"answers\": [{}]}",
                "an answer is a text, not {}",
            ),
        ] {
            let error = rows(text).err().expect("refused");
            assert!(format!("{error:#}").contains(says), "{error:#}");
        }
    }

    #[test]
    fn a_chunk_is_an_object_or_its_text() {
        let of = |json: &str| serde_json::from_str::<LabelledChunk>(json);
        let fields = |json: &str| {
            let LabelledChunk { id, title, text } = of(json).expect("a chunk");
            [id, title, text]
        };
        assert_eq!(fields(r#""It rains.""#), ["", "", "It rains."]);
        assert_eq!(fields(r#"{"id": "a", "title": null, "text": "It rains."}"#), ["a", "", "It rains."]);
        for (json, says) in [("3", "not 3"), (r#"{"id": "a"}"#, "missing field `text`")] {
            let message = of(json).expect_err("refused").to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
