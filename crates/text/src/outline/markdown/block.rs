//! The blocks of a Markdown text: headings, items, tables, fences, paragraphs. Knows how each of them begins
//! and ends, and must not know how they relate.

use super::super::table;
use crate::line::{Line, fence, heading_level};

/// How many lines front matter can have.
const FRONT_MATTER_LINES: usize = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Blank,
    /// The data at the beginning of a page, between two lines of dashes.
    FrontMatter,
    Rule,
    /// A heading, with the line below it if that underlines it.
    Heading {
        level: usize,
    },
    Table,
    /// Code between two fences.
    Code,
    /// A list item with the lines that continue it.
    Item {
        /// How far it is indented, in columns.
        indent: usize,
    },
    /// Any other lines up to a blank one.
    Paragraph {
        /// How far it is indented, in columns.
        indent: usize,
    },
}

/// Returns the block that begins with the line `at`, where `fences` has the closing line of each fenced block, and the index of the line after it.
pub(super) fn block_of(lines: &[Line], fences: &[Option<usize>], at: usize) -> (Block, usize) {
    let line = &lines[at];
    if line.is_blank() {
        return (Block::Blank, at + 1);
    }
    if at == 0
        && let Some(end) = front_matter(lines)
    {
        return (Block::FrontMatter, end);
    }
    if let Some(end) = fenced(lines, fences, at) {
        return (Block::Code, end);
    }
    if let Some(level) = heading_level(line.text) {
        return (Block::Heading { level }, at + 1);
    }
    if table::is_bar_row(line.text) && lines.get(at + 1).is_some_and(|below| table::is_bar_row(below.text)) {
        let rows = lines[at..].iter().take_while(|line| is_row(line.text)).count();
        return (Block::Table, at + rows);
    }
    if let Some(level) = lines.get(at + 1).and_then(|below| underlined(line.text, below.text)) {
        return (Block::Heading { level }, at + 2);
    }
    if is_drawn(line.text) {
        return (Block::Rule, at + 1);
    }
    let indent = line.indent();
    let block = if is_item(line.text) { Block::Item { indent } } else { Block::Paragraph { indent } };
    (block, at + 1 + lines[at + 1..].iter().take_while(|line| continues(line.text)).count())
}

/// Returns whether a line is a row, or what is left of one in a table that is cut off.
fn is_row(line: &str) -> bool {
    table::is_bar_row(line) || line.trim().starts_with('|')
}

/// Returns whether a line continues the paragraph or the item above it.
fn continues(line: &str) -> bool {
    !line.trim().is_empty()
        && !is_item(line)
        && fence(line).is_none()
        && heading_level(line).is_none()
        && !table::is_bar_row(line)
        && !is_drawn(line)
}

fn is_drawn(line: &str) -> bool {
    let line = line.trim();
    line.len() >= 3 && ['-', '=', '*', '_'].iter().any(|&mark| line.chars().all(|c| c == mark || c == ' '))
}

/// Returns the level of a heading that the line below it underlines.
fn underlined(line: &str, below: &str) -> Option<usize> {
    let below = below.trim();
    let draws = |mark: char| below.len() >= 3 && below.chars().all(|c| c == mark);
    if is_item(line) || line.len() > 120 || is_drawn(line) {
        return None;
    }
    draws('=').then_some(1).or_else(|| draws('-').then_some(2))
}

fn front_matter(lines: &[Line]) -> Option<usize> {
    if lines[0].text.trim_end() != "---" {
        return None;
    }
    let inner = lines.iter().skip(1).take(FRONT_MATTER_LINES);
    let end = 1 + inner.clone().position(|line| line.text.trim_end() == "---")?;
    let is_data = lines[1..end].iter().any(|line| line.text.contains(':'));
    is_data.then_some(end + 1)
}

/// Returns one past the closing fence of a fenced block that begins here. One that is never closed ends with
/// the text, unless it has no name: such a fence can be the closing one of a block that began above.
fn fenced(lines: &[Line], fences: &[Option<usize>], at: usize) -> Option<usize> {
    let open = fence(lines[at].text)?;
    match fences[at] {
        Some(close) => Some(close + 1),
        None if open.is_bare => None,
        None => Some(lines.len()),
    }
}

/// Returns whether the line is a list item, with any indent.
pub(in super::super) fn is_item(line: &str) -> bool {
    crate::line::is_item(line.trim())
}
