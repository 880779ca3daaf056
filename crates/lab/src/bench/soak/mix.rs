//! What a soak sends: most requests should be answered, some are left, late or wrong, and say so.
//! Knows nothing of sockets.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::chunks::Chunks;
use crate::bench::workload::{Random, prose};

/// Chunks of a request at most; as many requests with few as with many, by magnitude.
const CHUNKS_MAX: usize = 200;

/// Of a hundred requests, how many are of each kind; the rest should be answered.
const LEAVE_WHILE_SENDING: usize = 3;
const LEAVE_WHILE_WAITING: usize = 6;
const HURRY: usize = 6;
const BAD: usize = 5;

/// Of a hundred of the rest, how many are not about chunks that they bring.
const REGISTER: usize = 5;
const SEARCH: usize = 8;
const NAMED: usize = 12;

/// Chunks that are registered before the first request: those that come most often.
const REGISTERED: usize = 200;
/// Chunks that are registered in one call at most.
const REGISTER_MAX: usize = 30;

const COMPRESS: &str = "/v1/compress";

/// Bodies that are none, and how they are refused.
const BAD_BODIES: [(&str, u16); 6] = [
    ("{", 400),
    ("not JSON", 400),
    (r#"{"query": "q", "chunks": ["c"], "top_k": 3}"#, 400),
    (r#"{"query": "q", "chunks": []}"#, 422),
    (r#"{"query": " ", "chunks": ["c"]}"#, 422),
    (r#"{"query": "q", "chunks": ["c"], "budget": {"ratio": 2}}"#, 422),
];

/// A request.
pub struct Ask {
    /// What becomes of it.
    pub kind: Kind,
    /// Where it is sent.
    pub path: &'static str,
    /// Its body.
    pub body: Bytes,
    /// How many chunks it is about.
    pub chunks: usize,
}

/// What should become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is answered.
    Answered,
    /// Its client goes before its body is out.
    LeaveWhileSending,
    /// Its client goes after so long, if there is no answer by then.
    LeaveWhileWaiting(Duration),
    /// It is answered, or its deadline has passed.
    Hurry,
    /// It is answered, if need be with what it sent.
    HurryOrPassthrough,
    /// It is refused with this status.
    Bad(u16),
}

/// Draws requests.
pub struct Mix {
    chunks: Chunks,
    deadline_ms_max: u64,
}

impl Mix {
    /// About `chunks`; what should be answered has as long as a request may ask for.
    pub fn new(chunks: Chunks, deadline_ms_max: u64) -> Self {
        Self { chunks, deadline_ms_max }
    }

    /// What is asked about.
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// The next request.
    pub fn draw(&self, random: &mut Random) -> Ask {
        let kind = draw_kind(random);
        if let Kind::Bad(_) = kind {
            let (body, status) = BAD_BODIES[random.between(0, BAD_BODIES.len() - 1)];
            let body = Bytes::from_static(body.as_bytes());
            return Ask { kind: Kind::Bad(status), path: COMPRESS, body, chunks: 0 };
        }
        if kind == Kind::Answered {
            let drawn = random.between(0, 99);
            if drawn < REGISTER {
                let first = self.chunks.draw(random);
                let end = (first + random.between(1, REGISTER_MAX)).min(self.chunks.len());
                return Ask { kind, path: "/v1/chunks", body: self.registration(first..end), chunks: 0 };
            }
            if drawn < REGISTER + SEARCH {
                let words = random.between(1, 12);
                let body = json!({"query": prose(random, words), "deadline_ms": self.deadline_ms_max});
                return Ask { kind, path: "/v1/search", body: body.to_string().into(), chunks: 0 };
            }
            if drawn < REGISTER + SEARCH + NAMED {
                let first = random.between(0, REGISTERED - 1);
                let ids: Vec<String> =
                    (first..random.between(first, REGISTERED - 1) + 1).map(|n| n.to_string()).collect();
                let (words, chunks) = (random.between(3, 30), ids.len());
                let query = prose(random, words);
                let body = json!({"query": query, "chunk_ids": ids, "deadline_ms": self.deadline_ms_max});
                return Ask { kind, path: COMPRESS, body: body.to_string().into(), chunks };
            }
        }
        let chunks = random.magnitude(1, CHUNKS_MAX);
        Ask { kind, path: COMPRESS, body: self.body(kind, chunks, random).into(), chunks }
    }

    /// Bodies that register what requests name.
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

    fn body(&self, kind: Kind, chunks: usize, random: &mut Random) -> String {
        let words = random.between(3, 30);
        let mut one_of = |names: &[&'static str]| names[random.between(0, names.len() - 1)];
        let mut rest = json!({
            "deadline_ms": self.deadline_ms_max,
            "granularity": one_of(&["sentence", "sentence", "chunk", "token"]),
            "order": one_of(&["input", "relevance"]),
            "tokenizer": one_of(&["model", "o200k_base"]),
            "query": prose(random, words),
            "explain": random.between(0, 19) == 0,
        });
        // Half of everything is always room for something; of a few chunks, it may not be.
        if chunks > 4 && random.between(0, 2) > 0 {
            rest["budget"] = json!({"ratio": random.between(50, 90) as f64 / 100.0});
        }
        if let Kind::Hurry | Kind::HurryOrPassthrough = kind {
            rest["deadline_ms"] = json!(random.between(0, 20));
        }
        if kind == Kind::HurryOrPassthrough {
            rest["on_error"] = json!("passthrough");
        }
        let mut body = "{\"chunks\":[".to_owned();
        for id in 0..chunks {
            if id > 0 {
                body.push(',');
            }
            self.chunks.append(self.chunks.draw(random), id, &mut body);
        }
        body.push_str("],");
        body.push_str(&rest.to_string()[1..]);
        body
    }
}

fn draw_kind(random: &mut Random) -> Kind {
    let bounds = [LEAVE_WHILE_SENDING, LEAVE_WHILE_WAITING, HURRY, BAD];
    let mut drawn = random.between(0, 99);
    let at = bounds.iter().position(|&share| {
        let here = drawn < share;
        drawn = drawn.saturating_sub(share);
        here
    });
    match at {
        Some(0) => Kind::LeaveWhileSending,
        Some(1) => Kind::LeaveWhileWaiting(Duration::from_millis(random.magnitude(1, 1_000) as u64)),
        Some(2) if random.between(0, 1) == 0 => Kind::Hurry,
        Some(2) => Kind::HurryOrPassthrough,
        Some(_) => Kind::Bad(400),
        None => Kind::Answered,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn requests_are_mixed_as_said() {
        let mix = Mix::new(Chunks::for_disk(0), 9_000);
        let mut random = Random::new(1, "test");
        let asked: Vec<Ask> = (0..2_000).map(|_| mix.draw(&mut random)).collect();
        let share = |of: fn(&Kind) -> bool| asked.iter().filter(|ask| of(&ask.kind)).count();
        let check = |name: &str, count: usize, percent: usize| {
            assert!((12 * percent..28 * percent).contains(&count), "{name}: {count} of 2000");
        };
        let others = LEAVE_WHILE_SENDING + LEAVE_WHILE_WAITING + HURRY + BAD;
        check("answered", share(|kind| *kind == Kind::Answered), 100 - others);
        check("left while sending", share(|kind| *kind == Kind::LeaveWhileSending), LEAVE_WHILE_SENDING);
        check("left while waiting", share(|k| matches!(k, Kind::LeaveWhileWaiting(_))), LEAVE_WHILE_WAITING);
        check("hurried", share(|k| matches!(k, Kind::Hurry | Kind::HurryOrPassthrough)), HURRY);
        check("bad", share(|kind| matches!(kind, Kind::Bad(_))), BAD);
        for ask in asked.iter().filter(|ask| !matches!(ask.kind, Kind::Bad(_))) {
            let body: Value = serde_json::from_slice(&ask.body).expect("JSON");
            let count = |name: &str| body[name].as_array().map(Vec::len);
            match ask.path {
                COMPRESS => {
                    assert_eq!(count("chunks").or(count("chunk_ids")), Some(ask.chunks));
                    assert!((1..=CHUNKS_MAX).contains(&ask.chunks));
                }
                "/v1/chunks" => assert!(count("chunks").is_some_and(|count| count <= REGISTER_MAX)),
                path => assert_eq!(path, "/v1/search"),
            }
        }
        let of = |path: &str| asked.iter().filter(|ask| ask.path == path).count();
        assert!(of("/v1/chunks") > 40 && of("/v1/search") > 60);
        let named = asked.iter().filter(|ask| ask.body.starts_with(b"{\"query\"") && ask.path == COMPRESS);
        assert!(named.count() > 100);
    }
}
