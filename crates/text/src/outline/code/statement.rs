//! The statements of a block of code: which lines belong together, and which of them are the head, the parts
//! and the end of a longer statement. Knows indents, and must not know what becomes a piece.

use super::source::{Role, Source};
use std::ops::Range;

/// How many lines a signature can have.
const HEAD_LINES_MAX: usize = 40;

/// Consecutive lines that belong together.
pub(super) struct Statement {
    pub lines: Range<usize>,
    /// The first line after the comments and decorators above it.
    pub first: usize,
    pub form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Comments with nothing below them.
    Comment,
    Import,
    Simple,
    /// A closing bracket whose opening one is missing.
    Close,
    /// A line with more lines that belong to it.
    Compound,
    /// Lines that are further indented than the block, with nothing above them that they belong to.
    Orphans,
}

/// Returns the statements of the lines, which have the same block around them.
pub(super) fn statements(sources: &[Source], lines: Range<usize>) -> Vec<Statement> {
    let Some(base) = base(sources, lines.clone()) else { return Vec::new() };
    let (mut found, mut at) = (Vec::new(), lines.start);
    while at < lines.end {
        if sources[at].role == Role::Blank {
            at += 1;
            continue;
        }
        let statement = statement(sources, at, lines.end, base);
        at = statement.lines.end;
        found.push(statement);
    }
    found
}

/// Returns the indent of the block: the smallest one of a line that begins a statement.
fn base(sources: &[Source], lines: Range<usize>) -> Option<usize> {
    let visible = || sources[lines.clone()].iter().filter(|source| source.role != Role::Blank);
    let begins = |role| !matches!(role, Role::Inside | Role::Close | Role::Continue);
    let base = visible().filter(|source| begins(source.role)).map(|source| source.indent).min();
    base.or_else(|| visible().map(|source| source.indent).min())
}

/// Returns the statement that begins with the line `at`.
fn statement(sources: &[Source], at: usize, end: usize, base: usize) -> Statement {
    if sources[at].indent > base && !matches!(sources[at].role, Role::Comment | Role::Decorator) {
        let deeper = |source: &Source| {
            source.role == Role::Blank || source.role == Role::Inside || source.indent > base
        };
        let length = sources[at..end].iter().take_while(|source| deeper(source)).count();
        return Statement { lines: at..trim(sources, at..at + length), first: at, form: Form::Orphans };
    }
    let first = skip_above(sources, at, end);
    if first == end || sources[first].role == Role::Blank {
        return Statement { lines: at..trim(sources, at..first), first: at, form: Form::Comment };
    }
    if is_section(sources, first, end) {
        let length = (first + 1..end).take_while(|&line| !is_section(sources, line, end)).count();
        return Statement { lines: at..trim(sources, at..first + 1 + length), first, form: Form::Compound };
    }
    let last = first + 1 + length_below(sources, first, end, base);
    let last = trim(sources, at..last);
    let form = match sources[first].role {
        _ if last > first + 1 => Form::Compound,
        Role::Import => Form::Import,
        Role::Close => Form::Close,
        _ => Form::Simple,
    };
    Statement { lines: at..last, first, form }
}

/// Returns the first line that is neither a comment nor a decorator.
fn skip_above(sources: &[Source], at: usize, end: usize) -> usize {
    let mut line = at;
    while line < end {
        let is_above = matches!(sources[line].role, Role::Comment | Role::Decorator)
            // The further lines of a comment or of a decorator's arguments.
            || line > at && matches!(sources[line].role, Role::Inside)
            || line > at && sources[line - 1].role != Role::Blank && closes_decorator(sources, at, line);
        if !is_above {
            break;
        }
        line += 1;
    }
    line
}

/// Returns whether a line belongs to the arguments of a decorator above it.
fn closes_decorator(sources: &[Source], at: usize, line: usize) -> bool {
    let from = line.saturating_sub(HEAD_LINES_MAX).max(at);
    let Some(decorator) = (from..line).rev().find(|&above| sources[above].role == Role::Decorator) else {
        return false;
    };
    brackets(&sources[decorator..line]) > 0
}

/// Returns how many more brackets are opened than closed in the lines.
fn brackets(sources: &[Source]) -> i64 {
    let count = |text: &str| -> i64 {
        let of = |b: u8| match b {
            b'(' | b'[' => 1,
            b')' | b']' => -1,
            _ => 0,
        };
        text.bytes().map(of).sum()
    };
    sources
        .iter()
        .filter(|s| s.role != Role::Comment && s.role != Role::Inside)
        .map(|s| count(s.text()))
        .sum()
}

