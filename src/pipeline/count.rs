//! Counts tokens as the caller counts them.

use std::sync::Arc;

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

    /// Number of tokens in `text`; text that looks like a control token counts as text.
    ///
    /// # Errors
    /// When the model's tokenizer refuses the text.
    pub fn count(&self, text: &str) -> Result<usize, PipelineError> {
        match self {
            Self::Model(tokenizer) => Ok(tokenizer.count(text)?),
            Self::OpenAi(bpe) => Ok(bpe.encode_ordinary(text).len()),
        }
    }
}
