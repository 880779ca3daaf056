//! Lists: items and what introduces them, steps, and the fields of records.

use super::pages::is_running;
use super::{ANSWER_BYTES_WHOLE, LIST_BYTES_WHOLE, Part, Pieces, TITLE_BYTES_MAX, together};
use crate::lexicon::{Class, has_word};

/// The longest name of a field of a record, in bytes.
const FIELD_BYTES_MAX: usize = 40;

/// The most lines of a value below its label, as of an address.
const VALUE_LINES_MAX: usize = 4;

/// Lets a label and the indented lines below it require each other: "Due date" says nothing without the date in the next line, and the line
/// after it says something else.
pub(super) fn values(pieces: &mut Pieces, parts: &[Part]) {
    for (label, part) in parts.iter().enumerate() {
        let is_label = part.begins_line
            && part.ends_line
            && part.text.len() <= TITLE_BYTES_MAX
            && !part.text.contains('\n')
            && !part.text.ends_with(['.', '!', ';', ','])
            && !part.is_item()
            && !part.is_row;
        if !is_label {
            continue;
        }
        let below = parts[label + 1..].iter().take_while(|next| {
            next.begins_line
                && !next.begins_paragraph
                && next.indent > part.indent
                && !next.text.contains('\n')
                && !next.is_row
                && !next.is_item()
        });
        let values = below.count();
        if (1..=VALUE_LINES_MAX).contains(&values) {
            together(pieces, parts, label, label + 1..label + 1 + values, ANSWER_BYTES_WHOLE);
        }
    }
}

/// Lets items require what introduces them, and the other items if the list must be complete.
pub(super) fn lists(pieces: &mut Pieces, parts: &[Part]) {
    let mut at = 0;
    while at + 1 < parts.len() {
        let end = list_end(parts, at);
        if end <= at + 1 {
            at += 1;
            continue;
        }
        let mut item = at + 1;
        let mut parents: Vec<(usize, usize)> = Vec::new();
        for part in at + 1..end {
            let is_item = parts[part].is_item()
                || part == at + 1
                || !parts[at + 1].is_item() && parts[part].begins_line;
            if is_running(parts[part].text) && !parts[part].is_item() {
                continue;
            }
            if is_item {
                item = part;
                parents.retain(|(_, indent)| *indent < parts[part].indent);
                let parent = parents.last().map(|(parent, _)| *parent);
                pieces.need(part, parent.unwrap_or(at));
                // "Outside the home:" says nothing without the items below it.
                if let Some(parent) = parent.filter(|parent| parent + 1 == part) {
                    let is_out = |next: &usize| {
                        parts[*next].begins_line && parts[*next].indent <= parts[parent].indent
                    };
                    let end = (part..end).find(is_out).unwrap_or(part + 1);
                    together(pieces, parts, parent, part..end, ANSWER_BYTES_WHOLE);
                }
                parents.push((part, parts[part].indent));
            } else {
                pieces.need(part, item);
            }
        }
        // An introduction without an item says nothing.
        pieces.introduce(at, at + 1);
        let is_numbered = parts[at + 1].text.trim_start_matches('(').starts_with('1');
        if is_numbered || says_all(parts[at].text) {
            together(pieces, parts, at, at + 1..end, LIST_BYTES_WHOLE);
        }
        at = end;
    }
}

/// Lets the steps of a procedure require each other: "1. … 2. …" in one line or a line each. What a step says holds until a later
/// one changes it.
pub(super) fn steps(pieces: &mut Pieces, parts: &[Part]) {
    let number = |part: &Part| {
        let digits = part.text.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        part.text[..digits].parse::<usize>().ok().filter(|_| part.is_list_item())
    };
    let mut at = 0;
    while at < parts.len() {
        let Some(mut last) = number(&parts[at]) else {
            at += 1;
            continue;
        };
        let (mut end, mut count, mut are_sentences) = (at + 1, 1, true);
        while let Some(part) = parts.get(end).filter(|part| !(part.is_frame || part.is_row)) {
            match number(part) {
                Some(next) if next == last + 1 && !part.begins_paragraph => (last, count) = (next, count + 1),
                None if !part.begins_line => {}
                _ => break,
            }
            end += 1;
            are_sentences &= !parts[end - 1].ends_line || parts[end - 1].text.ends_with(['.', '!']);
        }
        // Lines with numbers can be names in an order of merit.
        let is_line = !parts[at + 1..end].iter().any(|part| part.begins_line);
        if count > 1 && (is_line || are_sentences && parts[at].text.starts_with("1")) {
            together(pieces, parts, at, at + 1..end, LIST_BYTES_WHOLE);
        }
        at = end;
    }
}

