//! Terms: the words of a text in the form in which search engines compare them, without punctuation and
//! letter case.

use thresher_text::lexicon::{self, Class};
use unicode_segmentation::UnicodeSegmentation;

use super::locale::Writing;
use super::numbers::{self, Spelled};
use super::term::{Run, Term};
use super::{amounts, clock, dates, hyphens, locale};
use crate::domain::ByteRange;

/// Returns the words of `text` in order, by the word boundaries of UAX #29. `1,000`, `3.5`, `-4`, `2 million`
/// and `don't` are one word each; `200mg` is two. A word is also divided at each byte offset of `cuts`
/// (ascending) that lies inside it.
///
/// ```
/// use thresher_core::text::terms;
///
/// let found = terms("It’s 1,200 mg, isn't it?", &[]);
/// let folded: Vec<String> = found.into_iter().map(|term| term.folded).collect();
/// assert_eq!(folded, ["it", "1200", "mg", "not", "it"]);
/// ```
pub fn terms(text: &str, cuts: &[usize]) -> Vec<Term> {
    let mut found = read(text, cuts, None);
    amounts::set(text, &mut found);
    found
}

/// Returns the words of `text` as [`terms`] does, but with numbers, months and weekdays as its language writes them: `1,5 Mio` is 1500000, and
/// `août` is `august`. English is `None`. A date is one word: `30 June 2028` is `2028-06-30`.
pub fn terms_in(text: &str, cuts: &[usize], writing: Option<Writing>) -> Vec<Term> {
    let mut found = join(text, cuts, read(text, cuts, writing), dates::read);
    amounts::set(text, &mut found);
    found
}

fn read(text: &str, cuts: &[usize], writing: Option<Writing>) -> Vec<Term> {
    let words = words(text, cuts);
    let is_apart = |at: usize| {
        let between = at.checked_sub(1).map(|before| ByteRange::new(words[before].end, words[at].start));
        let is_close = |between: ByteRange| {
            let is_cut = cuts
                .get(cuts.partition_point(|&cut| cut < between.start))
                .is_some_and(|&cut| cut <= between.end);
            SPACES.contains(&between.slice(text)) && !is_cut
        };
        !between.is_some_and(is_close)
    };
    let with_gaps: Vec<(&str, bool)> =
        (0..words.len()).map(|at| (words[at].slice(text), is_apart(at))).collect();
    let foreign = writing.and_then(|writing| writing.spelled(&with_gaps));
    let spelled = foreign.unwrap_or_else(|| numbers::spelled(with_gaps.into_iter()));
    let mut spelled = spelled.into_iter().peekable();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(&word) = words.get(at) {
        match spelled.next_if(|number| number.start == at) {
            Some(Spelled { end, value, .. }) => {
                found.push(Term::new(ByteRange::new(word.start, words[end - 1].end), value));
                at = end;
            }
            None => {
                push(&mut found, text, cuts, word);
                at += 1;
            }
        }
    }
    let found = match writing {
        Some(writing) => locale::translate(text, cuts, found, writing),
        None => found,
    };
    join(text, cuts, found, |text, terms| {
        clock::read(text, terms).or_else(|| negation(terms)).or_else(|| amounts::half(terms))
    })
}

/// Returns the negation of several words with which a list of terms begins, such as `instead of`.
fn negation(terms: &[Term]) -> Option<Run> {
    let words = terms.iter().map(|term| &*term.folded);
    let count = lexicon::expression(Class::Negation, words)?;
    Some(Run { terms: count, folded: "not".to_owned(), amount: None })
}

