//! Generates questions, chunks and request bodies for benches: sentences of common words in random order,
//! from a fixed seed. Equal arguments give equal texts on every machine.

use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use serde_json::{Value, json};
use thresher_core::domain::{Chunk, CompressRequest};
use thresher_core::model::ModelError;
use thresher_core::model::tokenizer::ModelTokenizer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    pub chunks: usize,
    /// Tokens of a chunk; with `mixed`, about the mean.
    pub tokens: usize,
    pub query_tokens: usize,
    /// Whether chunk lengths are uniform from 10 to twice `tokens`, as retrievers return them.
    pub mixed: bool,
}

/// Tokens of the shortest chunk of a mixed workload.
const TOKENS_MIN: usize = 10;

impl Workload {
    /// Generates the request of one round; each round has other texts.
    ///
    /// # Errors
    /// Fails if the tokenizer fails.
    pub fn request(&self, round: u64, tokenizer: &ModelTokenizer) -> Result<CompressRequest, ModelError> {
        let mut rng = seeded(round, "");
        let query = text(&mut rng, self.query_tokens, '?', tokenizer)?;
        let chunk = |index: usize| {
            let tokens = if self.mixed {
                rng.usize(TOKENS_MIN..=(2 * self.tokens).max(TOKENS_MIN))
            } else {
                self.tokens
            };
            let text = text(&mut rng, tokens, '.', tokenizer)?;
            Ok(Chunk::new(index.to_string(), text))
        };
        let chunks = (0..self.chunks).map(chunk).collect::<Result<_, ModelError>>()?;
        Ok(CompressRequest::new(query, chunks))
    }

    /// Generates the `n`-th separate question, with `query_tokens` tokens.
    ///
    /// # Errors
    /// Fails as [`Self::request`] does.
    pub fn question(&self, n: u64, tokenizer: &ModelTokenizer) -> Result<String, ModelError> {
        text(&mut seeded(n, "question"), self.query_tokens, '?', tokenizer)
    }
}

/// Returns the token ids of each of a request's chunks.
///
/// # Errors
/// Fails if the tokenizer fails.
pub fn ids(request: &CompressRequest, tokenizer: &ModelTokenizer) -> Result<Vec<Vec<u32>>, ModelError> {
    request.chunks.iter().map(|chunk| Ok(tokenizer.encode(&chunk.text)?.ids)).collect()
}

/// Mean number of tokens in a word with the default model's tokenizer.
const TOKENS_PER_WORD: f64 = 1.4;

/// Generates sentences with about `tokens` tokens together.
pub fn prose_of(rng: &mut Rng, tokens: usize) -> String {
    prose(rng, (tokens as f64 / TOKENS_PER_WORD) as usize)
}

/// Generates sentences with at least `words` words together, and no sentence more than needed.
pub fn prose(rng: &mut Rng, words: usize) -> String {
    let (mut text, mut written) = (String::new(), 0);
    while written < words {
        written += sentence(&mut text, rng);
    }
    text
}

/// Generates sentences with exactly `tokens` tokens together. With a tokenizer that merges across words, the
/// number is approximate.
fn text(rng: &mut Rng, tokens: usize, end: char, tokenizer: &ModelTokenizer) -> Result<String, ModelError> {
    let mut text = String::new();
    let mut words = 0;
    // A word has at least one token.
    while words < tokens {
        words += sentence(&mut text, rng);
    }
    let offsets = tokenizer.encode(&text)?.offsets;
    text.truncate(offsets[tokens.max(2) - 2].end);
    if tokens > 1 {
        text.push(end);
    }
    Ok(text)
}

/// Appends a sentence of 6 to 22 words, some of them followed by a comma, and returns the number of words.
fn sentence(text: &mut String, rng: &mut Rng) -> usize {
    let words = rng.usize(6..=22);
    for at in 0..words {
        let word = WORDS[rng.usize(..WORDS.len())];
        match (text.is_empty(), at) {
            (true, 0) => text.push_str(&capital(word)),
            (false, 0) => text.extend([" ", &capital(word)]),
            _ => text.extend([" ", word]),
        }
        if at + 1 < words && rng.usize(1..=9) == 1 {
            text.push(',');
        }
    }
    text.push('.');
    words
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

const REGISTRATION_CHUNKS_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Every request carries the chunks' texts.
    #[default]
    Inline,
    /// Chunks are registered once; requests carry their ids.
    Registered,
}

