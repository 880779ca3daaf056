//! Runs a model's graphs: tokens in, keys and raw logits out.
//! Knows nothing of requests, scores or budgets.

pub mod contract;
pub mod device;
#[allow(missing_docs, reason = "the fields are ONNX's own, documented in onnx.proto")]
pub mod onnx;
pub mod ort;
pub mod rotary;
pub mod scripted;
pub mod tokenizer;

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayView1, ArrayView3, Axis, s};
use thiserror::Error;

use self::contract::{QuestionTokens, Rotary};
use self::device::DeviceInUse;

/// Whether a window is still wanted, by its index.
pub type Wanted<'a> = &'a (dyn Fn(usize) -> bool + Sync);

/// Takes a window's planes `[plane, token, head_dim]`, with its index.
pub type Done<'a> = &'a (dyn Fn(usize, ArrayView3<f32>) + Sync);

/// What the rest of the program may ask of a model.
///
/// Implementations return the same bytes for the same input, whatever else runs beside it: batching, cache state and thread
/// count change nothing. Callers hand over windows that fit [`ModelInfo::window_tokens_max`].
pub trait ModelRuntime: Send + Sync {
    /// The model's name, fingerprint and dimensions.
    fn info(&self) -> &ModelInfo;

    /// The same model with a share of its own: while several shares have work waiting, each gets the same part of the model's time,
    /// however much work each has. None where the model does not schedule its work.
    fn with_own_share(&self) -> Option<Arc<dyn ModelRuntime>> {
        None
    }

    /// Reads windows, each on its own. `done(i, planes)` is given the planes `[plane, token, head_dim]` of window `i`, special
    /// tokens dropped, as soon as they are there, in any order. `wanted(i)` is asked when window `i` goes into the queue, two runs
    /// ahead at most; one that nobody wants any more is passed over. Windows are read in their order.
    ///
    /// # Errors
    /// The first that the runtime reports; windows after it may have been left out.
    fn read(&self, windows: &[&[u32]], wanted: Wanted, done: Done) -> Result<(), ModelError>;

    /// A question. A decoder's looks back on `past`; that of others is the same whatever it looks back on, and is one window at most.
    ///
    /// # Errors
    /// What the runtime reports; [`ModelError::Stopped`] when nobody waits for it any more.
    fn question(&self, question: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError>;

    /// The same on one thread, for callers that ask many at the same time: together they are sooner done.
    ///
    /// # Errors
    /// As [`Self::question`].
    fn question_beside(&self, question: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        self.question(question, past)
    }

    /// A decoder's question in all heads of all layers, whichever are read: `[layer * heads + head, question_token, head_dim]`.
    ///
    /// # Errors
    /// As [`Self::question`]; [`ModelError::NoKvExport`] where there is nothing to hand over.
    fn question_in_all_heads(
        &self,
        _question: &[u32],
        _past: &dyn Past,
    ) -> Result<EncodedQuestion, ModelError> {
        Err(ModelError::NoKvExport { model: self.info().name.clone() })
    }

    /// `[plane, token, head_dim]` of the special tokens in front of every window.
    fn prefix(&self) -> ArrayView3<'_, f32> {
        ArrayView3::from_shape((0, 0, 0), &[]).expect("nothing has any shape")
    }

    /// Raw, pre-softmax logits of one question window over `keys` `[head, key, head_dim]`, by the query graph itself: what the scan
    /// of blocks is checked against.
    ///
    /// # Errors
    /// What the runtime reports; [`ModelError::NoQueryGraph`] where the family has none.
    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<RawLogits, ModelError>;
}

/// What a decoder's question looks back on: keys and values that were read before, moved to their positions.
pub trait Past: Sync {
    /// The position of every token, the special tokens in front not included.
    fn positions(&self) -> &[i64];

    /// The position of the question's first token.
    fn question_position(&self) -> i64;

    /// Writes one plane of all tokens, `[token, head_dim]`: keys as they are at their positions, values as they were read.
    fn read_plane(&self, plane: usize, out: &mut [f32]);

    /// Whether somebody still waits.
    fn go_on(&self) -> bool;
}

/// Which keys each key head sees of what lies before, special tokens not included: they are always seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyMask(Array3<bool>);

impl KeyMask {
    /// `[layer, kv_head, token]`
    pub fn new(kept: Array3<bool>) -> Self {
        Self(kept)
    }

