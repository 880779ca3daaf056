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
mod numbers;
mod quotes;
mod relayed;
mod spelling;
mod terms;

pub use thresher_text::{
    Gram, GramWord, Mentions, RULES_VERSION, SENTENCE_BYTES_MAX, gram_words, intent,
    is_compared_by_characters, is_list_item, lexicon, outline, questions, script_of, sentences,
    sentences_within, words,
};

pub use amounts::{Amount, Measure};
pub use arrived::arrived;
pub use claims::claim;
pub use hyphens::{Joined, joined_words};
pub use lang::{LikelyLang, lang_of, likely_lang_of};
pub use locale::{Writing, sentence_lang};
pub use markers::{markers, without_markers};
pub use quotes::quotations;
pub use relayed::{Relayed, RelayedPiece};
pub use spelling::with_spelling_of;
pub use terms::{Limit, Term, terms, terms_in};
