//! How a request says which chunks it is about: bodies that differ in their question only.
//! Knows nothing of who sends them.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use thresher_core::domain::Chunk;

/// Chunks that are registered in one call.
const REGISTERED_COUNT: usize = 1_000;

/// How requests name their chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Every request carries their text.
    #[default]
    Inline,
    /// They are registered once; requests carry their ids.
    Registered,
}

/// Chunks that questions can be put to.
#[derive(Debug, Clone)]
pub struct Bodies {
    /// A body's JSON behind its question.
    rest: Bytes,
}

impl Source {
    /// As reports call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Registered => "registered",
        }
    }

    /// Bodies that have to be sent to `/v1/chunks` before anything is asked about `chunks`.
    pub fn registrations(self, chunks: &[Arc<Chunk>]) -> Vec<Bytes> {
        match self {
            Self::Inline => Vec::new(),
            Self::Registered => {
                let batches = chunks.chunks(REGISTERED_COUNT);
                batches.map(|batch| json!({"chunks": inline(batch)}).to_string().into()).collect()
            }
        }
    }

    /// Bodies of requests about `chunks`, each with `deadline_ms`.
    pub fn bodies(self, chunks: &[Arc<Chunk>], deadline_ms: u64) -> Bodies {
        let (name, chunks): (_, Vec<Value>) = match self {
            Self::Inline => ("chunks", inline(chunks)),
            Self::Registered => ("chunk_ids", chunks.iter().map(|c| Value::from(c.id.as_str())).collect()),
        };
        let rest = format!("\"{name}\":{},\"deadline_ms\":{deadline_ms}}}", Value::Array(chunks));
        Bodies { rest: rest.into() }
    }
}

fn inline(chunks: &[Arc<Chunk>]) -> Vec<Value> {
    chunks.iter().map(|chunk| json!({"id": chunk.id, "text": chunk.text})).collect()
}

impl Bodies {
    /// The body that asks `question`.
    pub fn ask(&self, question: &str) -> Bytes {
        let question = format!("{{\"query\":{},", Value::from(question));
        [question.as_bytes(), &self.rest].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_with_the_question_in_it() {
        let chunk =
            Chunk { id: "a".to_owned(), title: None, text: "One \"two\".".to_owned(), metadata: None };
        let chunks = [Arc::new(chunk)];
        let check = |source: Source, name: &str, expect: Value| {
            let body = source.bodies(&chunks, 7).ask("Who said \"two\"?");
            let expect = json!({"query": "Who said \"two\"?", name: expect, "deadline_ms": 7});
            assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON"), expect, "{source:?}");
        };
        check(Source::Inline, "chunks", json!([{"id": "a", "text": "One \"two\"."}]));
        check(Source::Registered, "chunk_ids", json!(["a"]));
    }

    #[test]
    fn only_registered_chunks_are_sent_ahead() {
        let chunk = |n: usize| {
            Arc::new(Chunk { id: n.to_string(), title: None, text: "A text.".to_owned(), metadata: None })
        };
        let chunks: Vec<_> = (0..=REGISTERED_COUNT).map(chunk).collect();
        let sizes = |source: Source| -> Vec<usize> {
            let bodies = source.registrations(&chunks);
            let read = |body: &Bytes| serde_json::from_slice::<Value>(body).expect("JSON");
            bodies.iter().map(|body| read(body)["chunks"].as_array().expect("a list").len()).collect()
        };
        assert_eq!(sizes(Source::Inline), [0_usize; 0]);
        assert_eq!(sizes(Source::Registered), [REGISTERED_COUNT, 1]);
    }
}