    /// Of how many tokens.
    pub fn tokens(&self) -> usize {
        self.0.len_of(Axis(2))
    }

    /// `[token]` of one key head.
    pub fn of(&self, layer: usize, kv_head: usize) -> ArrayView1<'_, bool> {
        self.0.slice(s![layer, kv_head, ..])
    }

    /// `[layer, kv_head, token]`
    pub fn view(&self) -> ArrayView3<'_, bool> {
        self.0.view()
    }

    /// Share of all keys that is kept; of none, all.
    pub fn share(&self) -> f64 {
        match self.0.len() {
            0 => 1.0,
            keys => self.0.iter().filter(|kept| **kept).count() as f64 / keys as f64,
        }
    }
}

/// What a decoder's forward pass made of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// `[layer]`: `[head, token, head_dim]`, scaled, in their positions.
    pub queries: Vec<Array3<f32>>,
    /// `[token, vocab]`: of the token behind each.
    pub logits: Array2<f32>,
}

/// Nothing to look back on.
pub struct NoPast;

impl Past for NoPast {
    fn positions(&self) -> &[i64] {
        &[]
    }

    fn question_position(&self) -> i64 {
        0
    }

    fn read_plane(&self, _plane: usize, _out: &mut [f32]) {}

    fn go_on(&self) -> bool {
        true
    }
}

/// Raw logits of a question.
#[derive(Debug, Clone, PartialEq)]
pub struct RawLogits {
    /// Over the chunks' keys: `[head, question_token, key]`.
    pub cross: Array3<f32>,
    /// Over the question's own keys: `[head, question_token, question_token]`.
    pub self_logits: Array3<f32>,
}

/// A question that has been through the model.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedQuestion {
    /// `[head, question_token, head_dim]`: their products with keys are the raw logits over them.
    pub vectors: Array3<f32>,
    /// The question's own keys, or its logits over them.
    pub self_attention: SelfAttention,
}

/// A question looking at itself.
#[derive(Debug, Clone, PartialEq)]
pub enum SelfAttention {
    /// `[head, question_token, question_token]`: raw logits.
    Logits(Array3<f32>),
    /// `[head, question_token, head_dim]`: keys, all of which every token sees. Of a model with hundreds of heads all logits would be
    /// too many.
    Keys(Array3<f32>),
    /// The same, of a model whose tokens see themselves and those before them.
    CausalKeys(Array3<f32>),
}

impl EncodedQuestion {
    /// Raw logits of these heads over the question's own keys, `[head, question_token, question_token]`; [`f32::MIN`], which is no
    /// logit, where a token does not see a key.
    pub fn self_logits(&self, heads: Range<usize>) -> Array3<f32> {
        match &self.self_attention {
            SelfAttention::Logits(logits) => logits.slice(s![heads, .., ..]).to_owned(),
            SelfAttention::Keys(keys) => products(&self.vectors, keys, heads),
            SelfAttention::CausalKeys(keys) => {
                let mut logits = products(&self.vectors, keys, heads);
                for (token, mut row) in logits.axis_iter_mut(Axis(1)).enumerate() {
                    row.slice_mut(s![.., token + 1..]).fill(f32::MIN);
                }
                logits
            }
        }
    }

    /// The last token alone, which looks back on all the others: `[head, 1, head_dim]`, its own logits `[head, 1, question_token]`.
    pub fn of_last_token(&self) -> Self {
        let vectors = self.vectors.slice(s![.., -1.., ..]).to_owned();
        let own = match &self.self_attention {
            SelfAttention::Logits(logits) => logits.slice(s![.., -1.., ..]).to_owned(),
            // It sees every key, whether those before it do or not.
            SelfAttention::Keys(keys) | SelfAttention::CausalKeys(keys) => {
                products(&vectors, keys, 0..keys.len_of(Axis(0)))
            }
        };
        Self { vectors, self_attention: SelfAttention::Logits(own) }
    }
}

/// `[head, vector, key]` of some heads.
fn products(vectors: &Array3<f32>, keys: &Array3<f32>, heads: Range<usize>) -> Array3<f32> {
    let mut found = Array3::zeros((heads.len(), vectors.len_of(Axis(1)), keys.len_of(Axis(1))));
    for (mut found, head) in found.outer_iter_mut().zip(heads) {
        let (vectors, keys) = (vectors.slice(s![head, .., ..]), keys.slice(s![head, .., ..]));
        found.assign(&vectors.dot(&keys.t()));
    }
    found
}

