//! Bonds: which sentence or line of running text is of no use without which other one. An answer needs its question, an item its
//! introduction, a text its heading, and "That is wrong." the sentence that it refers to. Knows where lines begin and a few words; must not
//! know what the text is about.

use std::ops::Range;

use super::{Pieces, markdown::is_item};
use crate::domain::Kind;
use crate::text::lines::has_leader;

/// The longest heading without a mark of its own, in bytes and words.
const TITLE_BYTES_MAX: usize = 80;
const TITLE_WORDS_MAX: usize = 10;

/// The longest heading that ends with a full stop, on a line of its own or at the start of a paragraph, in words.
const STOPPED_TITLE_WORDS_MAX: usize = 5;

/// The longest answer that says nothing without its question, in words.
const SHORT_ANSWER_WORDS_MAX: usize = 3;

/// A list that must be complete is kept together with its introduction up to this length, in bytes.
const LIST_BYTES_WHOLE: usize = 450;

/// An answer up to this length is kept together with its question, in bytes.
const ANSWER_BYTES_WHOLE: usize = 160;

/// How many pieces below a question still answer it.
const ANSWER_PIECES_MAX: usize = 8;

/// The most lines of the end of one page and the beginning of the next, and the longest of them, in bytes.
const RUNNING_LINES_MAX: usize = 4;
const RUNNING_BYTES_MAX: usize = 120;

/// How far above a footnote its marks are looked for, in pieces, and how many of them are found.
const FOOTNOTE_REACH: usize = 60;
const FOOTNOTE_MARKS_MAX: usize = 8;

/// The longest first word that refers to something, in bytes.
const FIRST_WORD_BYTES_MAX: usize = 12;

/// The longest name of a field of a record, in bytes.
const FIELD_BYTES_MAX: usize = 40;

/// The most sentences in a row that refer each to the one before it, or questions that go on with the one before.
const CHAIN_MAX: usize = 4;

/// How far back the subject of `It` is looked for, in pieces.
const SUBJECT_REACH: usize = 4;

/// One question in so many pieces makes a text a list of questions.
const PIECES_PER_QUESTION_MAX: usize = 6;

/// Labels of questions and of answers, without the number and the colon after them.
const QUESTION_LABELS: [&str; 8] = ["q", "question", "frage", "f", "pregunta", "pergunta", "domanda", "p"];
const ANSWER_LABELS: [&str; 9] =
    ["a", "answer", "antwort", "respuesta", "resposta", "réponse", "risposta", "r", "ans"];

/// First words that refer to the sentence before, and those that refer to a subject further up.
const REFERRING: [&str; 14] = [
    "that",
    "this",
    "these",
    "those",
    "such",
    "then",
    "otherwise",
    "dann",
    "das",
    "dies",
    "diese",
    "dieser",
    "dieses",
    "sonst",
];
const REFERRING_PHRASES: [&str; 9] = [
    "after that",
    "because of that",
    "before that",
    "bis dahin",
    "for that",
    "for this",
    "in that case",
    "in this case",
    "until then",
];
const SUBJECTS: [&str; 3] = ["it", "they", "it's"];

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

