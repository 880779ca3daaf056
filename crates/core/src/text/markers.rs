//! Markers: what refers to a source, or numbers an item, and is not part of what a sentence says.

use crate::domain::ByteRange;
use thresher_text::lexicon::{Class, has};

/// The most digits of a marker's number. Longer ones, such as years, are not markers.
const DIGITS_MAX: usize = 3;

/// The longest link that is looked for, in bytes.
const LINK_BYTES_MAX: usize = 500;

/// What may be between such a word and its number.
const SEPARATORS: [char; 5] = [':', '-', '_', '#', ' '];

/// Returns the byte ranges of the markers in `text`, in order: `[1]`, `[2, 3]`, `[^1]`, `[ID:4]`, `【3】`, `【3†source】`, `(Smith 2020)`
/// at the end of the text, and the number of a list item at its start.
///
/// ```
/// use thresher_core::text::markers;
///
/// let text = "It is 330 m tall [1][doc-2] (Eiffel et al., 1889).";
/// let found: Vec<&str> = markers(text).into_iter().map(|range| range.slice(text)).collect();
/// assert_eq!(found, ["[1]", "[doc-2]", "(Eiffel et al., 1889)"]);
/// ```
pub fn markers(text: &str) -> Vec<ByteRange> {
    let mut found = Vec::new();
    found.extend(item_number(text));
    for (open, bracket) in text.match_indices(['[', '【']) {
        let (again, close) = if bracket == "[" { ('[', ']') } else { ('【', '】') };
        let inside = &text[open + bracket.len()..];
        // What has another bracket inside it is no marker. So each byte is looked at once or twice, however many brackets there are.
        let Some(len) = inside.find([again, close]).filter(|&len| inside[len..].starts_with(close)) else {
            continue;
        };
        let numbers = match inside[..len].split_once('†') {
            // The text after the dagger is the name of the source.
            Some((numbers, name)) if bracket == "【" && !name.contains('\n') => numbers,
            _ => &inside[..len],
        };
        if is_reference(numbers) {
            found.push(ByteRange::new(open, open + bracket.len() + len + close.len_utf8()));
        }
    }
    found.extend(links(text));
    found.extend(author_and_year(text));
    found.sort_by_key(|marker| marker.start);
    found
}

/// Returns the links of Markdown that stand alone in parentheses: `([Okoye, 2024](https://journal.example/okoye24))`.
fn links(text: &str) -> impl Iterator<Item = ByteRange> + '_ {
    text.match_indices("([").filter_map(|(open, _)| {
        let near = &text[open..text.floor_char_boundary(open + LINK_BYTES_MAX)];
        let (inside, _) = near.split_once("))")?;
        let (name, address) = inside[2..].split_once("](")?;
        let is_link =
            !name.contains(['[', ']', '\n']) && !address.contains(|c: char| c.is_whitespace() || c == '(');
        is_link.then(|| ByteRange::new(open, open + inside.len() + 2))
    })
}

pub fn without_markers(text: &str) -> String {
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for marker in markers(text).into_iter().filter(|marker| !marker.is_empty()) {
        if marker.start >= at {
            out.push_str(text[at..marker.start].trim_end());
            at = marker.end;
        }
    }
    out.push_str(&text[at..]);
    out.trim().to_owned()
}

/// Returns the number of a list item at the start of a text.
fn item_number(text: &str) -> Option<ByteRange> {
    let start =
        text.len() - text.trim_start_matches(|c: char| c.is_whitespace() || "*_#>(".contains(c)).len();
    let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
    let item = text[start + digits..].strip_prefix(['.', ')']).unwrap_or_default();
    // "4. Oktober 1990" is a day.
    let is_day = item.split_whitespace().nth(1).is_some_and(|year| {
        let year = year.trim_end_matches(|c: char| ",.;".contains(c));
        year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit())
    });
    let is_item = !is_day
        && (1..=DIGITS_MAX).contains(&digits)
        && item.starts_with(char::is_whitespace)
        && !item.trim().is_empty();
    is_item.then(|| ByteRange::new(start, start + digits + 1))
}

/// Returns whether what stands in brackets is one or several numbers, each of which may follow a label.
fn is_reference(inside: &str) -> bool {
    let is_number =
        |number: &str| number.len() <= DIGITS_MAX && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_one = |one: &str| {
        let one = one.trim();
        let letters = one.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (label, number) = one.split_at(letters);
        let is_label = label.is_empty()
            || is_source_label(&label.to_ascii_lowercase()) && number.contains(|c: char| c.is_ascii_digit());
        is_label && number.trim_start_matches(SEPARATORS).split(['^', '-', '–', ':', ' ']).all(is_number)
    };
    !inside.is_empty() && inside.split([',', ';']).all(is_one)
}

