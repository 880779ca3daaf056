//! The model's tokenizer: text to token ids with byte offsets, nothing truncated, nothing padded.

use std::path::Path;

use serde_json::Value;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

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
    splits_at_blanks: bool,
}

impl ModelTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] names the file and what the parser said.
    pub fn from_file(path: &Path) -> Result<Self, ModelError> {
        let refuse = |reason: String| ModelError::Tokenizer { path: path.display().to_string(), reason };
        let inner = Tokenizer::from_file(path).map_err(|e| refuse(e.to_string()))?;
        match template_fault(&inner) {
            Some(fault) => Err(refuse(format!("post_processor: {fault}"))),
            None => Ok(Self::new(inner)),
        }
    }

    /// Wraps a tokenizer built in code.
    pub fn new(mut inner: Tokenizer) -> Self {
        inner.with_padding(None);
        inner.with_truncation(None).expect("taking truncation away cannot conflict with anything");
        let splits_at_blanks = splits_at_blanks(&inner);
        Self { inner, splits_at_blanks }
    }

    /// Whether what stands between two [`is_blank`]s has the same tokens wherever it stands, so that parts of a text that
    /// are cut there can be counted one by one. False where it is not known.
    pub fn splits_at_blanks(&self) -> bool {
        self.splits_at_blanks
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

    /// The text of tokens.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`] when the tokenizer knows them not.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.inner.decode(ids, true).map_err(|e| ModelError::Tokenize(e.to_string()))
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

/// Whether no tokenizer that [`ModelTokenizer::splits_at_blanks`] makes a token across `byte`. Other white space is taken out by
/// some before they split.
pub fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// What a post-processor's templates lack: the library builds such templates from a file, and panics when they are used.
pub fn template_fault(tokenizer: &Tokenizer) -> Option<String> {
    fault(&serde_json::to_value(tokenizer.get_post_processor()).ok()?)
}

fn fault(processor: &Value) -> Option<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if processor["type"] == "Sequence" {
        return list(&processor["processors"]).iter().find_map(fault);
    }
    if processor["type"] != "TemplateProcessing" {
        return None;
    }
    let named = |template: &str| list(&processor[template]).into_iter();
    let special = |piece: &Value| piece["SpecialToken"]["id"].as_str().map(str::to_owned);
    let unknown = |id: &String| processor["special_tokens"].get(id).is_none();
    if let Some(id) = named("single").chain(named("pair")).filter_map(|piece| special(&piece)).find(unknown) {
        return Some(format!("a template names {id:?}, which is not among its special_tokens"));
    }
    let is_second = |piece: Value| piece["Sequence"]["id"] == "B";
    named("single").any(is_second).then(|| "the template of one text has a second one".to_owned())
}

/// BERT's normalizer maps characters one by one (marks are put in order, never across a blank), its splitter cuts at every
/// blank, and WordPiece sees a word at a time.
fn splits_at_blanks(tokenizer: &Tokenizer) -> bool {
    let normalizes = matches!(tokenizer.get_normalizer(), None | Some(NormalizerWrapper::BertNormalizer(_)));
    let splits = matches!(tokenizer.get_pre_tokenizer(), Some(PreTokenizerWrapper::BertPreTokenizer(_)));
    let reads_words = matches!(tokenizer.get_model(), ModelWrapper::WordPiece(_));
    // Added tokens are looked for in the text itself, before it is split.
    let added = tokenizer.get_added_tokens_decoder();
    let mut added = added.values();
    normalizes
        && splits
        && reads_words
        && added.all(|token| !token.lstrip && !token.rstrip && !token.content.bytes().any(is_blank))
}