/// Lets the pieces of running text require what they need to be understood. The pieces must be in the order of the text.
pub(super) fn bind(pieces: &mut Pieces, text: &str, kind: Kind) {
    // A sentence is not scored as the one that it refers to.
    for piece in &mut pieces.list {
        piece.contexts = if matches!(kind, Kind::Prose | Kind::Pdf) { 0 } else { piece.requires.len() };
    }
    contents(pieces, text);
    let parts = parts(pieces, text);
    // The readers of other kinds know their headings.
    if kind == Kind::Prose {
        titles(pieces, &parts);
    }
    questions(pieces, &parts);
    lists(pieces, &parts);
    steps(pieces, &parts);
    records(pieces, &parts);
    captions(pieces, &parts);
    interrupted(pieces, &parts);
    footnotes(pieces, &parts);
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
    /// Whether the line ends behind it.
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
        self.bare().ends_with(['?', '？', '؟']) || self.has_label(&QUESTION_LABELS)
    }

    /// Whether the text begins with a label and a colon, as `Q:`, `Q 12:` or `Frage:`.
    fn has_label(&self, labels: &[&str]) -> bool {
        let bare = self.bare();
        let letters = bare.find(|c: char| !c.is_alphabetic()).unwrap_or(bare.len());
        let (label, rest) = bare.split_at(letters);
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ' || c == '*');
        // "a)" and "F." number items and shorten names.
        let is_numbered = bare[letters..].starts_with(|c: char| c.is_ascii_digit());
        let has_colon = rest.starts_with(':') || is_numbered && rest.starts_with(['.', ')']);
        has_colon && labels.contains(&&*label.to_lowercase())
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
            self.bare().starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit())
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

    /// Whether the text is such a line with a full stop: "Help with the cost."
    fn is_stopped_title(&self) -> bool {
        self.is_short_line()
            && self.text.ends_with('.')
            && self.is_within(STOPPED_TITLE_WORDS_MAX)
            && !self.is_item()
    }

    /// Whether the text is a label in front of the sentences of its paragraph: "Refunds. The full price …".
    fn is_label(&self) -> bool {
        self.begins_paragraph
            && !self.ends_line
            && self.text.ends_with('.')
            && self.is_within(STOPPED_TITLE_WORDS_MAX)
    }

    /// Whether the text is an item of a list and no numbered heading.
    fn is_list_item(&self) -> bool {
        self.is_item() && !is_clause(self.bare())
    }
}

/// Returns how many levels the number has with which a text begins: 1 for `2. Rent`, 2 for `4.3 Release` and `D.2 Extension`.
fn levels(text: &str) -> Option<usize> {
    let mut words = text.split_whitespace();
    let first = words.next()?;
    let number = first.trim_start_matches('§').trim_end_matches('.');
    // "140 g of butter" begins with an amount.
    let is_marked = first.contains(['.', '§']) || words.next()?.starts_with(char::is_uppercase);
    let is_level = |level: &str| {
        matches!(level.len(), 1..=3) && level.bytes().all(|byte| byte.is_ascii_digit())
            || level.len() == 1 && level.starts_with(|c: char| c.is_ascii_uppercase())
    };
    let is_number =
        is_marked && number.contains(|c: char| c.is_ascii_digit()) && number.split('.').all(is_level);
    is_number.then(|| number.split('.').count())
}

/// Returns whether a text is the number of a clause and its name: "4.3 Early release."
fn is_clause(text: &str) -> bool {
    let is_short = text.split_whitespace().count() <= TITLE_WORDS_MAX && text.len() <= TITLE_BYTES_MAX;
    // "1.5 cups of flour" begins with an amount.
    let is_named =
        text.split_whitespace().nth(1).is_none_or(|word| word.starts_with(|c: char| c.is_uppercase()));
    is_short && is_named && levels(text).is_some_and(|levels| levels > 1)
}

fn parts<'a>(pieces: &Pieces, text: &'a str) -> Vec<Part<'a>> {
    let mut end = 0;
    let mut found = Vec::with_capacity(pieces.list.len());
    for (at, piece) in pieces.list.iter().enumerate() {
        let gap = &text[end.min(piece.bytes.start)..piece.bytes.start];
        let blanks = gap.len() - gap.rfind('\n').map_or(0, |at| at + 1);
        let after = pieces.list.get(at + 1).map_or(text.len(), |next| next.bytes.start.max(piece.bytes.end));
        found.push(Part {
            text: piece.bytes.of(text),
            begins_line: at == 0 || gap.contains('\n'),
            begins_paragraph: at == 0 || gap.matches('\n').count() > 1,
            indent: blanks + (piece.bytes.len() - piece.bytes.of(text).trim_start().len()),
            ends_line: after == text.len() || text[piece.bytes.end..after].contains('\n'),
            is_frame: piece.is_frame,
            is_row: piece.is_row,
        });
        end = piece.bytes.end;
    }
    found
}

