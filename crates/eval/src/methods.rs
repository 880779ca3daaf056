//! Scoring methods that are compared on the same rows: Thresher's own, and baselines without a model.

use std::sync::Arc;

use anyhow::Result;
use ndarray::Array2;
use thresher_core::domain::{ByteRange, TokenSpan};
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::score::{Measured, Scorer, Scores, Scoring};
use thresher_core::pipeline::{Pipeline, Reading};
use thresher_core::text;

use super::bm25::Bm25Index;

/// The texts that lexical methods score.
pub struct Texts {
    /// One text per chunk, its title first.
    pub chunks: Vec<String>,
    pub units: Vec<String>,
}

/// A method that scores the chunks and units of a question.
pub trait Method {
    fn name(&self) -> String;

    /// Returns whether the method needs the model, whose time is then counted.
    fn needs_model(&self) -> bool {
        true
    }

    /// Scores the chunks and units of a row. The score of a unit includes the score of its chunk, as in the pipeline. The blocks of
    /// `reading` are in full precision (`f32`).
    ///
    /// # Errors
    /// Fails if the method fails.
    fn scores(&self, query: &str, reading: &Reading, texts: &Texts) -> Result<Scores>;
}

#[derive(Debug, Clone, Copy)]
pub struct AnswerPart<'a> {
    pub answer: &'a str,
    /// The bytes of the part in the answer.
    pub bytes: ByteRange,
    /// The tokens of the part, which is read within the whole answer.
    pub tokens: TokenSpan,
}

/// A method that scores chunks for a part of an answer.
pub trait SpanMethod {
    fn name(&self) -> String;

    /// Returns whether the method needs the model, whose time is then counted.
    fn needs_model(&self) -> bool {
        true
    }

    /// Scores each chunk. `texts` has the text of every chunk, its title first.
    ///
    /// # Errors
    /// Fails if the method fails.
    fn scores(&self, part: AnswerPart<'_>, reading: &Reading, texts: &[String]) -> Result<Vec<f32>>;
}

/// The methods that a report compares. The first of `questions` is the default.
pub struct Methods {
    pub questions: Vec<Box<dyn Method>>,
    pub spans: Vec<Box<dyn SpanMethod>>,
}

impl Methods {
    /// Returns the scoring of a pipeline over blocks of `codec`, and methods that need no model.
    ///
    /// # Errors
    /// Fails if the pipeline scores with a probe that its model does not have.
    pub fn of_pipeline(pipeline: &Pipeline, codec: Codec) -> Result<Self> {
        Ok(Self {
            questions: vec![Box::new(Configured::new(pipeline, codec)?), Box::new(Bm25)],
            spans: vec![Box::new(Bm25), Box::new(LongestCommonRun)],
        })
    }
}

/// The scoring that a pipeline is configured with, over blocks of a codec.
pub struct Configured {
    name: String,
    codec: Codec,
    scorer: Arc<dyn Scorer>,
}

impl Configured {
    /// Returns the scoring of `pipeline`.
    ///
    /// # Errors
    /// Fails if the pipeline scores with a probe that its model does not have.
    pub fn new(pipeline: &Pipeline, codec: Codec) -> Result<Self> {
        let name = match pipeline.settings().scoring {
            Scoring::Probe => format!("{} over {codec}", Scoring::Probe),
            scoring => scoring.to_string(),
        };
        Ok(Self { name, codec, scorer: pipeline.scorer()? })
    }
}

impl Method for Configured {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn scores(&self, _query: &str, reading: &Reading, _texts: &Texts) -> Result<Scores> {
        let reading = reading.recoded(self.codec);
        Ok(self.scorer.score(&reading, &Cancel::default(), &mut Clock::start())?)
    }
}

pub struct Bm25;

impl Method for Bm25 {
    fn name(&self) -> String {
        "bm25".to_owned()
    }

    fn needs_model(&self) -> bool {
        false
    }

    fn scores(&self, query: &str, reading: &Reading, texts: &Texts) -> Result<Scores> {
        Ok(scores_of(reading, bm25(query, &texts.chunks)?, &bm25(query, &texts.units)?))
    }
}

impl SpanMethod for Bm25 {
    fn name(&self) -> String {
        "bm25".to_owned()
    }

    fn needs_model(&self) -> bool {
        false
    }

    fn scores(&self, part: AnswerPart<'_>, _reading: &Reading, texts: &[String]) -> Result<Vec<f32>> {
        bm25(part.bytes.slice(part.answer), texts)
    }
}

/// The number of words in the longest run of words that a part of an answer has in common with a chunk.
pub struct LongestCommonRun;

impl SpanMethod for LongestCommonRun {
    fn name(&self) -> String {
        "common run".to_owned()
    }

    fn needs_model(&self) -> bool {
        false
    }

    fn scores(&self, part: AnswerPart<'_>, _reading: &Reading, texts: &[String]) -> Result<Vec<f32>> {
        let part_words = words(part.bytes.slice(part.answer));
        Ok(texts.iter().map(|text| longest_common_run(&part_words, &words(text)) as f32).collect())
    }
}

fn words(text: &str) -> Vec<String> {
    text::terms(text, &[]).into_iter().map(|term| term.folded).collect()
}

fn longest_common_run(one: &[String], other: &[String]) -> usize {
    let (mut longest, mut previous_runs) = (0, vec![0; one.len()]);
    for word in other {
        let mut runs = vec![0; one.len()];
        for at in (0..one.len()).filter(|&at| one[at] == *word) {
            runs[at] = 1 + at.checked_sub(1).map_or(0, |before| previous_runs[before]);
            longest = longest.max(runs[at]);
        }
        previous_runs = runs;
    }
    longest
}

/// Returns the BM25 score of each text.
///
/// # Errors
/// Fails if tantivy fails.
pub fn bm25(query: &str, texts: &[String]) -> Result<Vec<f32>> {
    Ok(Bm25Index::new(texts.iter().map(String::as_str))?.scores(query)?)
}

/// Returns scores of chunks and units by a method that gives numbers only. The score of a unit includes the score of its chunk.
pub fn scores_of(reading: &Reading, chunks: Vec<f32>, units: &[f32]) -> Scores {
    let units = reading.units.iter().zip(units).map(|(unit, score)| score + chunks[unit.chunk]).collect();
    Scores {
        chunks,
        units,
        unit_rc: Array2::zeros((0, 0)),
        relevance: None,
        chunk_relevances: Vec::new(),
        measured: Measured::default(),
        are_probabilities: false,
    }
}
