//! Runs a model's graphs: tokens in, keys and raw logits out.
//! Knows nothing of requests, scores or budgets.

pub mod contract;
#[allow(missing_docs, reason = "the fields are ONNX's own, documented in onnx.proto")]
pub(crate) mod onnx;
pub mod ort;
pub mod scripted;
pub mod tokenizer;

use ndarray::{Array3, ArrayView3};
use thiserror::Error;

/// Whether a window is still wanted, by its index.
pub type Wanted<'a> = &'a (dyn Fn(usize) -> bool + Sync);

/// Takes a window's keys `[head, token, head_dim]`, with its index.
pub type Done<'a> = &'a (dyn Fn(usize, ArrayView3<f32>) + Sync);

/// What the rest of the program may ask of a model.
///
/// Implementations return the same bytes for the same input, whatever else runs beside it: batching, cache state and thread
/// count change nothing. Callers hand over windows that fit [`ModelInfo::window_tokens_max`].
pub trait ModelRuntime: Send + Sync {
    /// The model's name, fingerprint and dimensions.
    fn info(&self) -> &ModelInfo;

    /// Reads windows, each on its own. `done(i, keys)` is given the keys `[head, token, head_dim]` of window `i`, special
    /// tokens dropped, as soon as they are there, in any order. `wanted(i)` is asked when window `i` goes into the queue, two runs
    /// ahead at most; one that nobody wants any more is passed over. Windows are read in their order.
    ///
    /// # Errors
    /// The first that the runtime reports; windows after it may have been left out.
    fn read(&self, windows: &[&[u32]], wanted: Wanted, done: Done) -> Result<(), ModelError>;

    /// Raw, pre-softmax logits of one question window over `keys` `[head, key, head_dim]`, by the query graph itself.
    ///
    /// # Errors
    /// What the runtime reports.
    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<Logits, ModelError>;

    /// One question window, apart from any keys.
    ///
    /// Logits are linear in the keys, so the logits over the unit vectors are the question's vectors, to the bit: every
    /// other term of each product is 0.
    ///
    /// # Errors
    /// What the runtime reports.
    fn question(&self, question: &[u32]) -> Result<Encoded, ModelError> {
        let (heads, dim) = (self.info().heads, self.info().head_dim);
        let units = Array3::from_shape_fn((heads, dim, dim), |(_, i, j)| f32::from(u8::from(i == j)));
        let Logits { cross: vectors, own } = self.logits(question, units.view())?;
        Ok(Encoded { vectors, own })
    }
}

/// Raw logits of a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// Over the chunks' keys: `[head, question_token, key]`.
    pub cross: Array3<f32>,
    /// Over the question's own keys: `[head, question_token, question_token]`.
    pub own: Array3<f32>,
}

/// A question window that has been through the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// `[head, question_token, head_dim]`: their products with keys are the raw logits over them.
    pub vectors: Array3<f32>,
    /// The logits over the window's own keys: `[head, question_token, question_token]`.
    pub own: Array3<f32>,
}

/// A model's identity and dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name from the contract.
    pub name: String,
    /// Hash over graphs, tokenizer, window and readout: a block made under another fingerprint is another block.
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
}
