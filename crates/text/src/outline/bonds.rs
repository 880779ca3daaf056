//! Bonds: which sentence or line of running text is of no use without which other one. An answer needs its question, an item its
//! introduction, a text its heading, and "That is wrong." the sentence that it refers to. Knows where lines begin and a few words; must not
//! know what the text is about.

mod entries;
mod headings;
mod lists;
mod pages;
mod questions;
mod references;

use std::ops::Range;

use super::{Pieces, markdown::is_item};
use crate::kind::Kind;
use crate::lexicon::{Class, is};
use entries::entries;
use headings::{banner, is_clause, titles, titles_of_page};
use lists::{labelled, lists, records, steps, values};
use pages::{captions, contents, footnotes, interrupted};
use questions::questions;
pub(super) use references::is_dependent;
use references::references;

/// The longest heading without a mark of its own, in bytes and words.
const TITLE_BYTES_MAX: usize = 80;
const TITLE_WORDS_MAX: usize = 10;

/// The longest label with a full stop at the start of a paragraph, in words.
const LABEL_WORDS_MAX: usize = 5;

/// A list that must be complete is kept together with its introduction up to this length, in bytes.
const LIST_BYTES_WHOLE: usize = 450;

/// An answer up to this length is kept together with its question, in bytes.
const ANSWER_BYTES_WHOLE: usize = 160;

/// The most sentences in a row that refer each to the one before it, or questions that go on with the one before.
const CHAIN_MAX: usize = 4;

/// Lets the pieces of running text require what they need to be understood. The pieces must be in the order of the text. A row is scored
/// with its heading, but a sentence not as the one that it refers to.
pub(super) fn bind(pieces: &mut Pieces, text: &str, kind: Kind) {
    contents(pieces, text);
    let parts = parts(pieces, text);
    // The readers of other kinds know their headings.
    match kind {
        Kind::Prose => titles(pieces, &parts),
        Kind::Pdf => titles_of_page(pieces, &parts),
        _ => {}
    }
    banner(pieces, &parts);
    questions(pieces, &parts);
    lists(pieces, &parts);
    values(pieces, &parts);
    steps(pieces, &parts);
    if kind == Kind::Prose {
        entries(pieces, &parts);
        labelled(pieces, &parts);
    }
    // The head of a mail has fields as well.
    if kind != Kind::Mail {
        records(pieces, &parts);
    }
    captions(pieces, &parts);
    interrupted(pieces, &parts);
    footnotes(pieces, &parts, kind);
    references(pieces, &parts);
}

/// A piece and where it stands.
struct Part<'a> {
    text: &'a str,
    /// Whether a line begins with it, and whether a blank line is before it or nothing is.
    begins_line: bool,
    begins_paragraph: bool,
    /// Blanks before it in its line.
    indent: usize,
    ends_line: bool,
    is_frame: bool,
    is_row: bool,
}

impl Part<'_> {
    /// The text without emphasis and quotation marks at its ends.
    fn bare(&self) -> &str {
        self.text.trim_matches(|c: char| "*_#>\"“”'`+ ".contains(c) || c.is_whitespace())
    }

    /// Whether the text has at most so many words.
    fn is_within(&self, words: usize) -> bool {
        self.text.split_whitespace().nth(words).is_none()
    }

    fn is_question(&self) -> bool {
        self.bare().ends_with(['?', '？', '؟']) || self.has_label(Class::QuestionLabel)
    }

    /// Whether the text begins with a label and a colon, as `Q:`, `Q 12:` or `Frage:`.
    fn has_label(&self, label_class: Class) -> bool {
        let bare = self.bare();
        let letters = bare.find(|c: char| !c.is_alphabetic()).unwrap_or(bare.len());
        let (label, rest) = bare.split_at(letters);
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ' || c == '*');
        // "a)" and "F." number items and shorten names.
        let is_numbered = bare[letters..].starts_with(|c: char| c.is_ascii_digit());
        let has_colon = rest.starts_with(':') || is_numbered && rest.starts_with(['.', ')']);
        has_colon && is(label_class, label)
    }

    fn is_item(&self) -> bool {
        is_item(self.text)
    }

    fn introduces(&self) -> bool {
        self.bare().ends_with([':', '：'])
    }

    /// Whether the text is a line of its own that is short enough for a heading.
    fn is_short_line(&self) -> bool {
        let is_named = || {
            self.bare().starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit() || c == '§')
                && self.text.matches(char::is_alphabetic).nth(1).is_some()
                && !(self.text.contains('|') || self.text.contains("   "))
        };
        // Most sentences fail the first tests, which cost least.
        self.begins_line
            && self.ends_line
            && self.text.len() <= TITLE_BYTES_MAX
            && !self.text.contains('\n')
            && self.is_within(TITLE_WORDS_MAX)
            && is_named()
    }

    /// Whether the text is a line that could name what stands below it.
    fn is_title(&self) -> bool {
        let is_stopped = |bare: &str| bare.ends_with(|c: char| ".!?:;,…)".contains(c));
        self.is_short_line() && (!is_stopped(self.bare()) || is_clause(self.bare())) && !self.is_list_item()
    }

    /// Whether the text is a label in front of the sentences of its paragraph: "Refunds. The full price …".
    fn is_label(&self) -> bool {
        self.begins_paragraph
            && !self.ends_line
            && self.text.ends_with('.')
            && self.is_within(LABEL_WORDS_MAX)
    }

    /// Whether the text is an item of a list and no numbered heading.
    fn is_list_item(&self) -> bool {
        self.is_item() && !is_clause(self.bare())
    }
}

fn parts<'a>(pieces: &Pieces, text: &'a str) -> Vec<Part<'a>> {
    let mut end = 0;
    let mut found: Vec<Part<'a>> = Vec::with_capacity(pieces.list.len());
    for (at, piece) in pieces.list.iter().enumerate() {
        let gap = &text[end.min(piece.bytes.start)..piece.bytes.start];
        let begins_line = at == 0 || gap.contains('\n');
        let blanks = gap.len() - gap.rfind('\n').map_or(0, |at| at + 1);
        // What stands further right in a line is no deeper than what the line begins with.
        let indent = match found.last() {
            Some(before) if !begins_line => before.indent,
            _ => blanks + (piece.bytes.len() - piece.bytes.slice(text).trim_start().len()),
        };
        let after = pieces.list.get(at + 1).map_or(text.len(), |next| next.bytes.start.max(piece.bytes.end));
        found.push(Part {
            text: piece.bytes.slice(text),
            begins_line,
            begins_paragraph: at == 0 || gap.matches('\n').count() > 1,
            indent,
            ends_line: after == text.len() || text[piece.bytes.end..after].contains('\n'),
            is_frame: piece.is_frame(),
            is_row: piece.is_row(),
        });
        end = piece.bytes.end;
    }
    found
}

/// Lets the pieces of a range require each other and a piece before them, if they are short together.
fn together(pieces: &mut Pieces, parts: &[Part], first: usize, rest: Range<usize>, bytes_max: usize) {
    let bytes: usize = rest.clone().map(|at| parts[at].text.len()).sum::<usize>() + parts[first].text.len();
    if bytes > bytes_max {
        return;
    }
    // A ring is enough: the caller follows what is required.
    let mut before = first;
    for at in rest {
        pieces.need(before, at);
        pieces.need(at, first);
        before = at;
    }
    pieces.need(before, first);
}
