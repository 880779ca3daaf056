//! The rows of an evaluation of KV eviction: questions with their chunks and correct answers, and how a
//! question is put to the model. Knows nothing of models.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use thresher_core::model::contract::QUESTION_MARK;

use crate::data::{self, LabelledChunk, RowFile};
use crate::estimate::SplitMix64;

/// The seed by which chunks are left out, together with the index of the row.
const SEED: u64 = 0x00C4_A9C5;

/// A question with its chunks and its correct answers.
#[derive(Debug, Clone, Deserialize)]
pub struct KvRow {
    pub query: String,
    /// The chunks, in the order in which the model reads them.
    pub chunks: Vec<LabelledChunk>,
    /// The correct answers. May be empty for a calibration only.
    #[serde(default)]
    pub answers: Vec<String>,
    /// Indices of the chunks that the answer needs. They are never left out.
    #[serde(default)]
    pub gold: Vec<usize>,
    /// A name of the kind of question, by which results are grouped.
    #[serde(default)]
    pub kind: Option<String>,
}

/// Which rows and chunks are used, and how questions are put to the model.
#[derive(Debug, Clone, Default)]
pub struct RowOptions {
    /// The number of rows to use, from the first; `None` uses all.
    pub rows_max: Option<usize>,
    /// The number of chunks of a row to use: those of `gold`, and others that a fixed seed chooses, in the
    /// order of the row. `None` uses all.
    pub chunks_max: Option<usize>,
    /// The text that the model reads after the chunks, in which `{question}` stands for the question.
    pub template: String,
    /// Whether the chunks of a row are joined to one text, which the model reads as one prompt.
    pub one_prompt: bool,
}

impl RowOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// Fails if the template does not contain `{question}`, or if a number is 0.
    pub fn check(&self) -> anyhow::Result<()> {
        if !self.template.contains(QUESTION_MARK) {
            bail!("the template {:?} does not contain {QUESTION_MARK}", self.template);
        }
        if self.rows_max == Some(0) || self.chunks_max == Some(0) {
            bail!("the number of rows and the number of chunks must be 1 or more");
        }
        Ok(())
    }

    /// Returns the text that is put to the model for a question.
    pub fn prompt(&self, query: &str) -> String {
        self.template.replace(QUESTION_MARK, query)
    }

    /// Returns the text of an answer as it follows `prompt`: after a space, unless the prompt ends with white
    /// space.
    pub fn continuation(prompt: &str, answer: &str) -> String {
        if prompt.ends_with(char::is_whitespace) { answer.to_owned() } else { format!(" {answer}") }
    }
}

/// Reads the rows of a file and leaves out what `options` leave out.
///
/// # Errors
/// Fails if the file cannot be read, if it has no row, or if a row has another shape or names chunks that do
/// not exist. The error names the line.
pub fn read(path: &Path, options: &RowOptions) -> anyhow::Result<Vec<KvRow>> {
    options.check()?;
    let mut rows: Vec<KvRow> = RowFile::read(path)?.rows()?;
    rows.truncate(options.rows_max.unwrap_or(usize::MAX));
    for (index, row) in rows.iter_mut().enumerate() {
        data::distinct_gold(&mut row.gold, &row.chunks).with_context(|| place(path, index))?;
        if let Some(chunks) = options.chunks_max {
            row.keep_chunks(chunks, index);
        }
        if options.one_prompt {
            row.join_chunks();
        }
    }
    Ok(rows)
}

/// Names a row for an error message.
pub fn place(path: &Path, index: usize) -> String {
    format!("{}, question {}", path.display(), index + 1)
}

impl KvRow {
    /// Replaces the chunks by one with all titles and texts.
    fn join_chunks(&mut self) {
        let texts: Vec<String> = self.chunks.iter().map(LabelledChunk::full_text).collect();
        self.chunks =
            vec![LabelledChunk { id: String::new(), title: String::new(), text: texts.join("\n\n") }];
        self.gold.clear();
    }

    /// Keeps at most `count` chunks: those of `gold` and random others.
    fn keep_chunks(&mut self, count: usize, index: usize) {
        let mut rng = SplitMix64(SEED + index as u64);
        let mut kept: Vec<usize> = self.gold.clone();
        let mut others: Vec<usize> = (0..self.chunks.len()).filter(|chunk| !kept.contains(chunk)).collect();
        while kept.len() < count && !others.is_empty() {
            kept.push(others.swap_remove(rng.below(others.len())));
        }
        kept.sort_unstable();
        self.gold = (0..kept.len()).filter(|&at| self.gold.contains(&kept[at])).collect();
        let mut chunks: Vec<Option<LabelledChunk>> = self.chunks.drain(..).map(Some).collect();
        self.chunks = kept.into_iter().filter_map(|chunk| chunks[chunk].take()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(chunks: usize, gold: &[usize]) -> KvRow {
        let chunk =
            |i: usize| LabelledChunk { id: i.to_string(), title: String::new(), text: "text".to_owned() };
        KvRow {
            query: "who?".to_owned(),
            chunks: (0..chunks).map(chunk).collect(),
            answers: Vec::new(),
            gold: gold.to_vec(),
            kind: None,
        }
    }

    #[test]
    fn needed_chunks_are_never_left_out() {
        let check = |gold: &[usize], count: usize, expect: usize| {
            let mut row = row(6, gold);
            row.keep_chunks(count, 3);
            let ids: Vec<usize> = row.chunks.iter().map(|chunk| chunk.id.parse().unwrap()).collect();
            assert_eq!(ids.len(), expect, "{gold:?}, {count}");
            assert!(ids.is_sorted(), "{ids:?}");
            let named: Vec<usize> = row.gold.iter().map(|&gold| ids[gold]).collect();
            assert_eq!(named, gold, "{ids:?}");
        };
        check(&[4], 3, 3);
        check(&[0, 5], 2, 2);
        check(&[0, 3, 5], 1, 3);
        check(&[], 9, 6);
    }

    #[test]
    fn chunks_of_one_prompt_are_joined() {
        let mut row = row(2, &[1]);
        row.chunks[1].title = "Title".to_owned();
        row.join_chunks();
        assert_eq!((row.chunks.len(), &*row.chunks[0].text), (1, "text\n\nTitle. text"));
        assert!(row.gold.is_empty());
    }

    #[test]
    fn questions_are_put_in_their_template() {
        let options = |template: &str| RowOptions { template: template.to_owned(), ..RowOptions::default() };
        assert_eq!(options("Q: {question}\nA:").prompt("who?"), "Q: who?\nA:");
        assert!(options("Q:").check().is_err());
        assert_eq!(RowOptions::continuation("A:", "Ada"), " Ada");
        assert_eq!(RowOptions::continuation("assistant\n", "Ada"), "Ada");
    }
}
