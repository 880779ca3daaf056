//! The model's tokenizer: text to token ids with byte offsets, nothing truncated, nothing padded.

use std::path::Path;

use tokenizers::Tokenizer;

use super::ModelError;
use crate::domain::ByteRange;

/// Text as the model reads it, special tokens not included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Vocabulary ids.
    pub ids: Vec<u32>,
    /// Where each token stands in the text; the starts never decrease.
    pub offsets: Vec<ByteRange>,
}

/// A Hugging Face tokenizer with truncation and padding switched off.
pub struct ModelTokenizer {
    inner: Tokenizer,
}

impl ModelTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] names the file and what the parser said.
    pub fn from_file(path: &Path) -> Result<Self, ModelError> {
        let inner = Tokenizer::from_file(path)
            .map_err(|e| ModelError::Tokenizer { path: path.display().to_string(), reason: e.to_string() })?;
        Ok(Self::new(inner))
    }

    /// Wraps a tokenizer built in code.
    pub fn new(mut inner: Tokenizer) -> Self {
        inner.with_padding(None);
        inner.with_truncation(None).expect("taking truncation away cannot conflict with anything");
        Self { inner }
    }

    /// Token ids and byte offsets of `text`.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`] when the tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Tokens, ModelError> {
        let encoding = self.inner.encode(text, false).map_err(|e| ModelError::Tokenize(e.to_string()))?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| ByteRange::new(start, end)).collect();
        Ok(Tokens { ids: encoding.get_ids().to_vec(), offsets })
    }

    /// Number of tokens in `text`.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn count(&self, text: &str) -> Result<usize, ModelError> {
        let encoding =
            self.inner.encode_fast(text, false).map_err(|e| ModelError::Tokenize(e.to_string()))?;
        Ok(encoding.get_ids().len())
    }
}
