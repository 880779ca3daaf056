//! How a request says which chunks it is about: bodies that differ in their question only.
//! Knows nothing of who sends them.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::domain::Chunk;

/// How requests name their chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// Every request carries their text.
    #[default]
    Inline,
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
        }
    }

    /// Bodies of requests about `chunks`, each with `deadline_ms`.
    pub fn bodies(self, chunks: &[Arc<Chunk>], deadline_ms: u64) -> Bodies {
        let (name, chunks): (_, Vec<Value>) = match self {
            Self::Inline => ("chunks", chunks.iter().map(|c| json!({"id": c.id, "text": c.text})).collect()),
        };
        let rest = format!("\"{name}\":{},\"deadline_ms\":{deadline_ms}}}", Value::Array(chunks));
        Bodies { rest: rest.into() }
    }
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
        let body = Source::Inline.bodies(&[Arc::new(chunk)], 7).ask("Who said \"two\"?");
        let expect = json!({
            "query": "Who said \"two\"?", "chunks": [{"id": "a", "text": "One \"two\"."}], "deadline_ms": 7,
        });
        assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON"), expect);
    }
}
