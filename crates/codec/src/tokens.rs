//! Estimates how many tokens a text has for a language model.

/// Letters of a word per token. Words of English prose have fewer tokens than that, names of programs and paths more.
const LETTERS_PER_TOKEN: usize = 6;

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Start,
    Letter,
    Digit,
    Space,
    Newline,
    Sign,
    Other,
}

/// Returns about how many tokens of the vocabulary `o200k_base` a text has. It divides a text as that vocabulary does: up to three digits are a
/// token, a blank belongs to the word after it, and signs and longer white space are tokens of their own.
pub fn estimate(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut tokens, mut at) = (0, 0);
    let mut before = Class::Start;
    while at < bytes.len() {
        let class = class_of(bytes[at]);
        let start = at;
        while at < bytes.len() && class_of(bytes[at]) == class {
            at += 1;
        }
        let len = at - start;
        tokens += match class {
            Class::Letter => len.div_ceil(LETTERS_PER_TOKEN),
            Class::Digit => len.div_ceil(3),
            Class::Sign => len.div_ceil(2),
            // The last blank belongs to the word that follows, but not to a number.
            Class::Space => {
                let before_number = bytes.get(at).is_some_and(u8::is_ascii_digit);
                usize::from(len > 1) + usize::from(before_number && before != Class::Newline)
            }
            Class::Newline => usize::from(before != Class::Sign),
            // A character of two or three bytes is about half a token.
            Class::Other => len.div_ceil(4),
            Class::Start => 0,
        };
        before = class;
    }
    tokens
}

fn class_of(byte: u8) -> Class {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
        b'0'..=b'9' => Class::Digit,
        b' ' | b'\t' => Class::Space,
        b'\n' | b'\r' => Class::Newline,
        128.. => Class::Other,
        _ => Class::Sign,
    }
}