/// Makes the lines of a table of contents frames, which are never chosen: the section itself says what a reader looks for.
fn contents(pieces: &mut Pieces, text: &str) {
    const LINES_MIN: usize = 3;
    let page = |piece: &super::Piece| {
        let line = piece.bytes.of(text);
        let number = line.rsplit([' ', '.']).next().filter(|_| has_leader(line))?;
        number.parse::<u32>().ok()
    };
    let pages: Vec<Option<u32>> = pieces.list.iter().map(page).collect();
    let mut at = 0;
    while at < pages.len() {
        let rises = |next: usize| pages[next].is_some() && (next == at || pages[next] >= pages[next - 1]);
        let end = (at..pages.len()).find(|&next| !rises(next)).unwrap_or(pages.len());
        if end - at >= LINES_MIN {
            pieces.list[at..end].iter_mut().for_each(|piece| piece.is_frame = true);
        }
        at = end.max(at + 1);
    }
}

/// Lets sentences require the line above them that names them.
fn titles(pieces: &mut Pieces, parts: &[Part]) {
    let is_stopped = |at: &usize| {
        let next = parts.get(at + 1);
        parts[*at].is_stopped_title()
            && next.is_some_and(|next| next.begins_line && next.text.len() > parts[*at].text.len())
    };
    let is_label =
        |at: &usize| parts[*at].is_label() && parts.get(at + 1).is_some_and(|next| !next.begins_line);
    let has_labels = (0..parts.len()).filter(is_label).nth(1).is_some();
    let has_stopped = (0..parts.len()).filter(is_stopped).nth(1).is_some();
    // The headings above, each with its levels; one without a number has none.
    let mut above: Vec<(usize, usize)> = Vec::new();
    let mut label: Option<usize> = None;
    for (at, part) in parts.iter().enumerate() {
        if part.begins_paragraph {
            label = None;
        }
        if part.is_frame || part.is_row {
            above.clear();
            continue;
        }
        let own = levels(part.bare());
        let could_be = part.is_title()
            || has_stopped && is_stopped(&at)
            || own == Some(1) && part.is_short_line() && !part.bare().ends_with(['.', ';', ',']);
        let next =
            parts.get(at + 1).filter(|next| could_be && next.begins_line && list_end(parts, at) == at + 1);
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
                pieces.require(at, *heading);
            }
            pieces.require(at, at + 1);
            above.push((at, own.unwrap_or(0)));
            continue;
        }
        if part.is_title() && own.is_none() {
            above.clear();
        }
        if let Some((heading, _)) = above.last() {
            pieces.require(at, *heading);
        }
        if let Some(label) = label {
            pieces.require(at, label);
        }
        if has_labels && is_label(&at) {
            label = Some(at);
            pieces.require(at, at + 1);
        }
    }
}

/// Lets the sentences of a caption require its number and each other: "Figure 4. Light at the canopy. The line is …".
fn captions(pieces: &mut Pieces, parts: &[Part]) {
    const NAMES: [&str; 9] =
        ["abb.", "abbildung", "fig.", "figure", "tab.", "tabelle", "table", "tableau", "tabla"];
    for at in 0..parts.len() {
        let mut words = parts[at].text.split_whitespace();
        let is_name = words.next().is_some_and(|word| NAMES.contains(&&*word.to_lowercase()));
        let has_number = words.next().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        if is_name && has_number && words.next().is_none() && parts[at].begins_line {
            let end = (at + 1..parts.len()).find(|&next| parts[next].begins_line).unwrap_or(parts.len());
            together(pieces, parts, at, at + 1..end, LIST_BYTES_WHOLE);
        }
    }
}

/// Lets the two halves of a sentence require each other that the end of a page divides: a line such as its number is between them.
fn interrupted(pieces: &mut Pieces, parts: &[Part]) {
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
        let is_next =
            |part: &Part| goes_on(part, between > 0) || is_cut && !part.is_item() && part.begins_line;
        if parts.get(next).is_some_and(is_next) && joined[at] < CHAIN_MAX {
            pieces.require(at, next);
            pieces.require(next, at);
            joined[next] = joined[at] + 1;
        }
    }
}

/// Returns whether a text is the head or the foot of a page: each line has a number alone or at its end, a bar, wide gaps or capitals
/// only.
fn is_running(text: &str) -> bool {
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
fn footnotes(pieces: &mut Pieces, parts: &[Part]) {
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
            let marked =
                |(at, _): (usize, &str)| at > 0 && parts[*other].text[..at].ends_with([' ', '\u{a0}']);
            !parts[*other].is_frame && parts[*other].text.match_indices(mark).any(marked)
        };
        let marked: Vec<usize> =
            (note.saturating_sub(FOOTNOTE_REACH)..note).filter(has_mark).take(FOOTNOTE_MARKS_MAX).collect();
        for &other in &marked {
            pieces.require(other, note);
        }
        if let &[other] = &*marked {
            pieces.require(note, other);
        }
    }
}

