//! What the lines of a program look like: indents, comments, strings over several lines. Knows no language,
//! only what most of them share.

use crate::lexicon::{Class, has};
use crate::line::Line;

/// What a line does to the lines around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Blank,
    /// Inside a comment or a string that goes over several lines.
    Inside,
    Comment,
    /// A decorator, an attribute or an annotation: belongs to the line below.
    Decorator,
    /// Begins with a closing bracket or word.
    Close,
    /// Begins with a word such as "else", or with an operator.
    Continue,
    /// `case 1:`, `- name: x`, `public:`: a line inside a block that need not be indented in it.
    Inner,
    Import,
    Plain,
}

pub(super) struct Source<'a> {
    pub line: Line<'a>,
    pub indent: usize,
    pub role: Role,
}

impl Source<'_> {
    /// Returns the text without the whitespace around it.
    pub fn text(&self) -> &str {
        self.line.text.trim()
    }
}

/// Returns the lines of a program with their roles.
pub(super) fn read<'a>(lines: &[Line<'a>]) -> Vec<Source<'a>> {
    let mut inside: Option<&'static str> = None;
    let mut sources: Vec<Source<'a>> = Vec::with_capacity(lines.len());
    let mut continues = false;
    for line in lines {
        let text = line.text.trim();
        let role = match inside {
            _ if text.is_empty() => Role::Blank,
            Some(_) => Role::Inside,
            None if continues => Role::Continue,
            None => role_of(text),
        };
        inside = open_after(text, inside);
        continues = text.ends_with('\\') && role != Role::Comment;
        sources.push(Source { line: *line, indent: line.indent(), role });
    }
    // A comment or string that is never closed is an ordinary line: the text may begin in the middle of one.
    if inside.is_some()
        && let Some(open) =
            sources.iter().rposition(|source| source.role != Role::Inside && source.role != Role::Blank)
    {
        for source in &mut sources[open + 1..] {
            if source.role == Role::Inside {
                source.role = role_of(source.line.text.trim());
            }
        }
    }
    sources
}

/// Returns the mark that ends the comment or string that is open after a line.
fn open_after(text: &str, inside: Option<&'static str>) -> Option<&'static str> {
    let is_line_comment = inside.is_none() && ["//", "#", "--"].iter().any(|mark| text.starts_with(mark));
    let (mut at, mut inside) = (0, inside);
    while at < text.len() && !is_line_comment {
        match inside {
            Some(end) => {
                let Some(found) = text[at..].find(end) else { break };
                (at, inside) = (at + found + end.len(), None);
            }
            None => {
                inside = opening(text.as_bytes(), at);
                at += inside.map_or(1, str::len);
            }
        }
    }
    inside
}

/// Returns the mark that ends the comment or string over several lines that begins at `at`. A star after a
/// slash is also part of a path or of a pattern, but not after a space.
fn opening(bytes: &[u8], at: usize) -> Option<&'static str> {
    let rest = &bytes[at..];
    if rest.starts_with(b"\"\"\"") {
        Some("\"\"\"")
    } else if rest.starts_with(b"'''") {
        Some("'''")
    } else {
        (rest.starts_with(b"/*") && (at == 0 || bytes[at - 1] == b' ')).then_some("*/")
    }
}

fn role_of(text: &str) -> Role {
    let word_end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '#').unwrap_or(text.len());
    let word = &text[..word_end];
    if is_comment(text) {
        Role::Comment
    } else if is_decorator(text) {
        Role::Decorator
    } else if text.starts_with(['}', ')', ']']) || has(Class::Closes, word) && is_bare(&text[word_end..]) {
        Role::Close
    } else if is_clause(word, &text[word_end..]) || is_operator(text) || is_query_clause(word) || text == "{"
    {
        Role::Continue
    } else if is_inner(word, text) {
        Role::Inner
    } else if has(Class::Imports, word) && !text.ends_with(['{', '(']) && text.contains([' ', '<', '"']) {
        Role::Import
    } else {
        Role::Plain
    }
}

fn is_comment(text: &str) -> bool {
    let is_hash = text.starts_with("# ")
        || text == "#"
        || text.starts_with("#!") && !text.starts_with("#![")
        || text.starts_with("##");
    is_hash
        || text.starts_with("//")
        || text.starts_with("/*")
        || text.starts_with("* ")
        || text == "*"
        || text == "*/"
        || text.starts_with("-- ")
        || text.starts_with("<!--")
        || text.starts_with("; ")
}

fn is_decorator(text: &str) -> bool {
    let name = text.split('(').next().unwrap_or("");
    let is_annotation = text.starts_with('@') && text[1..].starts_with(|c: char| c.is_alphabetic());
    text.starts_with("#[")
        || is_annotation && !text.ends_with('{') && !text.contains(") ") && !name.contains('=')
}

fn is_clause(word: &str, rest: &str) -> bool {
    // In a configuration file, such a word can be a key with a value.
    let is_key = rest.trim_start().starts_with('=')
        || rest.starts_with(": ") && matches!(word, "do" | "then" | "where");
    has(Class::Clause, word) && !is_key
}

/// Returns whether a word continues a query on a new line. In small letters, such words also begin lines of programs.
fn is_query_clause(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_uppercase()) && has(Class::QueryClause, &word.to_ascii_lowercase())
}

fn is_operator(text: &str) -> bool {
    let is_call = text.starts_with('.') && text[1..].starts_with(|c: char| c.is_alphabetic());
    is_call
        || ["&& ", "|| ", "| ", "|> ", "? ", ": ", ", ", ">> ", "<< "]
            .iter()
            .any(|operator| text.starts_with(operator))
}

fn is_inner(word: &str, text: &str) -> bool {
    let is_access = matches!(word, "public" | "private" | "protected" | "default") && text.ends_with(':');
    word == "case" && text.contains([':', '>', ')']) || is_access || text.starts_with("- ") || text == "-"
}

/// Returns whether nothing but punctuation follows a closing word.
fn is_bare(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with([';', ')', '.', ',', ' '])
}
