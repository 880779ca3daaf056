//! The scoring methods that `eval` compares: the default, the estimator of the RCStat paper and its bound, and common baselines
//! without RC.

use std::fmt;
use std::sync::Arc;

use super::bm25::Bm25;
use anyhow::Result;
use ndarray::{Array1, Array2, Axis, concatenate, s};
use thresher_core::domain::TokenSpan;
use thresher_core::kv::codec::Codec;
use thresher_core::model::{ModelInfo, RawLogits};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::score::bound::MeanRcBound;
use thresher_core::pipeline::score::mean::MeanRc;
use thresher_core::pipeline::score::ranked::RankedCoverage;
use thresher_core::pipeline::score::{Measured, Scorer, Scores, Scoring};
use thresher_core::pipeline::{Pipeline, Reading};
use thresher_core::rc;
use thresher_core::text;

/// A scoring method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// RC in one of its forms, over blocks of a codec. `mean/self` is the form of the paper (RCStat, arXiv
    /// 2506.19549).
    Rc(Scoring, Codec),
    /// The default form of RC, over blocks of another codec.
    Coded(Codec),
    /// ColBERT's late interaction: the mean over the question's tokens of the largest raw logit.
    MaxSim,
    /// Cosine of mean-pooled vectors.
    Cosine,
    /// BM25 (tantivy).
    Bm25,
    /// Number of words in the longest common run of words. Measured for spans of answers only.
    LongestCommonRun,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Rc(Scoring::Probe, codec) => write!(f, "{} over {codec}", Scoring::Probe),
            Self::Rc(scoring, _) => scoring.fmt(f),
            Self::Coded(codec) => write!(f, "{} over {codec}", Scoring::default()),
            Self::MaxSim => f.write_str("maxsim"),
            Self::Cosine => f.write_str("cosine"),
            Self::Bm25 => f.write_str("bm25"),
            Self::LongestCommonRun => f.write_str("common run"),
        }
    }
}

/// Returns the methods that `eval` compares on the questions of a pipeline. If the pipeline scores with a
/// probe, these are the probe, over blocks of `codec` and in full precision, and BM25: RC is computed from other
/// heads and another text of the question.
pub fn of(pipeline: &Pipeline, codec: Codec) -> Vec<Method> {
    if pipeline.settings().scoring != Scoring::Probe {
        return all(codec, pipeline.model());
    }
    let mut codecs = vec![codec, Codec::F32];
    codecs.dedup();
    let probes = codecs.into_iter().map(|codec| Method::Rc(Scoring::Probe, codec));
    probes.chain([Method::Bm25]).collect()
}

/// Returns all methods: the default over blocks of `codec` first, then the default over blocks of the other
/// codecs. The remaining methods are measured over keys in full precision, as the model produces them. A
/// decoder has no `cosine`: it has no readout whose mean could serve as a text's vector.
pub fn all(codec: Codec, model: &ModelInfo) -> Vec<Method> {
    let others = Codec::ALL.into_iter().filter(|other| *other != codec);
    std::iter::once(Method::Rc(Scoring::default(), codec))
        .chain(others.map(Method::Coded))
        .chain([Scoring::Mean, Scoring::Bound].map(|scoring| Method::Rc(scoring, Codec::F32)))
        .chain([Method::MaxSim])
        .chain(model.decoder.is_none().then_some(Method::Cosine))
        .chain([Method::Bm25])
        .collect()
}

/// One row after the model has read it: keys in full precision, and what several methods derive from them.
pub struct RowReading {
    /// The reading, with blocks in full precision (`f32`).
    pub reading: Reading,
    /// The same reading and its logits, with blocks of each codec.
    coded: Vec<(Codec, Reading, RawLogits)>,
}

impl RowReading {
    /// Encodes the reading's blocks with every codec and computes the logits over them.
    pub fn new(reading: Reading) -> Self {
        let coded = |codec| {
            let reading = reading.recoded(codec);
            let logits = reading.logits(0..reading.question.heads());
            (codec, reading, logits)
        };
        Self { coded: Codec::ALL.into_iter().map(coded).collect(), reading }
    }

    /// Returns the raw logits over blocks of `codec`.
    pub fn logits(&self, codec: Codec) -> &RawLogits {
        &self.of(codec).2
    }

    fn of(&self, codec: Codec) -> &(Codec, Reading, RawLogits) {
        self.coded.iter().find(|(of, ..)| *of == codec).expect("every codec has its reading")
    }
}

/// Texts that the lexical methods read.
pub struct Texts {
    /// One text per chunk, its title first.
    pub chunks: Vec<String>,
    /// One text per unit.
    pub units: Vec<String>,
}

impl Method {
    /// Returns whether the method needs the model.
    pub fn needs_model(self) -> bool {
        !matches!(self, Self::Bm25 | Self::LongestCommonRun)
    }

