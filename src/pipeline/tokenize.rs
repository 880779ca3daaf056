//! Text to tokens: the question, and every chunk with its title in front, cut into windows and sentences.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::PipelineError;
use super::cancel::Cancel;
use super::validate::{InvalidRequest, RequestLimits};
use crate::domain::{ByteRange, Chunk, TokenSpan};
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
    pub sentences: Vec<ByteRange>,
}

impl Passage {
    /// The passage's tokens that lie in `bytes` of the chunk's text, counted from the passage's first token.
    pub fn tokens_in(&self, bytes: ByteRange) -> TokenSpan {
        let first = self.offsets.partition_point(|token| token.end <= bytes.start);
        let after = self.offsets.partition_point(|token| token.start < bytes.end);
        TokenSpan::new(self.title_tokens + first, self.title_tokens + after.max(first))
    }

    /// Ids in windows of at most `tokens_max`; nothing is truncated.
    pub fn windows(&self, tokens_max: usize) -> impl Iterator<Item = &[u32]> {
        self.ids.chunks(tokens_max)
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

/// Every chunk's tokens and sentences, in the order of the chunks. Ends early once they are too many.
///
/// # Errors
/// When they are more, together or with the `question_tokens` that will meet them, than `limits` allows; a deadline when
/// `cancel` says so.
pub fn passages(
    chunks: &[Arc<Chunk>],
    question_tokens: usize,
    tokenizer: &ModelTokenizer,
    limits: &RequestLimits,
    cancel: &Cancel,
) -> Result<Vec<Passage>, PipelineError> {
    let total = AtomicUsize::new(0);
    let read = |chunk: &Arc<Chunk>| {
        cancel.check()?;
        within(total.load(Ordering::Relaxed), question_tokens, limits)?;
        let passage = passage(chunk, tokenizer)?;
        total.fetch_add(passage.ids.len(), Ordering::Relaxed);
        Ok(passage)
    };
    let passages = chunks.par_iter().map(read).collect::<Result<Vec<_>, PipelineError>>();
    within(total.into_inner(), question_tokens, limits)?;
    passages
}

fn within(tokens: usize, question_tokens: usize, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    let max = limits.input_tokens_max;
    if tokens > max {
        return Err(InvalidRequest::InputTooLong { max });
    }
    let max = limits.logit_count_max;
    if tokens.saturating_mul(question_tokens) > max {
        return Err(InvalidRequest::LogitTooMany { question_tokens, max });
    }
    Ok(())
}

fn passage(chunk: &Chunk, tokenizer: &ModelTokenizer) -> Result<Passage, PipelineError> {
    let mut ids = match chunk.title.as_deref().map(str::trim) {
        Some(title) if !title.is_empty() => tokenizer.encode(&format!("{title}. "))?.ids,
        _ => Vec::new(),
    };
    let title_tokens = ids.len();
    let text = tokenizer.encode(&chunk.text)?;
    ids.extend(text.ids);
    let sentences = text::sentences(&chunk.text);
    Ok(Passage { ids, title_tokens, offsets: text.offsets, sentences })
}
