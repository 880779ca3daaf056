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

use super::{Pieces, Role, Sentences};
use crate::lexicon::{Class, has, is, is_within};
use crate::line::{Line, lines, span};
use crate::range::ByteRange;

/// The longest line that is a heading or the beginning of a label, in bytes.
const LABEL_BYTES_MAX: usize = 90;

const LABEL_LINES_MAX: usize = 4;

/// The most lines above a row of years that belong to the header.
const HEADER_LINES_MAX: usize = 4;

/// The most lines directly above years that name other columns.
const COLUMNS_NAMED_MAX: usize = 2;

/// The least rows of a page, and the least share of its lines that are cells or rows.
const ROWS_MIN: usize = 3;
const CELLS_SHARE: f64 = 0.12;

const CAPTION_PIECES_MAX: usize = 3;

/// The longest name of a column that stands in a line of its own, in bytes.
const COLUMN_BYTES_MAX: usize = 32;

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
    let kinds = kinds_of(lines);
    let has_number = |line: &Line| line.text.split_whitespace().any(is_number);
    // Cells below a label are a sign that nothing else has; rows in one line are also found in other tables. Lines without
    // a number, such as a bracket, are also found in code.
    let (mut cells, mut rows, mut split_rows) = (0, 0, 0);
    let mut is_below_label = false;
    for (line, kind) in lines.iter().zip(&kinds) {
        match kind {
            LineKind::Blank | LineKind::Years => {}
            LineKind::Text => is_below_label = true,
            LineKind::Row => (cells, rows) = (cells + 1, rows + 1),
            LineKind::Cells if !has_number(line) => {}
            LineKind::Cells => {
                cells += 1;
                split_rows += usize::from(std::mem::take(&mut is_below_label));
            }
        }
    }
    rows += split_rows;
    split_rows > 0 && rows >= ROWS_MIN && cells as f64 >= CELLS_SHARE * lines.len() as f64
}

/// Returns whether a line is a row with wide gaps between its cells.
pub(super) fn is_wide_row(line: &str) -> bool {
    kind_of(line) == LineKind::Row && columns(line) > 1
}

