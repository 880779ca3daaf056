//! The statement that a receipt signs: which input was attributed, by which model, and with which result.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use thresher_core::domain::{AttributeRequest, ByteRange, Chunk, Parts};
use thresher_core::pipeline::attribute::{
    Attributed, ESTIMATOR, PartOutcome, Source, UnsupportedKind, Verdict,
};
use thresher_core::pipeline::{Codec, Pipeline};

/// How much the scores of two processors may differ: relative to the larger score, and in any case.
const SCORE_TOLERANCE_RELATIVE: f64 = 1e-3;
const SCORE_TOLERANCE_ABSOLUTE: f64 = 1e-5;

pub const VERSION: u32 = 2;

/// A record of one attribution. All ranges are in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    version: u32,
    issued_at: u64,
    thresher: String,
    model: String,
    fingerprint: String,
    /// The fingerprint of the cross-encoder that gave a second opinion; `None` if there was none.
    #[serde(default)]
    verdict_model: Option<String>,
    estimator: String,
    codec: Codec,
    answer: Hashed,
    chunks: Vec<HashedChunk>,
    granularity: Granularity,
    sources_max: usize,
    parts: Vec<PartRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hashed {
    bytes: usize,
    sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HashedChunk {
    id: String,
    title: Option<Hashed>,
    text: Hashed,
    /// The ranges of the chunk that the author of the answer saw; `None`: the whole chunk.
    seen: Option<Vec<ByteRange>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Granularity {
    Sentence,
    Word,
    Span,
    Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartRecord {
    at: ByteRange,
    verdict: Verdict,
    support: Option<f32>,
    unsupported: Vec<UnsupportedBody>,
    sources: Vec<SourceRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnsupportedBody {
    at: ByteRange,
    reason: UnsupportedKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceRecord {
    chunk: usize,
    score: f32,
    cited: bool,
    tied: bool,
    sentence: ByteRange,
    run: ByteRange,
}

/// A value in which two statements differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// JSON pointer to the value in the statement.
    pub place: String,
    pub receipt: Value,
    pub now: Value,
}

impl Statement {
    /// Returns the version of the form of the statement.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Creates the statement of an attribution by the pipeline `by`, issued now.
    pub fn new(request: &AttributeRequest, attributed: &Attributed, by: &Pipeline) -> Self {
        let model = by.model();
        let seen = |index: usize| request.seen.as_ref().map(|seen| seen[index].clone());
        let chunk = |(index, chunk): (usize, &Arc<Chunk>)| HashedChunk::hash(chunk, seen(index));
        Self {
            version: VERSION,
            issued_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            thresher: env!("CARGO_PKG_VERSION").to_owned(),
            model: model.name.clone(),
            fingerprint: model.fingerprint.clone(),
            verdict_model: by.verdict_model().map(|model| model.fingerprint().to_owned()),
            estimator: ESTIMATOR.to_owned(),
            codec: by.settings().codec,
            answer: Hashed::hash(&request.answer),
            chunks: request.chunks.iter().enumerate().map(chunk).collect(),
            granularity: match request.parts {
                Parts::Sentences => Granularity::Sentence,
                Parts::Words => Granularity::Word,
                Parts::Spans(_) => Granularity::Span,
                Parts::Values(_) => Granularity::Value,
            },
            sources_max: request.sources_max,
            parts: attributed.parts.iter().map(PartRecord::record).collect(),
        }
    }

    /// Returns the number format of stored keys, which a replay must use as well.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Returns whether the parts are the values of a JSON answer.
    pub fn is_of_values(&self) -> bool {
        self.granularity == Granularity::Value
    }

    /// Compares the statement with an answer and chunks: hashes that differ, and ranges of the statement that do not fit the texts. If there
    /// are any differences, the attribution cannot be replayed.
    pub fn compare_input(&self, answer: &str, chunks: &[Arc<Chunk>]) -> Vec<Difference> {
        let mut found = Vec::new();
        let seen = |index: usize| self.chunks.get(index).and_then(|chunk| chunk.seen.clone());
        let now = chunks.iter().enumerate().map(|(index, chunk)| HashedChunk::hash(chunk, seen(index)));
        let now = json(&now.collect::<Vec<_>>());
        compare(&json(&self.answer), &json(&Hashed::hash(answer)), "/answer".to_owned(), &mut found);
        compare(&json(&self.chunks), &now, "/chunks".to_owned(), &mut found);
        let fits = |text: &str, range: &ByteRange| text.get(range.start..range.end).is_some();
        let absent = |place: String, receipt| Difference { place, receipt, now: Value::Null };
        for (index, (chunk, recorded)) in chunks.iter().zip(&self.chunks).enumerate() {
            if recorded.seen.iter().flatten().any(|range| !fits(&chunk.text, range)) {
                found.push(absent(format!("/chunks/{index}/seen"), json(&recorded.seen)));
            }
        }
        for (index, part) in self.parts.iter().enumerate() {
            if self.granularity == Granularity::Span && !fits(answer, &part.at) {
                found.push(absent(format!("/parts/{index}/at"), json(&part.at)));
            }
        }
        found
    }

    /// Returns the request that repeats the attribution. `request` has an answer and chunks that match the statement; `values` are the values
    /// of the answer if it is JSON.
    pub fn replay(&self, request: AttributeRequest, values: Parts) -> AttributeRequest {
        let AttributeRequest { answer, chunks, .. } = request;
        let parts = match self.granularity {
            Granularity::Sentence => Parts::Sentences,
            Granularity::Word => Parts::Words,
            Granularity::Span => Parts::Spans(self.parts.iter().map(|part| part.at).collect()),
            Granularity::Value => values,
        };
        let seen = |(index, chunk): (usize, &Arc<Chunk>)| {
            let whole = || vec![ByteRange::new(0, chunk.text.len())];
            self.chunks.get(index).and_then(|chunk| chunk.seen.clone()).unwrap_or_else(whole)
        };
        let any_seen = self.chunks.iter().any(|chunk| chunk.seen.is_some());
        let seen = any_seen.then(|| chunks.iter().enumerate().map(seen).collect());
        AttributeRequest {
            answer,
            chunks,
            registered: true,
            seen,
            markers: None,
            parts,
            sources_max: self.sources_max,
        }
    }

    /// Compares two statements, except for the time and the version of Thresher that issued them. Scores may differ slightly, as two
    /// processors compute them slightly differently.
    ///
    /// # Panics
    /// Never panics in practice: every statement can be written as JSON.
    pub fn compare(&self, now: &Self) -> Vec<Difference> {
        let now = Self { issued_at: self.issued_at, thresher: self.thresher.clone(), ..now.clone() };
        let mut found = Vec::new();
        compare(&json(self), &json(&now), String::new(), &mut found);
        found
    }
}

fn json(of: &impl Serialize) -> Value {
    serde_json::to_value(of).expect("statements and their fields are JSON")
}

fn compare(receipt: &Value, now: &Value, place: String, found: &mut Vec<Difference>) {
    match (receipt, now) {
        (Value::Object(one), Value::Object(other)) => {
            for (key, value) in one {
                compare(value, other.get(key).unwrap_or(&Value::Null), format!("{place}/{key}"), found);
            }
        }
        (Value::Array(one), Value::Array(other)) => {
            for at in 0..one.len().max(other.len()) {
                let of = |list: &[Value]| list.get(at).cloned().unwrap_or(Value::Null);
                compare(&of(one), &of(other), format!("{place}/{at}"), found);
            }
        }
        (Value::Number(one), Value::Number(other)) if one.is_f64() && other.is_f64() => {
            let (one, other) = (one.as_f64().unwrap_or(f64::NAN), other.as_f64().unwrap_or(f64::NAN));
            let allowed =
                (SCORE_TOLERANCE_RELATIVE * one.abs().max(other.abs())).max(SCORE_TOLERANCE_ABSOLUTE);
            // False for NaN.
            let is_near = (one - other).abs() <= allowed;
            if !is_near {
                found.push(Difference { place, receipt: receipt.clone(), now: now.clone() });
            }
        }
        (one, other) if one == other => {}
        _ => found.push(Difference { place, receipt: receipt.clone(), now: now.clone() }),
    }
}

impl Hashed {
    fn hash(text: &str) -> Self {
        Self { bytes: text.len(), sha256: hex::encode(Sha256::digest(text)) }
    }
}

impl HashedChunk {
    fn hash(chunk: &Chunk, seen: Option<Vec<ByteRange>>) -> Self {
        let title = chunk.title.as_deref().map(Hashed::hash);
        Self { id: chunk.id.clone(), title, text: Hashed::hash(&chunk.text), seen }
    }
}

impl PartRecord {
    fn record(part: &PartOutcome) -> Self {
        let source = |source: &Source| SourceRecord {
            chunk: source.chunk,
            score: source.score,
            cited: source.cited,
            tied: source.tied,
            sentence: source.sentence,
            run: source.run,
        };
        Self {
            at: part.bytes,
            verdict: part.verdict,
            support: part.support,
            unsupported: part
                .unsupported
                .iter()
                .map(|unsupported| UnsupportedBody { at: unsupported.bytes, reason: unsupported.kind })
                .collect(),
            sources: part.sources.iter().map(source).collect(),
        }
    }
}
