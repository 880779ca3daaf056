//! Questions whose rows name the parts of the chunks that the answer needs, and parts that mislead if a reader sees only some of them.

use anyhow::{Result, bail};
use serde::Deserialize;
use thresher_core::domain::ByteRange;

use super::data::LabelledChunk;

/// A question, its chunks, and the parts of them that its answer needs.
#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    pub query: String,
    pub chunks: Vec<LabelledChunk>,
    pub needed: Vec<NeededPart>,
    /// Parts that mislead a reader who sees only some of them.
    #[serde(default)]
    pub whole: Vec<NeededPart>,
    /// Parts that mislead a reader who does not see another one.
    #[serde(default)]
    pub pairs: Vec<Pair>,
}

/// A part of a chunk, and what a reader needs besides to understand it: a number and the label of its row.
#[derive(Debug, Clone, Deserialize)]
pub struct Pair {
    pub part: NeededPart,
    pub needs: NeededPart,
}

#[derive(Debug, Clone, Deserialize)]
pub struct NeededPart {
    pub chunk: usize,
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

impl Row {
    pub fn parts(&self) -> impl Iterator<Item = &NeededPart> {
        let of_pairs = self.pairs.iter().flat_map(|pair| [&pair.part, &pair.needs]);
        self.needed.iter().chain(&self.whole).chain(of_pairs)
    }

    /// Returns the chunk and the byte ranges of every needed part.
    pub fn needed_ranges(&self) -> Result<Vec<(usize, Vec<ByteRange>)>> {
        self.needed.iter().map(|part| Ok((part.chunk, part.ranges(&self.chunks)?))).collect()
    }
}

impl NeededPart {
    /// Returns the byte ranges of the part's lines in its chunk, without the blanks around each line.
    pub fn ranges(&self, chunks: &[LabelledChunk]) -> Result<Vec<ByteRange>> {
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
pub fn joined(spans: impl Iterator<Item = ByteRange>, text: &str) -> Vec<ByteRange> {
    let mut found: Vec<ByteRange> = Vec::new();
    for span in spans {
        match found.last_mut().filter(|last| text[last.end..span.start].trim().is_empty()) {
            Some(last) => last.end = last.end.max(span.end),
            None => found.push(span),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
}
