//! Runs a model: token ids in, keys, values, question vectors and raw attention logits out. Knows nothing of
//! requests, scores or budgets.
//!
//! Two families of models implement [`ModelRuntime`]. A late-interaction encoder has one vector per token and
//! head; its logits are dot products of such vectors. A decoder caches keys and values; its logits are those
//! of its own attention. A [`CrossEncoder`](cross::CrossEncoder) has neither: it only judges pairs of texts. Logits are raw: before the softmax, with the scale of the attention applied.

pub mod contract;
pub mod cross;
pub mod device;
pub mod onnx;
pub mod ort;
pub mod rotary;
pub mod scripted;
pub mod tokenizer;

use std::ops::Range;
use std::sync::Arc;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array3, ArrayView1, ArrayView3, Axis, s};
use thiserror::Error;

use self::contract::{ContractError, EvictionForm, Probe, QuestionTokens};
use self::device::DeviceInUse;
use self::rotary::LayerRotary;

/// Returns whether the window with this index is still needed. See [`ModelRuntime::read`].
pub type WindowFilter<'a> = &'a (dyn Fn(usize) -> bool + Sync);

/// Receives the index of a window and its planes `[plane, token, head_dim]`. See [`ModelRuntime::read`].
pub type WindowSink<'a> = &'a (dyn Fn(usize, ArrayView3<f32>) + Sync);

/// A loaded model.
///
/// On a CPU, implementations return the same bytes for the same input, whatever runs at the same time:
/// batching, the state of caches and the number of threads do not change a bit. On a GPU, the keys of a window
/// depend on the other windows of its batch, because products of matrices of other shapes are summed in another
/// order. With `f32` weights, keys of the same window then differ by less than 1e-3: an encoder's by their
/// distance, where all keys have length 1, a decoder's in each component, relative to the largest one. Callers
/// pass windows of at most
/// [`ModelInfo::window_tokens_max`] tokens.
pub trait ModelRuntime: Send + Sync {
    /// Returns the model's name, fingerprint and dimensions.
    fn info(&self) -> &ModelInfo;

    /// Returns a handle to the same model whose work is scheduled as a flow of its own: while several flows
    /// have work waiting, each gets the same part of the model's time, however much work it has queued.
    /// Returns `None` if the model does not schedule its work.
    fn with_own_flow(&self) -> Option<Arc<dyn ModelRuntime>> {
        None
    }

    /// Reads windows in their order. The tokens of a window attend to that window and the special tokens
    /// around it, not to other windows.
    ///
    /// `on_read(i, planes)` is called in any order, as soon as window `i` is read, and on several threads at
    /// the same time. All calls have returned when this function returns. `planes` is
    /// `[plane, token, head_dim]` and does not include special tokens. `is_needed(i)` is called right before
    /// window `i` is queued, which is at most two inference runs per worker ahead; if it returns false, the
    /// window is skipped and `on_read` is not called for it.
    ///
    /// # Errors
    /// Returns the first error of the runtime. Windows after the failed one may not have been read.
    fn read(
        &self,
        windows: &[&[u32]],
        is_needed: WindowFilter,
        on_read: WindowSink,
    ) -> Result<(), ModelError>;

