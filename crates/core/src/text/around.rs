//! Owns what a rule sees around a stop: the word before it, what closes its sentence, the word after that.
//! Must not know whether a sentence ends there. Every look is bounded, or never repeated for the same stops.

use super::abbreviations::is_starter;

/// How far a rule looks for the word next to a stop.
const WORD_BYTES_MAX: usize = 32;
/// The longest `[citation needed]` or `</closing tag>` that still belongs to the sentence before it.
const CITATION_BYTES_MAX: usize = 40;

/// The letters, digits and inner dots at the end of `text`; empty when there are more than a rule would know.
pub(super) fn last_word(text: &str) -> &str {
    let tail = text.chars().rev().take(WORD_BYTES_MAX).take_while(|&c| c.is_alphanumeric() || c == '.');
    let len = tail.map(char::len_utf8).sum::<usize>();
    text[text.len() - len..].trim_start_matches('.')
}

/// The first word after a boundary, past opening quotes, brackets and marks.
pub(super) struct Next<'a> {
    pub word: &'a str,
    /// The character after the word.
    then: Option<char>,
}

impl<'a> Next<'a> {
    pub fn after(text: &'a str, end: usize) -> Self {
        let rest = text[end..].trim_start();
        let marks = rest.chars().take(8).take_while(|c| !c.is_alphanumeric()).map(char::len_utf8).sum();
        let rest: &str = &rest[marks..];
        let letters =
            rest.chars().take(WORD_BYTES_MAX).take_while(|&c| c.is_alphanumeric() || matches!(c, '\'' | '’'));
        let (word, rest) = rest.split_at(letters.map(char::len_utf8).sum());
        Self { word, then: rest.chars().next() }
    }

    /// Georgian letters count as lower case in Unicode, but start sentences.
    pub fn is_lower(&self) -> bool {
        self.word.starts_with(|c: char| c.is_lowercase() && !matches!(c, '\u{10D0}'..='\u{10FF}'))
    }

    pub fn is_camel(&self) -> bool {
        self.is_lower() && self.word.chars().skip(1).take(2).any(char::is_uppercase)
    }

    pub fn is_number(&self) -> bool {
        self.word.starts_with(char::is_numeric)
    }

    /// `3.` or `3)`: the number of an item.
    pub fn is_enumerator(&self) -> bool {
        self.word.len() <= 2 && self.is_number() && matches!(self.then, Some('.' | ')'))
    }

    /// A Roman numeral or a capital letter; `I` and `A` are words as well.
    pub fn is_numeral(&self) -> bool {
        let letter = self.word.len() == 1 && !matches!(self.word, "A" | "I");
        letter && self.word.bytes().all(|b| b.is_ascii_uppercase())
            || self.word.len() > 1 && is_roman(self.word)
    }

    pub fn is_pronoun_i(&self) -> bool {
        self.word == "I" || self.word.starts_with("I'") || self.word.starts_with("I’")
    }

    pub fn is_starter(&self) -> bool {
        is_starter(self.word) && !matches!(self.then, Some('.' | '-'))
    }
}

/// `end` moved past what closes the sentence: marks of the same stop, quotes, brackets, emphasis, `[12]`, `</b>`.
pub(super) fn extended(text: &str, mut end: usize) -> usize {
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
            // French puts a space before its closing quotation mark.
            _ if c.is_whitespace() && after == Some('»') => match rest.chars().nth(2) {
                Some(c) if c.is_alphanumeric() => return end,
                _ => c.len_utf8() + '»'.len_utf8(),
            },
            _ => return end,
        };
    }
}

/// The length of the `[12]`, `[citation needed]` or `</sup>` that `text` starts with.
fn citation(text: &str) -> Option<usize> {
    let open = text.as_bytes()[0];
    let close = if open == b'[' { b']' } else { b'>' };
    let len = text.bytes().take(CITATION_BYTES_MAX).position(|b| b == close)? + 1;
    let tag = open == b'[' || text[1..].starts_with(['/', 's']) || text.starts_with("<br");
    tag.then_some(len)
}

/// Also quotation marks that open in some languages: right after a stop they close.
pub(super) fn is_closing(c: char) -> bool {
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

pub(super) fn is_opening(c: char) -> bool {
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

/// Of capitals, and short: `DC` and `MIX` are words.
pub(super) fn is_roman(word: &str) -> bool {
    (1..=5).contains(&word.len()) && word.bytes().all(|b| matches!(b, b'I' | b'V' | b'X'))
}
