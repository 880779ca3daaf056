//! What lost against the default: other forms of RC, blocks of other codecs, and scores of vectors without RC.

use std::sync::Arc;

use anyhow::Result;
use ndarray::{Array1, Axis, concatenate, s};
use thresher_core::domain::TokenSpan;
use thresher_core::kv::codec::Codec;
use thresher_core::model::RawLogits;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::score::bound::MeanRcBound;
use thresher_core::pipeline::score::mean::MeanRc;
use thresher_core::pipeline::score::ranked::{self, RankedCoverage};
use thresher_core::pipeline::score::{Scorer, Scores, Scoring};
use thresher_core::pipeline::{Pipeline, Reading};
use thresher_core::rc;
use thresher_eval::methods::{AnswerPart, Configured, Method, Methods, SpanMethod, Texts, scores_of};

/// A method that is no default.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ablation {
    /// The default form of RC, over blocks of this codec.
    Coded(Codec),
    /// The estimator of the RCStat paper (arXiv 2506.19549).
    Mean,
    /// The upper bound of the same paper.
    Bound,
    /// ColBERT's late interaction: the mean over the question's tokens of the largest raw logit.
    MaxSim,
    /// Cosine of mean-pooled vectors.
    Cosine,
}

/// Returns all methods that suit a pipeline: the default over blocks of `codec` first. The methods of this module are measured over keys in
/// full precision, as the model produces them. A decoder has no `cosine`: it has no readout whose mean could serve as a text's vector. A
/// pipeline that scores with a probe is compared with BM25 and with blocks in full precision only: RC is computed from other heads and
/// another text of the question.
///
/// # Errors
/// Fails if the pipeline scores with a probe that its model does not have.
pub fn all(pipeline: &Pipeline, codec: Codec) -> Result<Methods> {
    let mut methods = Methods::of_pipeline(pipeline, codec)?;
    if pipeline.settings().scoring == Scoring::Probe {
        if codec != Codec::F32 {
            methods.questions.insert(1, Box::new(Configured::new(pipeline, Codec::F32)?));
        }
        return Ok(methods);
    }
    let others = Codec::ALL.into_iter().filter(|other| *other != codec).map(Ablation::Coded);
    let mut found: Vec<Ablation> =
        others.chain([Ablation::Mean, Ablation::Bound, Ablation::MaxSim]).collect();
    if pipeline.model().decoder.is_none() {
        found.push(Ablation::Cosine);
    }
    for (at, method) in found.iter().enumerate() {
        methods.questions.insert(1 + at, Box::new(*method));
        methods.spans.insert(at, Box::new(*method));
    }
    methods.spans.insert(0, Box::new(Ablation::Coded(codec)));
    Ok(methods)
}

impl Ablation {
    fn name(self) -> String {
        match self {
            Self::Coded(codec) => format!("{} over {codec}", Scoring::default()),
            Self::Mean => Scoring::Mean.to_string(),
            Self::Bound => Scoring::Bound.to_string(),
            Self::MaxSim => "maxsim".to_owned(),
            Self::Cosine => "cosine".to_owned(),
        }
    }

    fn codec(self) -> Codec {
        match self {
            Self::Coded(codec) => codec,
            _ => Codec::F32,
        }
    }
}

impl Method for Ablation {
    fn name(&self) -> String {
        (*self).name()
    }

    fn scores(&self, _query: &str, reading: &Reading, _texts: &Texts) -> Result<Scores> {
        let reading = &reading.recoded(self.codec());
        let scorer: Arc<dyn Scorer> = match self {
            Self::Coded(_) => Arc::new(RankedCoverage),
            Self::Mean => Arc::new(MeanRc),
            Self::Bound => Arc::new(MeanRcBound),
            Self::MaxSim | Self::Cosine => {
                let logits = reading.logits(0..reading.question.heads());
                let units: Vec<TokenSpan> = reading.units.iter().map(|unit| unit.tokens).collect();
                let scores = |spans: &[TokenSpan]| match self {
                    Self::MaxSim => rc::raw_maxsim(&rc::peaks(logits.cross.view(), spans)),
                    _ => cosine(reading, &logits, spans),
                };
                return Ok(scores_of(reading, scores(&reading.blocks.spans), &scores(&units)));
            }
        };
        Ok(scorer.score(reading, &Cancel::default(), &mut Clock::start())?)
    }
}

impl SpanMethod for Ablation {
    fn name(&self) -> String {
        (*self).name()
    }

    /// RC is computed without coverage: coverage spreads over several chunks, and a part of an answer asks for one source.
    fn scores(&self, part: AnswerPart<'_>, reading: &Reading, _texts: &[String]) -> Result<Vec<f32>> {
        let reading = &reading.recoded(self.codec());
        let RawLogits { cross, self_logits } = reading.logits(0..reading.question.heads());
        let tokens = part.tokens.range();
        let cross = cross.slice(s![.., tokens.clone(), ..]).to_owned();
        let own = self_logits.slice(s![.., tokens.clone(), ..]).to_owned();
        let segments = &reading.blocks.spans;
        let of_heads = match self {
            Self::Coded(_) => ranked::rc_of_segments(&RawLogits { cross, self_logits: own }, segments),
            Self::Mean => rc::mean_rc(cross.view(), own.view(), segments),
            Self::Bound => rc::mean_rc_bound(cross.view(), own.view(), segments),
            Self::MaxSim => return Ok(rc::raw_maxsim(&rc::peaks(cross.view(), segments))),
            Self::Cosine => {
                let self_logits = own.slice(s![.., .., tokens]).to_owned();
                return Ok(cosine(reading, &RawLogits { cross, self_logits }, segments));
            }
        };
        Ok(rc::mean_over_queries(rc::mean_over_heads(of_heads).view()))
    }
}

/// Returns the cosine of the question's mean vector and each segment's mean key. The mean of the question's
/// logits over a segment's keys is the dot product of the two means; it is divided by their norms.
fn cosine(reading: &Reading, logits: &RawLogits, spans: &[TokenSpan]) -> Vec<f32> {
    let question: Array1<f32> =
        logits.cross.index_axis(Axis(0), 0).mean_axis(Axis(0)).expect("a question has at least one token");
    let keys: Vec<_> = reading.blocks.blocks.iter().map(|block| block.keys()).collect();
    let keys: Vec<_> = keys.iter().map(|keys| keys.index_axis(Axis(0), 0)).collect();
    let keys = concatenate(Axis(0), &keys).expect("keys of one model differ in length only");
    let question_norm =
        logits.self_logits.index_axis(Axis(0), 0).mean().unwrap_or(1.0).max(f32::EPSILON).sqrt();
    let cosine_of = |span: &TokenSpan| {
        if span.is_empty() {
            return 0.0;
        }
        let mean = keys.slice(s![span.range(), ..]).mean_axis(Axis(0)).expect("the span is not empty");
        let product = question.slice(s![span.range()]).mean().expect("the span is not empty");
        product / (mean.dot(&mean).sqrt() * question_norm).max(f32::EPSILON)
    };
    spans.iter().map(cosine_of).collect()
}
