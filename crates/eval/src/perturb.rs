//! Perturbs answers so that a span says what its source does not: a number changed, a name exchanged, a
//! negation added or removed, or a sentence from another answer. The seed is fixed: the same file gives the
//! same perturbations.

use thresher_core::domain::ByteRange;
use thresher_core::text::{self, Term};

use super::data::AttributionRow;
use super::estimate::SplitMix64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One digit of a number is changed, to a number that no chunk contains.
    Number,
    /// One name is replaced by a name from another chunk.
    Name,
    /// A `not` is added after the first auxiliary verb; if the span has a `not`, it is removed.
    Negation,
    /// A sentence of another row's answer, by itself.
    OtherAnswer,
}

impl Kind {
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Number, "number"),
        (Self::Name, "name"),
        (Self::Negation, "negation"),
        (Self::OtherAnswer, "elsewhere"),
    ];
}

/// An answer with one span that its source does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerturbedAnswer {
    pub kind: Kind,
    pub answer: String,
    /// The perturbed span, in bytes of `answer`.
    pub span: ByteRange,
}

/// The smallest number of words of a span that is perturbed. Few changes of a shorter span still make a
/// statement.
pub const WORDS_MIN: usize = 3;

const AUXILIARIES: [&str; 20] = [
    "is", "are", "was", "were", "has", "have", "had", "can", "could", "will", "would", "did", "does",
    "should", "may", "might", "must", "shall", "do", "am",
];

const NOT_NAMES: [&str; 20] = [
    "the", "a", "an", "in", "on", "at", "it", "he", "she", "they", "this", "that", "there", "as", "for",
    "and", "but", "his", "her", "some",
];

/// Returns one perturbation of each kind that is possible for a span of `rows[row]`'s answer, which came from
/// chunk `chunk`.
pub fn all(
    rows: &[AttributionRow],
    row: usize,
    span: ByteRange,
    chunk: usize,
    rng: &mut SplitMix64,
) -> Vec<PerturbedAnswer> {
    let answer = &rows[row].answer;
    let terms = text::terms(answer, &[span.start, span.end]);
    let span_terms: Vec<&Term> = terms.iter().filter(|term| span.encloses(term.bytes)).collect();
    let changed = |kind: Kind, (at, with): (ByteRange, String)| {
        let answer = format!("{}{with}{}", &answer[..at.start], &answer[at.end..]);
        let end = span.end + with.len() - at.len();
        PerturbedAnswer { kind, answer, span: ByteRange::new(span.start, end) }
    };
    let number = number(rows, row, &span_terms, answer, rng).map(|c| changed(Kind::Number, c));
    let name = name(rows, row, span, chunk, rng).map(|c| changed(Kind::Name, c));
    let negation = negation(&span_terms, answer).map(|c| changed(Kind::Negation, c));
    number.into_iter().chain(name).chain(negation).chain(other_answer(rows, row, rng)).collect()
}

type Change = (ByteRange, String);

fn number(
    rows: &[AttributionRow],
    row: usize,
    span_terms: &[&Term],
    answer: &str,
    rng: &mut SplitMix64,
) -> Option<Change> {
    let digits: Vec<ByteRange> = span_terms
        .iter()
        .flat_map(|term| {
            let found = term.bytes.slice(answer).char_indices().filter(|(_, c)| c.is_ascii_digit());
            found
                .map(|(at, _)| ByteRange::new(term.bytes.start + at, term.bytes.start + at + 1))
                .collect::<Vec<_>>()
        })
        .collect();
    for _ in 0..if digits.is_empty() { 0 } else { 50 } {
        let at = digits[rng.below(digits.len())];
        let digit = answer.as_bytes()[at.start] - b'0';
        let other = match (usize::from(digit) + 1 + rng.below(9)) % 10 {
            0 => "1".to_owned(),
            other => other.to_string(),
        };
        let term = span_terms.iter().find(|term| term.bytes.encloses(at))?;
        let start = at.start - term.bytes.start;
        let word = term.bytes.slice(answer);
        let new = format!("{}{other}{}", &word[..start], &word[start + 1..]);
        if new != word && !rows[row].chunks.iter().any(|chunk| chunk.full_text().contains(&new)) {
            return Some((at, other));
        }
    }
    None
}

