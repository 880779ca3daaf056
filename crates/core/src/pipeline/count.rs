//! Token counts: counts the tokens of a text with the tokenizer that the caller names, and caches the counts
//! of short texts that recur.

use std::sync::Arc;

use quick_cache::sync::Cache;

use super::PipelineError;
use crate::domain::TokenizerName;
use crate::model::tokenizer::ModelTokenizer;

/// Counts tokens with one tokenizer.
#[derive(Clone)]
pub enum TokenCounter {
    /// The tokenizer of the scoring model.
    Model(Arc<ModelTokenizer>),
    /// A tokenizer of OpenAI. Its tables are built at the first use and shared by the whole process.
    OpenAi(&'static tiktoken_rs::CoreBPE),
}

impl TokenCounter {
    /// Returns the counter of the tokenizer with this name. `model` is the tokenizer of the scoring model.
    pub fn new(name: TokenizerName, model: &Arc<ModelTokenizer>) -> Self {
        match name {
            TokenizerName::Model => Self::Model(Arc::clone(model)),
            TokenizerName::O200kBase => Self::OpenAi(tiktoken_rs::o200k_base_singleton()),
            TokenizerName::Cl100kBase => Self::OpenAi(tiktoken_rs::cl100k_base_singleton()),
        }
    }

    /// Returns whether no token crosses whitespace, so that the counts of the parts of a text that is divided
    /// at whitespace sum to the count of the text. False if this is not known.
    pub fn splits_at_blanks(&self) -> bool {
        match self {
            Self::Model(tokenizer) => tokenizer.splits_at_blanks(),
            Self::OpenAi(_) => false,
        }
    }

    /// Returns the number of tokens in `text`, without special tokens. Text that looks like a special token
    /// counts as ordinary text.
    ///
    /// # Errors
    /// Returns [`PipelineError::Model`] if the model's tokenizer cannot encode the text.
    pub fn count(&self, text: &str) -> Result<usize, PipelineError> {
        match self {
            Self::Model(tokenizer) => Ok(tokenizer.count(text)?),
            Self::OpenAi(bpe) => Ok(pieces(text).map(|piece| bpe.encode_ordinary(piece).len()).sum()),
        }
    }
}

/// A cache of the token counts of frames: the texts around chunks, such as `[1] `. There are few different
/// frames, and every request needs them. Without the cache, counting them takes longer than scanning the
/// chunks.
pub struct FrameCosts(Cache<(TokenizerName, String), usize>);

/// The number of frames in the cache.
const FRAMES_MAX: usize = 1 << 16;

/// The longest frame that is cached. Longer frames contain titles, which hardly recur.
const FRAME_BYTES_MAX: usize = 48;

impl FrameCosts {
    /// Returns an empty cache.
    pub fn new() -> Self {
        Self(Cache::new(FRAMES_MAX))
    }

    /// Returns the number of tokens in `frame`, from the cache if possible. `name` is the name of the
    /// counter's tokenizer.
    ///
    /// # Errors
    /// Fails as [`TokenCounter::count`] does.
    pub fn count(
        &self,
        counter: &TokenCounter,
        name: TokenizerName,
        frame: String,
    ) -> Result<usize, PipelineError> {
        if frame.len() > FRAME_BYTES_MAX {
            return counter.count(&frame);
        }
        let key = (name, frame);
        if let Some(cost) = self.0.get(&key) {
            return Ok(cost);
        }
        let cost = counter.count(&key.1)?;
        self.0.insert(key, cost);
        Ok(cost)
    }
}

impl Default for FrameCosts {
    fn default() -> Self {
        Self::new()
    }
}

/// The longest text that OpenAI's tokenizers count at once. Their splitter fails on runs of a million spaces,
/// so longer texts are counted in pieces. A cut can divide a token, so the sum is never too small.
const PIECE_BYTES_MAX: usize = 256 * 1024;

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES_MAX));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_together_are_the_text() {
        for text in ["", "a", &"é".repeat(PIECE_BYTES_MAX), &" ".repeat(3 * PIECE_BYTES_MAX + 1)] {
            assert_eq!(pieces(text).collect::<String>(), text);
            assert!(pieces(text).all(|piece| piece.len() <= PIECE_BYTES_MAX));
        }
    }

    #[test]
    fn a_million_spaces_are_counted() {
        let counter = TokenCounter::OpenAi(tiktoken_rs::o200k_base_singleton());
        assert!(counter.count(&" ".repeat(1_100_000)).expect("counts") > 0);
    }
}
