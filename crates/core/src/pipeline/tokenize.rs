//! Text to tokens: the question, and a chunk with its title in front, with its sentences.

use super::PipelineError;
use super::validate::{InvalidRequest, RequestLimits};
use crate::domain::{ByteRange, Chunk};
pub use crate::kv::block::tokens_under;
use crate::kv::block::{Sentence, TokenCounts};
use crate::model::tokenizer::{ModelTokenizer, Tokens};
use crate::text;

/// A chunk as the model reads it: the tokens of `"title. "`, if it has one, then those of its text.
#[derive(Debug, Clone, Default)]
pub struct Passage {
    /// Vocabulary ids, title first.
    pub ids: Vec<u32>,
    /// How many of `ids` belong to the title.
    pub title_tokens: usize,
    /// Bytes of the chunk's text under each token that follows the title.
    pub offsets: Vec<ByteRange>,
    /// Sentences of the chunk's text.
    pub sentences: Vec<Sentence>,
}

impl Passage {
    /// Ids in windows of at most `tokens_max`; nothing is truncated.
    pub fn windows(&self, tokens_max: usize) -> impl Iterator<Item = &[u32]> {
        self.ids.chunks(tokens_max)
    }

    /// How many tokens its block has.
    pub fn token_counts(&self) -> TokenCounts {
        TokenCounts { tokens: self.ids.len(), title_tokens: self.title_tokens }
    }
}

/// The question's tokens.
///
/// # Errors
/// When there is none, or more than `limits` allows.
pub fn question(
    query: &str,
    tokenizer: &ModelTokenizer,
    limits: &RequestLimits,
) -> Result<Tokens, PipelineError> {
    let tokens = tokenizer.encode(query)?;
    match tokens.ids.len() {
        0 => Err(InvalidRequest::QueryUnreadable.into()),
        found if found > limits.query_tokens_max => {
            Err(InvalidRequest::QueryTooLong { found, max: limits.query_tokens_max }.into())
        }
        _ => Ok(tokens),
    }
}

/// A chunk's tokens and sentences.
///
/// # Errors
/// What the tokenizer reports.
pub fn passage(chunk: &Chunk, tokenizer: &ModelTokenizer) -> Result<Passage, PipelineError> {
    let mut ids = match chunk.title.as_deref().map(str::trim) {
        Some(title) if !title.is_empty() => tokenizer.encode(&format!("{title}. "))?.ids,
        _ => Vec::new(),
    };
    let title_tokens = ids.len();
    let text = tokenizer.encode(&chunk.text)?;
    ids.extend(text.ids);
    let sentence = |bytes| Sentence { bytes, tokens: tokens_under(&text.offsets, title_tokens, bytes) };
    let sentences = text::sentences(&chunk.text).into_iter().map(sentence).collect();
    Ok(Passage { ids, title_tokens, offsets: text.offsets, sentences })
}