    /// Computes the vectors of a question, whose dot products with keys are the raw logits.
    ///
    /// The question of a decoder attends to `past` and has at most [`DecoderInfo::question_tokens_max`]
    /// tokens. Other models ignore `past`, and the question has at most [`ModelInfo::window_tokens_max`]
    /// tokens.
    ///
    /// # Errors
    /// Returns an error of the runtime, or [`ModelError::Cancelled`] if [`Past::go_on`] returned false.
    fn encode_question(&self, question: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError>;

    /// Does the same as [`Self::encode_question`] on one thread. Callers that encode many questions at the
    /// same time finish sooner with it.
    ///
    /// # Errors
    /// As [`Self::encode_question`].
    fn encode_question_on_one_thread(
        &self,
        question: &[u32],
        past: &dyn Past,
    ) -> Result<EncodedQuestion, ModelError> {
        self.encode_question(question, past)
    }

    /// Computes the vectors of a decoder's question in all heads of all layers that are run, not only in the
    /// heads of [`ModelInfo::readout`]: `[layer * heads + head, question_token, head_dim]`.
    ///
    /// # Errors
    /// As [`Self::encode_question`], or [`ModelError::NoKvExport`] if the model is not a decoder.
    fn encode_question_in_all_heads(
        &self,
        _question: &[u32],
        _past: &dyn Past,
    ) -> Result<EncodedQuestion, ModelError> {
        Err(ModelError::NoKvExport { model: self.info().name.clone() })
    }

    /// Reads the tokens `ids` of a decoder at `positions`, which ascend, among cached tokens. They attend to each other
    /// and to the tokens of `past` at earlier positions. Returns their keys, rotated to their positions, and their values,
    /// `[plane, token, head_dim]`.
    ///
    /// # Errors
    /// As [`Self::encode_question_in_all_heads`].
    fn read_in_place(
        &self,
        _ids: &[u32],
        _positions: &[i64],
        _past: &dyn Past,
    ) -> Result<Array3<f32>, ModelError> {
        Err(ModelError::NoKvExport { model: self.info().name.clone() })
    }

    /// Returns the keys and values of the special tokens before every window,
    /// `[plane, prefix_token, head_dim]`. Empty for an encoder.
    fn prefix(&self) -> ArrayView3<'_, f32> {
        ArrayView3::from_shape((0, 0, 0), &[]).expect("an empty array fits an empty shape")
    }

    /// Computes the raw logits of one question window over `keys` `[head, key, head_dim]` with the model's
    /// query graph. Tests compare the scan of cached blocks with it.
    ///
    /// # Errors
    /// Returns an error of the runtime, or [`ModelError::NoQueryGraph`] if the model is a decoder.
    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<RawLogits, ModelError>;
}

/// The cached keys and values that a decoder's question attends to, moved to their positions in the sequence.
/// The special tokens at the start of the sequence are not part of it.
pub trait Past: Sync {
    /// Returns the position of each token in the sequence.
    fn positions(&self) -> &[i64];

    /// Returns the position of the first token of the question.
    fn question_position(&self) -> i64;

    /// Writes a plane of all tokens to `out`, `[token, head_dim]`. Keys are rotated to the tokens' positions;
    /// values do not depend on positions.
    fn read_plane(&self, plane: usize, out: &mut [f32]);

    /// Returns false if the work should stop because its request was cancelled or its deadline has passed.
    fn go_on(&self) -> bool;
}

/// The cached tokens that each key head may attend to. Special tokens before the first window are not part of
/// it: every head attends to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyMask(Array3<bool>);

impl KeyMask {
    /// Creates a mask from `kept`, `[layer, kv_head, token]`: true if the head attends to the token.
    pub fn new(kept: Array3<bool>) -> Self {
        Self(kept)
    }

    pub fn tokens(&self) -> usize {
        self.0.len_of(Axis(2))
    }

    /// Returns the mask of one key head, `[token]`.
    pub fn head(&self, layer: usize, kv_head: usize) -> ArrayView1<'_, bool> {
        self.0.slice(s![layer, kv_head, ..])
    }

    /// Returns the whole mask, `[layer, kv_head, token]`.
    pub fn view(&self) -> ArrayView3<'_, bool> {
        self.0.view()
    }

    /// Returns the share of (layer, head, token) entries that are kept, from 0 to 1. It is 1 for an empty
    /// mask.
    pub fn share(&self) -> f64 {
        match self.0.len() {
            0 => 1.0,
            keys => self.0.iter().filter(|kept| **kept).count() as f64 / keys as f64,
        }
    }
}

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

