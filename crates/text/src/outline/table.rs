//! The pieces of a table: its header and its rows. Knows where a row ends, and which line names the columns.
//! Must not know what a cell means.
//!
//! - The header is a frame that every row requires, if it surely is one: names above numbers, or names above
//!   an underline. If it only may be one, as in a table of words, rows require it and it can also be chosen.
//! - Lines above a table are prose. Those directly above it, such as its title or its units, come with the header.

mod cells;

use cells::{Cells, is_comment, is_rule};
pub(super) use cells::{Form, are_aligned, form, is_bar_row};

use super::{Pieces, Role, Sentences};
use crate::line::{Line, lines, span};
use crate::range::ByteRange;

/// How many rows decide whether the line above them is a header.
const ROWS_READ: usize = 30;
/// The most lines directly above a table that say what it has, and the longest of them, in bytes.
const PREAMBLE_LINES_MAX: usize = 4;
const PREAMBLE_BYTES_MAX: usize = 120;
/// The longest name of a column, in bytes.
const NAME_BYTES_MAX: usize = 60;

/// Returns whether the cells of a table are divided by bars.
pub(super) fn has_bars(text: &str) -> bool {
    cells::form(&lines(text)) == Some(Form::Pipes)
}

/// Returns the pieces of a table whose cells are not divided by bars; none if the lines are not divided into cells.
pub(super) fn outline(text: &str, sentences: &Sentences) -> Pieces {
    let lines = lines(text);
    let mut pieces = Pieces::default();
    match cells::form(&lines) {
        None | Some(Form::Pipes) => {}
        Some(Form::Separated(separator)) => {
            let records = cells::records(text, &lines, separator);
            let mut writer =
                Writer { text, pieces: &mut pieces, sentences, form: Form::Separated(separator) };
            writer.block(&records, &mut None);
        }
        Some(Form::Columns) => {
            let mut writer = Writer { text, pieces: &mut pieces, sentences, form: Form::Columns };
            let mut above = None;
            for block in lines.chunk_by(|one, other| one.is_blank() == other.is_blank()) {
                if !block[0].is_blank() {
                    writer.block(block, &mut above);
                }
            }
        }
    }
    pieces
}

/// Adds the pieces of a table of lines with bars, whose header and rows also require `requires`.
pub(super) fn pipes(pieces: &mut Pieces, text: &str, lines: &[Line], requires: &[usize]) {
    let Some(underline) = lines.iter().take(3).position(|line| is_rule(line.text)) else {
        return rows(pieces, text, lines, requires, None, Form::Pipes);
    };
    // A rule above the header belongs to the header, as the one below it does.
    let below = lines.iter().enumerate().skip(underline + 1).take(2).find(|(_, line)| is_rule(line.text));
    let end = if underline == 0 { below.map_or(1, |(at, _)| at + 1) } else { underline + 1 };
    let header = pieces.frame(span(&lines[..end]), requires);
    rows(pieces, text, &lines[end..], requires, Some(header), Form::Pipes);
}

/// Adds rows. A row that only has its first cell names the group of the rows below it, which require it.
fn rows(
    pieces: &mut Pieces,
    text: &str,
    lines: &[Line],
    requires: &[usize],
    header: Option<usize>,
    form: Form,
) {
    let mut group = None;
    let base: Vec<usize> = requires.iter().copied().chain(header).collect();
    let cells = Cells { form };
    for (at, line) in lines.iter().enumerate() {
        let bytes = span(&lines[at..=at]);
        if bytes.is_empty() {
            continue;
        }
        if is_rule(line.text) {
            pieces.frame(bytes, &[]);
        } else if form == Form::Columns && at > 0 && cells.continues(lines[at - 1].text, line.text) {
            extend(pieces, bytes);
        } else if form != Form::Columns && cells.is_group(bytes.slice(text)) {
            group = Some(pieces.push(bytes, &base));
        } else {
            let all: Vec<usize> = base.iter().copied().chain(group).collect();
            pieces.add(Role::Row, bytes, &all);
        }
    }
}

/// Adds a line to the row above it.
fn extend(pieces: &mut Pieces, bytes: ByteRange) {
    match pieces.list.last_mut() {
        Some(last) if last.is_row() => last.bytes.end = bytes.end,
        _ => _ = pieces.push(bytes, &[]),
    }
}

/// The header that rows further down still have.
struct Header {
    piece: usize,
    cells: usize,
}

struct Writer<'a, 'b> {
    text: &'a str,
    pieces: &'a mut Pieces,
    sentences: &'a Sentences<'b>,
    form: Form,
}

