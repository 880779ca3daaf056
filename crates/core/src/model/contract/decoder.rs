//! The decoder part of a contract: the graph, its shapes, the rotary position encoding, the chosen heads and
//! the probe.
//! Knows nothing of how a decoder is run.

use serde::{Deserialize, Serialize};

use super::Probe;
use super::eviction::{BudgetScope, CalibratedEviction, EvictionForm, KeyScale};
use crate::rc::{OverQuestion, Reference};

/// The limit of `layers`, `heads` and `head_dim`, far above those of real models. Memory is allocated for
/// what the contract declares, so a mistyped size must be refused.
const SIZE_MAX: usize = 4096;

/// A decoder: its graph, its shapes and its chosen heads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// The file name of the graph: `input_ids, position_ids [b, t], key_position_ids [b, p + t],
    /// past.{l}.key/value [b, kv_heads, p, head_dim]` → `present.{l}.key/value [b, kv_heads, p + t,
    /// head_dim]`, `attn_logits.{l} [b, heads, t, p + t]` (raw and scaled, before mask and softmax), `logits
    /// [b, t, vocab]`. A token attends to keys at its own or an earlier position. A key at position -1 is
    /// padding, and no token attends to it.
    pub graph: String,
    pub layers: usize,
    /// The number of query heads of a layer.
    pub heads: usize,
    /// The number of key heads of a layer. Each belongs to `heads / kv_heads` consecutive query heads.
    pub kv_heads: usize,
    /// The number of components of a query, key or value in one head.
    pub head_dim: usize,
    /// The factor by which the graph multiplies the dot products of queries and keys. The logits include it.
    pub scale: f64,
    /// The largest number of tokens in the attention context that the model was trained for.
    pub context_tokens_max: usize,
    /// The element type of keys, values and logits in the graph's inputs and outputs. It must be `f32`.
    pub kv_dtype: String,
    /// Whether the model normalises queries and keys in each head. The logits of different layers then need
    /// not have a common scale.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub qk_norm: bool,
    /// `[layer]`: the size of the layer's sliding window in tokens, the query's own included; 0 means full
    /// attention. A query at position `q` attends to keys at positions above `q - window`. An empty list means
    /// that every layer counts as one with full attention.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sliding_windows: Vec<usize>,
    /// The rotary position encoding. `None` means that positions are learned, and cached keys cannot be moved
    /// to other positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary: Option<Rotary>,
    /// The rotary position encoding of layers with a sliding window, if they have another one than layers with
    /// full attention. `None` means that `rotary` is that of all layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_local: Option<Rotary>,
    /// The heads that RC is computed from; `None` means all heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<ChosenHeads>,
    /// How keys are evicted; `None` means that nothing was calibrated, and
    /// [`Self::default_eviction_form`] is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Box<CalibratedEviction>>,
    /// The probe, which `rc.estimator = "probe"` scores with; `None` if none was trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Box<Probe>>,
}

/// Rotary position encoding (RoFormer, arXiv 2104.09864): each pair of components, `dim / 2` apart, is
/// rotated by an angle that is proportional to the position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotary {
    /// The number of components of a head, from the first, that are rotated.
    pub dim: usize,
    /// `[dim / 2]`: the angle of each pair in radians per position, scaling included.
    pub frequencies: Vec<f32>,
}

/// The heads that a calibration (`thresher calibrate`) chose, and how it chose them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChosenHeads {
    /// (layer, head) of each chosen head, ascending.
    pub heads: Vec<(usize, usize)>,
    #[serde(default, skip_serializing_if = "QuestionTokens::is_all")]
    pub question_tokens: QuestionTokens,
    pub by: HeadChoice,
    /// The measure of the chosen heads on held-out questions, which were not used for the choice: RC in units
    /// of a logit for `expected_rc`, a share from 0 to 1 for `accuracy`.
    pub held_out: f64,
    /// The measure of all heads together on the same held-out questions.
    pub held_out_all: f64,
    /// The number of questions, held-out questions included.
    pub questions: usize,
    /// The SHA-256 of the file with the questions, in hexadecimal.
    pub data: String,
}

