//! The decoder part of a contract: the graph, its shapes, the rotary position encoding, the chosen heads and
//! the probe.
//! Knows nothing of how a decoder is run.

use serde::{Deserialize, Serialize};

use super::Probe;

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
    /// The number of layers.
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
    /// The rotary position encoding. `None` means that positions are learned, and cached keys cannot be moved
    /// to other positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary: Option<Rotary>,
    /// The heads that RC is computed from; `None` means all heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<ChosenHeads>,
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
    /// The tokens of a question whose RC ranks chunks and sentences.
    #[serde(default, skip_serializing_if = "QuestionTokens::is_all")]
    pub question_tokens: QuestionTokens,
    /// The measure by which the heads were chosen.
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
    /// Returns whether all tokens are used.
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

    /// Returns the tokens of a question whose RC ranks chunks and sentences.
    pub fn question_tokens(&self) -> QuestionTokens {
        self.chosen.as_ref().map_or(QuestionTokens::All, |chosen| chosen.question_tokens)
    }

    /// Returns the part of the decoder's declaration that keys and values depend on, apart from the number of
    /// layers that are run.
    pub(super) fn without_calibration(&self) -> Self {
        Self { chosen: None, probe: None, ..self.clone() }
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
        if let Some(Rotary { dim, frequencies }) = &self.rotary {
            if dim % 2 != 0 || *dim > head_dim || frequencies.len() * 2 != *dim {
                let reason = format!(
                    "dim is {dim} with {} frequencies and head_dim {head_dim}; dim must be twice the number of \
                     frequencies and at most head_dim",
                    frequencies.len()
                );
                return Err(("decoder.rotary", reason));
            }
            if let Some(frequency) = frequencies.iter().find(|frequency| !frequency.is_finite()) {
                return Err(("decoder.rotary.frequencies", format!("{frequency} is not finite")));
            }
        }
        self.chosen.as_ref().map_or(Ok(()), |chosen| chosen.check(layers, heads))?;
        self.probe.as_ref().map_or(Ok(()), |probe| probe.check(layers, heads))
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
