//! Generates the soak test's requests and chunks. Most requests should be answered; some have a client that
//! disconnects, a short deadline or an invalid body, and each request carries the outcome to expect.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use serde_json::json;

use crate::workload::{log_uniform, prose, prose_of, seeded};

/// The most chunks of a request. The number of chunks is uniform in its logarithm.
const CHUNKS_MAX: usize = 200;

/// Percentages of all requests by expected outcome; the rest should be answered.
const DISCONNECT_WHILE_SENDING: usize = 3;
const DISCONNECT_WHILE_WAITING: usize = 6;
const LATE_ALLOWED: usize = 6;
const REJECTED: usize = 5;

/// Percentages of the requests that should be answered: registrations, searches, and requests that name
/// registered chunks by id. The rest send their chunks' texts.
const REGISTER: usize = 5;
const SEARCH: usize = 8;
const BY_ID: usize = 12;

/// Chunks that are registered before the first request: the ones that are drawn most often.
const REGISTERED: usize = 200;
const REGISTER_MAX: usize = 30;

const COMPRESS: &str = "/v1/compress";

/// Invalid bodies with the status that refuses them.
const REJECTED_BODIES: [(&str, u16); 6] = [
    ("{", 400),
    ("not JSON", 400),
    (r#"{"query": "q", "chunks": ["c"], "top_k": 3}"#, 400),
    (r#"{"query": "q", "chunks": []}"#, 422),
    (r#"{"query": " ", "chunks": ["c"]}"#, 422),
    (r#"{"query": "q", "chunks": ["c"], "budget": {"ratio": 2}}"#, 422),
];

pub struct SoakRequest {
    pub expectation: Expectation,
    pub path: &'static str,
    pub body: Bytes,
    /// Number of chunks that the request compresses.
    pub chunks: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    Answered,
    /// The client disconnects before it has sent the whole body.
    DisconnectWhileSending,
    /// The client disconnects after this time, unless it has a response by then.
    DisconnectWhileWaiting(Duration),
    /// The request is answered, or it misses its deadline.
    LateAllowed,
    /// The request is answered, if necessary with its unchanged chunks (`on_error: passthrough`).
    LateOrPassthrough,
    /// The request is refused with this status.
    Rejected(u16),
}

pub struct RequestGenerator {
    chunks: ChunkPool,
    deadline_ms_max: u64,
}

impl RequestGenerator {
    /// Creates a generator of requests about `chunks`. Requests that should be answered get
    /// `deadline_ms_max`, the longest deadline that a request may ask for.
    pub fn new(chunks: ChunkPool, deadline_ms_max: u64) -> Self {
        Self { chunks, deadline_ms_max }
    }

    pub fn chunks(&self) -> &ChunkPool {
        &self.chunks
    }

    pub fn draw(&self, rng: &mut Rng) -> SoakRequest {
        let expectation = draw_expectation(rng);
        if let Expectation::Rejected(_) = expectation {
            let (body, status) = REJECTED_BODIES[rng.usize(..REJECTED_BODIES.len())];
            let body = Bytes::from_static(body.as_bytes());
            return SoakRequest {
                expectation: Expectation::Rejected(status),
                path: COMPRESS,
                body,
                chunks: 0,
            };
        }
        if expectation == Expectation::Answered {
            let drawn = rng.usize(..=99);
            if drawn < REGISTER {
                let first = self.chunks.draw(rng);
                let end = (first + rng.usize(1..=REGISTER_MAX)).min(self.chunks.count());
                return SoakRequest {
                    expectation,
                    path: "/v1/chunks",
                    body: self.registration(first..end),
                    chunks: 0,
                };
            }
            if drawn < REGISTER + SEARCH {
                let words = rng.usize(1..=12);
                let body = json!({"query": prose(rng, words), "deadline_ms": self.deadline_ms_max});
                return SoakRequest {
                    expectation,
                    path: "/v1/search",
                    body: body.to_string().into(),
                    chunks: 0,
                };
            }
            if drawn < REGISTER + SEARCH + BY_ID {
                let first = rng.usize(..REGISTERED);
                let ids: Vec<String> =
                    (first..rng.usize(first..REGISTERED) + 1).map(|n| n.to_string()).collect();
                let (words, chunks) = (rng.usize(3..=30), ids.len());
                let query = prose(rng, words);
                let body = json!({"query": query, "chunk_ids": ids, "deadline_ms": self.deadline_ms_max});
                return SoakRequest { expectation, path: COMPRESS, body: body.to_string().into(), chunks };
            }
        }
        let chunks = log_uniform(rng, 1, CHUNKS_MAX);
        SoakRequest { expectation, path: COMPRESS, body: self.body(expectation, chunks, rng).into(), chunks }
    }

    /// Returns the bodies that register the chunks that requests name by id.
    pub fn registrations(&self) -> impl Iterator<Item = Bytes> {
        (0..REGISTERED)
            .step_by(REGISTER_MAX)
            .map(|first| self.registration(first..(first + REGISTER_MAX).min(REGISTERED)))
    }

    fn registration(&self, chunks: Range<usize>) -> Bytes {
        let mut body = "{\"chunks\":[".to_owned();
        for chunk in chunks.clone() {
            if chunk > chunks.start {
                body.push(',');
            }
            self.chunks.append(chunk, chunk, &mut body);
        }
        body.push_str("]}");
        body.into()
    }

    fn body(&self, expectation: Expectation, chunks: usize, rng: &mut Rng) -> String {
        let words = rng.usize(3..=30);
        let mut one_of = |names: &[&'static str]| names[rng.usize(..names.len())];
        let mut fields = json!({
            "deadline_ms": self.deadline_ms_max,
            "granularity": one_of(&["sentence", "sentence", "chunk", "word"]),
            "order": one_of(&["input", "relevance"]),
            "tokenizer": one_of(&["model", "o200k_base"]),
            "query": prose(rng, words),
            "explain": rng.usize(..=19) == 0,
        });
        // A budget of half of all tokens always has space for some unit, except with very few chunks.
        if chunks > 4 && rng.usize(..=2) > 0 {
            fields["budget"] = json!({"ratio": rng.usize(50..=90) as f64 / 100.0});
        }
        if let Expectation::LateAllowed | Expectation::LateOrPassthrough = expectation {
            fields["deadline_ms"] = json!(rng.usize(..=20));
        }
        if expectation == Expectation::LateOrPassthrough {
            fields["on_error"] = json!("passthrough");
        }
        let mut body = "{\"chunks\":[".to_owned();
        for id in 0..chunks {
            if id > 0 {
                body.push(',');
            }
            self.chunks.append(self.chunks.draw(rng), id, &mut body);
        }
        body.push_str("],");
        body.push_str(&fields.to_string()[1..]);
        body
    }
}

fn draw_expectation(rng: &mut Rng) -> Expectation {
    let bounds = [DISCONNECT_WHILE_SENDING, DISCONNECT_WHILE_WAITING, LATE_ALLOWED, REJECTED];
    let mut drawn = rng.usize(..=99);
    let at = bounds.iter().position(|&share| {
        let here = drawn < share;
        drawn = drawn.saturating_sub(share);
        here
    });
    match at {
        Some(0) => Expectation::DisconnectWhileSending,
        Some(1) => {
            Expectation::DisconnectWhileWaiting(Duration::from_millis(log_uniform(rng, 1, 1_000) as u64))
        }
        Some(2) if rng.usize(..=1) == 0 => Expectation::LateAllowed,
        Some(2) => Expectation::LateOrPassthrough,
        Some(_) => Expectation::Rejected(400),
        None => Expectation::Answered,
    }
}

/// Fewest and most tokens of a chunk. The number is uniform in its logarithm.
const TOKENS_RANGE: (usize, usize) = (20, 600);

/// Bytes of a chunk on disk: the mean number of tokens times the bytes of a block per token.
const CHUNK_DISK_BYTES: u64 = 70_000;

/// Size of all chunks as a multiple of the disk tier's limit.
const DISK_MULTIPLE: u64 = 3;

/// Fewest and most chunks, whatever the disk tier's limit.
const COUNT_RANGE: (u64, u64) = (500, 20_000);

/// The JSON of all chunks, each without its opening brace and `id`.
pub struct ChunkPool(Vec<Box<str>>);

impl ChunkPool {
    /// Generates several times as many chunks as a disk tier of this size holds.
    pub fn for_disk(bytes_max: u64) -> Self {
        let count = (DISK_MULTIPLE * bytes_max / CHUNK_DISK_BYTES).clamp(COUNT_RANGE.0, COUNT_RANGE.1);
        let mut rng = seeded(0, "soak chunks");
        Self((0..count).map(|n| chunk_json(&mut rng, n)).collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Draws the index of a chunk. The n-th chunk has a probability of about 1/n, because popular topics get
    /// most questions.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        log_uniform(rng, 1, self.0.len()) - 1
    }

    pub fn append(&self, chunk: usize, id: usize, body: &mut String) {
        body.push_str(&format!("{{\"id\":\"{id}\","));
        body.push_str(&self.0[chunk]);
    }
}

/// Generates a chunk's JSON. Every seventh chunk has a title, every eleventh has metadata.
fn chunk_json(rng: &mut Rng, n: u64) -> Box<str> {
    let tokens = log_uniform(rng, TOKENS_RANGE.0, TOKENS_RANGE.1);
    let mut chunk = json!({"text": prose_of(rng, tokens)});
    if n.is_multiple_of(7) {
        chunk["title"] = json!(prose(rng, 3));
    }
    if n.is_multiple_of(11) {
        chunk["metadata"] = json!({"page": n, "tags": ["a", "b"]});
    }
    chunk.to_string()[1..].into()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn requests_have_the_configured_shares() {
        let generator = RequestGenerator::new(ChunkPool::for_disk(0), 9_000);
        let mut rng = seeded(1, "test");
        let requests: Vec<SoakRequest> = (0..2_000).map(|_| generator.draw(&mut rng)).collect();
        let share =
            |of: fn(&Expectation) -> bool| requests.iter().filter(|request| of(&request.expectation)).count();
        let check = |name: &str, count: usize, percent: usize| {
            assert!((12 * percent..28 * percent).contains(&count), "{name}: {count} of 2000");
        };
        let others = DISCONNECT_WHILE_SENDING + DISCONNECT_WHILE_WAITING + LATE_ALLOWED + REJECTED;
        check("answered", share(|expectation| *expectation == Expectation::Answered), 100 - others);
        check(
            "disconnected while sending",
            share(|expectation| *expectation == Expectation::DisconnectWhileSending),
            DISCONNECT_WHILE_SENDING,
        );
        check(
            "disconnected while waiting",
            share(|k| matches!(k, Expectation::DisconnectWhileWaiting(_))),
            DISCONNECT_WHILE_WAITING,
        );
        check(
            "may be late",
            share(|k| matches!(k, Expectation::LateAllowed | Expectation::LateOrPassthrough)),
            LATE_ALLOWED,
        );
        check("rejected", share(|expectation| matches!(expectation, Expectation::Rejected(_))), REJECTED);
        for request in
            requests.iter().filter(|request| !matches!(request.expectation, Expectation::Rejected(_)))
        {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            let count = |name: &str| body[name].as_array().map(Vec::len);
            match request.path {
                COMPRESS => {
                    assert_eq!(count("chunks").or(count("chunk_ids")), Some(request.chunks));
                    assert!((1..=CHUNKS_MAX).contains(&request.chunks));
                }
                "/v1/chunks" => assert!(count("chunks").is_some_and(|count| count <= REGISTER_MAX)),
                path => assert_eq!(path, "/v1/search"),
            }
        }
        let of = |path: &str| requests.iter().filter(|request| request.path == path).count();
        assert!(of("/v1/chunks") > 40 && of("/v1/search") > 60);
        let by_id = requests
            .iter()
            .filter(|request| request.body.starts_with(b"{\"query\"") && request.path == COMPRESS);
        assert!(by_id.count() > 100);
    }

    #[test]
    fn a_few_chunks_are_drawn_often_and_most_at_least_once() {
        let chunks = ChunkPool::for_disk(16 << 20);
        let mut rng = seeded(1, "test");
        let mut times = vec![0; chunks.count()];
        (0..100 * chunks.count()).for_each(|_| times[chunks.draw(&mut rng)] += 1);
        let frequent: usize = times[..10].iter().sum();
        assert!(frequent * 4 > 100 * chunks.count(), "the first ten: {frequent} times");
        let never = times.iter().filter(|&&times| times == 0).count();
        assert!(never * 10 < chunks.count(), "{never} of {} never", chunks.count());
    }
}