pub(super) fn outline(text: &str, sentences: &Sentences) -> Pieces {
    let lines = lines(text);
    let kinds = kinds_of(&lines);
    let mut page = Page {
        text,
        lines: &lines,
        kinds: &kinds,
        sentences,
        pieces: Pieces::default(),
        header: None,
        heading: None,
        caption: None,
        begins_table: true,
    };
    let mut at = 0;
    // The lines of text that are not in a piece yet begin here.
    let mut open = 0;
    while at < lines.len() {
        match kinds[at] {
            LineKind::Blank | LineKind::Text => at += 1,
            LineKind::Years => {
                let first = page.header_start(open, at);
                let years = page.end_of(at, LineKind::Years);
                let is_unit = |line: &&Line| line.text.trim().starts_with('(') && names_columns(line.text);
                let end = years + lines[years..].iter().take_while(is_unit).count();
                page.prose(open, first);
                page.header(first, end);
                (at, open) = (end, end);
            }
            LineKind::Cells | LineKind::Row => {
                let first = page.label_start(open, at);
                let end = if kinds[at] == LineKind::Row { at + 1 } else { page.end_of(at, LineKind::Cells) };
                let header = page.column_names_start(open, first, end);
                if header < first {
                    page.prose(open, header);
                    page.header(header, first);
                } else {
                    page.text(open, first);
                }
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
    /// The last piece of the caption of the table, "Table 2.1 Applications by kind", which requires the ones before it.
    caption: Option<usize>,
    /// Whether the next row may be the first one of a table.
    begins_table: bool,
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
        let mut first = at;
        if self.kinds[at] != LineKind::Row {
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
        let (mut first, mut names) = (at, 0);
        // As many blank lines may stand between them.
        for line in (open..at).rev().take(2 * HEADER_LINES_MAX) {
            match self.kinds[line] {
                LineKind::Blank => {}
                _ if names_columns(self.lines[line].text) => (first, names) = (line, COLUMNS_NAMED_MAX),
                // Names of columns that are no years: "Indicator", "Target".
                _ if names < COLUMNS_NAMED_MAX && is_column_name(self.lines[line].text) => {
                    (first, names) = (line, names + 1);
                }
                _ => break,
            }
        }
        first
    }

    /// Returns the first of the lines above the first row of a table that name its columns, or `first` if there are none: as many
    /// short lines as the row has cells, or a line with wide gaps.
    fn column_names_start(&self, open: usize, first: usize, end: usize) -> usize {
        // Prose above ends a table.
        let ends_table = |line: &Line| line.text.trim_end().ends_with('.') || is_caption(line.text.trim());
        if !self.begins_table && !self.lines[open..first].iter().any(ends_table) {
            return first;
        }
        let has_cell = |text: &str| text.split_whitespace().any(|word| is_number(word) || is_code(word));
        let cells = match self.kinds[end - 1] {
            LineKind::Row => {
                self.lines[end - 1].text.split_whitespace().filter(|word| is_number(word)).count()
            }
            _ => (first..end)
                .filter(|&line| self.kinds[line] == LineKind::Cells && has_cell(self.lines[line].text))
                .count(),
        };
        let is_text = |line: &usize| self.kinds[*line] == LineKind::Text;
        let wide =
            (open..first).rev().take_while(is_text).take_while(|&line| columns(self.lines[line].text) > 1);
        if let Some(top) = wide.last() {
            return top;
        }
        let names =
            (open..first).rev().take_while(is_text).take_while(|&line| is_column_name(self.lines[line].text));
        let count = names.clone().count();
        if count > 1 && (cells..=cells + 1).contains(&count) { first - count } else { first }
    }

    fn header(&mut self, first: usize, end: usize) {
        let range = self.range(first, end);
        let requires: Vec<usize> = self.caption.into_iter().collect();
        (self.header, self.heading) = (Some(self.pieces.frame(range, &requires)), None);
        self.begins_table = false;
    }

    /// Adds lines of text: prose by sentences, and a last short line as the heading of the rows below it.
    fn text(&mut self, from: usize, to: usize) {
        let Some(last) = (from..to).rev().find(|&line| self.kinds[line] != LineKind::Blank) else { return };
        let line = self.lines[last];
        let trimmed = line.text.trim();
        let is_alone = last == from || !continues(self.lines[last - 1].text, line.text);
        // A line with a number says something of its own.
        let has_number = trimmed.split_whitespace().any(|word| is_number(word) && !is_year(word));
        let is_short = trimmed.len() <= LABEL_BYTES_MAX && !trimmed.ends_with(['.', ';', ',']) && !has_number;
        if to < self.lines.len() && is_alone && is_short {
            self.prose(from, last);
            let requires: Vec<usize> = self.header.into_iter().collect();
            self.heading = Some(self.pieces.add(Role::Heading, line.trimmed(), &requires));
        } else {
            self.prose(from, to);
        }
    }

    /// Adds lines of prose, below which no heading holds any more.
    fn prose(&mut self, from: usize, to: usize) {
        if let Some(first) = (from..to).find(|&line| self.kinds[line] != LineKind::Blank) {
            let added = self.pieces.prose(self.text, self.range(first, to), &[], self.sentences);
            self.heading = None;
            let texts = |piece: &usize| self.pieces.list[*piece].bytes.slice(self.text);
            let caption = added.clone().rev().find(|piece| is_caption(texts(piece)));
            if caption.is_some() || added.clone().any(|piece| texts(&piece).ends_with('.')) {
                self.begins_table = true;
            }
            if let Some(first) = caption {
                // What else the caption says stands close below it.
                let end = added.end.min(first + CAPTION_PIECES_MAX);
                self.caption = Some(end - 1);
                (first + 1..end).for_each(|piece| self.pieces.require(piece, piece - 1));
            }
        }
    }

    /// Returns the range of lines, of which the first one is not blank.
    fn range(&self, first: usize, end: usize) -> ByteRange {
        ByteRange::new(self.lines[first].trimmed().start, span(&self.lines[first..end]).end)
    }

    fn row(&mut self, first: usize, end: usize) {
        let caption = self.caption.filter(|_| self.header.is_none());
        let requires: Vec<usize> = self.header.into_iter().chain(self.heading).chain(caption).collect();
        self.begins_table = false;
        // Not a row that a question compares with all others: "total" and "average" are names of rows here.
        let row = self.pieces.push(self.range(first, end), &requires);
        let label = self.pieces.list[row].bytes.slice(self.text);
        let first = label.split_whitespace().next().unwrap_or_default().to_lowercase();
        if is_within(Class::Total, &first) {
            self.heading = None;
        }
    }
}

/// Returns whether a label or a sentence of `line` goes on in the next line.
fn continues(line: &str, next: &str) -> bool {
    let (line, next) = (line.trim(), next.trim());
    let begins_small = next.starts_with(|c: char| c.is_lowercase() || c == '(');
    let is_open = line.ends_with([',', '-', '–', '—', '&', '/'])
        || line.rsplit(' ').next().is_some_and(|word| has(Class::Open, word));
    !line.is_empty() && !next.is_empty() && (begins_small || is_open) && !line.ends_with([':', '.'])
}

fn is_column_name(line: &str) -> bool {
    let line = line.trim();
    let is_named = line.starts_with(|c: char| c.is_uppercase() || c == '(' || c == '%' || c.is_ascii_digit());
    is_named
        && line.len() <= COLUMN_BYTES_MAX
        && !line.ends_with(['.', ':', ';', ',', '!', '?'])
        && !is_caption(line)
}

/// Returns whether a text names a table: "Table 2.1 Applications", and not "Table 2 shows".
fn is_caption(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let is_table = words.next().is_some_and(|word| is(Class::Caption, word.trim_end_matches('.')));
    let is_numbered = words
        .next()
        .is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase()));
    is_table && is_numbered && words.next().is_none_or(|word| !word.starts_with(char::is_lowercase))
}

/// Returns how many parts a line has that wide gaps divide.
fn columns(line: &str) -> usize {
    line.trim().split("   ").filter(|part| !part.trim().is_empty()).count()
}

/// Returns whether a line above years says what the columns are: a period, a date, or a unit.
fn names_columns(line: &str) -> bool {
    let line = line.trim().to_lowercase();
    line.len() <= LABEL_BYTES_MAX && is_within(Class::Period, &line)
}

/// Returns what each line is. A single year above cells is a label, as in a table of payments by year.
fn kinds_of(lines: &[Line]) -> Vec<LineKind> {
    let mut kinds: Vec<LineKind> = lines.iter().map(|line| kind_of(line.text)).collect();
    let mut below = LineKind::Blank;
    for at in (0..kinds.len()).rev() {
        let is_alone = kinds[..at].last() != Some(&LineKind::Years) && lines[at].text.trim().len() == 4;
        if kinds[at] == LineKind::Years && below == LineKind::Cells && is_alone {
            kinds[at] = LineKind::Text;
        }
        if kinds[at] != LineKind::Blank {
            below = kinds[at];
        }
    }
    kinds
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
    let has_letters = |word: &str| word.contains(char::is_alphabetic);
    let first = words.next().unwrap_or_default();
    // The rows of a tariff begin with their numbers.
    let is_numbered = first.len() <= 5
        && first.bytes().all(|byte| byte.is_ascii_digit())
        && columns(line) > 2
        && line.contains(char::is_alphabetic);
    let begins = has_letters(first) || is_numbered;
    let is_led = line.contains("....") || line.contains(". . .");
    if begins && numbers >= 2 && words.clone().rev().take_while(|word| is_cell(word)).all(is_year) {
        return LineKind::Years;
    }
    if begins && (numbers >= 2 || numbers == 1 && (is_led || has_wide_gap(line))) {
        LineKind::Row
    } else {
        LineKind::Text
    }
}

/// Returns whether several blanks stand before the last cell of a line.
fn has_wide_gap(line: &str) -> bool {
    let label = line.trim_end_matches(|c: char| !c.is_whitespace());
    label.ends_with("   ") || label.ends_with('\t')
}

/// Returns whether a word is a cell or a part of one: a number, a currency, a bracket, a dash, a percent sign, or points.
fn is_cell(word: &str) -> bool {
    let marks = [
        "$", "€", "£", "¥", "%", "(", ")", ")%", "—", "–", "-", "--", "*", "n/a", "n.a.", "N/A", "NM", "nm",
        "US$", "C$", "A$", "R$", "Rs.",
    ];
    marks.contains(&word) || is_number(word) || is_code(word) || word.bytes().all(|byte| byte == b'.')
}

/// Returns whether a word is a number as tables write it: `1,204`, `(370)`, `$5.2`, `12.5%`, `-3`, `1 204`, `1.204,50`.
fn is_number(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| "()$€£¥%+-–—*".contains(c));
    let digits = bare.bytes().filter(u8::is_ascii_digit).count();
    digits > 0
        && bare.bytes().all(|byte| byte.is_ascii_digit() || b".,'x".contains(&byte))
        && !bare.ends_with(['.', ','])
}