fn name(
    rows: &[AttributionRow],
    row: usize,
    span: ByteRange,
    chunk: usize,
    rng: &mut SplitMix64,
) -> Option<Change> {
    let answer = &rows[row].answer;
    let names: Vec<ByteRange> = names(answer).into_iter().filter(|&name| span.encloses(name)).collect();
    if names.is_empty() {
        return None;
    }
    let chosen = names[rng.below(names.len())];
    let own_text = rows[row].chunks[chunk].full_text().to_lowercase();
    let of_row = |row: usize, but: Option<usize>| -> Vec<String> {
        let others = rows[row].chunks.iter().enumerate().filter(|(index, _)| Some(*index) != but);
        let of_chunk = |text: &str| {
            names_of(text).filter(|name| !own_text.contains(&name.to_lowercase())).collect::<Vec<_>>()
        };
        others.flat_map(|(_, chunk)| of_chunk(&chunk.text)).collect()
    };
    let mut pool = of_row(row, Some(chunk));
    if pool.is_empty() {
        pool = of_row(rng.below(rows.len()), None);
    }
    (!pool.is_empty()).then(|| (chosen, pool.swap_remove(rng.below(pool.len()))))
}

fn names_of(text: &str) -> impl Iterator<Item = String> + '_ {
    names(text).into_iter().map(|name| name.slice(text).to_owned())
}

/// Returns the byte ranges of names: runs of capitalised words that follow a lower-case word or a comma.
fn names(text: &str) -> Vec<ByteRange> {
    let mut found: Vec<ByteRange> = Vec::new();
    let mut open = false;
    for term in text::terms(text, &[]) {
        let capital = term.bytes.slice(text).starts_with(char::is_uppercase);
        let behind = text[..term.bytes.start].strip_suffix(' ').and_then(|before| before.chars().next_back());
        match found.last_mut() {
            Some(last) if open && capital && last.end + 1 == term.bytes.start && behind.is_some() => {
                last.end = term.bytes.end;
            }
            _ => {
                let begins = behind.is_some_and(|c| c.is_lowercase() || c == ',');
                open = capital && begins && term.bytes.len() >= 3 && !NOT_NAMES.contains(&&*term.folded);
                found.extend(open.then_some(term.bytes));
            }
        }
        open = open && capital;
    }
    found
}

fn negation(span_terms: &[&Term], answer: &str) -> Option<Change> {
    if let Some(not) = span_terms.iter().find(|term| term.folded == "not") {
        let start = answer[..not.bytes.start].trim_end().len().max(span_terms[0].bytes.start);
        return Some((ByteRange::new(start, not.bytes.end), String::new()));
    }
    let verb = span_terms.iter().find(|term| AUXILIARIES.contains(&&*term.folded))?;
    Some((ByteRange::new(verb.bytes.end, verb.bytes.end), " not".to_owned()))
}

fn other_answer(rows: &[AttributionRow], row: usize, rng: &mut SplitMix64) -> Option<PerturbedAnswer> {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        let other = rng.below(rows.len());
        let sentences: Vec<ByteRange> = text::arrived(&rows[other].answer).collect();
        if other == row || sentences.is_empty() {
            continue;
        }
        let sentence = sentences[rng.below(sentences.len())].slice(&rows[other].answer);
        if text::terms(sentence, &[]).len() > WORDS_MIN {
            let span = ByteRange::new(0, sentence.len());
            return Some(PerturbedAnswer { kind: Kind::OtherAnswer, answer: sentence.to_owned(), span });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_inside_sentences_are_found() {
        let text =
            "In 1998 the city of New York and, Mary Ann says, The Hague met. Later Paris won. He saw Rome";
        let found: Vec<&str> = names(text).into_iter().map(|name| name.slice(text)).collect();
        assert_eq!(found, ["New York", "Mary Ann", "Hague", "Paris", "Rome"]);
    }

    #[test]
    fn one_of_each_kind_that_can_be_made() {
        let row = |answer: &str, chunks: &[&str]| -> AttributionRow {
            let chunks: Vec<_> = chunks.iter().map(|text| serde_json::json!({"text": text})).collect();
            serde_json::from_value(serde_json::json!({"answer": answer, "spans": [], "chunks": chunks}))
                .expect("a row")
        };
        let rows = [
            row("It was built in Paris in 1998.", &["It was built in Paris in 1998.", "They met in Rome."]),
            row("Quite another sentence about nothing.", &["x"]),
        ];
        let found = all(&rows, 0, ByteRange::new(0, 30), 0, &mut SplitMix64(1));
        let kinds: Vec<Kind> = found.iter().map(|p| p.kind).collect();
        assert_eq!(kinds, [Kind::Number, Kind::Name, Kind::Negation, Kind::OtherAnswer]);
        assert_ne!(found[0].answer, rows[0].answer);
        assert_eq!(found[1].answer, "It was built in Rome in 1998.");
        assert_eq!(found[2].answer, "It was not built in Paris in 1998.");
        assert_eq!(found[3].answer, "Quite another sentence about nothing.");
        for perturbed in &found {
            assert_eq!(perturbed.span.slice(&perturbed.answer), perturbed.answer, "{:?}", perturbed.kind);
        }
    }
}
