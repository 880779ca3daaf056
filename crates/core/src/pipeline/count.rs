//! Counts tokens as the caller counts them.

use std::sync::Arc;

use quick_cache::sync::Cache;

use super::PipelineError;
use crate::domain::TokenizerName;
use crate::model::tokenizer::ModelTokenizer;

/// One tokenizer, counting only.
#[derive(Clone)]
pub enum Counter {
    /// The scoring model's tokenizer.
    Model(Arc<ModelTokenizer>),
    /// One of OpenAI's; the tables are built at first use and shared by the process.
    OpenAi(&'static tiktoken_rs::CoreBPE),
}

impl Counter {
    /// The counter of that name.
    pub fn new(name: TokenizerName, model: &Arc<ModelTokenizer>) -> Self {
        match name {
            TokenizerName::Model => Self::Model(Arc::clone(model)),
            TokenizerName::O200kBase => Self::OpenAi(tiktoken_rs::o200k_base_singleton()),
            TokenizerName::Cl100kBase => Self::OpenAi(tiktoken_rs::cl100k_base_singleton()),
        }
    }

    /// Whether parts of a text that are cut at blanks can be counted one by one.
    pub fn splits_at_blanks(&self) -> bool {
        match self {
            Self::Model(tokenizer) => tokenizer.splits_at_blanks(),
            Self::OpenAi(_) => false,
        }
    }

    /// Number of tokens in `text`; text that looks like a control token counts as text.
    ///
    /// # Errors
    /// When the model's tokenizer refuses the text.
    pub fn count(&self, text: &str) -> Result<usize, PipelineError> {
        match self {
            Self::Model(tokenizer) => Ok(tokenizer.count(text)?),
            Self::OpenAi(bpe) => Ok(stretches(text).map(|stretch| bpe.encode_ordinary(stretch).len()).sum()),
        }
    }
}

/// Costs of what stands around chunks. There are few such texts, `[1] ` and the like, and they are asked for by every
/// request: counting them anew costs more than scanning the chunks.
pub struct FrameCosts(Cache<(TokenizerName, String), usize>);

/// Frames that are remembered.
const FRAMES_MAX: usize = 1 << 16;

/// Longer frames hold the caller's titles and hardly come again.
const FRAME_BYTES_MAX: usize = 48;

impl FrameCosts {
    /// Nothing remembered yet.
    pub fn new() -> Self {
        Self(Cache::new(FRAMES_MAX))
    }

    /// As [`Counter::count`], for a text that may have been counted before with the tokenizer `name`.
    ///
    /// # Errors
    /// As [`Counter::count`].
    pub fn count(
        &self,
        counter: &Counter,
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

/// The splitter of OpenAI's tokenizers gives up on runs of a million spaces. Longer texts are counted in stretches; a
/// cut can only split a token, so the sum is never too small.
const STRETCH_BYTES: usize = 256 * 1024;

fn stretches(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (stretch, after) = rest.split_at(rest.floor_char_boundary(STRETCH_BYTES));
        rest = after;
        (!stretch.is_empty()).then_some(stretch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_the_text() {
        for text in ["", "a", &"é".repeat(STRETCH_BYTES), &" ".repeat(3 * STRETCH_BYTES + 1)] {
            assert_eq!(stretches(text).collect::<String>(), text);
            assert!(stretches(text).all(|stretch| stretch.len() <= STRETCH_BYTES));
        }
    }

    #[test]
    fn a_million_spaces_are_counted() {
        let counter = Counter::OpenAi(tiktoken_rs::o200k_base_singleton());
        assert!(counter.count(&" ".repeat(1_100_000)).expect("counts") > 0);
    }
}