#[derive(Debug, Clone, PartialEq)]
pub struct RawLogits {
    /// The logits over the keys of the chunks, `[head, question_token, key]`.
    pub cross: Array3<f32>,
    /// The logits over the question's own keys, `[head, question_token, question_token]`.
    pub self_logits: Array3<f32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EncodedQuestion {
    /// `[head, question_token, head_dim]`: the dot product with a key is the raw logit over that key.
    pub vectors: Array3<f32>,
    /// What is needed for the question's logits over its own keys.
    pub self_attention: SelfAttention,
}

/// The attention of a question's tokens to the question's own keys.
#[derive(Debug, Clone, PartialEq)]
pub enum SelfAttention {
    /// The raw logits, `[head, question_token, question_token]`.
    Logits(Array3<f32>),
    /// The keys, `[head, question_token, head_dim]`; every token attends to all of them. Models with hundreds
    /// of heads keep keys, because the logits of all heads would take too much memory.
    Keys(Array3<f32>),
    /// The keys, `[head, question_token, head_dim]`; every token attends to its own key and those before it.
    CausalKeys(Array3<f32>),
}

impl EncodedQuestion {
    /// Returns the raw logits of these heads over the question's own keys,
    /// `[head, question_token, question_token]`. An entry is [`f32::MIN`], which no logit is, where the token
    /// does not attend to the key.
    pub fn self_logits(&self, heads: Range<usize>) -> Array3<f32> {
        let over = |keys: &Array3<f32>| {
            let [vectors, keys] = [&self.vectors, keys].map(|of| of.slice(s![heads.clone(), .., ..]));
            raw_logits(vectors, keys)
        };
        match &self.self_attention {
            SelfAttention::Logits(logits) => logits.slice(s![heads.clone(), .., ..]).to_owned(),
            SelfAttention::Keys(keys) => over(keys),
            SelfAttention::CausalKeys(keys) => {
                let mut logits = over(keys);
                for (token, mut row) in logits.axis_iter_mut(Axis(1)).enumerate() {
                    row.slice_mut(s![.., token + 1..]).fill(f32::MIN);
                }
                logits
            }
        }
    }

    /// Returns the question without its first `count` tokens. The vectors of the others stay those that were
    /// computed with the first ones before them. Logits over the question's own keys are those of the tokens
    /// that are left.
    pub fn without_first(&self, count: usize) -> Self {
        let self_attention = match &self.self_attention {
            SelfAttention::Logits(logits) => {
                SelfAttention::Logits(logits.slice(s![.., count.., count..]).to_owned())
            }
            // Keys that will not be needed again have been dropped.
            SelfAttention::Keys(keys) if keys.is_empty() => SelfAttention::Keys(keys.clone()),
            SelfAttention::Keys(keys) => SelfAttention::Keys(keys.slice(s![.., count.., ..]).to_owned()),
            SelfAttention::CausalKeys(keys) => {
                SelfAttention::CausalKeys(keys.slice(s![.., count.., ..]).to_owned())
            }
        };
        Self { vectors: self.vectors.slice(s![.., count.., ..]).to_owned(), self_attention }
    }

