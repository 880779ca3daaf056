//! What a contract says of a decoder: its graph, its shapes, how its keys turn with their position, which heads are read.
//! Knows nothing of how it is run.

use serde::{Deserialize, Serialize};

/// Far more layers, or heads of one, than models have: what is larger is a slip, and memory for it would be asked for.
const COUNT_MAX: usize = 4096;

/// A decoder: its graph and its shapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// `input_ids, position_ids [b, t], key_position_ids [b, p + t], past.{l}.key/value [b, kv_heads, p, head_dim]` →
    /// `present.{l}.key/value [b, kv_heads, p + t, head_dim]`, `attn_logits.{l} [b, heads, t, p + t]` (raw and scaled, no mask, no
    /// softmax), `logits [b, t, vocab]`. A key is seen from positions at or behind its own; one at position -1 is padding.
    pub graph: String,
    /// Layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key heads of a layer; each serves `heads / kv_heads` query heads that stand together.
    pub kv_heads: usize,
    /// Components of a query, key or value in one head.
    pub head_dim: usize,
    /// What ⟨q, k⟩ is multiplied with; the graph's logits have it already.
    pub scale: f64,
    /// Most tokens that the model was made to attend to at once.
    pub context_tokens_max: usize,
    /// Element type of past, present and logits at the graph's edge: `f32`.
    pub kv_dtype: String,
    /// How keys turn with their position; without it positions are learned, and a key cannot be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary: Option<Rotary>,
    /// The heads that RC is taken over; all of them where nobody has chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
}

/// Rotary positions (RoFormer, arXiv 2104.09864): pairs of components, half of `dim` apart, turn by an angle that grows with the
/// position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotary {
    /// The first components of a head, which turn; the others do not.
    pub dim: usize,
    /// `[dim / 2]`: radians per position of each pair, scaling included.
    pub frequencies: Vec<f32>,
}

/// Heads that a calibration chose, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// `[layer, head]`, ascending.
    pub heads: Vec<(usize, usize)>,
    /// The tokens of a question whose RC ranks chunks and sentences.
    #[serde(default, skip_serializing_if = "QuestionTokens::are_all")]
    pub question_tokens: QuestionTokens,
    /// By what they were chosen.
    pub by: HeadChoice,
    /// How well they did by that on questions that had no part in the choice; RC, or a share.
    pub held_out: f64,
    /// How well all heads together did on the same questions.
    pub held_out_all: f64,
    /// Questions that were asked, those held out included.
    pub questions: usize,
    /// SHA-256 of the file they came from.
    pub data: String,
}

/// Which tokens of a question count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionTokens {
    /// The mean over all.
    #[default]
    All,
    /// The last, behind which the answer begins: where a model that answers looks for what to say.
    Last,
}

impl QuestionTokens {
    /// Whether none is left out.
    pub fn are_all(&self) -> bool {
        *self == Self::All
    }
}

/// By what heads are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadChoice {
    /// Highest expected RC: no labels (RCStat, arXiv 2506.19549).
    ExpectedRc,
    /// Most needed chunks found.
    Accuracy,
}

impl Decoder {
    /// Layers that are run and kept: up to the last that a head was chosen from.
    pub fn depth(&self) -> usize {
        let last = self.chosen.as_ref().and_then(|chosen| chosen.heads.iter().map(|&(layer, _)| layer).max());
        last.map_or(self.layers, |layer| layer + 1)
    }

    /// `[layer, head]` of every head that RC is taken over, ascending.
    pub fn readout(&self) -> Vec<(usize, usize)> {
        let all =
            || (0..self.layers).flat_map(|layer| (0..self.heads).map(move |head| (layer, head))).collect();
        self.chosen.as_ref().map_or_else(all, |chosen| chosen.heads.clone())
    }

    /// The tokens of a question whose RC ranks chunks and sentences.
    pub fn question_tokens(&self) -> QuestionTokens {
        self.chosen.as_ref().map_or(QuestionTokens::All, |chosen| chosen.question_tokens)
    }

    /// What keys and values depend on, whichever heads are read.
    pub(super) fn shape(&self) -> Self {
        Self { chosen: None, ..self.clone() }
    }

    pub(super) fn check(&self, window_tokens_max: usize) -> Result<(), (&'static str, String)> {
        let Self { layers, heads, kv_heads, head_dim, .. } = *self;
        if [layers, heads, kv_heads, head_dim].contains(&0) {
            let sizes =
                format!("{layers} layers, {heads} heads, {kv_heads} key heads of {head_dim} components");
            return Err(("decoder", sizes));
        }
        if let Some(size) = [layers, heads, head_dim].into_iter().find(|&size| size > COUNT_MAX) {
            return Err(("decoder", format!("layers, heads or head_dim is {size}, more than {COUNT_MAX}")));
        }
        if heads % kv_heads != 0 {
            return Err(("decoder.kv_heads", format!("{kv_heads} does not divide {heads} heads")));
        }
        if !self.scale.is_finite() || self.scale <= 0.0 {
            return Err(("decoder.scale", format!("{} is not above 0", self.scale)));
        }
        if self.kv_dtype != "f32" {
            return Err(("decoder.kv_dtype", format!("`{}` is not `f32`", self.kv_dtype)));
        }
        if window_tokens_max > self.context_tokens_max {
            let reason = format!(
                "{window_tokens_max} is more than decoder.context_tokens_max {}",
                self.context_tokens_max
            );
            return Err(("window.tokens_max", reason));
        }
        if let Some(Rotary { dim, frequencies }) = &self.rotary {
            if dim % 2 != 0 || *dim > head_dim || frequencies.len() * 2 != *dim {
                let reason = format!("{dim} components of {head_dim} turn in {} pairs", frequencies.len());
                return Err(("decoder.rotary", reason));
            }
            if let Some(odd) = frequencies.iter().find(|frequency| !frequency.is_finite()) {
                return Err(("decoder.rotary.frequencies", format!("{odd} is no number")));
            }
        }
        self.chosen.as_ref().map_or(Ok(()), |chosen| chosen.check(layers, heads))
    }
}

impl Chosen {
    fn check(&self, layers: usize, heads: usize) -> Result<(), (&'static str, String)> {
        let refuse = |reason| Err(("decoder.chosen.heads", reason));
        if self.heads.is_empty() {
            return refuse("none is named".to_owned());
        }
        if let Some((layer, head)) =
            self.heads.iter().find(|&&(layer, head)| layer >= layers || head >= heads)
        {
            return refuse(format!(
                "head {head} of layer {layer}: there are {layers} layers of {heads} heads"
            ));
        }
        if !self.heads.is_sorted_by(|a, b| a < b) {
            return refuse("they are not ascending, each once".to_owned());
        }
        Ok(())
    }
}