/// Lets answers require their questions, and questions their answers.
fn questions(pieces: &mut Pieces, parts: &[Part]) {
    let questions: Vec<usize> =
        (0..parts.len()).filter(|&at| parts[at].is_question() && !parts[at].is_row).collect();
    let has_labels = questions.iter().any(|&at| parts[at].has_label(&QUESTION_LABELS))
        && parts.iter().any(|part| part.has_label(&ANSWER_LABELS));
    let lines = questions.iter().filter(|&&at| parts[at].begins_line).count();
    let is_dense = questions.len() * PIECES_PER_QUESTION_MAX >= parts.len();
    let is_list = has_labels || is_dense && (lines >= 2 || questions.len() >= 3);
    let mut follows = 0;
    for (index, &question) in questions.iter().enumerate() {
        let next = questions.get(index + 1).copied().unwrap_or(parts.len());
        // "Frage:" on a line of its own.
        if parts[question].introduces() && next == question + 1 {
            pieces.require(next.min(parts.len() - 1), question);
            pieces.require(question, next.min(parts.len() - 1));
            continue;
        }
        let end = answer_end(parts, question, next);
        let answer = question + 1..end;
        if answer.is_empty() {
            continue;
        }
        if !is_list {
            // A question among other sentences needs no answer, but "No." needs its question.
            if parts[question + 1].is_within(SHORT_ANSWER_WORDS_MAX) {
                pieces.require(question + 1, question);
            }
            continue;
        }
        answer.clone().for_each(|part| pieces.require(part, question));
        pieces.require(question, question + 1);
        together(pieces, parts, question, answer, ANSWER_BYTES_WHOLE);
        // "I moved. What then?"
        let sentences = (0..question)
            .rev()
            .take_while(|&before| !parts[before + 1].begins_line && !parts[before].is_question());
        sentences.for_each(|before| pieces.require(question, before));
        let asks = parts[question].bare();
        let asks = if parts[question].has_label(&QUESTION_LABELS) {
            asks.split_once(':').map_or(asks, |(_, asks)| asks.trim())
        } else {
            asks
        };
        let refers = ["and", "und", "or", "oder", "then"].contains(&&*first_word(asks));
        follows = if refers { follows + 1 } else { 0 };
        if let Some(before) = index
            .checked_sub(1)
            .map(|before| questions[before])
            .filter(|_| (1..=CHAIN_MAX).contains(&follows))
        {
            pieces.require(question, before);
        }
    }
}

/// Returns where the answer of a question ends: before the next question, a heading, or a paragraph that is far below.
fn answer_end(parts: &[Part], question: usize, next: usize) -> usize {
    let in_line = !parts[question].ends_line;
    let end = (question + 1..next.min(question + 1 + ANSWER_PIECES_MAX)).find(|&at| {
        let part = &parts[at];
        let is_apart = part.begins_paragraph && at > question + 1 && (in_line || !parts[at - 1].introduces());
        part.is_frame || part.is_row || is_apart || part.is_title()
    });
    end.unwrap_or(next.min(question + 1 + ANSWER_PIECES_MAX))
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
        pieces.require(before, at);
        pieces.require(at, first);
        before = at;
    }
    pieces.require(before, first);
}