/// Request bodies about one set of chunks; they differ in the question only.
#[derive(Debug, Clone)]
pub struct RequestBodies {
    /// The JSON of a body after its question.
    rest: Bytes,
}

impl Source {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Registered => "registered",
        }
    }

    /// Returns the bodies to send to `/v1/chunks` before the first request about `chunks`.
    pub fn registrations(self, chunks: &[Arc<Chunk>]) -> Vec<Bytes> {
        match self {
            Self::Inline => Vec::new(),
            Self::Registered => {
                let batches = chunks.chunks(REGISTRATION_CHUNKS_MAX);
                batches.map(|batch| json!({"chunks": chunks_json(batch)}).to_string().into()).collect()
            }
        }
    }

    /// Returns the bodies of requests about `chunks`, each with `deadline_ms`.
    pub fn bodies(self, chunks: &[Arc<Chunk>], deadline_ms: u64) -> RequestBodies {
        let (name, chunks): (_, Vec<Value>) = match self {
            Self::Inline => ("chunks", chunks_json(chunks)),
            Self::Registered => ("chunk_ids", chunks.iter().map(|c| Value::from(c.id.as_str())).collect()),
        };
        let rest = format!("\"{name}\":{},\"deadline_ms\":{deadline_ms}}}", Value::Array(chunks));
        RequestBodies { rest: rest.into() }
    }
}

fn chunks_json(chunks: &[Arc<Chunk>]) -> Vec<Value> {
    chunks.iter().map(|chunk| json!({"id": chunk.id, "text": chunk.text})).collect()
}

impl RequestBodies {
    /// Returns the body with the question `question`.
    pub fn with_query(&self, question: &str) -> Bytes {
        let question = format!("{{\"query\":{},", Value::from(question));
        [question.as_bytes(), &self.rest].concat().into()
    }
}

