//! Headings: the lines and labels that name the sentences below them.

use super::super::pdf::is_year;
use super::lists::begins_list;
use super::{Part, Pieces, TITLE_BYTES_MAX, TITLE_WORDS_MAX};
use crate::lexicon::{Class, has_word};
use crate::outline::Role;

/// Returns how many levels the number has with which a text begins: 1 for `2. Rent`, 2 for `4.3 Release` and `D.2 Extension`.
pub(super) fn levels(text: &str) -> Option<usize> {
    let is_section = text.starts_with('§');
    let mut words = text.trim_start_matches(['§', ' ', '\u{a0}']).split_whitespace();
    let first = words.next()?;
    let number = first.trim_end_matches('.');
    // "140 g of butter" begins with an amount.
    let is_marked = is_section || first.contains('.') || words.next()?.starts_with(char::is_uppercase);
    let is_level = |level: &str| {
        matches!(level.len(), 1..=3) && level.bytes().all(|byte| byte.is_ascii_digit())
            || level.len() == 1 && level.starts_with(|c: char| c.is_ascii_uppercase())
    };
    let is_number =
        is_marked && number.contains(|c: char| c.is_ascii_digit()) && number.split('.').all(is_level);
    is_number.then(|| number.split('.').count())
}

/// Returns whether a text is the number of a clause and its name: "4.3 Early release."
pub(super) fn is_clause(text: &str) -> bool {
    let is_short = text.split_whitespace().count() <= TITLE_WORDS_MAX && text.len() <= TITLE_BYTES_MAX;
    // "1.5 cups of flour" begins with an amount.
    let is_named =
        text.split_whitespace().nth(1).is_none_or(|word| word.starts_with(|c: char| c.is_uppercase()))
            || text.starts_with('§');
    is_short && is_named && levels(text).is_some_and(|levels| levels > 1 || text.starts_with('§'))
}

/// Lets sentences require the line above them that names them.
pub(super) fn titles(pieces: &mut Pieces, parts: &[Part]) {
    let is_label =
        |at: &usize| parts[*at].is_label() && parts.get(at + 1).is_some_and(|next| !next.begins_line);
    let has_labels = (0..parts.len()).filter(is_label).nth(1).is_some();
    // The headings above, each with its levels; one without a number has none. What stands less deep than the first line below a heading is
    // not below it.
    let mut above: Vec<(usize, usize)> = Vec::new();
    let is_out = |heading: usize, part: &Part| part.indent < parts[heading + 1].indent;
    let mut label: Option<usize> = None;
    for (at, part) in parts.iter().enumerate() {
        if part.begins_paragraph {
            label = None;
        }
        if part.is_frame || part.is_row {
            above.clear();
            continue;
        }
        if part.begins_line {
            above.retain(|(heading, _)| !is_out(*heading, part));
        }
        let own = levels(part.bare());
        let could_be = part.is_title()
            || own == Some(1)
                && !part.text.starts_with(['*', '-', '•'])
                && part.is_short_line()
                && !part.bare().ends_with(['.', ';', ',']);
        let next = parts.get(at + 1).filter(|next| could_be && next.begins_line && !begins_list(parts, at));
        let names = next.is_some_and(|next| {
            let deeper = levels(next.bare()).is_none_or(|levels| own.is_some_and(|own| levels > own));
            // Of several short lines in a row, none names the others.
            deeper
                && (own.is_some() || !next.is_title())
                && next.indent >= part.indent
                && !(next.is_list_item() && own.is_none())
        });
        if could_be && names {
            above.retain(|(_, levels)| own.is_some_and(|own| *levels < own));
            if let Some((heading, _)) = above.last() {
                pieces.need(at, *heading);
            }
            pieces.introduce(at, at + 1);
            pieces.list[at].role = Role::Title;
            above.push((at, own.unwrap_or(0)));
            continue;
        }
        if part.is_title() && own.is_none() {
            above.clear();
        }
        if let Some((heading, _)) = above.last() {
            pieces.need(at, *heading);
        }
        if let Some(label) = label {
            pieces.need(at, label);
        }
        if has_labels && is_label(&at) {
            label = Some(at);
            pieces.introduce(at, at + 1);
        }
    }
}

/// Among how many pieces at its beginning a text says that it does not hold.
const BANNER_PIECES: usize = 4;

/// Lets a text require a short line above it that says that it does not hold, or not yet: "Status: superseded".
pub(super) fn banner(pieces: &mut Pieces, parts: &[Part]) {
    let is_banner = |part: &&Part| {
        part.begins_line
            && part.ends_line
            && !part.is_row
            && part.text.len() <= TITLE_BYTES_MAX
            && part.is_within(TITLE_WORDS_MAX)
            && has_word(Class::Banner, part.text)
    };
    let Some(banner) = parts.iter().take(BANNER_PIECES).position(|part| is_banner(&part)) else { return };
    (banner + 1..parts.len()).for_each(|below| pieces.need(below, banner));
}

/// The most lines between a title of a page and what it introduces.
const TITLES_ABOVE_MAX: usize = 3;

/// Lets a title on a page introduce the text below it, without which it says nothing.
pub(super) fn titles_of_page(pieces: &mut Pieces, parts: &[Part]) {
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && !is_year(word);
    // A line with a number says something of its own.
    let is_title = |part: &Part| part.is_title() && !part.text.split_whitespace().any(is_number);
    for (at, part) in parts.iter().enumerate() {
        let below = &parts[at + 1..parts.len().min(at + 1 + TITLES_ABOVE_MAX)];
        let text = below.iter().position(|part| !part.is_frame && !is_title(part));
        if let Some(text) = text.filter(|_| is_title(part) && !part.is_frame) {
            pieces.introduce(at, at + 1 + text);
        }
    }
}
