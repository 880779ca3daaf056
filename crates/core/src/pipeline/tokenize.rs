//! Tokenization: turns the question into the model's tokens, and a chunk with its title into tokens and
//! sentences.

use ndarray::ArrayView3;

use super::PipelineError;
use super::cancel::Cancel;
use super::validate::{InvalidRequest, RequestLimits};
use crate::domain::{ByteRange, Chunk, Lang, TokenSpan};
pub use crate::kv::block::tokens_under;
use crate::kv::block::{Parts, Sentence, TokenCounts};
use crate::model::tokenizer::{ModelTokenizer, Tokens};
use crate::text;

/// A tokenized chunk: the tokens of `"title. "`, if it has a title, and then the tokens of its text.
#[derive(Debug, Clone, Default)]
pub struct TokenizedChunk {
    /// The ids of all tokens, those of the title first.
    pub ids: Vec<u32>,
    pub title_tokens: usize,
    /// The byte range in the chunk's text of each token after the title.
    pub offsets: Vec<ByteRange>,
    pub sentences: Vec<Sentence>,
    /// The language of the chunk's text; `None` if it is unknown.
    pub lang: Option<Lang>,
}

impl TokenizedChunk {
    /// Returns the ids in windows of at most `tokens_max`. No token is left out.
    pub fn windows(&self, tokens_max: usize) -> impl Iterator<Item = &[u32]> {
        self.ids.chunks(tokens_max)
    }

    /// Returns the contents of the block of this chunk, whose keys are `[head, token, head_dim]`.
    pub fn block_parts<'a>(&'a self, keys: ArrayView3<'a, f32>) -> Parts<'a> {
        let Self { ids: _, title_tokens, offsets, sentences, lang } = self;
        Parts { keys, title_tokens: *title_tokens, offsets, sentences, lang: *lang }
    }

    /// Returns the numbers of tokens that the block of this chunk has.
    pub fn token_counts(&self) -> TokenCounts {
        TokenCounts { tokens: self.ids.len(), title_tokens: self.title_tokens }
    }
}

#[derive(Debug, Clone)]
pub struct QuestionText {
    /// All tokens that the model reads. Their offsets count from the first byte of the text before the
    /// question.
    pub tokens: Tokens,
    /// The tokens of the question itself; never empty.
    pub query: TokenSpan,
}

/// Returns the tokens of a question with the text `before` and `after` it. With such text, special tokens are
/// read as such, in the question as well; a question alone has none.
///
/// # Errors
/// Returns [`InvalidRequest::QueryUnreadable`] if the tokenizer finds no token in the question,
/// [`InvalidRequest::QueryTooLong`] if it finds more than the limit in the whole text, and
/// [`PipelineError::Model`] if it fails.
pub fn question(
    query: &str,
    before: &str,
    after: &str,
    tokenizer: &ModelTokenizer,
    limits: &RequestLimits,
) -> Result<QuestionText, PipelineError> {
    let tokens = match (before, after) {
        ("", "") => tokenizer.encode(query)?,
        _ => tokenizer.encode_prompt(&[before, query, after].concat())?,
    };
    let found = tokens.ids.len();
    limits.check_query(found)?;
    let query = match (before, after) {
        ("", "") => TokenSpan::new(0, found),
        _ => tokens_under(&tokens.offsets, 0, ByteRange::new(before.len(), before.len() + query.len())),
    };
    if query.is_empty() {
        Err(InvalidRequest::QueryUnreadable.into())
    } else {
        Ok(QuestionText { tokens, query })
    }
}

/// Other sentences of a long question are read up to this number of tokens: the longer the text, the less its question counts.
const CONTEXT_TOKENS_MAX: usize = 96;

/// Returns the sentences of a question that the model reads if the question has more than `tokens_max` tokens, and how many it
/// has: those that end with a question mark, the last ones first, and then other sentences from the end, in the order of the
/// text. Of a single long sentence these are its last tokens. Returns `None` if the question is not too long.
///
/// # Errors
/// Returns [`PipelineError::Model`] if the tokenizer fails.
pub fn shortened(
    query: &str,
    tokenizer: &ModelTokenizer,
    tokens_max: usize,
) -> Result<Option<(String, usize)>, PipelineError> {
    // No token is shorter than a byte.
    if query.len() <= tokens_max {
        return Ok(None);
    }
    let tokens = tokenizer.encode(query)?;
    let found = tokens.ids.len();
    if found <= tokens_max {
        return Ok(None);
    }
    let sentences = text::sentences(query);
    let asks = |sentence: &ByteRange| {
        sentence.slice(query).trim_end_matches(['"', '”', ')']).ends_with(['?', '？', '؟'])
    };
    let mut order: Vec<usize> = (0..sentences.len()).rev().collect();
    order.sort_by_key(|&sentence| !asks(&sentences[sentence]));
    let (mut kept, mut used) = (vec![false; sentences.len()], 0);
    for sentence in order {
        let max = if asks(&sentences[sentence]) { tokens_max } else { tokens_max.min(CONTEXT_TOKENS_MAX) };
        // A token more than by itself, because what is beside a sentence can change its tokens.
        let cost = tokens_under(&tokens.offsets, 0, sentences[sentence]).len() + 1;
        if used + cost > max {
            break;
        }
        (kept[sentence], used) = (true, used + cost);
    }
    let parts =
        sentences.iter().zip(kept).filter(|(_, kept)| *kept).map(|(sentence, _)| sentence.slice(query));
    let parts = parts.collect::<Vec<_>>().join(" ");
    let short = if parts.is_empty() {
        query[tokens.offsets[found - (tokens_max * 3 / 4).max(1)].start..].to_owned()
    } else {
        parts
    };
    Ok(Some((short, found)))
}