/// Lets the fields of a record require its first field, which mostly says whose they are: "Name: Ann", "Born: 1988". There are several
/// records whose first fields have the same name.
pub(super) fn records(pieces: &mut Pieces, parts: &[Part]) {
    let field = |at: usize| {
        let part = &parts[at];
        let (name, value) = part.text.split_once(": ")?;
        let is_field =
            part.begins_line && part.ends_line && !part.text.contains('\n') && name.len() <= FIELD_BYTES_MAX;
        (is_field && !value.trim().is_empty() && !part.is_frame && !part.is_row && !part.is_item())
            .then_some(name)
    };
    // The first field of each run of fields without a blank line, and the end of the run.
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let is_next = |next: usize| field(next).is_some() && (next == at || !parts[next].begins_paragraph);
        let end = (at..parts.len()).find(|&next| !is_next(next)).unwrap_or(parts.len());
        if end > at + 1 {
            runs.push((at, end));
        }
        at = end.max(at + 1);
    }
    let names: Vec<Option<&str>> = runs.iter().map(|&(first, _)| field(first)).collect();
    for (run, &(first, end)) in runs.iter().enumerate() {
        let is_record = run.checked_sub(1).is_some_and(|before| names[before] == names[run])
            || names.get(run + 1).is_some_and(|next| *next == names[run]);
        if is_record {
            (first + 1..end).for_each(|field| pieces.require_first(field, first));
            pieces.introduce(first, first + 1);
        }
    }
}

/// The most words of a label that says who speaks or what a line is about.
const LABEL_WORDS_MAX: usize = 4;

/// Lets the sentences behind a label require the one that it stands before: "Ann: I can do it. You get it on Friday." does not say who.
pub(super) fn labelled(pieces: &mut Pieces, parts: &[Part]) {
    for (at, part) in parts.iter().enumerate().filter(|(_, part)| part.begins_line && !part.is_item()) {
        let label = part.text.split_once(": ").map(|(label, _)| label.trim_end());
        let is_label = |label: &&str| {
            label.len() <= FIELD_BYTES_MAX
                && label.starts_with(char::is_uppercase)
                && label.split_whitespace().nth(LABEL_WORDS_MAX).is_none()
                && label
                    .chars()
                    .all(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '\'' | '’' | '.' | '&'))
        };
        if label.filter(is_label).is_some() {
            let rest = parts[at + 1..].iter().take_while(|next| !next.begins_line).count();
            (at + 1..at + 1 + rest).for_each(|next| pieces.need(next, at));
        }
    }
}

/// Returns whether a piece introduces a list, whose first item is the next piece.
pub(super) fn begins_list(parts: &[Part], intro: usize) -> bool {
    let (first, above) = (&parts[intro + 1], &parts[intro]);
    let is_free = |part: &Part| part.is_frame || part.is_row;
    let is_intro = !is_free(above) && !above.is_list_item() || above.introduces() && !is_free(above);
    is_intro
        && !is_free(first)
        && (first.is_list_item() && (above.introduces() || names_items(parts, intro))
            || above.introduces()
                && first.begins_line
                && !first.text.starts_with('>')
                && !above.has_label(Class::AnswerLabel)
                && !above.is_question())
}

/// Returns where the list ends that a piece introduces; the index behind the piece if it introduces none.
pub(super) fn list_end(parts: &[Part], intro: usize) -> usize {
    if !begins_list(parts, intro) {
        return intro + 1;
    }
    let (first, above) = (&parts[intro + 1], &parts[intro]);
    let has_marker = first.is_list_item();
    let is_numbered = |part: &Part| part.text.starts_with(|c: char| c.is_ascii_digit());
    // A sub-list ends with its indent.
    let is_sub = above.is_list_item() && above.begins_line;
    let mut end = intro + 1;
    while let Some(part) = parts.get(end).filter(|part| !(part.is_frame || part.is_row)) {
        let continues = if has_marker {
            // Numbers below bullets are another list.
            part.is_list_item() && !(part.begins_paragraph && is_numbered(part) != is_numbered(first))
                || !part.begins_line
                || part.indent > first.indent && !part.begins_paragraph
        } else {
            let is_line =
                part.begins_line && !part.begins_paragraph && part.text.len() <= 2 * TITLE_BYTES_MAX;
            (end == intro + 1 || is_line) && !part.introduces() || !part.begins_line
        };
        let is_out = is_sub && part.begins_line && part.indent <= above.indent;
        if !continues || is_out {
            break;
        }
        end += 1;
    }
    end
}

/// Returns whether a line without a colon introduces the items below it, of which there are several.
fn names_items(parts: &[Part], intro: usize) -> bool {
    let (text, next) = (parts[intro].text, parts.get(intro + 2));
    let is_line = !text.contains('\n') && !text.ends_with(['.', '!', '?']);
    is_line && next.is_some_and(|next| next.is_list_item() || !next.begins_line)
}

/// Returns whether an introduction says that all of its items belong together.
fn says_all(intro: &str) -> bool {
    has_word(Class::AllOf, intro)
}
