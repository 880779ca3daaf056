//! Events of a log that share an identifier: a request, an order, a process. Knows what identifiers and levels look
//! like. A word that occurs in one event only relates nothing, and one that occurs in many names no single thing.

use super::super::{Link, Pieces, Why};
use super::stamp;
use std::collections::HashMap;

const IDENTIFIER_BYTES_MIN: usize = 4;
const IDENTIFIER_BYTES_MAX: usize = 64;
/// The most events that an identifier may occur in.
const EVENTS_MAX: usize = 12;
/// The most identifiers of one event, which bounds the work for a long one.
const IDENTIFIERS_MAX: usize = 40;
const RELATED_MAX: usize = 6;
/// How many events before and after one with the same identifier are related to it.
const REACH: usize = 2;

/// Lets each event name the nearest events that share an identifier with it.
pub(super) fn link(pieces: &mut Pieces, text: &str) {
    let identifiers: Vec<Vec<&str>> =
        pieces.list.iter().map(|piece| identifiers(piece.bytes.slice(text))).collect();
    let mut events: HashMap<&str, Vec<usize>> = HashMap::new();
    for (event, words) in identifiers.iter().enumerate() {
        for &word in words {
            let events = events.entry(word).or_default();
            if events.last() != Some(&event) && events.len() <= EVENTS_MAX {
                events.push(event);
            }
        }
    }
    for (event, words) in identifiers.iter().enumerate() {
        let mut related: Vec<usize> = Vec::new();
        for word in words {
            related.extend(neighbours(&events[word], event));
        }
        related.sort_unstable_by_key(|&other| (other.abs_diff(event), other));
        related.dedup();
        related.truncate(RELATED_MAX);
        related.sort_unstable();
        pieces.list[event].links.extend(related.into_iter().map(|to| Link { to, why: Why::Near }));
    }
}

/// Returns the events next to `event` in a list of events with the same identifier.
fn neighbours(events: &[usize], event: usize) -> impl Iterator<Item = usize> + '_ {
    let at = events.binary_search(&event).unwrap_or(0);
    let near = if events.len() > EVENTS_MAX {
        &[]
    } else {
        &events[at.saturating_sub(REACH)..(at + REACH + 1).min(events.len())]
    };
    near.iter().copied().filter(move |&other| other != event)
}

/// Returns the words of an event that could be identifiers.
fn identifiers(event: &str) -> Vec<&str> {
    let rest = &event[stamp::length(event).unwrap_or(0)..];
    let words = rest.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.'));
    let words = words.map(|word| word.trim_matches(['-', '_', '.']));
    words.filter(|word| is_identifier(word)).take(IDENTIFIERS_MAX).collect()
}

/// Returns whether a word has digits, is long enough, and is neither a date nor a fraction.
fn is_identifier(word: &str) -> bool {
    let bytes = word.as_bytes();
    let digits = bytes.iter().filter(|b| b.is_ascii_digit()).count();
    if !(IDENTIFIER_BYTES_MIN..=IDENTIFIER_BYTES_MAX).contains(&bytes.len()) || digits == 0 {
        return false;
    }
    let is_number = bytes.iter().all(|b| b.is_ascii_digit() || *b == b'.');
    let is_fraction = is_number && word.matches('.').count() == 1;
    let is_year = bytes.len() == 4 && is_number && (word.starts_with("19") || word.starts_with("20"));
    let is_date = bytes.len() >= 7 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-';
    let is_second = word.ends_with('Z') && digits + 1 >= bytes.len() - word.matches('.').count();
    !is_fraction && !is_year && !is_date && !is_second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_words_with_digits() {
        let check =
            |name: &str, event: &str, expect: &[&str]| assert_eq!(identifiers(event), expect, "{name}");
        check("trace", "2025-02-19 19:00:02,901 INFO [t-4be1] order 70930", &["t-4be1", "70930"]);
        check("address", "from 10.20.0.8 port 51144.", &["10.20.0.8", "51144"]);
        check("numbers", "took 12 ms, 11.25 s in 2024", &[]);
        check("dates", "{\"ts\": \"2025-02-19T18:00:01.120Z\"}", &[]);
    }
}
