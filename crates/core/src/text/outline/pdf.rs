//! The pieces of a page as programs extract it from a PDF: rows of tables whose cells stand one a line, rows with their
//! cells in one line, headings and prose. Knows which lines are cells and which cells belong to which label. Must not
//! know what a label means.
//!
//! ```text
//! Year ended March 31,      a header: lines that say what the columns are
//! 2024
//! 2023
//! Operating activities      a heading
//! Net income                a row: its label, and all its cells
//! $
//! 1,204
//! $
//! 1,118
//! ```
//!
//! A row is one piece, so that its label and its numbers are kept together or not at all. It requires the heading above
//! it and the header of its table.

use super::{Pieces, Sentences, line::Line, line::lines, line::span};
use crate::domain::ByteRange;

/// The longest line that is a heading or the beginning of a label, in bytes.
const LABEL_BYTES_MAX: usize = 90;

/// The most lines of one label.
const LABEL_LINES_MAX: usize = 4;

/// The most lines above a row of years that belong to the header.
const HEADER_LINES_MAX: usize = 4;

/// The least rows of a page, and the least share of its lines that are cells or rows.
const ROWS_MIN: usize = 3;
const CELLS_SHARE: f64 = 0.25;

/// What a line of a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Blank,
    /// Nothing but cells: numbers, currencies, brackets, dashes.
    Cells,
    /// Nothing but years: the names of columns.
    Years,
    /// A label, and at least two cells after it.
    Row,
    Text,
}

/// Returns whether a text is a page with tables of cells.
pub(super) fn is_page(lines: &[Line]) -> bool {
    let kinds: Vec<LineKind> = lines.iter().map(|line| kind_of(line.text)).collect();
    let cells = kinds.iter().filter(|kind| matches!(kind, LineKind::Cells | LineKind::Row)).count();
    let begins_row = |pair: &&[LineKind]| pair[0] == LineKind::Text && pair[1] == LineKind::Cells;
    let split_rows = kinds.windows(2).filter(begins_row).count();
    let rows = split_rows + kinds.iter().filter(|kind| **kind == LineKind::Row).count();
    // Cells in a column of their own are a sign that nothing else has; rows in one line are also found in other tables.
    split_rows >= ROWS_MIN.min(rows) && rows >= ROWS_MIN && cells as f64 >= CELLS_SHARE * lines.len() as f64
}

/// Returns the pieces of a page.
pub(super) fn outline(text: &str, sentences: &Sentences) -> Pieces {
    let lines = lines(text);
    let kinds: Vec<LineKind> = lines.iter().map(|line| kind_of(line.text)).collect();
    let mut page = Page { text, lines: &lines, kinds: &kinds, sentences, pieces: Pieces::default(), header: None, heading: None };
    let mut at = 0;
    // The lines of text that are not in a piece yet begin here.
    let mut open = 0;
    while at < lines.len() {
        match kinds[at] {
            LineKind::Blank | LineKind::Text => at += 1,
            LineKind::Years => {
                let first = page.header_start(open, at);
                let end = page.end_of(at, LineKind::Years);
                page.text(open, first);
                let header = page.pieces.frame(span(&lines[first..end]), &[]);
                (page.header, page.heading) = (Some(header), None);
                (at, open) = (end, end);
            }
            LineKind::Cells | LineKind::Row => {
                let first = page.label_start(open, at);
                page.text(open, first);
                let end = if kinds[at] == LineKind::Row { at + 1 } else { page.end_of(at, LineKind::Cells) };
                page.row(first, end);
                (at, open) = (end, end);
            }
        }
    }
    page.text(open, lines.len());
    page.pieces
}

/// A page while it is read.
struct Page<'a, 'b> {
    text: &'a str,
    lines: &'a [Line<'a>],
    kinds: &'a [LineKind],
    sentences: &'a Sentences<'b>,
    pieces: Pieces,
    /// The header of the table, and the heading in it, that rows require.
    header: Option<usize>,
    heading: Option<usize>,
}

impl Page<'_, '_> {
    /// Returns the line after the last of the lines of this kind that follow each other from `at` on.
    fn end_of(&self, at: usize, kind: LineKind) -> usize {
        let is_other = |line: &LineKind| *line != kind && *line != LineKind::Blank;
        let next = self.kinds[at..].iter().position(is_other).map_or(self.kinds.len(), |length| at + length);
        let last = (at..next).rev().find(|&line| self.kinds[line] == kind);
        last.map_or(next, |last| last + 1)
    }

    /// Returns the first line of the label of the cells at `at`: the text above them, and the lines that it continues.
    fn label_start(&self, open: usize, at: usize) -> usize {
        let is_text = |&line: &usize| self.kinds[line] == LineKind::Text;
        let own = self.kinds[at] == LineKind::Row;
        let mut first = at;
        if !own {
            match (open..at).rev().find(is_text) {
                Some(line) => first = line,
                None => return at,
            }
        }
        for _ in 1..LABEL_LINES_MAX {
            let Some(above) = (open..first).rev().find(is_text) else { break };
            if above + 1 != first || !continues(self.lines[above].text, self.lines[first].text) {
                break;
            }
            first = above;
        }
        first
    }