/// The tokens of a question whose RC ranks chunks and sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionTokens {
    /// The mean over all tokens of the question. This is the default.
    #[default]
    All,
    /// The last token only, which the answer follows: it attends to the text that the model would answer
    /// with.
    Last,
}

impl QuestionTokens {
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// The measure by which a calibration chooses heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadChoice {
    /// The highest expected RC. It needs no labels (RCStat, arXiv 2506.19549).
    ExpectedRc,
    /// The largest share of needed chunks that are found. It needs labelled questions.
    Accuracy,
}

impl Decoder {
    /// Returns the number of layers that are run and cached: up to the last layer with a chosen head, and all
    /// layers of the probe. A caller that does not use the probe removes it first.
    pub fn depth(&self) -> usize {
        let last = self.chosen.as_ref().and_then(|chosen| chosen.heads.iter().map(|&(layer, _)| layer).max());
        let of_rc = last.map_or(self.layers, |layer| layer + 1);
        self.probe.as_ref().map_or(of_rc, |probe| probe.layers.max(of_rc))
    }

    /// Returns (layer, head) of every head that RC is computed from, ascending.
    pub fn readout(&self) -> Vec<(usize, usize)> {
        let all =
            || (0..self.layers).flat_map(|layer| (0..self.heads).map(move |head| (layer, head))).collect();
        self.chosen.as_ref().map_or_else(all, |chosen| chosen.heads.clone())
    }

    pub fn question_tokens(&self) -> QuestionTokens {
        self.chosen.as_ref().map_or(QuestionTokens::All, |chosen| chosen.question_tokens)
    }

    /// Returns how keys are evicted if nothing is calibrated. The logits of models that normalise queries and
    /// keys are compared in units of their head's mean, because their size says little (`docs/decisions/kv-export.md`).
    pub fn default_eviction_form(&self) -> EvictionForm {
        EvictionForm {
            reference: Reference::SelfLogits,
            over_question: OverQuestion::RootMeanSquare,
            neighbours: 1,
            scale: if self.qk_norm { KeyScale::Mean } else { KeyScale::RootOfMean },
            budget: BudgetScope::Model,
            floor: 0.2,
        }
    }

    /// Returns how keys are evicted: as calibrated, or by default.
    pub fn eviction_form(&self) -> EvictionForm {
        self.eviction.as_ref().map_or_else(|| self.default_eviction_form(), |calibrated| calibrated.form)
    }

    /// Returns the size of the sliding window of `layer` in tokens; `None` means full attention.
    pub fn sliding_window(&self, layer: usize) -> Option<usize> {
        self.sliding_windows.get(layer).copied().filter(|&tokens| tokens > 0)
    }

    /// Returns the rotary position encoding of `layer`; `None` means that positions are learned.
    pub fn rotary_of_layer(&self, layer: usize) -> Option<&Rotary> {
        let local = self.rotary_local.as_ref().filter(|_| self.sliding_window(layer).is_some());
        local.or(self.rotary.as_ref())
    }

    /// Returns the part of the declaration that the fingerprint covers in addition to the graph. The sliding
    /// windows and the normalisation are left out, because they are in the graph, which has a hash of its own. A model has the same
    /// fingerprint with this list as without it.
    pub(super) fn for_fingerprint(&self) -> Self {
        Self {
            chosen: None,
            eviction: None,
            probe: None,
            qk_norm: false,
            sliding_windows: Vec::new(),
            ..self.clone()
        }
    }

