//! Quotations: the texts between quotation marks.

use crate::domain::ByteRange;

/// Opening marks with the marks that close them. The mark that closes in one language opens in another.
const PAIRS: [(char, &[char]); 7] = [
    ('“', &['”']),
    ('„', &['“', '”']),
    ('«', &['»']),
    ('»', &['«']),
    ('「', &['」']),
    ('『', &['』']),
    ('"', &['"']),
];

/// Returns the byte ranges of the quotations in `text`, without their marks, in order. A quotation ends in the
/// paragraph in which it begins; one inside another is a part of that one. Single quotation marks are not
/// read, since most of them are apostrophes.
///
/// ```
/// use thresher_core::text::quotations;
///
/// let text = "She said “it is done” and left, 5\" tall.";
/// let found: Vec<&str> = quotations(text).into_iter().map(|range| range.slice(text)).collect();
/// assert_eq!(found, ["it is done"]);
/// ```
pub fn quotations(text: &str) -> Vec<ByteRange> {
    let mut found = Vec::new();
    // The start of the open quotation, and the marks that close it.
    let mut open: Option<(usize, &[char])> = None;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let is_break = c == '\n' && before == '\n';
        match open {
            Some(_) if is_break => open = None,
            Some((start, closing)) if closing.contains(&c) => {
                found.push(ByteRange::new(start, at));
                open = None;
            }
            Some(_) => {}
            // A straight mark after a letter or a digit closes nothing and opens nothing: inches, for example.
            None if c == '"' && before.is_alphanumeric() => {}
            None => {
                let pair = PAIRS.iter().find(|(opening, _)| *opening == c);
                open = pair.map(|(_, closing)| (at + c.len_utf8(), *closing));
            }
        }
        before = c;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotations_are_between_marks_of_one_pair() {
        let check = |text: &str, expect: &[&str]| {
            let found: Vec<&str> = quotations(text).into_iter().map(|range| range.slice(text)).collect();
            assert_eq!(found, expect, "{text}");
        };
        check("He said \"one\", then \"two\".", &["one", "two"]);
        check("„Guten Tag“ und «bonjour» und »hallo«", &["Guten Tag", "bonjour", "hallo"]);
        check("彼は「はい」と言った", &["はい"]);
        check("“outer \"inner\" outer”", &["outer \"inner\" outer"]);
        check("a 5\" pipe and a 6\" pipe", &[]);
        check("it’s the dogs’ 'own'", &[]);
        check("\"not closed\n\nin this paragraph\"", &[]);
        check("\"closed\nin the next line\"", &["closed\nin the next line"]);
        check("\"\"", &[""]);
        check("\"", &[]);
        check("", &[]);
    }
}