    /// Returns the first line of a header whose years begin at `at`: the lines above them that say what the numbers are.
    fn header_start(&self, open: usize, at: usize) -> usize {
        let mut first = at;
        for line in (open..at).rev().take(2 * HEADER_LINES_MAX) {
            match self.kinds[line] {
                LineKind::Blank => {}
                _ if at - line <= 2 * HEADER_LINES_MAX && names_columns(self.lines[line].text) => first = line,
                _ => break,
            }
        }
        first
    }

    /// Adds lines of text: prose by sentences, and a last short line as a heading.
    fn text(&mut self, from: usize, to: usize) {
        let Some(last) = (from..to).rev().find(|&line| self.kinds[line] != LineKind::Blank) else { return };
        let line = self.lines[last];
        let trimmed = line.text.trim();
        let is_alone = last == from || !continues(self.lines[last - 1].text, line.text);
        let is_heading = to < self.lines.len() && is_alone && trimmed.len() <= LABEL_BYTES_MAX && !trimmed.ends_with(['.', ';', ',']);
        let prose_to = if is_heading { last } else { last + 1 };
        if let Some(first) = (from..prose_to).find(|&line| self.kinds[line] != LineKind::Blank) {
            let part = span(&self.lines[first..prose_to]);
            if !part.is_empty() {
                self.pieces.prose(self.text, part, &[], self.sentences);
                self.heading = None;
            }
        }
        if is_heading {
            let requires: Vec<usize> = self.header.into_iter().collect();
            self.heading = Some(self.pieces.frame(line.trimmed(), &requires));
        }
    }

    fn row(&mut self, first: usize, end: usize) {
        let requires: Vec<usize> = self.header.into_iter().chain(self.heading).collect();
        self.pieces.row(ByteRange::new(self.lines[first].trimmed().start, span(&self.lines[first..end]).end), &requires);
    }
}

/// Returns whether a label or a sentence of `line` goes on in the next line.
fn continues(line: &str, next: &str) -> bool {
    let (line, next) = (line.trim(), next.trim());
    let begins_small = next.starts_with(|c: char| c.is_lowercase() || c == '(');
    let is_open = line.ends_with([',', '-', '–', '—', '&', '/'])
        || ["and", "or", "of", "to", "the", "for", "in", "from", "by", "on", "with", "net"]
            .iter()
            .any(|word| line.rsplit(' ').next() == Some(*word));
    !line.is_empty() && !next.is_empty() && (begins_small || is_open) && !line.ends_with([':', '.'])
}

/// Returns whether a line above years says what the columns are: a period, a date, or a unit.
fn names_columns(line: &str) -> bool {
    let line = line.trim().to_lowercase();
    let words = [
        "year", "month", "quarter", "period", "week", "ended", "ending", "fiscal", "as of", "million", "thousand", "billion",
        "except", "per share", "unaudited", "audited", "january", "february", "march", "april", "may ", "june", "july", "august",
        "september", "october", "november", "december", "in $", "usd", "eur", "change", "note",
    ];
    line.len() <= LABEL_BYTES_MAX && words.iter().any(|word| line.contains(word))
}

fn kind_of(line: &str) -> LineKind {
    let line = line.trim();
    if line.is_empty() {
        return LineKind::Blank;
    }
    let mut words = line.split_whitespace();
    if line.split_whitespace().all(is_year) {
        return LineKind::Years;
    }
    if words.clone().all(is_cell) {
        return LineKind::Cells;
    }
    // A label, and cells to the end of the line. Points lead from a label to its number.
    let numbers = words.clone().rev().take_while(|word| is_cell(word)).filter(|word| is_number(word)).count();
    let begins = words.next().is_some_and(|word| word.contains(char::is_alphabetic));
    let is_led = line.contains("....") || line.contains(". . .");
    if begins && (numbers >= 2 || numbers == 1 && (is_led || has_wide_gap(line))) { LineKind::Row } else { LineKind::Text }
}

/// Returns whether several blanks stand before the last cell of a line.
fn has_wide_gap(line: &str) -> bool {
    let label = line.trim_end_matches(|c: char| !c.is_whitespace());
    label.ends_with("   ") || label.ends_with('\t')
}

/// Returns whether a word is a cell or a part of one: a number, a currency, a bracket, a dash, a percent sign, or points.
fn is_cell(word: &str) -> bool {
    let marks = ["$", "€", "£", "¥", "%", "(", ")", ")%", "—", "–", "-", "--", "*", "n/a", "n.a.", "N/A", "NM", "nm", "US$", "C$", "A$", "R$", "Rs."];
    marks.contains(&word) || is_number(word) || word.bytes().all(|byte| byte == b'.')
}

/// Returns whether a word is a number as tables write it: `1,204`, `(370)`, `$5.2`, `12.5%`, `-3`, `1 204`, `1.204,50`.
fn is_number(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| "()$€£¥%+-–—*".contains(c));
    let digits = bare.bytes().filter(u8::is_ascii_digit).count();
    digits > 0 && bare.bytes().all(|byte| byte.is_ascii_digit() || b".,'x".contains(&byte)) && !bare.ends_with(['.', ','])
}

/// Returns whether a word is a year.
fn is_year(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| "()*,".contains(c));
    bare.len() == 4 && (bare.starts_with("19") || bare.starts_with("20")) && bare.bytes().all(|byte| byte.is_ascii_digit())
}
