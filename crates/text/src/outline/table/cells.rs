//! How the rows of a table are divided into cells. Knows bars, separators with quotes, and columns that are
//! set off by several spaces.

use crate::line::Line;
use std::collections::HashMap;

/// How many lines decide how a table is divided.
const LINES_READ: usize = 200;
/// The longest quoted cell that goes over several lines, in bytes. A longer one has no end: a quote in it
/// stands for inches, or the text is cut off.
const QUOTED_BYTES_MAX: usize = 8192;
/// The longest average cell of a table with separators, in bytes; sentences with commas have longer ones.
const CELL_BYTES_USUAL: usize = 40;

/// How the cells of a row are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Form {
    /// The cells are separated by bars, as in Markdown.
    Pipes,
    Separated(char),
    Columns,
}

/// Returns how the lines are divided into cells; none if they are no table.
pub(in super::super) fn form(lines: &[Line]) -> Option<Form> {
    let lines: Vec<&str> =
        lines.iter().map(|line| line.text).filter(|line| !line.trim().is_empty()).collect();
    let comments = lines.iter().take_while(|line| is_comment(line)).count();
    let lines = &lines[comments..lines.len().min(comments + LINES_READ)];
    let bars = lines.iter().filter(|line| is_bar_row(line)).count();
    if bars >= 2 && bars * 2 >= lines.len() {
        return Some(Form::Pipes);
    }
    // Most texts have no cell with a line break.
    let records =
        if lines.iter().any(|line| has_open_quote(line)) { with_quoted_breaks(lines) } else { Vec::new() };
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let records = if records.is_empty() { lines } else { &records };
    let separated = ['\t', ';', ','].into_iter().find(|&separator| is_separated(records, separator));
    separated.map(Form::Separated).or_else(|| is_columns(lines).then_some(Form::Columns))
}

/// Returns whether a line above a table says what the table has: "# flow in litres per minute".
pub(super) fn is_comment(line: &str) -> bool {
    let line = line.trim();
    ["# ", "## ", "// ", "-- "].iter().any(|sign| line.starts_with(sign))
        || line.starts_with('(') && line.ends_with(')')
}

fn has_open_quote(text: &str) -> bool {
    text.matches('"').count() % 2 == 1
}

/// Joins the lines of cells that have a line break between their quotes. A quote without its other half joins nothing.
fn with_quoted_breaks(lines: &[&str]) -> Vec<String> {
    const LINES_MAX: usize = 10;
    let (mut found, mut at) = (Vec::with_capacity(lines.len()), 0);
    while at < lines.len() {
        let mut record = lines[at].to_owned();
        let rest = lines[at + 1..].iter().take(LINES_MAX);
        let close = rest.clone().position(|line| has_open_quote(line)).filter(|_| has_open_quote(&record));
        let joined = close.map_or(0, |close| close + 1);
        for line in rest.take(joined) {
            record.push('\n');
            record.push_str(line);
        }
        found.push(record);
        at += 1 + joined;
    }
    found
}

pub(in super::super) fn is_bar_row(line: &str) -> bool {
    let line = line.trim();
    let has_cells = || line.match_indices(" | ").nth(1).is_some();
    line.len() > 1 && (line.starts_with('|') && line[1..].contains('|') || has_cells() || is_bar_rule(line))
}

fn is_bar_rule(line: &str) -> bool {
    line.starts_with(['+', '|', '-', ':']) && line.contains(['+', '|']) && is_rule(line)
}

/// Returns whether a line only draws: the underline of a header, the border of a table.
pub(in super::super) fn is_rule(line: &str) -> bool {
    let line = line.trim();
    let draws = |c| matches!(c, '-' | '=' | '|' | ':' | '+' | ' ' | '─' | '━' | '│' | '┼' | '├' | '┤');
    line.len() >= 3 && line.contains(['-', '=', '─', '━']) && line.chars().all(draws)
}

/// Returns whether most lines have the same number of cells.
fn is_separated(lines: &[&str], separator: char) -> bool {
    // A cheap upper bound: most texts have no separator in most of their lines.
    if lines.iter().filter(|line| line.contains(separator)).count() * 10 < lines.len() * 7 {
        return false;
    }
    let counts: Vec<usize> = lines.iter().map(|line| split(line, separator).len()).collect();
    let usual = usual(counts.iter().copied().filter(|&count| count > 1));
    let same = counts.iter().filter(|&&count| count > 1 && count.abs_diff(usual) <= 1).count();
    let least = if separator == '\t' { 2 } else { 3 };
    if usual < least || same < 3 || same * 10 < lines.len() * 7 {
        return false;
    }
    let bytes: usize = lines.iter().map(|line| line.len()).sum();
    let cells: usize = counts.iter().sum();
    let spaced: usize = lines.iter().map(|line| line.matches(", ").count()).sum();
    // A comma before a space divides a sentence, not a row.
    let is_dense = separator != ',' || spaced * 3 <= cells;
    is_dense && (separator == '\t' || bytes <= cells * CELL_BYTES_USUAL && equal(&counts, usual, lines.len()))
}

fn equal(counts: &[usize], usual: usize, lines: usize) -> bool {
    counts.iter().filter(|&&count| count == usual).count() * 10 >= lines * 6
}

/// Returns whether most lines have several columns.
fn is_columns(lines: &[&str]) -> bool {
    let counts: Vec<usize> = lines.iter().map(|line| columns(line).len()).collect();
    let usual = usual(counts.iter().copied().filter(|&count| count > 1));
    let same = counts.iter().filter(|&&count| count > 1 && count.abs_diff(usual) <= 2).count();
    usual >= 3 && same >= 3 && same * 10 >= lines.len() * 6
        || usual == 2 && same >= 4 && same * 10 >= lines.len() * 8
}