    /// Returns the question reduced to its last token, which attends to all others: vectors
    /// `[head, 1, head_dim]` and self logits `[head, 1, question_token]`.
    pub fn of_last_token(&self) -> Self {
        let vectors = self.vectors.slice(s![.., -1.., ..]).to_owned();
        let self_logits = match &self.self_attention {
            SelfAttention::Logits(logits) => logits.slice(s![.., -1.., ..]).to_owned(),
            // The last token attends to all keys, with a causal mask, too.
            SelfAttention::Keys(keys) | SelfAttention::CausalKeys(keys) => {
                // Keys that will not be needed again have been dropped.
                raw_logits(vectors.slice(s![..keys.len_of(Axis(0)), .., ..]), keys.view())
            }
        };
        Self { vectors, self_attention: SelfAttention::Logits(self_logits) }
    }
}

/// Returns the raw logits `[head, query, key]` of `vectors` `[head, query, head_dim]` over `keys`
/// `[head, key, head_dim]`. All heads share the keys if `keys` has one head only.
///
/// # Panics
/// When `keys` has another number of heads, or vectors and keys differ in `head_dim`.
pub fn raw_logits(vectors: ArrayView3<'_, f32>, keys: ArrayView3<'_, f32>) -> Array3<f32> {
    let (heads, queries, _) = vectors.dim();
    let (_, n, head_dim) = keys.dim();
    let keys = keys.broadcast((heads, n, head_dim)).expect("keys of each head, or of one for all");
    let mut logits = Array3::zeros((heads, queries, n));
    for (mut logits, (vectors, keys)) in
        logits.outer_iter_mut().zip(vectors.outer_iter().zip(keys.outer_iter()))
    {
        general_mat_mul(1.0, &vectors, &keys.t(), 0.0, &mut logits);
    }
    logits
}

#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    pub name: String,
    /// A hash over everything that keys depend on: graphs, weights, tokenizer, window and shapes. It is part
    /// of the key of each cached block, so models with different fingerprints share no blocks.
    pub fingerprint: String,
    /// The largest number of tokens in a window, without special tokens.
    pub window_tokens_max: usize,
    /// The number of planes of a block: one for the keys of each head and, for a decoder, one for the values
    /// of each head.
    pub planes: usize,
    /// The number of values per token and plane.
    pub head_dim: usize,
    /// The plane of the keys of each head that scores are computed from (the readout heads).
    pub readout: Vec<usize>,
    /// The properties that only decoders have; `None` for an encoder.
    pub decoder: Option<DecoderInfo>,
    /// About how many windows of full length the model reads at the same time.
    pub windows_at_once: usize,
    pub device: DeviceInUse,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DecoderInfo {
    /// The largest number of tokens in the attention context, special tokens and question included.
    pub context_tokens_max: usize,
    pub layers: usize,
    /// The number of layers, from the first, that are run and whose keys and values are cached.
    pub depth: usize,
    /// The number of query heads of a layer.
    pub heads: usize,
    /// The ids of the special tokens before every window. They occupy the first positions, so a window's own
    /// tokens begin at position `prefix.len()`.
    pub prefix: Vec<u32>,
    /// The number of key heads of a layer. [`PlaneLayout`] numbers their planes.
    pub kv_heads: usize,
    /// The hash of the weights that the model was exported from (`source.weights` of the contract); `None` if
    /// the contract has none.
    pub weights: Option<String>,
    pub question_tokens: QuestionTokens,
    /// The rotary position encodings; without them, cached keys cannot be moved to other positions.
    pub rotary: Option<LayerRotary>,
    /// `[layer]`: the size of the layer's sliding window in tokens, the query's own included; `None` means full
    /// attention. A query at position `q` attends to keys at positions above `q - window`. All layers of a
    /// contract without sliding windows count as layers with full attention.
    pub sliding_windows: Vec<Option<usize>>,
    /// How keys are evicted: as calibrated for this model, or by default.
    pub eviction: EvictionForm,
    pub default_eviction: EvictionForm,
    /// The probe, if the model was loaded to use it.
    pub probe: Option<Arc<Probe>>,
}

/// The numbering of the planes of a decoder's blocks: layer by layer, the keys of each key head, then the
/// values of each key head. A plane is `[token, head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneLayout {
    kv_heads: usize,
}

impl PlaneLayout {
    /// Creates the layout of a model with `kv_heads` key heads in each layer.
    pub fn new(kv_heads: usize) -> Self {
        Self { kv_heads }
    }

    /// Returns the number of planes of the first `layers` layers.
    pub fn count(self, layers: usize) -> usize {
        2 * self.kv_heads * layers
    }

    /// Returns the planes of a layer's keys, one for each key head.
    pub fn keys(self, layer: usize) -> Range<usize> {
        let first = self.count(layer);
        first..first + self.kv_heads
    }

    /// Returns the planes of a layer's values, one for each key head.
    pub fn values(self, layer: usize) -> Range<usize> {
        let first = self.keys(layer).end;
        first..first + self.kv_heads
    }

    pub fn layer(self, plane: usize) -> usize {
        plane / self.count(1)
    }

    /// Returns whether a plane holds keys; every other plane holds values.
    pub fn is_key(self, plane: usize) -> bool {
        plane % self.count(1) < self.kv_heads
    }
}

impl DecoderInfo {
    /// Returns the numbering of the planes of a block.
    pub fn planes(&self) -> PlaneLayout {
        PlaneLayout::new(self.kv_heads)
    }

    /// Returns whether the queries of `layer` attend to all keys before them, whatever their distance.
    pub fn has_full_attention(&self, layer: usize) -> bool {
        self.sliding_windows[layer].is_none()
    }

    /// Returns the layers with full attention, ascending: those whose keys can be evicted.
    pub fn full_layers(&self) -> Vec<usize> {
        (0..self.layers).filter(|&layer| self.has_full_attention(layer)).collect()
    }

