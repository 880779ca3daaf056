//! Runs a model's graphs: tokens in, keys and raw logits out.
//! Knows nothing of requests, scores or budgets.

pub mod contract;
pub mod ort;
pub mod scripted;
pub mod tokenizer;

use ndarray::{Array3, ArrayView3};
use thiserror::Error;

/// What the rest of the program may ask of a model.
///
/// Implementations return the same bytes for the same input, whatever else runs beside it (DESIGN: batching, cache
/// state and thread count change nothing). Callers hand over windows that fit [`ModelInfo::window_tokens_max`].
pub trait ModelRuntime: Send + Sync {
    /// The model's name, fingerprint and dimensions.
    fn info(&self) -> &ModelInfo;

    /// Reads windows, each on its own: keys `[head, token, head_dim]` per window, in the order given, special tokens
    /// dropped. `go_on` is asked before each window; the first `false` stops the work.
    ///
    /// # Errors
    /// [`ModelError::Stopped`] when `go_on` said no; otherwise what the runtime reports.
    fn read(
        &self,
        windows: &[&[u32]],
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Array3<f32>>, ModelError>;

    /// Raw, pre-softmax logits of one question window over `keys` `[head, key, head_dim]`.
    ///
    /// # Errors
    /// What the runtime reports.
    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<Logits, ModelError>;
}

/// Raw logits of a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// Over the chunks' keys: `[head, question_token, key]`.
    pub cross: Array3<f32>,
    /// Over the question's own keys: `[head, question_token, question_token]`.
    pub own: Array3<f32>,
}

/// A model's identity and dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name from the contract.
    pub name: String,
    /// Hash over graphs, tokenizer and readout: a block made under another fingerprint is another block.
    pub fingerprint: String,
    /// Tokens of text that one window holds, special tokens not counted.
    pub window_tokens_max: usize,
    /// Readout heads.
    pub heads: usize,
    /// Values per key and head.
    pub head_dim: usize,
}

/// Why a model could not answer.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The shared library of ONNX Runtime did not load.
    #[error(
        "cannot load ONNX Runtime from {path}: {reason}; set THRESHER_RUNTIME_LIB or run `make provision`"
    )]
    Runtime {
        /// Where it was looked for.
        path: String,
        /// What the loader said.
        reason: String,
    },
    /// The contract is missing or does not fit the graphs.
    #[error(transparent)]
    Contract(#[from] super::model::contract::ContractError),
    /// The tokenizer file is missing or broken.
    #[error("cannot load tokenizer {path}: {reason}")]
    Tokenizer {
        /// The file.
        path: String,
        /// What the parser said.
        reason: String,
    },
    /// Text that the tokenizer refuses.
    #[error("cannot tokenize: {0}")]
    Tokenize(String),
    /// A graph failed while loading or running.
    #[error("{graph} failed: {reason}")]
    Graph {
        /// File name of the graph.
        graph: String,
        /// What the runtime said.
        reason: String,
    },
    /// The caller no longer wants the answer.
    #[error("stopped: nobody waits for the answer")]
    Stopped,
}