/// Returns whether a word is a short code, such as the size of a bolt: `M16`.
fn is_code(word: &str) -> bool {
    let letters = word.bytes().take_while(u8::is_ascii_uppercase).count();
    let digits = word.len() - letters;
    (1..=2).contains(&letters)
        && (1..=3).contains(&digits)
        && word[letters..].bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a word is a year: `2024`, `2022/23`, `FY2024`.
pub(super) fn is_year(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| "()*,".contains(c));
    let bare = bare.strip_prefix("FY").unwrap_or(bare);
    let (year, end) = bare.split_once(['/', '-', '–']).unwrap_or((bare, "00"));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    year.len() == 4
        && (year.starts_with("19") || year.starts_with("20"))
        && is_digits(year)
        && matches!(end.len(), 2 | 4)
        && is_digits(end)
}

#[cfg(test)]
mod tests {
    use super::super::grammar;
    use super::*;
    use crate::kind::Kind;

    const PAGE: &str = "\
Northern Ferries plc
Consolidated statement of income
Year ended March 31,
(in thousands)
2024
2023
Revenue
$
48,210
$
44,907
Cost of crews and fuel
(21,330)
(20,118)
Operating expenses:
Maintenance
6,204

5,870

Gains from the sale of vessels, net of
costs to sell
-
1,140
Ferries are depreciated over thirty years. The pier is
leased from the harbour authority.
Earnings per share
$ 1.92
$ 1.70
41
";

