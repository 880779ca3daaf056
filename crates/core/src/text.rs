//! Text as answers and verdicts need it: terms, amounts, numbers and negations, and sentences that arrive piece by piece. What a text is made
//! of and what a question asks for is found by `thresher-text`, whose functions are re-exported here.

pub mod offsets;

mod abstentions;
mod amounts;
mod arrived;
mod clock;
mod claims;
mod dates;
mod hyphens;
mod lang;
mod locale;
mod markers;
mod measure;
mod numbers;
mod quotes;
mod relayed;
mod spelling;
mod term;
mod terms;

pub use thresher_text::{
    Gram, GramWord, Mentions, RULES_VERSION, SENTENCE_BYTES_MAX, definitions, gram_words, intent,
    is_compared_by_characters, is_list_item, lexicon, outline, questions, script_of, sentences,
    sentences_within, words,
};

pub use arrived::arrived;
pub use claims::claim;
pub use hyphens::{Joined, joined_words};
pub use lang::{LikelyLang, lang_of, likely_lang_of, sentence_lang};
pub use locale::Writing;
pub use markers::{markers, without_markers};
pub use measure::{Amount, Measure};
pub use quotes::quotations;
pub use relayed::{Relayed, RelayedPiece};
pub use spelling::with_spelling_of;
pub use term::{Limit, Term};
pub use terms::{terms, terms_in};