/// The tokens of the turns that the model reads before a question.
#[derive(Debug, Clone, Default)]
pub struct HistoryText {
    /// The ids of all tokens, oldest turn first.
    pub ids: Vec<u32>,
    pub turns: usize,
}

/// How many turns before a question are looked at.
const TURNS_MAX: usize = 16;

/// The longest turn that is read, in bytes. It bounds the work for turns that have too many tokens anyway.
const TURN_BYTES_MAX: usize = 2048;

/// Returns the tokens of the newest turns of `history` that have at most `tokens_max` tokens together. `history`
/// is sorted by age, oldest first. A turn that does not fit is left out, and older ones are tried, because a short
/// question often stands before a long answer.
///
/// # Errors
/// Returns [`PipelineError::Model`] if the tokenizer fails.
pub fn history(
    history: &[String],
    tokens_max: usize,
    tokenizer: &ModelTokenizer,
) -> Result<HistoryText, PipelineError> {
    let mut newest_first = Vec::new();
    let mut room = tokens_max;
    for turn in history.iter().rev().take(TURNS_MAX).filter(|turn| turn.len() <= TURN_BYTES_MAX) {
        let ids = tokenizer.encode(&format!("{turn}\n"))?.ids;
        if !ids.is_empty() && ids.len() <= room {
            room -= ids.len();
            newest_first.push(ids);
        }
    }
    let turns = newest_first.len();
    Ok(HistoryText { ids: newest_first.into_iter().rev().flatten().collect(), turns })
}

/// Returns the text in front of a chunk's own text, for its title. A title of whitespace is the same as no title.
fn lead_of(chunk: &Chunk) -> String {
    match chunk.title.as_deref().map(str::trim) {
        Some(title) if !title.is_empty() => format!("{title}. "),
        _ => String::new(),
    }
}

/// Returns the text that the model encodes for a chunk, with its title.
pub fn text_of(chunk: &Chunk) -> String {
    // A word that the end of a line divides is read as one word.
    lead_of(chunk) + &text::joined_words(&chunk.text).text
}

/// Returns the tokens and sentences of a chunk.
///
/// # Errors
/// Returns [`PipelineError::Model`] if the tokenizer fails, and the error of `cancel` if it stops the work.
pub fn chunk(
    chunk: &Chunk,
    tokenizer: &ModelTokenizer,
    cancel: &Cancel,
) -> Result<TokenizedChunk, PipelineError> {
    let lead = lead_of(chunk);
    let mut ids = if lead.is_empty() { Vec::new() } else { tokenizer.encode(&lead)?.ids };
    let title_tokens = ids.len();
    let joined = text::joined_words(&chunk.text);
    let encoded = tokenizer.encode_while(&joined.text, || cancel.go_on());
    let mut text = encoded.map_err(|error| cancel.or(error))?;
    text.offsets.iter_mut().for_each(|offset| *offset = joined.original(*offset));
    ids.extend(text.ids);
    cancel.check()?;
    let sentence = |bytes| Sentence { bytes, tokens: tokens_under(&text.offsets, title_tokens, bytes) };
    let sentences = text::sentences(&chunk.text).into_iter().map(sentence).collect();
    cancel.check()?;
    Ok(TokenizedChunk {
        ids,
        title_tokens,
        offsets: text.offsets,
        sentences,
        lang: text::lang_of(&chunk.text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::scripted::ScriptedModel;

    /// Each byte is a token, and a turn has one more, its end of line.
    #[track_caller]
    fn check(name: &str, turns: &[&str], tokens_max: usize, expect: &str) {
        let tokenizer = ScriptedModel::tokenizer(&[]);
        let turns: Vec<String> = turns.iter().map(|turn| (*turn).to_owned()).collect();
        let found = history(&turns, tokens_max, &tokenizer).expect("tokens");
        assert_eq!(found.ids, tokenizer.encode(expect).expect("tokens").ids, "{name}");
        assert_eq!(found.turns, expect.matches('\n').count(), "{name}");
    }

    #[test]
    fn the_newest_turns_that_fit_are_read_oldest_first() {
        check("no turn", &[], 10, "");
        check("no room", &["ab"], 0, "");
        check("an exact fit", &["ab", "cd"], 6, "ab\ncd\n");
        check("one token too few", &["ab", "cd"], 5, "cd\n");
        check("a long answer after a short question", &["ab", "cdefgh"], 5, "ab\n");
        check("a turn beyond the limit of bytes", &["ab", &"c".repeat(TURN_BYTES_MAX + 1)], 5000, "ab\n");
        let many: Vec<String> = (0..20).map(|number| char::from(b'a' + number).to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check(
            "many turns",
            &many,
            100,
            &many[20 - TURNS_MAX..].iter().map(|turn| format!("{turn}\n")).collect::<String>(),
        );
    }
}
