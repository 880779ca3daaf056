//! What the lines of a text look like, counted. Knows single lines only, and must not decide what they make
//! together.

use super::super::{line::Line, log, markdown, table};

/// What a program or a query says at the beginning of a line.
const STRONG_WORDS: [&str; 52] = [
    "def ",
    "class ",
    "import ",
    "from ",
    "fn ",
    "pub ",
    "let ",
    "const ",
    "var ",
    "func ",
    "function ",
    "return",
    "if (",
    "for (",
    "while (",
    "switch ",
    "case ",
    "#include",
    "#define",
    "#if",
    "#endif",
    "package ",
    "public ",
    "private ",
    "protected ",
    "static ",
    "async ",
    "export ",
    "elif ",
    "else:",
    "try:",
    "except",
    "raise ",
    "SELECT ",
    "INSERT ",
    "CREATE ",
    "ALTER ",
    "UPDATE ",
    "DELETE ",
    "DROP ",
    "type ",
    "struct ",
    "enum ",
    "impl ",
    "use ",
    "using ",
    "namespace ",
    "interface ",
    "await ",
    "throw ",
    "echo ",
    "print",
];
/// What only a query says.
const QUERY_WORDS: [&str; 8] =
    [" NOT NULL", "PRIMARY KEY", " REFERENCES ", "FROM ", "WHERE ", "LEFT JOIN ", "JOIN ", "VALUES "];
/// The levels that tell a log from a chat.
const LEVELS: [&str; 6] = ["INFO", "WARN", "ERROR", "DEBUG", "TRACE", "FATAL"];

/// How many lines look like each kind of text.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// `"key": value`, or nothing but brackets.
    pub json: usize,
    /// Lines that begin with a tag.
    pub tagged: usize,
    /// Lines that begin like an event of a log.
    pub events: usize,
    /// Lines with the level of an event.
    pub levels: usize,
    /// Lines with the command that a build runs.
    pub commands: usize,
    pub code: usize,
    /// Those of them that nothing else looks like.
    pub strong: usize,
    /// Entries of a configuration file.
    pub settings: usize,
    pub comments: usize,
    pub headings: usize,
    pub fences: usize,
    pub items: usize,
    pub bar_rows: usize,
    pub front_matter: bool,
    /// Whether the first line says that this is a program: `#!/bin/sh`, `<?xml`.
    pub preamble: bool,
}

impl Signs {
    /// Counts the lines, of which none is blank.
    pub fn count(lines: &[Line]) -> Self {
        let first = lines[0].text.trim();
        let closes = |line: &Line| line.text.trim_end() == "---";
        let mut signs = Self {
            front_matter: first == "---" && lines.iter().skip(1).take(60).any(closes),
            preamble: first.starts_with("#!/") || first.starts_with("<?xml") || first.starts_with("<?php"),
            ..Self::default()
        };
        let mut is_fenced = false;
        for line in lines {
            if markdown::fence(line.text).is_some() {
                signs.fences += 1;
                is_fenced = !is_fenced;
            } else if !is_fenced {
                signs.line(line);
            }
        }
        signs
    }

    fn line(&mut self, line: &Line) {
        let text = line.text.trim();
        self.json += usize::from(is_json_line(text));
        self.tagged += usize::from(text.starts_with('<') && text.contains('>'));
        self.events += usize::from(log::begins_event(line.text));
        self.levels += usize::from(LEVELS.iter().any(|level| text.contains(level)));
        self.commands += usize::from(text.starts_with("$ "));
        self.headings += usize::from(text.starts_with('#') && markdown::heading_level(line.text).is_some());
        self.items += usize::from(markdown::is_item(text));
        self.bar_rows += usize::from(table::is_bar_row(text));
        self.comments += usize::from(is_comment(text));
        let (code, strong) = (is_code(text), is_strong(text));
        self.code += usize::from(code || strong);
        self.strong += usize::from(strong);
        self.settings += usize::from(is_setting(line.text));
    }
}

fn is_json_line(text: &str) -> bool {
    let is_member = text.starts_with('"') && text.contains("\":");
    let is_value = text.starts_with('"') && (text.ends_with("\",") || text.len() > 1 && text.ends_with('"'));
    is_member
        || is_value
        || text.starts_with(['{', '[']) && text.contains("\":")
        || text.chars().all(|c| "{}[], ".contains(c))
}