/// Joins the terms of each run that `read` finds at the start of a list of terms. `terms` are the words of `text` in order; none is joined
/// across one of the byte offsets `cuts` (ascending).
fn join(
    text: &str,
    cuts: &[usize],
    mut terms: Vec<Term>,
    read: impl Fn(&str, &[Term]) -> Option<Run>,
) -> Vec<Term> {
    // The terms before `kept` are joined, those from `at` on are still to be read.
    let (mut kept, mut at) = (0, 0);
    while at < terms.len() {
        let is_cut = |bytes: ByteRange| {
            cuts.get(cuts.partition_point(|&cut| cut <= bytes.start)).is_some_and(|&cut| cut < bytes.end)
        };
        let bytes = |run: &Run| terms[at].bytes.joined(terms[at + run.terms - 1].bytes);
        match read(text, &terms[at..]).filter(|run| !is_cut(bytes(run))) {
            Some(run) => {
                terms[kept] = Term { amount: run.amount, ..Term::new(bytes(&run), run.folded) };
                at += run.terms;
            }
            None => {
                terms.swap(kept, at);
                at += 1;
            }
        }
        kept += 1;
    }
    terms.truncate(kept);
    terms
}

/// What may be between the words of one number.
const SPACES: [&str; 3] = [" ", "-", "\u{a0}"];

/// Returns the byte ranges of the words of `text`, with digits and their unit as two words.
fn words(text: &str, cuts: &[usize]) -> Vec<ByteRange> {
    let mut found = Vec::new();
    for (start, word) in text.unicode_word_indices() {
        let end = start + word.len();
        let first = cuts.partition_point(|&cut| cut <= start);
        let inside = cuts[first..].iter().copied().take_while(|&cut| cut < end);
        let mut from = start;
        for to in inside.chain([end]) {
            for part in cells(text, ByteRange::new(from, to)) {
                let part = part.trim_matches('_');
                let at = part.as_ptr() as usize - text.as_ptr() as usize;
                let unit = numbers::unit_at(part).filter(|&unit| unit < part.len()).unwrap_or(0);
                for (first, last) in [(0, unit), (unit, part.len())] {
                    let word = ByteRange::new(at + first, at + last);
                    if word.slice(text).contains(char::is_alphanumeric) {
                        found.push(word);
                    }
                }
            }
            from = to;
        }
    }
    join_divided(text, cuts, &mut found);
    found
}

/// Divides what UAX #29 takes for one word at the separators of cells: `Q4,1248`, `12;13` and, between two more cells, `120,340` are two cells;
/// `1,248` and `1,5` are numbers.
fn cells(text: &str, bytes: ByteRange) -> impl Iterator<Item = &str> {
    let word = bytes.slice(text);
    let groups = || word.split(',');
    let is_number = !word.contains(char::is_alphabetic);
    let is_decimal = groups().count() == 2 && groups().any(|group| group.len() < 3);
    // A comma of a sentence has a space behind it.
    let is_cell = |c: char| c.is_alphanumeric() || c == '"';
    let is_in_row = text[..bytes.start].strip_suffix(',').is_some_and(|before| before.ends_with(is_cell))
        || text[bytes.end..].strip_prefix(',').is_some_and(|after| after.starts_with(is_cell));
    let is_one =
        word.contains(',') && is_number && !is_in_row && (is_decimal || numbers::value(word).is_some());
    word.split(move |c: char| c == ';' || c == ',' && !is_one)
}

/// Joins the halves of words that the ends of lines divide.
fn join_divided(text: &str, cuts: &[usize], words: &mut Vec<ByteRange>) {
    words.dedup_by(|second, first| {
        let is_cut =
            cuts.get(cuts.partition_point(|&cut| cut < first.end)).is_some_and(|&cut| cut <= second.start);
        let is_divided = !is_cut && hyphens::break_end(text, first.end) == Some(second.start);
        if is_divided {
            first.end = second.end;
        }
        is_divided
    });
}

