//! The pieces of a program or of a configuration file: definitions, and statements inside long ones. Knows
//! indents and brackets, and must not know any language: what is retrieved is a fragment, often of a language
//! that has no name here.
//!
//! - A definition with its comments and decorators is one piece if it is short: see [`LINES_WHOLE`].
//! - Of a longer one, the signature and the closing bracket are frames, and the lines inside are divided
//!   further. They require the signature, which requires the closing bracket.
//! - A signature whose body ends with a bracket can be chosen without it, because it can be an answer.
//! - Imports are one piece. Other lines are pieces of up to [`GROUP_LINES_MAX`] lines.
//! - An "else" requires its "if", so that what is kept can still be parsed.

mod source;
mod statement;

use super::{Pieces, Role};
use crate::lexicon::{Class, has};
use crate::line::{Line, lines, span};
use source::Source;
use statement::{Clause, Form, Statement, clauses, statements};
use std::ops::Range;

/// The most lines of a definition that is one piece.
const LINES_WHOLE: usize = 12;
/// The most bytes of a definition that is one piece.
const BYTES_WHOLE: usize = 600;
/// The most lines of a group of simple statements.
const GROUP_LINES_MAX: usize = 5;
const IMPORT_LINES_MAX: usize = 40;
/// How many blocks can stand inside each other; what is deeper is one piece.
const DEPTH_MAX: usize = 32;

pub(super) fn outline(text: &str) -> Pieces {
    let mut pieces = Pieces::default();
    block(&mut pieces, text, &lines(text), None);
    pieces
}

/// Adds the pieces of lines of code, which all require `head`.
pub(super) fn block(pieces: &mut Pieces, text: &str, lines: &[Line], head: Option<usize>) {
    let sources = source::read(lines);
    let mut writer = Writer { text, sources: &sources, pieces };
    writer.lines(0..sources.len(), head, 0);
}

struct Writer<'a> {
    text: &'a str,
    sources: &'a [Source<'a>],
    pieces: &'a mut Pieces,
}

impl Writer<'_> {
    fn lines(&mut self, lines: Range<usize>, head: Option<usize>, depth: usize) {
        if depth >= DEPTH_MAX {
            return self.piece(lines, head);
        }
        let statements = statements(self.sources, lines);
        let mut at = 0;
        while at < statements.len() {
            let group = self.group(&statements[at..]);
            if statements[at].form == Form::Close {
                self.frame(statements[at].lines.clone(), head);
            } else if group > 1
                || statements[at].form != Form::Compound && statements[at].form != Form::Orphans
            {
                self.piece(statements[at].lines.start..statements[at + group - 1].lines.end, head);
            } else {
                self.statement(&statements[at], head, depth);
            }
            at += group;
        }
    }

    /// Returns how many of the statements are one piece: imports, or lines up to a blank or a comment.
    fn group(&self, statements: &[Statement]) -> usize {
        let form = statements[0].form;
        let limit = match form {
            Form::Import => IMPORT_LINES_MAX,
            Form::Simple => GROUP_LINES_MAX,
            _ => return 1,
        };
        let first = statements[0].lines.start;
        let joins = |pair: &&[Statement]| {
            let (above, below) = (&pair[0], &pair[1]);
            let is_next = above.lines.end == below.lines.start || form == Form::Import;
            let has_comment = below.first > below.lines.start;
            below.form == form
                && is_next
                && !has_comment
                && below.lines.end - first <= limit
                && self.bytes(first..below.lines.end) <= BYTES_WHOLE
        };
        1 + statements.windows(2).take_while(joins).count()
    }

    fn bytes(&self, lines: Range<usize>) -> usize {
        self.sources[lines.end - 1].line.end() - self.sources[lines.start].line.start
    }

    /// Writes a statement of several lines.
    fn statement(&mut self, statement: &Statement, head: Option<usize>, depth: usize) {
        let lines = statement.lines.clone();
        let is_short = lines.len() <= LINES_WHOLE && self.bytes(lines.clone()) <= BYTES_WHOLE;
        if statement.form == Form::Orphans {
            return if is_short && depth > 0 {
                self.piece(lines, head)
            } else {
                self.lines(lines, head, depth + 1)
            };
        }
        let parts = clauses(self.sources, statement);
        let has_body = parts.iter().any(|part| !part.body.is_empty());
        if is_short || !has_body {
            return self.piece(lines, head);
        }
        let signature = self.pieces.len();
        self.parts(&parts, head, depth);
        // A signature with brackets around its body also parses without the body, and can be an answer.
        let ends = parts.iter().skip(1).any(|part| closes(self.sources[part.head.start].text()));
        if ends && is_signature(self.sources[statement.first].text()) {
            self.pieces.list[signature].role = Role::Text;
        }
    }

    /// Writes the parts of a long statement, each with its head as a frame.
    fn parts(&mut self, parts: &[Clause], head: Option<usize>, depth: usize) {
        let mut written: Vec<Part> = Vec::with_capacity(parts.len());
        for part in parts {
            let frame = self.frame(part.head.clone(), head);
            self.lines(part.body.clone(), Some(frame), depth + 1);
            let body = self.pieces.first_choosable(frame + 1);
            let text = self.sources[part.head.start].text();
            let opens = !part.body.is_empty();
            written.push(Part {
                frame,
                body,
                closes: closes(text),
                opens,
                needs_next: text.starts_with("try"),
            });
        }
        self.link_closing(&written);
        for pair in written.windows(2) {
            self.link_clause(&pair[0], &pair[1]);
        }
    }

    /// Lets every part require the next one that closes a bracket, and that one the part that opened it.
    fn link_closing(&mut self, parts: &[Part]) {
        let mut opened = 0;
        for (at, part) in parts.iter().enumerate().skip(1).filter(|(_, part)| part.closes) {
            for above in &parts[opened..at] {
                self.pieces.require(above.frame, part.frame);
            }
            self.pieces.require(part.frame, parts[opened].frame);
            // "} else {" closes one block and opens another one.
            opened = if part.opens { at } else { at + 1 };
        }
    }

    /// Lets an "else" require its "if", which must not be empty then, and a "try" its "except".
    fn link_clause(&mut self, above: &Part, below: &Part) {
        if below.closes {
            return;
        }
        let pairs = [(below, above)].into_iter().chain(above.needs_next.then_some((above, below)));
        for (part, other) in pairs {
            self.pieces.require(part.frame, other.frame);
            if let Some(body) = other.body {
                self.pieces.require(part.frame, body);
            }
        }
    }

    fn piece(&mut self, lines: Range<usize>, head: Option<usize>) {
        if let Some(bytes) = self.span(lines) {
            self.pieces.push(bytes, &Vec::from_iter(head));
        }
    }

    fn frame(&mut self, lines: Range<usize>, head: Option<usize>) -> usize {
        let bytes = self.span(lines).expect("a head has text");
        self.pieces.frame(bytes, &Vec::from_iter(head))
    }

    /// Returns the bytes of the lines with the indent of the first one, so that Python stays Python.
    fn span(&self, lines: Range<usize>) -> Option<crate::range::ByteRange> {
        let visible = |line: &usize| !self.sources[*line].line.is_blank();
        let (first, last) = (lines.clone().find(visible)?, lines.rev().find(visible)?);
        let lines: [Line; 2] = [self.sources[first].line, self.sources[last].line];
        let bytes = span(&lines);
        debug_assert!(!bytes.slice(self.text).trim().is_empty());
        Some(bytes)
    }
}