    /// Returns the codec of the blocks that the method is measured over.
    pub fn codec(self) -> Codec {
        match self {
            Self::Rc(_, codec) | Self::Coded(codec) => codec,
            _ => Codec::F32,
        }
    }

    /// Scores the chunks and units of a row. The score of a unit includes the score of its chunk, as in the
    /// pipeline.
    ///
    /// # Errors
    /// Fails if tantivy fails.
    pub fn scores(self, query: &str, row_reading: &RowReading, texts: &Texts) -> Result<Scores> {
        let reading = &row_reading.reading;
        let (chunks, unit_scores) = match self {
            Self::Rc(scoring, codec) => {
                let reading = &row_reading.of(codec).1;
                let scorer: Arc<dyn Scorer> = match scoring {
                    // The reading has the probe of its model.
                    Scoring::Probe => Arc::clone(&reading.scorer),
                    Scoring::RankedCoverage => Arc::new(RankedCoverage),
                    Scoring::Mean => Arc::new(MeanRc),
                    Scoring::Bound => Arc::new(MeanRcBound),
                };
                return Ok(scorer.score(reading, &Cancel::default(), &mut Clock::start())?);
            }
            Self::Coded(codec) => {
                return Self::Rc(Scoring::default(), codec).scores(query, row_reading, texts);
            }
            Self::Bm25 => (bm25(query, &texts.chunks)?, bm25(query, &texts.units)?),
            _ => (
                self.segments(row_reading, &reading.blocks.spans),
                self.segments(row_reading, &unit_spans(reading)),
            ),
        };
        let units =
            reading.units.iter().zip(unit_scores).map(|(unit, score)| score + chunks[unit.chunk]).collect();
        Ok(Scores {
            chunks,
            units,
            unit_rc: Array2::zeros((0, 0)),
            max_sim: None,
            chunk_max_sims: Vec::new(),
            measured: Measured::default(),
            are_probabilities: false,
        })
    }

    fn segments(self, row_reading: &RowReading, spans: &[TokenSpan]) -> Vec<f32> {
        let logits = row_reading.logits(self.codec());
        match self {
            Self::MaxSim => rc::raw_maxsim(&rc::peaks(logits.cross.view(), spans)),
            _ => cosine(&row_reading.reading, logits, spans),
        }
    }
}

fn unit_spans(reading: &Reading) -> Vec<TokenSpan> {
    reading.units.iter().map(|unit| unit.tokens).collect()
}

/// Returns the BM25 score of each text.
///
/// # Errors
/// Fails if tantivy fails.
pub fn bm25(query: &str, texts: &[String]) -> Result<Vec<f32>> {
    Ok(Bm25::new(texts.iter().map(String::as_str))?.scores(query)?)
}

/// Returns the number of words in the longest run of words that `query` has in common with each of `texts`.
pub fn longest_common_run(query: &str, texts: &[String]) -> Vec<f32> {
    let words =
        |text: &str| -> Vec<String> { text::terms(text, &[]).into_iter().map(|term| term.folded).collect() };
    let query_words = words(query);
    let longest = |text: &String| {
        let (mut longest, mut previous_runs) = (0_usize, vec![0; query_words.len()]);
        for word in words(text) {
            let mut runs = vec![0; query_words.len()];
            for (at, _) in query_words.iter().enumerate().filter(|(_, query_word)| **query_word == word) {
                runs[at] = 1 + at.checked_sub(1).map_or(0, |before| previous_runs[before]);
                longest = longest.max(runs[at]);
            }
            previous_runs = runs;
        }
        longest as f32
    };
    texts.iter().map(longest).collect()
}

/// Returns the cosine of the question's mean vector and each segment's mean key. The mean of the question's
/// logits over a segment's keys is the dot product of the two means; it is divided by their norms.
pub fn cosine(reading: &Reading, logits: &RawLogits, spans: &[TokenSpan]) -> Vec<f32> {
    let question: Array1<f32> =
        logits.cross.index_axis(Axis(0), 0).mean_axis(Axis(0)).expect("a question has at least one token");
    let keys: Vec<_> = reading.blocks.blocks.iter().map(|block| block.keys()).collect();
    let keys: Vec<_> = keys.iter().map(|keys| keys.index_axis(Axis(0), 0)).collect();
    let keys = concatenate(Axis(0), &keys).expect("keys of one model differ in length only");
    let question_norm =
        logits.self_logits.index_axis(Axis(0), 0).mean().unwrap_or(1.0).max(f32::EPSILON).sqrt();
    let of = |span: &TokenSpan| {
        if span.is_empty() {
            return 0.0;
        }
        let mean = keys.slice(s![span.range(), ..]).mean_axis(Axis(0)).expect("the span is not empty");
        let product = question.slice(s![span.range()]).mean().expect("the span is not empty");
        product / (mean.dot(&mean).sqrt() * question_norm).max(f32::EPSILON)
    };
    spans.iter().map(of).collect()
}
