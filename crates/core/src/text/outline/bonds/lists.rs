//! Lists: items and what introduces them, steps, and the fields of records.

use super::pages::{RUNNING_LINES_MAX, is_running};
use super::questions::ANSWER_LABELS;
use super::{ANSWER_BYTES_WHOLE, LIST_BYTES_WHOLE, Part, Pieces, TITLE_BYTES_MAX, together};

/// The longest name of a field of a record, in bytes.
const FIELD_BYTES_MAX: usize = 40;

/// Words by which an introduction says that all of its items belong together.
const ALL_OF: [&str; 28] = [
    "all",
    "alle",
    "allen",
    "bedingungen",
    "both",
    "bring",
    "conditions",
    "each",
    "every",
    "folgende",
    "following",
    "have",
    "if",
    "include",
    "includes",
    "must",
    "mitbringen",
    "muss",
    "müssen",
    "need",
    "needs",
    "nur",
    "provided",
    "required",
    "requires",
    "sofern",
    "unless",
    "wenn",
];

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
                pieces.require(part, parent.unwrap_or(at));
                // "Bicycles outside the home:" says nothing without the limits below it.
                if let Some(parent) = parent.filter(|parent| parent + 1 == part) {
                    let end = (part..end)
                        .find(|&next| parts[next].begins_line && parts[next].indent <= parts[parent].indent);
                    together(pieces, parts, parent, part..end.unwrap_or(part + 1), ANSWER_BYTES_WHOLE);
                }
                parents.push((part, parts[part].indent));
            } else {
                pieces.require(part, item);
            }
        }
        // An introduction without an item says nothing.
        pieces.require(at, at + 1);
        let is_numbered = parts[at + 1].text.trim_start_matches('(').starts_with('1');
        if is_numbered || says_all(parts[at].text) {
            together(pieces, parts, at, at + 1..end, LIST_BYTES_WHOLE);
        }
        at = end.max(at + 1);
    }
}

/// Lets the steps "1. … 2. …" in one line require each other.
pub(super) fn steps(pieces: &mut Pieces, parts: &[Part]) {
    let is_step = |part: &Part| part.is_list_item() && part.text.starts_with(|c: char| c.is_ascii_digit());
    let mut at = 0;
    while at + 1 < parts.len() {
        let end = (at + 1..parts.len())
            .find(|&next| parts[next].begins_line || !is_step(&parts[next]))
            .unwrap_or(parts.len());
        if is_step(&parts[at]) && end > at + 1 {
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
            (first + 1..end).for_each(|field| pieces.require(field, first));
        }
    }
}

/// Returns where the list ends that a piece introduces; the index behind the piece if it introduces none.
pub(super) fn list_end(parts: &[Part], intro: usize) -> usize {
    let (first, above) = (&parts[intro + 1], &parts[intro]);
    let is_free = |part: &Part| part.is_frame || part.is_row;
    let is_intro = !is_free(above) && !above.is_list_item() || above.introduces() && !is_free(above);
    let has_marker = first.is_list_item();
    let begins = is_intro
        && !is_free(first)
        && (has_marker && (above.introduces() || names_items(parts, intro))
            || above.introduces()
                && first.begins_line
                && !first.text.starts_with('>')
                && !above.has_label(&ANSWER_LABELS)
                && !above.is_question());
    if !begins {
        return intro + 1;
    }
    // A sub-list ends with its indent.
    let is_sub = above.is_list_item() && above.begins_line;
    let mut end = intro + 1;
    while let Some(part) = parts.get(end).filter(|part| !is_free(part)) {
        let continues = match has_marker {
            true => {
                part.is_list_item()
                    || !part.begins_line
                    || part.indent > first.indent && !part.begins_paragraph
            }
            false => {
                let is_line =
                    part.begins_line && !part.begins_paragraph && part.text.len() <= 2 * TITLE_BYTES_MAX;
                (end == intro + 1 || is_line) && !part.introduces() || !part.begins_line
            }
        };
        let is_out = is_sub && part.begins_line && part.indent <= above.indent;
        if !continues || is_out {
            // A list can go on below the end of a page.
            let rest = &parts[end..];
            let between =
                rest.iter().take(RUNNING_LINES_MAX).take_while(|part| is_running(part.text)).count();
            match rest.get(between).filter(|next| between > 0 && has_marker && next.is_list_item()) {
                Some(_) => end += between,
                None => break,
            }
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
    let mut words = intro.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    words.any(|word| ALL_OF.contains(&&*word))
}
