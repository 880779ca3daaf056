//! What is read of an answer once its time has been taken.
//! Knows nothing of how it came about.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Parts of `POST /v1/compress`'s answer.
#[derive(Debug, Deserialize)]
pub struct AnswerBody {
    /// Where the chunks' blocks came from.
    #[serde(rename = "blocks")]
    pub sources: Sources,
    timing_ms: Map<String, Value>,
}

/// Blocks by where they came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Sources {
    /// Memory.
    pub memory: usize,
    /// Disk.
    pub disk: usize,
    /// The model: this request read them.
    pub read: usize,
}

impl AnswerBody {
    /// Of an answer's body.
    ///
    /// # Errors
    /// When it is not an answer.
    pub fn parse(body: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }

    /// Milliseconds of each stage, in their order.
    pub fn stages(&self) -> Vec<(String, f64)> {
        self.timing_ms.iter().filter_map(|(stage, ms)| Some((stage.clone(), ms.as_f64()?))).collect()
    }
}
