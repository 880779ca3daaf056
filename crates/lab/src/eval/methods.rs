//! The ways to score that are compared: the default, every estimator, and what people use without RC.

use std::fmt;

use anyhow::Result;
use ndarray::{Array1, Array2, Axis, concatenate, s};
use thresher_core::domain::TokenSpan;
use thresher_core::kv::codec::Codec;
use thresher_core::model::{ModelInfo, RawLogits};
use thresher_core::pipeline::Reading;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::score::{self, Scores, Scoring};
use thresher_core::rc::{self, Estimator, Pooling, Reference};
use thresher_core::text;
use thresher_registry::Bm25;

/// One way to score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// RC, in one of its forms, over blocks of a codec.
    Rc(Scoring, Codec),
    /// The default, over blocks of another codec.
    Coded(Codec),
    /// Mean over the question's tokens of the best raw logit: ColBERT's late interaction.
    MaxSim,
    /// Cosine of mean-pooled vectors.
    Cosine,
    /// BM25.
    Bm25,
    /// The longest run of words that both have. Of spans only.
    CommonRun,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Rc(scoring, _) => scoring.fmt(f),
            Self::Coded(codec) => write!(f, "{} over {codec}", Scoring::default()),
            Self::MaxSim => f.write_str("maxsim"),
            Self::Cosine => f.write_str("cosine"),
            Self::Bm25 => f.write_str("bm25"),
            Self::CommonRun => f.write_str("common run"),
        }
    }
}

/// All methods: the default over blocks of `codec` first, then over those of the other codecs. What is not the default is
/// measured over keys as the model gives them. A decoder has no readout whose mean could be a text's vector: no cosine for one.
pub fn all(codec: Codec, model: &ModelInfo) -> Vec<Method> {
    let estimators = [Pooling::Peak, Pooling::Mean]
        .into_iter()
        .flat_map(|pooling| Reference::ALL.map(|reference| Estimator { pooling, reference }));
    let others = Codec::ALL.into_iter().filter(|other| *other != codec);
    std::iter::once(Method::Rc(Scoring::default(), codec))
        .chain(others.map(Method::Coded))
        .chain(estimators.map(|estimator| Method::Rc(Scoring::Plain(estimator), Codec::F32)))
        .chain([Method::MaxSim])
        .chain(model.decoder.is_none().then_some(Method::Cosine))
        .chain([Method::Bm25])
        .collect()
}

/// A row as it was read, its keys as the model gave them, and what several methods need of it.
pub struct Seen {
    /// Blocks of exact keys.
    pub reading: Reading,
    /// The same, and its logits, in each codec.
    coded: Vec<(Codec, Reading, RawLogits)>,
}

impl Seen {
    /// Encodes what was read in every codec.
    pub fn new(reading: Reading) -> Self {
        let coded = |codec| {
            let reading = reading.recoded(codec);
            let logits = reading.logits(0..reading.question.heads());
            (codec, reading, logits)
        };
        Self { coded: Codec::ALL.into_iter().map(coded).collect(), reading }
    }

    /// Raw logits over blocks of `codec`.
    pub fn logits(&self, codec: Codec) -> &RawLogits {
        &self.of(codec).2
    }

    fn of(&self, codec: Codec) -> &(Codec, Reading, RawLogits) {
        self.coded.iter().find(|(of, ..)| *of == codec).expect("every codec has its reading")
    }
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
        !matches!(self, Self::Bm25 | Self::CommonRun)
    }

    /// The codec of the blocks that it is measured over.
    pub fn codec(self) -> Codec {
        match self {
            Self::Rc(_, codec) | Self::Coded(codec) => codec,
            _ => Codec::F32,
        }
    }

    /// Scores of chunks, and of units in the light of their chunk, as the pipeline has them.
    ///
    /// # Errors
    /// What tantivy reports.
    pub fn scores(self, query: &str, seen: &Seen, texts: &Texts) -> Result<Scores> {
        let reading = &seen.reading;
        let (chunks, own) = match self {
            Self::Rc(scoring, codec) => {
                return Ok(score::all(&seen.of(codec).1, scoring, &Cancel::default())?);
            }
            Self::Coded(codec) => return Self::Rc(Scoring::default(), codec).scores(query, seen, texts),
            Self::Bm25 => (bm25(query, &texts.chunks)?, bm25(query, &texts.units)?),
            _ => (self.segments(seen, &reading.blocks.spans), self.segments(seen, &unit_spans(reading))),
        };
        let units = reading.units.iter().zip(own).map(|(unit, own)| own + chunks[unit.chunk]).collect();
        Ok(Scores { chunks, units, unit_rc: Array2::zeros((0, 0)), max_sim: None })
    }

    fn segments(self, seen: &Seen, spans: &[TokenSpan]) -> Vec<f32> {
        let logits = seen.logits(self.codec());
        match self {
            Self::MaxSim => rc::raw_maxsim(&rc::peaks(logits.cross.view(), spans)),
            _ => cosine(&seen.reading, logits, spans),
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

/// Words in the longest run that a text has in common with each of `texts`.
pub fn common_run(of: &str, texts: &[String]) -> Vec<f32> {
    let words =
        |text: &str| -> Vec<String> { text::terms(text, &[]).into_iter().map(|term| term.folded).collect() };
    let asked = words(of);
    let longest = |text: &String| {
        let (mut longest, mut above) = (0_usize, vec![0; asked.len()]);
        for word in words(text) {
            let mut runs = vec![0; asked.len()];
            for (at, _) in asked.iter().enumerate().filter(|(_, own)| **own == word) {
                runs[at] = 1 + at.checked_sub(1).map_or(0, |before| above[before]);
                longest = longest.max(runs[at]);
            }
            above = runs;
        }
        longest as f32
    };
    texts.iter().map(longest).collect()
}

/// Cosine of the question's mean vector and each segment's mean key. The question's mean logit over the keys is, up to
/// the question's own length, that product; each segment still has to be divided by the length of its mean.
pub fn cosine(reading: &Reading, logits: &RawLogits, spans: &[TokenSpan]) -> Vec<f32> {
    let question: Array1<f32> =
        logits.cross.index_axis(Axis(0), 0).mean_axis(Axis(0)).expect("a question has at least one token");
    let keys: Vec<_> = reading.blocks.blocks.iter().map(|block| block.keys()).collect();
    let keys: Vec<_> = keys.iter().map(|keys| keys.index_axis(Axis(0), 0)).collect();
    let keys = concatenate(Axis(0), &keys).expect("keys of one model differ in length only");
    let own_length = logits.self_logits.index_axis(Axis(0), 0).mean().unwrap_or(1.0).max(f32::EPSILON).sqrt();
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
