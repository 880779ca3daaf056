//! A model for tests that needs no files: the key of a token is a pseudo-random unit vector that depends only
//! on the token's id. Equal tokens have a dot product of 1, different tokens a small one. A call takes
//! microseconds.

use ndarray::{Array2, ArrayView3, Axis};
use serde_json::{Map, Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use super::device::DeviceInUse;
use super::tokenizer::ModelTokenizer;
use super::{
    EncodedQuestion, ModelError, ModelInfo, ModelRuntime, Past, RawLogits, SelfAttention, WindowFilter,
    WindowSink,
};

const HEAD_DIM: usize = 32;

/// A test model. Like the supported encoders it has one head.
pub struct ScriptedModel {
    info: ModelInfo,
}

impl ScriptedModel {
    /// Creates a model whose windows have at most `window_tokens_max` tokens.
    pub fn new(window_tokens_max: usize) -> Self {
        let info = ModelInfo {
            name: "scripted".to_owned(),
            fingerprint: format!("scripted-{window_tokens_max}"),
            window_tokens_max,
            planes: 1,
            head_dim: HEAD_DIM,
            readout: vec![0],
            decoder: None,
            // Equal words have a cosine of 1 and others of about 0, so the thresholds hold for it.
            windows_at_once: 1,
            device: DeviceInUse::cpu(),
        };
        Self { info }
    }

    /// Creates the tokenizer of the model. A word of `words` (ASCII) is one token unless it is part of a longer
    /// word. All other bytes are one token each.
    ///
    /// # Panics
    /// Never, because the tokenizer's vocabulary is fixed and valid.
    pub fn tokenizer(words: &[&str]) -> ModelTokenizer {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let vocab: Map<_, _> =
            alphabet.iter().zip(0..).map(|(c, id)| (c.to_string(), Value::from(id))).collect();
        let parts = json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        });
        let mut tokenizer =
            Tokenizer::from_bytes(parts.to_string()).expect("a byte alphabet without merges is a BPE");
        let added = words.iter().map(|w| AddedToken::from((*w).to_owned(), false).single_word(true));
        let _ = tokenizer.add_tokens(added);
        ModelTokenizer::new(tokenizer)
    }
}

impl ModelRuntime for ScriptedModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn read(
        &self,
        windows: &[&[u32]],
        is_needed: WindowFilter,
        on_read: WindowSink,
    ) -> Result<(), ModelError> {
        for (i, ids) in windows.iter().enumerate().filter(|(i, _)| is_needed(*i)) {
            on_read(i, vectors(ids).insert_axis(Axis(0)).view());
        }
        Ok(())
    }

    fn encode_question(&self, question: &[u32], _past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        let q = vectors(question);
        let self_attention = SelfAttention::Logits(q.dot(&q.t()).insert_axis(Axis(0)));
        Ok(EncodedQuestion { vectors: q.insert_axis(Axis(0)), self_attention })
    }

    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
        let q = vectors(question);
        let cross = q.dot(&keys.index_axis(Axis(0), 0).t()).insert_axis(Axis(0));
        let self_logits = q.dot(&q.t()).insert_axis(Axis(0));
        Ok(RawLogits { cross, self_logits })
    }
}

/// Returns the unit vectors of tokens, `[token, HEAD_DIM]`: numbers of a splitmix generator whose seed is the
/// id.
fn vectors(ids: &[u32]) -> Array2<f32> {
    let mut out = Array2::zeros((ids.len(), HEAD_DIM));
    for (mut row, &id) in out.rows_mut().into_iter().zip(ids) {
        let mut state = u64::from(id) + 1;
        row.mapv_inplace(|_| {
            state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) ^ (state >> 7);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        });
        let norm = row.dot(&row).sqrt().max(f32::MIN_POSITIVE);
        row /= norm;
    }
    out
}
