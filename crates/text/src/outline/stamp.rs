//! Points in time at the beginning of a line. Knows how logs and chats write them, and must not know what
//! stands behind them.

use crate::lexicon::{Class, is};

/// The most words that a point in time is made of.
const WORDS_MAX: usize = 7;

/// Returns the length of the point in time that `line` begins with, brackets around it included. It must have
/// a time of day: a date alone also begins an ordinary sentence.
pub(super) fn length(line: &str) -> Option<usize> {
    let blanks = line.len() - line.trim_start_matches([' ', '\u{200e}', '\u{202f}']).len();
    let close = match line[blanks..].bytes().next()? {
        b'[' => Some(']'),
        b'(' => Some(')'),
        b'{' => Some('}'),
        _ => None,
    };
    let (mut at, mut end) = (blanks + usize::from(close.is_some()), None);
    for _ in 0..WORDS_MAX {
        let rest = &line[at..];
        let word_end = rest.find(|c: char| c.is_whitespace() || matches!(c, ']' | ')' | '}' | '|'));
        let word = &rest[..word_end.unwrap_or(rest.len())];
        let part = part(word.trim_end_matches([',', ':']));
        match part {
            Some(Part::Time) => end = Some(at + word.trim_end_matches([',', ':']).len()),
            Some(Part::Suffix) if end.is_some() => end = Some(at + word.len()),
            Some(Part::Date) => {}
            _ => break,
        }
        at += word.len();
        if let (Some(close), Some(_)) = (close, end)
            && line[at..].starts_with(close)
        {
            return Some(at + 1);
        }
        at += line[at..].len() - line[at..].trim_start().len();
    }
    end
}

enum Part {
    Date,
    Time,
    Suffix,
}

fn part(word: &str) -> Option<Part> {
    let first = word.bytes().next()?;
    if first.is_ascii_alphabetic() {
        return if is(Class::Month, word) || is(Class::Weekday, word) {
            Some(Part::Date)
        } else {
            is(Class::Zone, word).then_some(Part::Suffix)
        };
    }
    if matches!(first, b'+' | b'-') {
        let is_offset = word.len() >= 3 && word[1..].bytes().all(|b| b.is_ascii_digit() || b == b':');
        return is_offset.then_some(Part::Suffix);
    }
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let is_made_of =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b':' | b'.' | b',' | b'/' | b'-' | b'+');
    if !first.is_ascii_digit() || word.len() > 40 || !word.bytes().all(is_made_of) || digits * 2 < word.len()
    {
        return None;
    }
    if has_time(word) {
        return Some(Part::Time);
    }
    let has_separator = word.bytes().any(|b| matches!(b, b'/' | b'-' | b'.'));
    (digits >= 3 && has_separator || word.len() <= 2 || word.len() == 4 && digits == 4).then_some(Part::Date)
}

/// Returns whether the word contains hours and minutes: a digit, a colon and two digits.
fn has_time(word: &str) -> bool {
    let is_time = |w: &[u8]| w[0].is_ascii_digit() && w[1] == b':' && w[2..].iter().all(u8::is_ascii_digit);
    word.as_bytes().windows(4).any(is_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_in_time_is_found_at_the_beginning() {
        let check = |name: &str, line: &str, expect: &str| {
            assert_eq!(&line[..length(line).unwrap_or(0)], expect, "{name}");
        };
        check("brackets", "[09:02] Mia: hi", "[09:02]");
        check("iso", "2025-03-11T08:38:50.004Z INFO x", "2025-03-11T08:38:50.004Z");
        check("date and time", "2025-03-11 09:30:00.012  INFO 1", "2025-03-11 09:30:00.012");
        check("zone", "2024-11-18 02:14:09.220 CET [1402] LOG", "2024-11-18 02:14:09.220 CET");
        check("offset", "[2025-05-06 14:02:11 +0200] [7001]", "[2025-05-06 14:02:11 +0200]");
        check("syslog", "Nov 18 03:00:01 db-02 CRON[20114]", "Nov 18 03:00:01");
        check("braces", "{2025-03-15 01:00:00,003} scheduler", "{2025-03-15 01:00:00,003}");
        check("phone", "12/04/2025, 18:03 - Nadia: Hi", "12/04/2025, 18:03");
        check("bars", "2025-06-02 09:14 | lena.k | heads-up", "2025-06-02 09:14");
        check("half of the day", "[8/9/25, 7:40 PM] Wim: x", "[8/9/25, 7:40 PM]");
        check("a date alone", "2025-03-11 was a Tuesday", "");
        check("a number", "12 men went at 12:00", "");
        check("cut off", "[09:02", "[09:02");
        check("nothing", "", "");
    }
}