/// Appends a word, or multiplies the number before it if the word is a scale such as `million` or `dozen`.
fn push(found: &mut Vec<Term>, text: &str, cuts: &[usize], bytes: ByteRange) {
    let is_halved = found.len() > 1 && found[found.len() - 2].folded == "half";
    if let Some(number) = found.last_mut() {
        let next_cut = cuts.get(cuts.partition_point(|&cut| cut < number.bytes.end));
        let is_cut = next_cut.is_some_and(|&cut| cut <= bytes.start);
        let value = match &*number.folded {
            // Half a million is not a million.
            "a" | "one" if !is_halved => Some("1".to_owned()),
            folded => numbers::value(folded),
        };
        let between = &text[number.bytes.end..bytes.start];
        let word = bytes.slice(text);
        let product = value.filter(|_| !is_cut).and_then(|value| match between {
            "" => numbers::times_suffix(&value, word),
            between if SPACES.contains(&between) => numbers::times_word(&value, &word.to_lowercase()),
            _ => None,
        });
        if let Some(product) = product {
            number.bytes.end = bytes.end;
            number.folded = product;
            return;
        }
    }
    let bytes = with_sign(text, cuts, bytes);
    let mut folded = folded(bytes.slice(text));
    if is_name_in_capitals(text, bytes, &folded) {
        folded.make_ascii_uppercase();
    }
    let compound = text[bytes.end..].strip_prefix('-').unwrap_or_default();
    if compound.starts_with(char::is_alphabetic) {
        match &*folded {
            // A "no-hitter" is not the absence of a hitter.
            "no" if !compound.starts_with("one") => folded.push('-'),
            "non" => {
                found.push(Term::new(bytes, "not".to_owned()));
                return;
            }
            _ => {}
        }
    }
    found.push(Term::new(bytes, folded));
}

/// Extends a number by the minus sign in front of it. A dash after a word or after another dash is not a
/// minus sign.
fn with_sign(text: &str, cuts: &[usize], bytes: ByteRange) -> ByteRange {
    let before = &text[..bytes.start];
    let Some(rest) = before.strip_suffix(['-', '\u{2212}']) else { return bytes };
    let is_sign = bytes.slice(text).starts_with(|c: char| c.is_ascii_digit())
        && !rest.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '-' | '\u{2212}' | '.'))
        && cuts.binary_search(&bytes.start).is_err();
    if is_sign { ByteRange::new(rest.len(), bytes.end) } else { bytes }
}

/// How many bytes on either side of a word in capitals tell whether all of the text is written so.
const CAPITALS_REACH: usize = 80;

/// Returns whether a function word is the name that it is in capitals, such as `IT`, in a text that is not written in capitals.
fn is_name_in_capitals(text: &str, bytes: ByteRange, folded: &str) -> bool {
    let word = bytes.slice(text).trim_end_matches("'s").trim_end_matches("’s");
    if !word.bytes().all(|byte| byte.is_ascii_uppercase()) || !lexicon::has(Class::NameInCapitals, folded) {
        return false;
    }
    let start = text.floor_char_boundary(bytes.start.saturating_sub(CAPITALS_REACH));
    let end = text.ceil_char_boundary((bytes.end + CAPITALS_REACH).min(text.len()));
    let (mut upper, mut lower) = (0, 0);
    for c in text[start..bytes.start].chars().chain(text[bytes.end..end].chars()) {
        upper += usize::from(c.is_uppercase());
        lower += usize::from(c.is_lowercase());
    }
    lower > upper
}