    pub(super) fn check(&self, window_tokens_max: usize) -> Result<(), (&'static str, String)> {
        let Self { layers, heads, kv_heads, head_dim, .. } = *self;
        if [layers, heads, kv_heads, head_dim].contains(&0) {
            let reason = format!(
                "{layers} layers, {heads} heads, {kv_heads} key heads of {head_dim} components: all must be above 0"
            );
            return Err(("decoder", reason));
        }
        if let Some(size) = [layers, heads, head_dim].into_iter().find(|&size| size > SIZE_MAX) {
            return Err(("decoder", format!("layers, heads or head_dim is {size}; the limit is {SIZE_MAX}")));
        }
        if heads % kv_heads != 0 {
            return Err(("decoder.kv_heads", format!("{kv_heads} does not divide {heads} heads")));
        }
        if !self.scale.is_finite() || self.scale <= 0.0 {
            return Err(("decoder.scale", format!("must be finite and above 0, but is {}", self.scale)));
        }
        if self.kv_dtype != "f32" {
            return Err(("decoder.kv_dtype", format!("must be `f32`, but is `{}`", self.kv_dtype)));
        }
        if window_tokens_max > self.context_tokens_max {
            let reason = format!(
                "{window_tokens_max} is more than decoder.context_tokens_max, which is {}",
                self.context_tokens_max
            );
            return Err(("window.tokens_max", reason));
        }
        self.check_positions()?;
        self.eviction_form().check()?;
        self.chosen.as_ref().map_or(Ok(()), |chosen| chosen.check(layers, heads))
    }

    /// Checks the sliding windows and the rotary position encodings.
    fn check_positions(&self) -> Result<(), (&'static str, String)> {
        let windows = self.sliding_windows.len();
        if ![0, self.layers].contains(&windows) {
            let reason =
                format!("has {windows} entries, but must have one for each of {} layers", self.layers);
            return Err(("decoder.sliding_windows", reason));
        }
        if let Some(rotary) = &self.rotary {
            rotary.check(self.head_dim, ["decoder.rotary", "decoder.rotary.frequencies"])?;
        }
        let Some(local) = &self.rotary_local else { return Ok(()) };
        local.check(self.head_dim, ["decoder.rotary_local", "decoder.rotary_local.frequencies"])?;
        if self.rotary.is_none() || self.sliding_windows.iter().all(|&tokens| tokens == 0) {
            let reason = "needs decoder.rotary, and a layer with a sliding window in decoder.sliding_windows";
            return Err(("decoder.rotary_local", reason.to_owned()));
        }
        Ok(())
    }
}

impl Rotary {
    /// Checks the encoding of heads with `head_dim` components. `keys` are the keys of the encoding and of its
    /// frequencies in the contract.
    fn check(&self, head_dim: usize, keys: [&'static str; 2]) -> Result<(), (&'static str, String)> {
        let Self { dim, frequencies } = self;
        if dim % 2 != 0 || *dim > head_dim || frequencies.len() * 2 != *dim {
            let reason = format!(
                "dim is {dim} with {} frequencies and head_dim {head_dim}; dim must be twice the number of \
                 frequencies and at most head_dim",
                frequencies.len()
            );
            return Err((keys[0], reason));
        }
        match frequencies.iter().find(|frequency| !frequency.is_finite()) {
            Some(frequency) => Err((keys[1], format!("{frequency} is not finite"))),
            None => Ok(()),
        }
    }
}

impl ChosenHeads {
    fn check(&self, layers: usize, heads: usize) -> Result<(), (&'static str, String)> {
        let refuse = |reason| Err(("decoder.chosen.heads", reason));
        if self.heads.is_empty() {
            return refuse(
                "the list is empty; remove the table [decoder.chosen] to use all heads".to_owned(),
            );
        }
        if let Some((layer, head)) =
            self.heads.iter().find(|&&(layer, head)| layer >= layers || head >= heads)
        {
            return refuse(format!(
                "head {head} of layer {layer} does not exist: the model has {layers} layers of {heads} heads"
            ));
        }
        if !self.heads.is_sorted_by(|a, b| a < b) {
            return refuse("the heads must be in ascending order without repetition".to_owned());
        }
        Ok(())
    }
}