/// The least share of the gaps of a table that stand below another one.
const ALIGNED_SHARE: f64 = 0.4;

/// Returns whether the cells of a table in columns stand one below the other: most of them begin or end where one does in the line above.
/// The blanks of justified prose stand anywhere.
pub(in super::super) fn are_aligned(lines: &[Line]) -> bool {
    let (mut gaps, mut aligned) = (0, 0);
    let mut above: Vec<(usize, usize)> = Vec::new();
    for line in lines.iter().take(LINES_READ).filter(|line| !is_rule(line.text)) {
        let edges = gap_edges(line.text);
        if !above.is_empty() {
            gaps += edges.len();
            let is_below =
                |edge: &&(usize, usize)| above.iter().any(|other| other.0 == edge.0 || other.1 == edge.1);
            aligned += edges.iter().filter(is_below).count();
        }
        if !edges.is_empty() {
            above = edges;
        }
    }
    aligned as f64 >= ALIGNED_SHARE * gaps as f64
}

/// Returns the columns in which each gap of two or more blanks inside a line begins and ends.
fn gap_edges(line: &str) -> Vec<(usize, usize)> {
    let (mut edges, mut blanks) = (Vec::new(), 0);
    let first = line.chars().take_while(|c| c.is_whitespace()).count();
    for (column, c) in line.chars().enumerate().skip(first) {
        if c == ' ' {
            blanks += 1;
            continue;
        }
        if blanks > 1 {
            edges.push((column - blanks, column));
        }
        blanks = 0;
    }
    edges
}

/// Returns the count that occurs most often.
fn usual(counts: impl Iterator<Item = usize>) -> usize {
    let mut times: HashMap<usize, usize> = HashMap::new();
    for count in counts {
        *times.entry(count).or_default() += 1;
    }
    times.into_iter().max_by_key(|&(count, times)| (times, count)).map_or(0, |(count, _)| count)
}

/// Divides rows of one form into cells.
pub(super) struct Cells {
    pub form: Form,
}

impl Cells {
    /// Returns the cells of a row, without the blanks and the quotes around them.
    pub fn divide<'a>(&self, line: &'a str) -> Vec<&'a str> {
        let cells = match self.form {
            Form::Pipes => line.trim().trim_start_matches('|').trim_end_matches('|').split('|').collect(),
            Form::Separated(separator) => split(line, separator),
            Form::Columns => columns(line),
        };
        cells.into_iter().map(|cell| cell.trim().trim_matches('"')).collect()
    }

    pub fn count(&self, line: &str) -> usize {
        self.divide(line).len()
    }

    /// Returns how many cells most lines have.
    pub fn usual_count(&self, lines: &[Line]) -> usize {
        let lines = lines.iter().take(LINES_READ).filter(|line| !is_rule(line.text));
        usual(lines.map(|line| self.count(line.text)))
    }

    /// Returns whether a row has a text in its first cell only, and at least three cells.
    pub fn is_group(&self, line: &str) -> bool {
        let cells = self.divide(line);
        cells.len() >= 3 && !cells[0].is_empty() && cells[1..].iter().all(|cell| cell.is_empty())
    }

    /// Returns whether a line of a table in columns continues the row above it: its first cell is empty.
    pub fn continues(&self, above: &str, line: &str) -> bool {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let first_end = above.trim_start().find("  ").map_or(above.len(), |at| at + indent(above));
        indent(line) > 2 && indent(line) > first_end && !is_rule(above)
    }
}

/// Divides a line at a separator. One between quotes divides nothing.
fn split(line: &str, separator: char) -> Vec<&str> {
    let (mut cells, mut start, mut quoted) = (Vec::new(), 0, false);
    for (at, c) in line.char_indices() {
        if c == '"' && (quoted || line[start..at].trim().is_empty()) {
            quoted = !quoted;
        } else if c == separator && !quoted {
            cells.push(&line[start..at]);
            start = at + c.len_utf8();
        }
    }
    cells.push(&line[start..]);
    cells
}

/// Divides a line at two or more spaces.
fn columns(line: &str) -> Vec<&str> {
    line.trim().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// Joins the lines that a quoted cell goes over, and leaves blank lines out.
pub(super) fn records<'a>(text: &'a str, lines: &[Line<'a>], separator: char) -> Vec<Line<'a>> {
    let (mut records, mut at, mut joins) = (Vec::new(), 0, true);
    while at < lines.len() {
        let start = lines[at].start;
        let mut end = at;
        let mut quotes = Quotes::new(separator);
        while joins && quotes.is_open_after(lines[end].text) {
            let is_lost = end + 1 == lines.len() || lines[end].end() - start > QUOTED_BYTES_MAX;
            // What one quote without an end does to a row, it would do to every row below.
            (joins, end) = if is_lost { (false, at) } else { (true, end + 1) };
        }
        let record = Line { start, text: &text[start..lines[end].end()] };
        if !record.is_blank() {
            records.push(record);
        }
        at = end + 1;
    }
    records
}

/// Whether a quoted cell is open, line by line.
struct Quotes {
    separator: char,
    is_open: bool,
}

impl Quotes {
    fn new(separator: char) -> Self {
        Self { separator, is_open: false }
    }

    /// Reads a further line of a row, and returns whether a quote in it is not closed.
    fn is_open_after(&mut self, line: &str) -> bool {
        let mut at_start = true;
        for c in line.chars() {
            if c == '"' && (self.is_open || at_start) {
                self.is_open = !self.is_open;
            }
            at_start = c == self.separator || at_start && c == ' ';
        }
        self.is_open
    }
}