fn folded(word: &str) -> String {
    let straight = |c| match c {
        '’' => '\'',
        '\u{2212}' => '-',
        c => c,
    };
    let lower: String = if word.is_ascii() {
        word.to_ascii_lowercase()
    } else {
        word.chars().flat_map(char::to_lowercase).map(straight).collect()
    };
    // A word that the end of a line divides.
    let lower =
        if lower.contains('\n') { lower.replace(|c: char| c == '-' || c.is_whitespace(), "") } else { lower };
    if lower == "cannot" || lower.ends_with("n't") {
        return "not".to_owned();
    }
    let bare = lower.strip_suffix("'s").unwrap_or(&lower);
    numbers::value(bare).unwrap_or_else(|| bare.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, cuts: &[usize], expect: &[&str]) {
        let found: Vec<String> = terms(text, cuts).into_iter().map(|term| term.folded).collect();
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn normalized_terms_of_texts() {
        check("letter case", "The CAT.", &[], &["the", "cat"]);
        check("numbers", "1,000 or 3.50 (1998)", &[], &["1000", "or", "3.5", "1998"]);
        check(
            "signs",
            "-5 or \u{2212}4, 1990-1995, COVID-19 --2",
            &[],
            &["-5", "or", "-4", "1990", "1995", "covid", "19", "2"],
        );
        check("a cut between sign and number", "x: -5", &[4], &["x", "5"]);
        check(
            "scales",
            "$4.2 million, 4.2B, twelve hundred, a million, 7 m",
            &[],
            &["4200000", "4200000000", "1200", "1000000", "7", "m"],
        );
        check(
            "dozens",
            "a dozen, two dozen, half a dozen, dozens",
            &[],
            &["12", "24", "half", "a", "dozen", "dozens"],
        );
        check("a cut between number and scale", "4 million", &[2], &["4", "million"]);
        check(
            "units",
            "200mg on the 20th of the 1990s",
            &[],
            &["200", "mg", "on", "the", "20th", "of", "the", "1990s"],
        );
        check("possessives", "Eiffel’s dog's", &[], &["eiffel", "dog"]);
        check("emphasis", "_1999_ a_b", &[], &["1999", "a_b"]);
        check("apostrophes", "It’s don't", &[], &["it", "not"]);
        check("a cut inside a word", "theSaudi bank", &[3], &["the", "saudi", "bank"]);
        check("cuts at word boundaries", "a b", &[0, 1, 2, 3], &["a", "b"]);
        check("a number in words", "Seven of one", &[], &["7", "of", "one"]);
        check(
            "numbers of several words",
            "Thirty-seven, forty–five, one hundred and two",
            &[],
            &["37", "40", "5", "102"],
        );
        check("a cut in a number of several words", "thirty-seven", &[7], &["30", "7"]);
        check("ordinals", "the twentieth, the 20th", &[], &["the", "20th", "the", "20th"]);
        check("scales in words", "five trillion, two billion", &[], &["5000000000000", "2000000000"]);
        check("no words", "— …", &[], &[]);
        check(
            "cells",
            "Q4,1248;12 1010,1100 2021,5,7",
            &[],
            &["q4", "1248", "12", "1010", "1100", "2021", "5", "7"],
        );
        check(
            "cells of three digits",
            "North,120,340\n12,500,South \"Q1\",1,5 fell to 1,248, then",
            &[],
            &["north", "120", "340", "12", "500", "south", "q1", "1", "5", "fell", "to", "1248", "then"],
        );
        check("decimal commas and groups", "1,248 1,5 1,248,000", &[], &["1248", "1,5", "1248000"]);
        check("a name in capitals", "not by IT, it is", &[], &["not", "by", "IT", "it", "is"]);
        check(
            "names in a list",
            "Servers are in the UK, US.",
            &[],
            &["servers", "are", "in", "the", "uk", "US"],
        );
        check("a possessive name", "the WHO's advice", &[], &["the", "WHO", "advice"]);
        check("a text in capitals", "DO NOT PUT IT THERE", &[], &["do", "not", "put", "it", "there"]);
        check(
            "negations of two words",
            "DHL rather than UPS instead of it",
            &[],
            &["dhl", "not", "ups", "not", "it"],
        );
    }

    #[test]
    fn numbers_and_negations() {
        let kind = |text: &str| {
            let term = terms(text, &[]).remove(0);
            (term.is_number(), term.is_negation())
        };
        for (text, expect) in [
            ("1998", (true, false)),
            ("B12", (true, false)),
            ("Never", (false, true)),
            ("wasn’t", (false, true)),
            ("note", (false, false)),
        ] {
            assert_eq!(kind(text), expect, "{text}");
        }
    }
}
