//! Pages: what the end of a page divides, captions, footnotes and tables of contents.

use super::{CHAIN_MAX, LIST_BYTES_WHOLE, Part, Pieces, TITLE_BYTES_MAX, TITLE_WORDS_MAX, together};
use crate::kind::Kind;
use crate::lexicon::{Class, is, is_phrase};
use crate::line::has_leader;
use crate::outline::Piece;

/// The most lines of the end of one page and the beginning of the next, and the longest of them, in bytes.
const RUNNING_LINES_MAX: usize = 4;
const RUNNING_BYTES_MAX: usize = 120;

/// How far above a footnote its marks are looked for, in pieces, and how many of them are found.
const FOOTNOTE_REACH: usize = 60;
const FOOTNOTE_MARKS_MAX: usize = 8;

/// Makes the lines of a table of contents frames, which are never chosen: the section itself says what a reader looks for. Its lines
/// have numbers of sections, or its name stands above them; otherwise the dots may lead to prices.
pub(super) fn contents(pieces: &mut Pieces, text: &str) {
    const LINES_MIN: usize = 3;
    let line = |piece: &Piece| piece.bytes.slice(text).trim_matches(['#', '*', ' ', ':']).to_lowercase();
    let page = |piece: &Piece| {
        let line = piece.bytes.slice(text);
        let number = line.rsplit([' ', '.']).next().filter(|_| has_leader(line))?;
        number.parse::<u32>().ok()
    };
    let pages: Vec<Option<u32>> = pieces.list.iter().map(page).collect();
    let mut at = 0;
    while at < pages.len() {
        let rises = |next: usize| pages[next].is_some() && (next == at || pages[next] >= pages[next - 1]);
        let end = (at..pages.len()).find(|&next| !rises(next)).unwrap_or(pages.len());
        let is_named = || at > 0 && is_phrase(Class::Contents, &line(&pieces.list[at - 1]));
        let numbered = pieces.list[at..end]
            .iter()
            .filter(|piece| piece.bytes.slice(text).starts_with(|c: char| c.is_ascii_digit()))
            .count();
        if end - at >= LINES_MIN && (2 * numbered > end - at || is_named()) {
            pieces.list[at..end].iter_mut().for_each(|piece| piece.role = piece.role.framed());
        }
        at = end.max(at + 1);
    }
}

/// Lets the sentences of a caption require its number and each other: "Figure 4. Light at the canopy. The line is …".
pub(super) fn captions(pieces: &mut Pieces, parts: &[Part]) {
    for at in 0..parts.len() {
        let mut words = parts[at].text.split_whitespace();
        let is_name = words.next().is_some_and(|word| is(Class::Caption, word.trim_end_matches('.')));
        let has_number = words.next().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        if is_name && has_number && words.next().is_none() && parts[at].begins_line {
            let end = (at + 1..parts.len()).find(|&next| parts[next].begins_line).unwrap_or(parts.len());
            together(pieces, parts, at, at + 1..end, LIST_BYTES_WHOLE);
        }
    }
}

/// Lets the two halves of a sentence require each other that the end of a page divides: a line such as its number is between them.
pub(super) fn interrupted(pieces: &mut Pieces, parts: &[Part]) {
    let is_open = |part: &Part| {
        part.ends_line
            && part.text.trim_end_matches(['-', ',']).ends_with(char::is_alphanumeric)
            && !(part.is_frame || part.is_row || part.is_item() || is_running(part.text))
    };
    let goes_on = |part: &Part, is_apart: bool| {
        let (first, rest) = part.text.split_once('\n').unwrap_or((part.text, ""));
        let begins =
            if is_running(first) || is_apart && !rest.is_empty() && is_name(first) { rest } else { first };
        part.begins_line && begins.trim_start().starts_with(char::is_lowercase) && !part.is_item()
    };
    let mut joined = vec![0; parts.len()];
    for at in 0..parts.len() {
        if !is_open(&parts[at]) {
            continue;
        }
        let between = parts[at + 1..]
            .iter()
            .take(RUNNING_LINES_MAX)
            .take_while(|part| !part.is_frame && is_running(part.text))
            .count();
        let next = at + 1 + between;
        // Below the end of a page, a long line without a full stop goes on whatever it goes on with.
        let is_cut = between > 0 && !parts[at].is_within(TITLE_WORDS_MAX);
        // Without such a line, only a long line or a hyphen shows that a blank line divides a sentence.
        let is_open_end =
            between > 0 || !parts[at].is_within(TITLE_WORDS_MAX) || parts[at].text.ends_with('-');
        let is_next = |part: &Part| {
            is_open_end && goes_on(part, between > 0) || is_cut && !part.is_item() && part.begins_line
        };
        if parts.get(next).is_some_and(is_next) && joined[at] < CHAIN_MAX {
            pieces.need(at, next);
            pieces.need(next, at);
            joined[next] = joined[at] + 1;
        }
    }
}

/// Returns whether a text is the head or the foot of a page: each line has a number alone or at its end, a bar, wide gaps or capitals
/// only.
pub(super) fn is_running(text: &str) -> bool {
    text.len() <= RUNNING_BYTES_MAX && text.lines().all(is_running_line)
}

fn is_running_line(line: &str) -> bool {
    let line = line.trim();
    let has = |is: fn(char) -> bool| line.contains(is);
    let ends_with_number =
        line.ends_with(|c: char| c.is_ascii_digit()) && line.split_whitespace().count() <= TITLE_WORDS_MAX;
    !has(char::is_alphabetic)
        || line.contains(['|', '\t'])
        || line.contains("   ")
        || !has(char::is_lowercase)
        || ends_with_number
}

/// Returns whether all longer words of a line begin with a capital, as in the name of a document.
fn is_name(line: &str) -> bool {
    line.len() <= TITLE_BYTES_MAX
        && line
            .split_whitespace()
            .filter(|word| word.len() > 3)
            .all(|word| word.starts_with(char::is_uppercase))
}

/// Lets pieces require the footnotes whose marks they have, and footnotes the pieces with their marks.
pub(super) fn footnotes(pieces: &mut Pieces, parts: &[Part], kind: Kind) {
    for note in 1..parts.len() {
        let part = &parts[note];
        let mark = part.text.split_whitespace().next().unwrap_or_default();
        let inside = mark.strip_prefix('(').and_then(|mark| mark.strip_suffix(')')).unwrap_or_default();
        let is_mark =
            matches!(inside.len(), 1..=2) && inside.bytes().all(|byte| byte.is_ascii_alphanumeric());
        // The item of a list stands below what introduces it.
        let is_listed = parts[note - 1].introduces()
            || parts[note - 1].text.starts_with('(') && !parts[note - 1].text.ends_with('.');
        if !(is_mark && part.begins_line) || is_listed {
            continue;
        }
        let has_mark = |other: &usize| {
            // In a page, the mark can stand at the end of a label: "Interest, net(1)".
            let marked = |(at, _): (usize, &str)| {
                let before = parts[*other].text[..at].chars().next_back();
                before.is_some_and(|c| matches!(c, ' ' | '\u{a0}') || kind == Kind::Pdf && c.is_alphabetic())
            };
            !parts[*other].is_frame && parts[*other].text.match_indices(mark).any(marked)
        };
        let marked: Vec<usize> =
            (note.saturating_sub(FOOTNOTE_REACH)..note).filter(has_mark).take(FOOTNOTE_MARKS_MAX).collect();
        for &other in &marked {
            pieces.need(other, note);
        }
        if let &[other] = &*marked {
            pieces.need(note, other);
            pieces.introduce(note, other);
        }
    }
}