/// A model's identity and dimensions.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Name from the contract.
    pub name: String,
    /// Hash over graphs, tokenizer, window and shapes: a block made under another fingerprint is another block.
    pub fingerprint: String,
    /// Tokens of text that one window holds, special tokens not counted.
    pub window_tokens_max: usize,
    /// Planes of a block: the keys of each head and, of a decoder, the values.
    pub planes: usize,
    /// Values per token and plane.
    pub head_dim: usize,
    /// For each head that RC is taken over, the plane of its keys.
    pub readout: Vec<usize>,
    /// What else there is to know of a decoder.
    pub decoder: Option<DecoderInfo>,
    /// Where it runs.
    pub device: DeviceInUse,
}

/// What a question of a decoder has to know to look back.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderInfo {
    /// Most tokens that are attended to at once, special tokens and question included.
    pub context_tokens_max: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Those that are read and kept.
    pub depth: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Special tokens in front of every window; a window's own tokens begin at this position.
    pub prefix: Vec<u32>,
    /// Key heads of a layer: a block's planes are each layer's keys, then its values.
    pub kv_heads: usize,
    /// Which weights it was made of (`source.weights` of the contract); none in one that was exported before that was written down.
    pub weights: Option<String>,
    /// The tokens of a question whose RC ranks chunks and sentences.
    pub question_tokens: QuestionTokens,
    /// How keys turn with their position; without it they cannot be moved.
    pub rotary: Option<Rotary>,
}

/// Numbering of the planes of a decoder's blocks: layer by layer, the keys of each key head, then the values of each key head. A plane
/// is `[token, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneLayout {
    kv_heads: usize,
}

impl PlaneLayout {
    /// The layout of a model with `kv_heads` key heads in each layer.
    pub fn new(kv_heads: usize) -> Self {
        Self { kv_heads }
    }

    /// Number of planes of the first `layers` layers.
    pub fn count(self, layers: usize) -> usize {
        2 * self.kv_heads * layers
    }

    /// Planes of a layer's keys, one for each key head.
    pub fn keys(self, layer: usize) -> Range<usize> {
        let first = self.count(layer);
        first..first + self.kv_heads
    }

    /// Planes of a layer's values, one for each key head.
    pub fn values(self, layer: usize) -> Range<usize> {
        let first = self.keys(layer).end;
        first..first + self.kv_heads
    }

    /// Whether a plane holds keys; every other plane holds values.
    pub fn is_key(self, plane: usize) -> bool {
        plane % self.count(1) < self.kv_heads
    }
}

impl DecoderInfo {
    /// How the planes of a block are numbered.
    pub fn planes(&self) -> PlaneLayout {
        PlaneLayout::new(self.kv_heads)
    }

    /// How many special tokens stand in front of every window.
    pub fn prefix_tokens(&self) -> usize {
        self.prefix.len()
    }

    /// Most tokens of a question: beside it, there is room for a window.
    pub fn question_tokens_max(&self, window_tokens_max: usize) -> usize {
        self.context_tokens_max - self.prefix_tokens() - window_tokens_max
    }
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
    /// The device that was asked for cannot be used.
    #[error(
        "cannot run on {device}: {reason}; a GPU needs the CUDA build of ONNX Runtime (`make provision GPU=1`), CUDA 13, and a driver; \
         `model.device = \"auto\"` takes the processor where there is none"
    )]
    Device {
        /// As it was asked for.
        device: String,
        /// What the runtime said.
        reason: String,
    },
    /// The contract is of another family than is needed here.
    #[error("{name} is no {expected}")]
    OtherFamily {
        /// The model's name.
        name: String,
        /// What is needed.
        expected: &'static str,
    },
    /// Nobody waits for the answer any more.
    #[error("nobody waits for the answer")]
    Stopped,
    /// The model has no graph that computes logits apart from its own attention.
    #[error("{model} is a decoder and has no query graph; set blocks.scan to \"fused\"")]
    NoQueryGraph {
        /// The model's name.
        model: String,
    },
    /// Keys and values were asked for, and there are none, or not all.
    #[error(
        "{model} is an encoder: it has no keys and values that a language model could take over; serve a decoder to hand them over"
    )]
    NoKvExport {
        /// The model's name.
        model: String,
    },
    /// A forward pass was asked of a model that was not loaded for it.
    #[error("{model} has no forward pass here: it is no decoder on a processor")]
    NoForward {
        /// The model's name.
        model: String,
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