/// Returns the random generator of the `n`-th series for `purpose`. Equal arguments give equal numbers on
/// every machine.
pub fn seeded(n: u64, purpose: &str) -> Rng {
    let purpose = purpose.bytes().fold(0, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    Rng::with_seed((n ^ purpose).wrapping_mul(0x2545_F491_4F6C_DD1D).wrapping_add(1))
}

/// Draws a number from `min` to `max` (inclusive), uniform in its logarithm: from 1 to 10 is as likely as
/// from 10 to 100.
pub fn log_uniform(rng: &mut Rng, min: usize, max: usize) -> usize {
    let (low, high) = ((min as f64).ln(), (max as f64 + 1.0).ln());
    ((low + rng.f64() * (high - low)).exp() as usize).clamp(min, max)
}

/// Lower-case ASCII words. The long words at the end have several tokens each in most vocabularies.
#[rustfmt::skip]
const WORDS: [&str; 226] = [
    "the", "of", "and", "to", "a", "in", "is", "was", "for", "it", "with", "as", "on", "be", "at", "by", "this", "had",
    "not", "are", "but", "from", "or", "have", "an", "they", "which", "one", "you", "were", "her", "all", "she", "there",
    "would", "their", "we", "him", "been", "has", "when", "who", "will", "more", "no", "if", "out", "so", "said", "what",
    "up", "its", "about", "into", "than", "them", "can", "only", "other", "new", "some", "could", "time", "these", "two",
    "may", "then", "do", "first", "any", "my", "now", "such", "like", "our", "over", "man", "me", "even", "most", "made",
    "after", "also", "did", "many", "before", "must", "through", "back", "years", "where", "much", "your", "way", "well",
    "down", "should", "because", "each", "just", "those", "people", "too", "how", "little", "state", "good", "very",
    "make", "world", "still", "own", "see", "men", "work", "long", "get", "here", "between", "both", "life", "being",
    "under", "never", "day", "same", "another", "know", "while", "last", "might", "us", "great", "old", "year", "off",
    "come", "since", "against", "go", "came", "right", "used", "take", "three", "river", "market", "castle", "engine",
    "paper", "museum", "winter", "summer", "bridge", "village", "doctor", "teacher", "letter", "garden", "mountain",
    "island", "railway", "factory", "council", "election", "treaty", "battle", "language", "grammar", "orchestra",
    "symphony", "painter", "sculpture", "philosophy", "chemistry", "hydrogen", "electron", "molecule", "protein",
    "bacteria", "vaccine", "hospital", "surgery", "diagnosis", "insurance", "mortgage", "currency", "inflation",
    "budget", "parliament", "constitution", "amendment", "jurisdiction", "copyright", "software", "compiler", "protocol",
    "database", "satellite", "telescope", "galaxy", "volcano", "earthquake", "glacier", "monsoon", "harvest", "irrigation",
    "fertilizer", "livestock", "veterinarian", "archaeologist", "palaeontology", "crystallography", "phosphorylation",
    "electromagnetism", "neurotransmitter", "biodiversity", "photosynthesis", "thermodynamics", "counterintuitive",
    "interdisciplinary", "misapprehension", "unselfconscious", "quartermaster", "shipwright", "blacksmithing",
];

#[cfg(test)]
mod tests {
    use thresher_core::model::scripted::ScriptedModel;

    use super::*;

    fn request(mixed: bool, round: u64) -> CompressRequest {
        // This tokenizer has one token per byte, so token counts are text lengths.
        let workload = Workload { chunks: 30, tokens: 200, query_tokens: 16, mixed };
        workload
            .request(round, &ScriptedModel::tokenizer(&[]))
            .expect("the scripted tokenizer takes any text")
    }

    #[test]
    fn lengths_are_exact() {
        let request = request(false, 0);
        assert_eq!(request.query.len(), 16);
        assert!(request.chunks.iter().all(|chunk| chunk.text.len() == 200));
        let single = text(&mut seeded(0, ""), 1, '.', &ScriptedModel::tokenizer(&[])).expect("as above");
        assert_eq!(single.len(), 1);
    }

    #[test]
    fn magnitudes_are_even_on_a_logarithmic_scale() {
        let mut rng = seeded(1, "test");
        let drawn: Vec<usize> = (0..3_000).map(|_| log_uniform(&mut rng, 1, 999)).collect();
        assert!(drawn.iter().all(|n| (1..=999).contains(n)));
        for (low, high) in [(1, 9), (10, 99), (100, 999)] {
            let share = drawn.iter().filter(|n| (low..=high).contains(*n)).count();
            assert!((900..1_100).contains(&share), "{share} of 3000 from {low} to {high}");
        }
    }

    #[test]
    fn mixed_lengths_vary_within_their_bounds() {
        let lengths: Vec<_> = request(true, 0).chunks.iter().map(|chunk| chunk.text.len()).collect();
        assert!(lengths.iter().all(|length| (10..=400).contains(length)));
        assert!(lengths.iter().any(|&l| l < 100) && lengths.iter().any(|&l| l > 300), "{lengths:?}");
    }

    #[test]
    fn a_round_is_repeatable_and_unlike_the_others() {
        assert_eq!(request(true, 3), request(true, 3));
        assert_ne!(request(true, 3).chunks[0].text, request(true, 4).chunks[0].text);
    }

    #[test]
    fn a_body_is_json_with_the_question_in_it() {
        let chunk = Chunk::new("a", "One \"two\".");
        let chunks = [Arc::new(chunk)];
        let check = |source: Source, name: &str, expect: Value| {
            let body = source.bodies(&chunks, 7).with_query("Who said \"two\"?");
            let expect = json!({"query": "Who said \"two\"?", name: expect, "deadline_ms": 7});
            assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON"), expect, "{source:?}");
        };
        check(Source::Inline, "chunks", json!([{"id": "a", "text": "One \"two\"."}]));
        check(Source::Registered, "chunk_ids", json!(["a"]));
    }

    #[test]
    fn only_registered_chunks_are_sent_ahead() {
        let chunk = |n: usize| Arc::new(Chunk::new(n.to_string(), "A text."));
        let chunks: Vec<_> = (0..=REGISTRATION_CHUNKS_MAX).map(chunk).collect();
        let sizes = |source: Source| -> Vec<usize> {
            let bodies = source.registrations(&chunks);
            let read = |body: &Bytes| serde_json::from_slice::<Value>(body).expect("JSON");
            bodies.iter().map(|body| read(body)["chunks"].as_array().expect("a list").len()).collect()
        };
        assert_eq!(sizes(Source::Inline), [0_usize; 0]);
        assert_eq!(sizes(Source::Registered), [REGISTRATION_CHUNKS_MAX, 1]);
    }
}