/// `[section]` in a configuration file, with `key = value` or another section below it.
fn is_section(sources: &[Source], line: usize, end: usize) -> bool {
    let text = sources[line].text();
    if !text.starts_with('[') || !text.ends_with(']') || sources[line].role != Role::Plain {
        return false;
    }
    let below =
        sources[line + 1..end].iter().find(|source| !matches!(source.role, Role::Blank | Role::Comment));
    below.is_none_or(|source| {
        let name = source.text().split(['=', ':']).next().unwrap_or("").trim();
        let is_entry = source.text().contains(['=', ':']) && !name.contains(['(', ' ', '{']);
        is_entry || source.text().starts_with('[') && source.text().ends_with(']')
    })
}

/// Returns how many of the lines below `first` belong to its statement.
fn length_below(sources: &[Source], first: usize, end: usize, base: usize) -> usize {
    let head = &sources[first];
    let is_inner = head.role == Role::Inner;
    let opens_inner = head.text().ends_with([':', '{']);
    let mut length = 0;
    let mut is_open = true;
    for (below, source) in sources[first + 1..end].iter().enumerate() {
        let belongs = match source.role {
            Role::Blank => continue,
            Role::Inside => true,
            _ if source.indent > base => is_open || source.role == Role::Comment,
            // A comment in front of "else" belongs to it; one in front of a statement does not.
            Role::Comment => comment_belongs(sources, first + 1 + below, end, base),
            // One that is less indented closes something further up.
            Role::Close | Role::Continue => source.indent >= head.indent,
            Role::Inner => !is_inner && opens_inner,
            Role::Decorator | Role::Import | Role::Plain => false,
        };
        if !belongs {
            break;
        }
        is_open = true;
        length = below + 1;
    }
    length
}

fn comment_belongs(sources: &[Source], at: usize, end: usize, base: usize) -> bool {
    let next = sources[at..end.min(at + HEAD_LINES_MAX)]
        .iter()
        .find(|s| !matches!(s.role, Role::Blank | Role::Comment));
    next.is_some_and(|source| source.indent == base && matches!(source.role, Role::Close | Role::Continue))
}

/// Returns the end of the lines without the blank ones at their end.
pub(super) fn trim(sources: &[Source], lines: Range<usize>) -> usize {
    let last = lines.clone().rev().find(|&line| sources[line].role != Role::Blank);
    last.map_or(lines.start, |line| line + 1)
}

/// A part of a compound statement: a head, and the lines inside it. The end is a part without lines inside.
pub(super) struct Clause {
    pub head: Range<usize>,
    pub body: Range<usize>,
}

/// Divides a compound statement into its parts.
pub(super) fn clauses(sources: &[Source], statement: &Statement) -> Vec<Clause> {
    let (first, end) = (statement.first, statement.lines.end);
    let base = sources[first].indent;
    let heads = is_section(sources, first, end);
    let head_end = if heads { first + 1 } else { head_end(sources, first, end) };
    let mut clauses = vec![Clause { head: statement.lines.start..head_end, body: head_end..end }];
    for line in head_end..end {
        let source = &sources[line];
        let divides = matches!(source.role, Role::Close | Role::Continue) && source.indent <= base;
        let last = clauses.last_mut().expect("there is one");
        if divides && !heads && line >= last.head.end {
            last.body.end = line;
            let head_end = clause_end(sources, line, end);
            clauses.push(Clause { head: line..head_end, body: head_end..end });
        }
    }
    clauses
}

/// Returns one past the last line of the head that begins at `first`: a signature can have several lines.
fn head_end(sources: &[Source], first: usize, end: usize) -> usize {
    let limit = end.min(first + HEAD_LINES_MAX);
    let base = sources[first].indent;
    let mut open = 0;
    for line in first..limit {
        open += brackets(&sources[line..=line]);
        let text = sources[line].text();
        let opens = text.ends_with(['{', ':']) && sources[line].indent <= base;
        // The first line of a callback ends with a brace inside a bracket that is still open.
        if opens && (open <= 0 || line == first && text.ends_with('{')) {
            return inside_end(sources, line + 1, end);
        }
        if open <= 0 {
            let brace = (line + 1..limit)
                .find(|&below| sources[below].indent <= base && sources[below].role != Role::Blank);
            let brace = brace.filter(|&below| sources[below].text() == "{" && below <= line + 6);
            return brace.map_or_else(|| inside_end(sources, line + 1, end), |below| below + 1);
        }
    }
    first + 1
}

/// Returns one past the head of a part such as "else", which has one line.
fn clause_end(sources: &[Source], line: usize, end: usize) -> usize {
    let brace = sources[line + 1..end].first().is_some_and(|below| below.text() == "{");
    if brace { line + 2 } else { line + 1 }
}

/// Moves past the lines of a string that began in the head.
fn inside_end(sources: &[Source], line: usize, end: usize) -> usize {
    line + sources[line..end].iter().take_while(|source| source.role == Role::Inside).count()
}