fn is_comment(text: &str) -> bool {
    ["//", "/*", "* ", "*/", "# ", "#!", "-- ", "<!--"].iter().any(|mark| text.starts_with(mark))
        || text == "#"
        || text == "*"
}

/// Returns whether a line ends or is built as in a program.
fn is_code(text: &str) -> bool {
    let ends = text.ends_with(['{', '}', ';', '(', '[', '\\'])
        || [");", "),", "},", "],", "=>", "->", "):"].iter().any(|end| text.ends_with(end));
    let closes = text.chars().all(|c| "{}[]();,".contains(c))
        || matches!(text, "fi" | "done" | "esac" | "end" | "else");
    ends && !ends_sentence(text) || closes || is_assignment(text) || is_call(text)
}

/// A sentence can end with a semicolon, but it has no brackets and no equals signs then.
fn ends_sentence(text: &str) -> bool {
    text.ends_with(';')
        && !text.contains(['=', '(', '{', '$', ':', '_', '"', '*', '\''])
        && text.contains(' ')
        && text.len() > 24
}

/// `name = value`, `self.name: Type = value`, `NAME=value`.
fn is_assignment(text: &str) -> bool {
    let Some(at) = text.find('=') else { return false };
    let name = text[..at].trim_end_matches(['+', '-', '*', ':', '?', '|', '!', '<', '>']).trim_end();
    let is_part = |c: char| c.is_alphanumeric() || "_.[]$*&:@'\"<>-,".contains(c);
    !name.is_empty()
        && name.split(' ').count() <= 3
        && name.chars().all(|c| is_part(c) || c == ' ')
        && !text.starts_with("http")
}

/// `name(...)`, `a.name(...)`.
fn is_call(text: &str) -> bool {
    let Some(at) = text.find('(') else { return false };
    let name = &text[..at];
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.:>$!".contains(c));
    is_name && text.trim_end_matches([';', ',', ':', '{', ' ']).ends_with(')')
}

/// Returns whether a line begins with a word of a program, and has marks that sentences with such words lack.
fn is_strong(text: &str) -> bool {
    let has_marks = text.contains(['(', '=', '{', ';', '"', '*', '<', '_']) || text.ends_with(':');
    let is_import = (text.starts_with("import ")
        || text.starts_with("from ") && text.contains(" import ")
        || text.starts_with("package "))
        && !text.ends_with('.')
        && text.split(' ').count() <= 12;
    let is_annotation =
        text.starts_with('@') && text.len() > 2 && !text[1..].contains(' ') || text.starts_with("#[");
    let begins = STRONG_WORDS.iter().any(|word| text.starts_with(word));
    let is_query =
        QUERY_WORDS.iter().any(|word| text.starts_with(word) || word.starts_with(' ') && text.contains(word));
    let is_shell = text.contains("$(") || text.contains("${") || text.starts_with("if [");
    begins && has_marks && !text.ends_with('.')
        || is_import
        || is_annotation
        || is_shell
        || is_query
        || text.ends_with(" {")
        || matches!(text, "}" | "};" | "});" | "fi" | "done" | "end" | "pass" | "try:" | "else:")
}

/// `key: value`, `- item`, `[section]`, `KEY=value`, with keys such as a program reads.
fn is_setting(line: &str) -> bool {
    let text = line.trim();
    if text.starts_with('[') && text.ends_with(']') && !text.contains(". ") {
        return true;
    }
    let (is_item, entry) = text.strip_prefix("- ").map_or((false, text), |entry| (true, entry.trim_start()));
    let entry = entry.trim_start_matches(['"', '\'']);
    let end = entry.find(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c)).unwrap_or(entry.len());
    let rest = entry[end..].trim_start_matches(['"', '\'']);
    let is_lower = entry.starts_with(|c: char| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
        || entry[..end].contains('_');
    let is_entry = rest == ":" || rest.starts_with(": ") || rest.trim_start().starts_with('=');
    end > 0 && is_entry && (is_lower || line.starts_with(' '))
        || is_item && line.starts_with("  ") && !entry.contains(". ")
}

/// Returns whether a text begins with an ASCII text, whatever the case.
pub(super) fn starts_with_any_case(text: &str, begin: &str) -> bool {
    text.as_bytes().get(..begin.len()).is_some_and(|head| head.eq_ignore_ascii_case(begin.as_bytes()))
}