/// A part of a statement that was written.
struct Part {
    frame: usize,
    /// The first piece inside that may be chosen.
    body: Option<usize>,
    /// Whether its head closes the block above it.
    closes: bool,
    /// Whether lines stand inside it.
    opens: bool,
    /// Whether it is of no use without the next part.
    needs_next: bool,
}

/// Returns whether a line names a function, and does not only steer what happens.
fn is_signature(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
    text.contains('(') && !word.is_empty() && !has(Class::Steers, word)
}

fn closes(text: &str) -> bool {
    text.starts_with(['}', ')', ']'])
        || has(Class::Closes, text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, tests::check};

    #[test]
    fn statements_require_their_heads() {
        let check = |name: &str, text: &str, expect: &[&str]| {
            // Enough to make every definition a long one.
            let text = text.replace("LONG", &"x".repeat(610));
            let expect: Vec<String> =
                expect.iter().map(|line| line.replace("LONG", &"x".repeat(610))).collect();
            let expect: Vec<&str> = expect.iter().map(String::as_str).collect();
            check(name, Kind::Code, &text, &expect);
        };
        check(
            "short",
            "import a\nimport b\n\n@c\ndef f():\n    g()\n",
            &["import a/import b", "@c/def f():/    g()"],
        );
        check("long", "def f():\n    a = 1\n\n    LONG\n", &["F def f():", "0     a = 1", "0     LONG"]);
        check("braces", "f() {\n  a;\n\n  LONG;\n}", &["3 f() {", "0   a;", "0   LONG;", "F 0 }"]);
        check("allman", "int f()\n{\n  LONG;\n}", &["2 int f()/{", "0   LONG;", "F 0 }"]);
        check("else", "if a:\n    b\nelse:\n    LONG", &["F if a:", "0     b", "F 0,1 else:", "2     LONG"]);
        check(
            "else with braces",
            "if (a) {\n  b;\n} else {\n  LONG;\n}",
            &["F 2 if (a) {", "0   b;", "F 0,4 } else {", "2   LONG;", "F 2 }"],
        );
        check(
            "end",
            "if a\n  b\nelse\n  LONG\nend",
            &["F 4 if a", "0   b", "F 0,1,4 else", "2   LONG", "F 0 end"],
        );
        check("signature", "def f(\n    a,\n):\n    LONG", &["F def f(/    a,/):", "0     LONG"]);
        check("settings", "[a]\nx = 1\n\n[b]\ny = LONG", &["[a]/x = 1", "F [b]", "1 y = LONG"]);
        check(
            "yaml",
            "a:\n  b: LONG\n  c:\n    - d\ne: 1",
            &["F a:", "0   b: LONG", "0   c:/    - d", "e: 1"],
        );
        check("comments", "// a\n\n// b\nx = 1;\ny = 2;", &["// a", "// b/x = 1;/y = 2;"]);
        check("from the middle", "    a;\n  }\n}\nb();", &["    a;", "F   }", "F }", "b();"]);
    }
}