/// Returns whether a word stands before the number of a source, as prompts and frameworks write it.
fn is_source_label(word: &str) -> bool {
    has(Class::SourceLabel, word) || word.strip_suffix('s').is_some_and(|one| has(Class::SourceLabel, one))
}

/// Returns the reference in parentheses at the end of a text that names authors and a year.
fn author_and_year(text: &str) -> Option<ByteRange> {
    let end = text.trim_end_matches(|c: char| c.is_whitespace() || ".!?".contains(c)).len();
    let rest = text[..end].strip_suffix(')')?;
    let open = rest.rfind('(')?;
    let inside = &rest[open + 1..];
    (is_place(inside) || inside.split(';').all(is_work)).then(|| ByteRange::new(open, end))
}

/// Returns whether a text says where something stands in a source: `p. 12`, `source: ferry`, `see Table 3`.
fn is_place(text: &str) -> bool {
    let lower = text.to_lowercase();
    let is_page = lower.strip_prefix("pp. ").or(lower.strip_prefix("p. ")).or(lower.strip_prefix("page "));
    let is_page = is_page.is_some_and(|page| page.starts_with(|c: char| c.is_ascii_digit()));
    is_page
        || ["source: ", "see table", "see figure", "see section", "ibid"]
            .iter()
            .any(|begin| lower.starts_with(begin))
}

/// Returns whether a text is the name of one or several authors and a year: `Smith 2020`, `Smith and Li, 2020b, p. 7`.
fn is_work(work: &str) -> bool {
    let mut words = work.split([' ', ',', '\n', '\u{a0}']).filter(|word| !word.is_empty());
    let is_joint = |word: &str| matches!(word, "and" | "&" | "et" | "al." | "al" | "see" | "cf." | "e.g.");
    let is_name = |word: &str| {
        word.starts_with(char::is_uppercase) && word.chars().all(|c| c.is_alphabetic() || "-'’.".contains(c))
    };
    let is_year = |word: &str| {
        let year = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
        year.len() == 4 && word.len() <= 5 && matches!(year.parse(), Ok(1500..=2100))
    };
    let mut names = 0;
    let year = words.find(|word| {
        names += usize::from(is_name(word));
        !(is_name(word) || is_joint(word))
    });
    let is_page =
        |word: &str| word.trim_end_matches('.').chars().all(|c| c.is_ascii_digit() || "p–-".contains(c));
    names > 0 && year.is_some_and(is_year) && words.all(is_page)
}

#[cfg(test)]
mod tests {
    use super::{markers, without_markers};

    /// Each of these took half a minute when every bracket was searched to the end.
    #[test]
    fn many_brackets_are_read_once() {
        for text in ["[".repeat(500_000), "[".repeat(250_000) + &"]".repeat(250_000), "【".repeat(100_000)] {
            assert_eq!(markers(&text), []);
        }
        assert_eq!(markers(&format!("{}[1] x", "[".repeat(100_000))).len(), 1);
    }

    #[test]
    fn markers_refer_to_sources_or_number_items() {
        let check = |text: &str, expect: &[&str]| {
            let found: Vec<&str> = markers(text).into_iter().map(|marker| marker.slice(text)).collect();
            assert_eq!(found, expect, "{text}");
        };
        check("It is tall [1][2, 3].", &["[1]", "[2, 3]"]);
        check("1. It is【4】", &["1.", "【4】"]);
        check("(3) x[^1]", &["3)", "[^1]"]);
        check("1998. It [sic] was [ ", &[]);
        check("42.", &[]);
        check("4. Oktober 1990", &[]);
        check("in [1999] on [2024-11-05]", &[]);
        check("here【4:0†source】 [1-3]", &["【4:0†source】", "[1-3]"]);
        check("3.5 m", &[]);
        check("", &[]);
        check(
            "a [ID:4] b [doc-12] c [Source 1, Source 2] d [chunks 3]",
            &["[ID:4]", "[doc-12]", "[Source 1, Source 2]", "[chunks 3]"],
        );
        check("the [document] of [room 4] and [id]", &[]);
        check("It fell (Ng 2020).", &["(Ng 2020)"]);
        check(
            "It fell (Ng et al., 2020a; O'Hara & Li 1998, pp. 3-9)",
            &["(Ng et al., 2020a; O'Hara & Li 1998, pp. 3-9)"],
        );
        check("The games (Berlin 1936) were held.", &[]);
        check("It opened (in 1936).", &[]);
        check("It is red (p. 12).", &["(p. 12)"]);
        let link = "([Okoye, 2024](https://journal.example/okoye24))";
        check(&format!("It stored 31 tonnes {link}."), &[link]);
        check("It is red ([see](the page)) and (blue).", &[]);
        assert_eq!(without_markers("1. It is tall [1][2]."), "It is tall.");
        assert_eq!(
            without_markers(&format!("It stored 31 tonnes {link}, then 12.")),
            "It stored 31 tonnes, then 12."
        );
    }
}