/// Lets items require what introduces them, and the other items if the list must be complete.
fn lists(pieces: &mut Pieces, parts: &[Part]) {
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
fn steps(pieces: &mut Pieces, parts: &[Part]) {
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
fn records(pieces: &mut Pieces, parts: &[Part]) {
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
fn list_end(parts: &[Part], intro: usize) -> usize {
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

fn first_word(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '’')).unwrap_or(text.len());
    // No word that is looked for is longer.
    if end > FIRST_WORD_BYTES_MAX { String::new() } else { text[..end].to_lowercase().replace('’', "'") }
}

/// Returns whether a sentence begins with words that refer to the sentence before it. "This agreement" at the start of a paragraph
/// does not, nor does the German article in "Das Wasser".
fn refers(text: &str, begins_paragraph: bool) -> bool {
    let word = first_word(text);
    // The words that are looked for are ASCII, so their length is that in the text.
    let next = text.get(word.len()..).unwrap_or_default().trim_start();
    let is_article = word == "das" && next.starts_with(char::is_uppercase);
    let has_noun =
        begins_paragraph && ["this", "these", "those", "such", "diese", "dieser", "dieses"].contains(&&*word);
    let begins = |phrase: &str| {
        let is_whole = !text[phrase.len()..].starts_with(char::is_alphanumeric);
        is_whole && text[..phrase.len()].eq_ignore_ascii_case(phrase)
    };
    let phrases = REFERRING_PHRASES
        .iter()
        .filter(|phrase| text.is_char_boundary(phrase.len()) && text.len() >= phrase.len());
    REFERRING.contains(&&*word) && !is_article && !has_noun
        || phrases.into_iter().any(|phrase| begins(phrase))
}

/// Returns whether a sentence begins with words that refer to something before it.
pub(super) fn is_dependent(text: &str) -> bool {
    refers(text, false) || SUBJECTS.contains(&&*first_word(text))
}

/// Lets a sentence that begins with `That` or `It` require the sentence that it refers to.
fn references(pieces: &mut Pieces, parts: &[Part]) {
    let is_before = |at: &usize| !(parts[*at].is_frame || parts[*at].is_row);
    // `[part]`: how many sentences in a row refer to the one before them.
    let mut chain = vec![0; parts.len()];
    for at in 1..parts.len() {
        let is_plain = !parts[at].is_frame && !parts[at].is_row && !parts[at].is_item();
        let Some(before) = Some(at - 1).filter(is_before).filter(|_| is_plain) else { continue };
        if SUBJECTS.contains(&&*first_word(parts[at].bare())) {
            let subject = (at.saturating_sub(SUBJECT_REACH)..at).rev().take_while(is_before);
            let subject =
                subject.into_iter().find(|&other| !SUBJECTS.contains(&&*first_word(parts[other].bare())));
            pieces.require(at, subject.unwrap_or(before));
        } else if refers(parts[at].bare(), parts[at].begins_paragraph) && chain[before] < CHAIN_MAX {
            chain[at] = chain[before] + 1;
            pieces.require(at, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, tests::check};

    #[test]
    fn what_needs_another_piece_requires_it() {
        let check = |name: &str, text: &str, expect: &[&str]| check(name, Kind::Prose, text, expect);
        check(
            "a table of contents",
            "1 Use ........ 3\n2 Storage ........ 7\n3 Repair ........ 9\nThe pump is red.",
            &["F 1 Use ........ 3", "F 2 Storage ........ 7", "F 3 Repair ........ 9", "The pump is red."],
        );
        check("sentences alone", "The tide rises. The moon pulls.", &[]);
        check("a reference", "Rust is a fungus. That is wrong.", &["Rust is a fungus.", "0 That is wrong."]);
        check(
            "a subject further up",
            "The pump is old. It leaks. It is loud.",
            &["The pump is old.", "0 It leaks.", "0 It is loud."],
        );
        check(
            "questions and answers",
            "Q: May I bring a dog? A: No.\nQ: May I smoke? A: Outside.",
            &["1 Q: May I bring a dog?", "0 A: No.", "3 Q: May I smoke?", "2 A: Outside."],
        );
        check(
            "a clause and its text",
            "4.1 Notice\nEither side may end it.\n4.2 Rent\nIt is paid monthly.",
            &["1 4.1 Notice", "0 Either side may end it.", "3 4.2 Rent", "2 It is paid monthly."],
        );
        check(
            "all of a list",
            "You must bring:\n- a towel\n- a key",
            &["1 You must bring:", "0,2 - a towel", "0 - a key"],
        );
        check("one of a list", "We sell:\n- towels\n- keys", &["1 We sell:", "0 - towels", "0 - keys"]);
        check(
            "a label of a paragraph",
            "Refunds. The price is paid back.\n\nHelp with costs. Write to us.",
            &["1 Refunds.", "0 The price is paid back.", "3 Help with costs.", "2 Write to us."],
        );
    }
}
