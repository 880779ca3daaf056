//! The context of a stop (a full stop, question mark or other sentence punctuation): the word before it, the
//! quotes and brackets that close its sentence, and the word after them. Must not know whether a sentence
//! ends there.
//!
//! To keep the time linear, every function either reads a bounded number of characters or is called only once
//! for the same stops.

use crate::abbreviations::is_starter;

/// The longest word next to a stop that the rules consider, in characters.
const WORD_CHARS_MAX: usize = 32;
/// The longest `[citation needed]` or `</closing tag>` that is part of the sentence before it, in bytes.
const CITATION_BYTES_MAX: usize = 40;

/// Returns the letters, digits and inner full stops at the end of `text`, at most the last 32 characters of
/// them.
pub(crate) fn last_word(text: &str) -> &str {
    let tail = text
        .chars()
        .rev()
        .take(WORD_CHARS_MAX)
        .take_while(|&c| c.is_alphanumeric() || matches!(c, '.' | '°' | 'º' | '§' | '№'));
    let len = tail.map(char::len_utf8).sum::<usize>();
    text[text.len() - len..].trim_start_matches('.')
}

/// The first word after a boundary, without the quotes, brackets and marks in front of it.
pub(crate) struct NextWord<'a> {
    pub word: &'a str,
    following_char: Option<char>,
}

impl<'a> NextWord<'a> {
    pub fn after(text: &'a str, end: usize) -> Self {
        let rest = text[end..].trim_start();
        let marks = rest.chars().take(8).take_while(|c| !c.is_alphanumeric()).map(char::len_utf8).sum();
        let rest: &str = &rest[marks..];
        let letters =
            rest.chars().take(WORD_CHARS_MAX).take_while(|&c| c.is_alphanumeric() || matches!(c, '\'' | '’'));
        let (word, rest) = rest.split_at(letters.map(char::len_utf8).sum());
        Self { word, following_char: rest.chars().next() }
    }

    /// Returns whether the word begins with a lower-case letter. Georgian letters do not count: Unicode calls
    /// them lower case, but they start sentences.
    pub fn is_lower(&self) -> bool {
        self.word.starts_with(|c: char| c.is_lowercase() && !matches!(c, '\u{10D0}'..='\u{10FF}'))
    }

    /// Returns whether the word begins like `iPhone`: a lower-case letter, then a capital within the next two
    /// characters.
    pub fn is_camel(&self) -> bool {
        self.is_lower() && self.word.chars().skip(1).take(2).any(char::is_uppercase)
    }

    pub fn is_number(&self) -> bool {
        self.word.starts_with(char::is_numeric)
    }

    /// Returns whether the word is the number of a list item: `3.` or `3)`.
    pub fn is_enumerator(&self) -> bool {
        self.word.len() <= 2 && self.is_number() && matches!(self.following_char, Some('.' | ')'))
    }

    /// Returns whether the word is a Roman numeral or a capital letter other than `I` and `A`, which are also
    /// words.
    pub fn is_numeral(&self) -> bool {
        let letter = self.word.len() == 1 && !matches!(self.word, "A" | "I");
        letter && self.word.bytes().all(|b| b.is_ascii_uppercase())
            || self.word.len() > 1 && is_roman(self.word)
    }

    pub fn is_pronoun_i(&self) -> bool {
        self.word == "I" || self.word.starts_with("I'") || self.word.starts_with("I’")
    }

    pub fn is_starter(&self) -> bool {
        is_starter(self.word) && !matches!(self.following_char, Some('.' | '-'))
    }
}

/// Returns `end` moved past everything that closes the sentence: further stops, quotes, brackets, emphasis,
/// `[12]`, `</b>`.
pub(crate) fn extended(text: &str, mut end: usize) -> usize {
    loop {
        let rest = &text[end..];
        let Some(c) = rest.chars().next() else { return end };
        let after = rest[c.len_utf8()..].chars().next();
        end += match c {
            '“' | '‘' | '«' | '»' if after.is_some_and(char::is_alphanumeric) => return end,
            '[' | '<' => match citation(rest) {
                Some(len) => len,
                None => return end,
            },
            _ if is_closing(c)
                || matches!(c, '.' | '!' | '?' | '…' | '！' | '？' | '。' | '\u{FE0F}' | '\u{200D}') =>
            {
                c.len_utf8()
            }
            // French has a space before the closing quotation mark.
            _ if c.is_whitespace() && after == Some('»') => match rest.chars().nth(2) {
                Some(c) if c.is_alphanumeric() => return end,
                _ => c.len_utf8() + '»'.len_utf8(),
            },
            _ => return end,
        };
    }
}

/// Returns the length in bytes of the `[12]`, `[citation needed]` or `</sup>` at the start of `text`.
fn citation(text: &str) -> Option<usize> {
    let open = text.as_bytes()[0];
    let close = if open == b'[' { b']' } else { b'>' };
    let len = text.bytes().take(CITATION_BYTES_MAX).position(|b| b == close)? + 1;
    let tag = open == b'[' || text[1..].starts_with(['/', 's']) || text.starts_with("<br");
    tag.then_some(len)
}

/// Returns whether a source in round brackets follows, with the full stop of the sentence after it: ` (Smith 55).`
pub(crate) fn precedes_source(text: &str) -> bool {
    let text = text.trim_start_matches(' ');
    let close = text.bytes().take(CITATION_BYTES_MAX).position(|byte| byte == b')');
    text.starts_with('(') && close.is_some_and(|close| text[close + 1..].starts_with(['.', ';']))
}

/// Returns whether `c` closes a sentence after its stop. This includes quotation marks that open a quotation
/// in some languages, because right after a stop they close one.
pub(crate) fn is_closing(c: char) -> bool {
    matches!(
        c,
        '"' | '\''
            | ')'
            | ']'
            | '}'
            | '”'
            | '’'
            | '“'
            | '‘'
            | '»'
            | '«'
            | '›'
            | '*'
            | '_'
            | '`'
            | '~'
            | '」'
            | '』'
            | '）'
            | '】'
            | '》'
            | '〉'
            | '〕'
            | '］'
            | '｝'
            | '＂'
            | '¹'
            | '²'
            | '³'
            | '⁴'..='⁹' | '⁰'
    )
}

pub(crate) fn is_opening(c: char) -> bool {
    matches!(
        c,
        '(' | '['
            | '{'
            | '¿'
            | '¡'
            | '„'
            | '‚'
            | '‹'
            | '「'
            | '『'
            | '（'
            | '【'
            | '《'
            | '〈'
            | '〔'
            | '［'
            | '｛'
    )
}

/// Returns whether `word` is a Roman numeral of at most five letters. Only I, V and X count, because words
/// such as `DC` and `MIX` consist of the letters of Roman numerals too.
pub(crate) fn is_roman(word: &str) -> bool {
    (1..=5).contains(&word.len()) && word.bytes().all(|b| matches!(b, b'I' | b'V' | b'X'))
}
