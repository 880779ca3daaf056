//! Token counts: counts the tokens of a text with the tokenizer that the caller names, and caches the counts
//! of short texts that recur.

use std::sync::Arc;

use super::PipelineError;
use super::cancel::Cancel;
use crate::domain::TokenizerName;
use crate::model::tokenizer::ModelTokenizer;
use crate::text_cache::TextCache;

#[derive(Clone)]
pub enum TokenCounter {
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
    /// Returns [`PipelineError::Model`] if the model's tokenizer cannot encode the text, and the error of `cancel` if it stops the work.
    pub fn count(&self, text: &str, cancel: &Cancel) -> Result<usize, PipelineError> {
        cancel.check()?;
        match self {
            Self::Model(tokenizer) => Ok(tokenizer.count(text)?),
            Self::OpenAi(bpe) => {
                let count = |piece| cancel.check().map(|()| bpe.encode_ordinary(piece).len());
                pieces(text).map(count).sum()
            }
        }
    }
}

/// A cache of token counts. Requests name the same chunks and frames again and again, and counting them takes
/// longer than scanning the chunks.
pub struct TextCosts(TextCache<TokenizerName, usize>);

const TEXTS_MAX: usize = 1 << 17;

impl TextCosts {
    /// Returns the bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Returns the number of tokens in `text`, from the cache if possible. `name` is the name of the counter's tokenizer.
    ///
    /// # Errors
    /// Fails as [`TokenCounter::count`] does.
    pub fn count(
        &self,
        counter: &TokenCounter,
        name: TokenizerName,
        text: &str,
        cancel: &Cancel,
    ) -> Result<usize, PipelineError> {
        self.0.get_or_try_find(name, text, || counter.count(text, cancel))
    }

    /// Returns the number of tokens in a context. Contexts that are tried for one request have most of their chunks in common, so the counts
    /// of parts come from the cache if the tokenizer lets them be added up.
    ///
    /// # Errors
    /// Fails as [`TokenCounter::count`] does.
    pub fn count_context(
        &self,
        counter: &TokenCounter,
        name: TokenizerName,
        context: &str,
        cancel: &Cancel,
    ) -> Result<usize, PipelineError> {
        match counter {
            TokenCounter::Model(_) => counter.count(context, cancel),
            TokenCounter::OpenAi(_) => {
                paragraphs(context).map(|part| self.count(counter, name, part, cancel)).sum()
            }
        }
    }
}

impl Default for TextCosts {
    fn default() -> Self {
        Self(TextCache::new(TEXTS_MAX))
    }
}

/// Divides a text after blank lines. No token of OpenAI's tokenizers goes from a line break to what begins the next line, but to a slash or to
/// more whitespace.
fn paragraphs(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let begins = |at: &usize| !rest[*at..].starts_with(|c: char| c.is_whitespace() || c == '/');
        let ends = rest.match_indices("\n\n").map(|(at, blank)| at + blank.len());
        let end = { ends }.find(begins).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

/// The longest text that OpenAI's tokenizers count at once. Their splitter fails on runs of a million spaces, and cannot be stopped,
/// so longer texts are counted in pieces.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Divides a long text where no token of OpenAI's tokenizers goes across: before a letter that begins a line. If there is no such place, a cut
/// can divide a token, so the sum is never too small.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let longest = rest.floor_char_boundary(PIECE_BYTES_MAX);
        let begins_line =
            |at: &usize| rest.as_bytes()[at - 1] == b'\n' && rest[*at..].starts_with(char::is_alphabetic);
        let mut boundaries = (longest / 2 + 1..longest).rev().filter(|&at| rest.is_char_boundary(at));
        let end =
            if longest == rest.len() { longest } else { boundaries.find(begins_line).unwrap_or(longest) };
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        assert!(counter.count(&" ".repeat(1_100_000), &Cancel::default()).expect("counts") > 0);
    }

    proptest! {
        /// Whatever the texts are made of, their paragraphs have as many tokens as the whole.
        #[test]
        fn a_context_has_as_many_tokens_as_at_once(text in r"([a-zÄé ]{0,4}|[0-9]{1,4}|[.!/\[<(]{1,3}|\r?\n|\n\n| \n\n|\t){0,24}") {
            for name in [TokenizerName::O200kBase, TokenizerName::Cl100kBase] {
                let bpe = match name {
                    TokenizerName::O200kBase => tiktoken_rs::o200k_base_singleton(),
                    _ => tiktoken_rs::cl100k_base_singleton(),
                };
                let found = TextCosts::default().count_context(&TokenCounter::OpenAi(bpe), name, &text, &Cancel::default());
                prop_assert_eq!(found.expect("counts"), bpe.encode_ordinary(&text).len());
            }
        }
    }

    #[test]
    fn a_long_text_has_as_many_tokens_as_at_once() {
        let bpe = tiktoken_rs::o200k_base_singleton();
        let counter = TokenCounter::OpenAi(bpe);
        for line in ["Tide rises; moon pulls.\n", "Tide rises...\n\n  \n", "a/b/\n/c\nÄ b\n"] {
            let text = line.repeat(3 * PIECE_BYTES_MAX / line.len());
            let found = counter.count(&text, &Cancel::default()).expect("counts");
            assert_eq!(found, bpe.encode_ordinary(&text).len(), "{line:?}");
        }
    }
}