    #[test]
    fn pages_are_told_from_other_texts() {
        let check =
            |name: &str, text: &str, expect: Kind| assert_eq!(grammar::kind_of(text), expect, "{name}");
        check("a page", PAGE, Kind::Pdf);
        check("digits only", "1\n2\n3\n4\n5\n6\n7\n8", Kind::Prose);
        let calls = "foo(\n    a,\n)\nbar(\n    b,\n)\nbaz(\n    c,\n)\n";
        assert_ne!(grammar::kind_of(calls), Kind::Pdf);
        check("a list with numbers", "Eggs\n12\nFlour\nMilk\nButter\nSugar\nSalt\nYeast", Kind::Prose);
        check(
            "prose with a year in a line",
            "It opened in\n1998\nand closed.\nNobody knows why it\nclosed.",
            Kind::Prose,
        );
        let log = "10:00:01 INFO 12 34\n10:00:02 INFO 13 35\n10:00:03 WARN 14 36\n10:00:04 INFO 15 37";
        check("a log", log, Kind::Log);
    }

    #[test]
    fn cells_are_numbers_as_tables_write_them() {
        let check = |line: &str, expect: LineKind| assert_eq!(kind_of(line), expect, "{line}");
        for line in [
            "1,204",
            "(370)",
            "$ 5.2",
            "12.5 %",
            "-",
            "—",
            "$",
            ")",
            "8,978 $",
            "1.204,50",
            "2.4x",
            "n/a",
            "$1,577.00",
        ] {
            check(line, LineKind::Cells);
        }
        for line in ["2024", "2024 2023", " 2021* "] {
            check(line, LineKind::Years);
        }
        for line in ["Net sales 18,992.8 18,127.0", "Total ..... 45", "Other (1) — 12"] {
            check(line, LineKind::Row);
        }
        for line in ["Net sales", "In 2024, 12 ships sailed.", "page 41", "Note 7", "3 of 4 ships"] {
            check(line, LineKind::Text);
        }
    }
}
