//! The ways to score that are compared: the default, every estimator, and what people use without RC.

use std::fmt;

use anyhow::Result;
use ndarray::{Array1, Array2, Axis, s};

use crate::domain::TokenSpan;
use crate::pipeline::Reading;
use crate::pipeline::score::{self, Scores, Scoring};
use crate::rc::{self, Estimator, Pooling, Reference};
use crate::registry::Bm25;

/// One way to score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// RC, in one of its forms.
    Rc(Scoring),
    /// Mean over the question's tokens of the best raw logit: ColBERT's late interaction.
    MaxSim,
    /// Cosine of mean-pooled vectors.
    Cosine,
    /// BM25.
    Bm25,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Rc(scoring) => scoring.fmt(f),
            Self::MaxSim => f.write_str("maxsim"),
            Self::Cosine => f.write_str("cosine"),
            Self::Bm25 => f.write_str("bm25"),
        }
    }
}

/// All methods, the default first.
pub fn all() -> Vec<Method> {
    let estimators = [Pooling::Peak, Pooling::Mean]
        .into_iter()
        .flat_map(|pooling| Reference::ALL.map(|reference| Estimator { pooling, reference }));
    std::iter::once(Method::Rc(Scoring::default()))
        .chain(estimators.map(|estimator| Method::Rc(Scoring::Plain(estimator))))
        .chain([Method::MaxSim, Method::Cosine, Method::Bm25])
        .collect()
}

/// Texts that lexical methods read beside a reading.
pub struct Texts {
    /// One per chunk, title in front.
    pub chunks: Vec<String>,
    /// One per unit.
    pub units: Vec<String>,
}

impl Method {
    /// Whether the method needs the model.
    pub fn reads(self) -> bool {
        self != Self::Bm25
    }

    /// Scores of chunks, and of units in the light of their chunk, as the pipeline has them.
    ///
    /// # Errors
    /// What tantivy reports.
    pub fn scores(self, query: &str, reading: &Reading, texts: &Texts) -> Result<Scores> {
        let (chunks, own) = match self {
            Self::Rc(scoring) => {
                return Ok(score::all(reading, scoring));
            }
            Self::Bm25 => (bm25(query, &texts.chunks)?, bm25(query, &texts.units)?),
            _ => (
                self.segments(reading, &reading.blocks.passages),
                self.segments(reading, &unit_spans(reading)),
            ),
        };
        let units = reading.units.iter().zip(own).map(|(unit, own)| own + chunks[unit.chunk]).collect();
        Ok(Scores { chunks, units, unit_rc: Array2::zeros((0, 0)), reach: 0.0 })
    }

    fn segments(self, reading: &Reading, spans: &[TokenSpan]) -> Vec<f32> {
        match self {
            Self::MaxSim => rc::raw_maxsim(&rc::peaks(reading.logits.cross.view(), spans)),
            _ => cosine(reading, spans),
        }
    }
}

fn unit_spans(reading: &Reading) -> Vec<TokenSpan> {
    reading.units.iter().map(|unit| unit.tokens).collect()
}

/// BM25 of each text.
pub fn bm25(query: &str, texts: &[String]) -> Result<Vec<f32>> {
    Ok(Bm25::new(texts.iter().map(String::as_str))?.scores(query)?)
}

/// Cosine of the question's mean vector and each segment's mean key. The question's mean logit over the keys is, up to
/// the question's own length, that product; each segment still has to be divided by the length of its mean.
fn cosine(reading: &Reading, spans: &[TokenSpan]) -> Vec<f32> {
    let question: Array1<f32> = reading
        .logits
        .cross
        .index_axis(Axis(0), 0)
        .mean_axis(Axis(0))
        .expect("a question has at least one token");
    let keys = reading.blocks.keys.index_axis(Axis(0), 0);
    let own_length = reading.logits.own.index_axis(Axis(0), 0).mean().unwrap_or(1.0).max(f32::EPSILON).sqrt();
    let of = |span: &TokenSpan| {
        if span.is_empty() {
            return 0.0;
        }
        let mean = keys.slice(s![span.range(), ..]).mean_axis(Axis(0)).expect("the span is not empty");
        let product = question.slice(s![span.range()]).mean().expect("the span is not empty");
        product / (mean.dot(&mean).sqrt() * own_length).max(f32::EPSILON)
    };
    spans.iter().map(of).collect()
}