    /// Returns the mask of all layers from `kept`, `[layer, kv_head, token]` of the layers with full
    /// attention. A layer with a sliding window keeps the last tokens that its window reaches from any later
    /// position, which changes nothing.
    ///
    /// # Panics
    /// When `kept` does not have one entry for each layer with full attention.
    pub fn mask_of_all_layers(&self, kept: &Array3<bool>) -> KeyMask {
        let (_, kv_heads, tokens) = kept.dim();
        let mut of_full_layers = kept.outer_iter();
        let mut mask = Array3::from_elem((self.layers, kv_heads, tokens), true);
        for (layer, mut mask) in mask.outer_iter_mut().enumerate() {
            match self.sliding_windows[layer] {
                None => mask.assign(&of_full_layers.next().expect("one entry per layer with full attention")),
                // The window of the next token contains that token itself.
                Some(window) => mask.slice_mut(s![.., ..tokens.saturating_sub(window - 1)]).fill(false),
            }
        }
        KeyMask::new(mask)
    }

    /// Returns the plane of the keys of each head of the layers that are run, `[layer * heads + head]`.
    pub fn planes_of_all_heads(&self) -> Vec<usize> {
        let keys_of = |layer: usize| {
            let first = self.planes().keys(layer).start;
            (0..self.heads).map(move |head| first + head / (self.heads / self.kv_heads))
        };
        (0..self.depth).flat_map(keys_of).collect()
    }

    /// Returns the query heads that share a key head, numbered across layers: `layer * heads + head`.
    pub fn query_heads(&self, layer: usize, kv_head: usize) -> Range<usize> {
        let shared_by = self.heads / self.kv_heads;
        let first = layer * self.heads + kv_head * shared_by;
        first..first + shared_by
    }

    /// Returns the number of special tokens before every window.
    pub fn prefix_tokens(&self) -> usize {
        self.prefix.len()
    }

    /// Returns the largest number of tokens of a question, such that special tokens and one full window still
    /// fit into the context beside it.
    pub fn question_tokens_max(&self, window_tokens_max: usize) -> usize {
        self.context_tokens_max - self.prefix_tokens() - window_tokens_max
    }
}

/// Why a model could not be loaded or could not compute a result.
#[derive(Debug, Error)]
pub enum ModelError {
    #[error(
        "cannot load ONNX Runtime from {path}: {reason}; run `thresher init`, or set model.runtime_lib (THRESHER_RUNTIME_LIB)"
    )]
    Runtime { path: String, reason: String },
    #[error(transparent)]
    Contract(#[from] ContractError),
    #[error("cannot load the tokenizer {path}: {reason}")]
    Tokenizer { path: String, reason: String },
    #[error(
        "cannot run on {device}: {reason}; a GPU needs the CUDA build of ONNX Runtime (`thresher init --gpu`), \
         CUDA 13 and a driver; `model.device = \"auto\"` uses the CPU if there is no usable GPU"
    )]
    Device { device: String, reason: String },
    #[error("the model {name} is not a {expected}")]
    WrongFamily {
        name: String,
        /// The family that the caller needs.
        expected: &'static str,
    },
    #[error("the request was cancelled before the model had finished")]
    Cancelled,
    #[error("{model} is a decoder and has no query graph")]
    NoQueryGraph { model: String },
    #[error(
        "rc.estimator is \"probe\", but {model} {}",
        if *encoder {
            "is an encoder, and only decoders have probes; set rc.estimator to \"peak/ranked+coverage\""
        } else {
            "has no probe; train one with `thresher calibrate --probe FILE.jsonl`, or set rc.estimator to \"peak/ranked+coverage\""
        }
    )]
    NoProbe { model: String, encoder: bool },
    #[error("{model} is an encoder and has no keys and values to export; serve a decoder to export them")]
    NoKvExport { model: String },
    #[error(
        "{model} is a cross-encoder, which cannot score chunks; name it in verdict.model, and another model in model.dir"
    )]
    NoScores { model: String },
    #[error("{model} was loaded without the complete forward pass; load the decoder with `forward` set")]
    NoForward { model: String },
    #[error("cannot tokenize: {0}")]
    Tokenize(String),
    #[error("{graph} failed: {reason}")]
    Graph {
        /// The file name of the graph.
        graph: String,
        reason: String,
    },
}