impl Writer<'_, '_> {
    /// Writes consecutive lines: a title, a header and rows. `above` has the header of the lines above them.
    fn block(&mut self, lines: &[Line], above: &mut Option<Header>) {
        let cells = Cells { form: self.form };
        let columns = cells.usual_count(lines);
        let is_wide = |line: &Line| {
            let count = cells.count(line.text);
            // "# time,pump,flow" names the columns.
            let is_apart = is_comment(line.text) && count < columns;
            !is_rule(line.text) && !is_apart && count + 1 >= columns.max(3)
        };
        let first = lines.iter().position(is_wide).filter(|_| columns >= 2 && lines.len() >= 2);
        let Some(first) = first else {
            // A single line below a table can be its last row.
            match above.as_ref().filter(|header| columns + 1 >= header.cells && columns >= 2) {
                Some(header) => rows(self.pieces, self.text, lines, &[], Some(header.piece), self.form),
                None => self.prose(lines),
            }
            return;
        };
        let above_table = &lines[..first];
        let says =
            |line: &&Line| !is_rule(line.text) && (1..=PREAMBLE_BYTES_MAX).contains(&line.text.trim().len());
        let preamble = above_table.iter().rev().take(PREAMBLE_LINES_MAX).take_while(says).count();
        self.prose(&above_table[..first - preamble]);
        let before = self.pieces.len();
        self.prose(&above_table[first - preamble..]);
        let preamble: Vec<usize> = (before..self.pieces.len()).collect();
        let lines = &lines[first..];
        let underlined = lines.get(1).is_some_and(|line| is_rule(line.text));
        let head = if underlined { 2 } else { 1 };
        let header = match cells.header(lines[0].text, &lines[head.min(lines.len())..]) {
            _ if underlined => Some(self.pieces.frame(span(&lines[..head]), &preamble)),
            Named::Surely => Some(self.pieces.frame(span(&lines[..head]), &preamble)),
            Named::Maybe if above.is_none() => Some(self.pieces.push(span(&lines[..head]), &preamble)),
            Named::Maybe | Named::No => None,
        };
        let from = if header.is_some() { head } else { 0 };
        if let Some(piece) = header {
            *above = Some(Header { piece, cells: columns });
        }
        let header =
            above.as_ref().filter(|header| header.cells.abs_diff(columns) <= 1).map(|header| header.piece);
        rows(self.pieces, self.text, &lines[from..], &preamble, header, self.form);
    }

    /// Writes the lines around a table, each with the rule below it.
    fn prose(&mut self, lines: &[Line]) {
        let mut at = 0;
        while at < lines.len() {
            let ruled = lines.get(at + 1).is_some_and(|line| is_rule(line.text));
            let bytes = span(&lines[at..=at + usize::from(ruled)]);
            if is_rule(lines[at].text) {
                self.pieces.frame(bytes, &[]);
            } else if ruled {
                self.pieces.push(bytes, &[]);
            } else if !bytes.is_empty() {
                self.pieces.prose(self.text, bytes, &[], self.sentences);
            }
            at += 1 + usize::from(ruled);
        }
    }
}

/// Whether a line names the columns of the rows below it.
enum Named {
    Surely,
    Maybe,
    No,
}

impl Cells {
    /// Returns whether `line` names the columns of `rows`: names where the rows have numbers, or names that
    /// are written like those of a program.
    fn header(&self, line: &str, rows: &[Line]) -> Named {
        let names = self.divide(line);
        let is_name = |name: &&str| !is_number(name) && name.len() <= NAME_BYTES_MAX;
        let (named, mut distinct) = (names.iter().filter(|name| is_name(name)).count(), names.clone());
        distinct.sort_unstable();
        distinct.dedup();
        if names.is_empty() || rows.is_empty() || named < names.len() || distinct.len() < names.len() {
            return Named::No;
        }
        let (mut above_numbers, mut repeated, mut read) = (vec![0_usize; names.len()], false, 0);
        for row in rows.iter().filter(|row| !is_rule(row.text)).take(ROWS_READ) {
            read += 1;
            for (column, cell) in self.divide(row.text).into_iter().enumerate().take(names.len()) {
                above_numbers[column] +=
                    usize::from(begins_with_digit(cell) && !begins_with_digit(names[column]));
                repeated |= cell == names[column] && !cell.is_empty();
            }
        }
        if repeated {
            Named::No
        } else if above_numbers.iter().any(|&count| count * 2 > read) || names.iter().any(|n| n.contains('_'))
        {
            Named::Surely
        } else {
            Named::Maybe
        }
    }
}

fn begins_with_digit(cell: &str) -> bool {
    cell.trim_start_matches(['<', '>', '~', '+', '-', '"', '€', '$', '£', '(', '*', '0'])
        .starts_with(|c: char| c.is_ascii_digit())
        || cell.starts_with('0')
}

/// Returns whether a cell is a number, a date or nothing. A year is not: it can name a column.
fn is_number(cell: &str) -> bool {
    let digits = cell.bytes().filter(u8::is_ascii_digit).count();
    let is_year = cell.len() == 4 && digits == 4 && (cell.starts_with("19") || cell.starts_with("20"));
    cell.is_empty() || !is_year && digits > 0 && cell.chars().all(|c| !c.is_alphabetic())
}
