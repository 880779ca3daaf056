//! Signs: what the single lines of a text look like. Knows lines and how they stand together, and no kind; `grammar` says which signs make a
//! text of a kind.

use super::{chat, html, log, mail, markdown, pdf, subtitles, table};
use crate::lexicon::{Class, has};
use crate::line::{Line, fence, fences, heading_level};

/// What a line can look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Sign {
    /// `"key": value`, a value with a comma, or nothing but brackets.
    Json,
    /// The first line of a text that is JSON as a whole, or the middle of it.
    JsonText,
    /// A line inside a tag, or one that begins with one.
    Tag,
    /// The first line of a page, or of a text of which tags are a large part.
    Html,
    /// Begins like an event of a log: with a point in time, a level, a command.
    Event,
    /// Has the level of an event.
    Level,
    Command,
    /// A line of a stack trace, a compiler or a test run.
    Fault,
    /// The beginning of a turn, in a text whose turns go back and forth.
    Speaker,
    /// The times of a cue of subtitles.
    Cue,
    /// A field of the head of a mail.
    Head,
    /// A quoted line below or above one that is not quoted so deep.
    Quote,
    /// A row of a table with bars, as most of its lines are.
    BarRow,
    /// A row of a table with separators, as most of its lines are.
    Separated,
    /// A row of a table whose columns stand one below the other, as most of its lines are.
    Columns,
    /// A row of a page: a label with its cells, in its line or below it.
    PageRow,
    /// A label and numbers behind wide gaps.
    WideRow,
    /// Built as in a program.
    Code,
    /// Code that nothing else looks like.
    Strong,
    /// An entry of a configuration file.
    Setting,
    Comment,
    /// The first line of a program that says so: `#!/bin/sh`, `<?xml`.
    Preamble,
    Heading,
    Fence,
    /// The first line of front matter.
    FrontMatter,
    Bar,
    Item,
    /// Begins with an option, as `-a, --all`.
    Term,
    /// Running text, as in prose.
    Words,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Signs(u32);

impl Signs {
    pub const fn of(signs: &[Sign]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < signs.len() {
            bits |= 1 << signs[at] as u32;
            at += 1;
        }
        Self(bits)
    }

    /// Returns whether the line has one of these signs.
    pub fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    pub fn has(self, sign: Sign) -> bool {
        self.any(Self::of(&[sign]))
    }

    fn set(&mut self, sign: Sign, is: bool) {
        if is {
            self.0 |= 1 << sign as u32;
        }
    }
}

/// Returns the signs of each of the lines of `text` that are not blank.
pub(super) fn signs(text: &str, lines: &[Line]) -> Vec<Signs> {
    let mut signs = vec![Signs::default(); lines.len()];
    let fences = fences(lines);
    // Where the fenced block ends that a line stands in.
    let mut fenced_to = 0;
    for (at, line) in lines.iter().enumerate() {
        fenced_to = fences[at].map_or(fenced_to, |close| close + 1);
        let is_fence = fence(line.text).is_some();
        signs[at].set(Sign::Fence, is_fence);
        if !is_fence && at >= fenced_to {
            of_line(line.text, &mut signs[at]);
        }
    }
    of_text(text, lines, &mut signs);
    signs
}

/// Sets the signs that a line shows alone.
fn of_line(line: &str, signs: &mut Signs) {
    let text = line.trim();
    signs.set(Sign::Json, is_json(text));
    signs.set(Sign::Event, log::begins_event(line));
    signs.set(Sign::Level, has_level(text));
    signs.set(Sign::Command, text.starts_with("$ "));
    signs.set(Sign::Heading, text.starts_with('#') && heading_level(line).is_some());
    signs.set(Sign::Item, markdown::is_item(text));
    signs.set(Sign::Bar, table::is_bar_row(text));
    signs.set(Sign::Comment, is_comment(line));
    signs.set(Sign::Strong, is_strong(text));
    signs.set(Sign::Code, is_code(text) || is_strong(text));
    signs.set(Sign::Setting, is_setting(line));
    signs.set(Sign::Term, crate::line::is_option(text));
    signs.set(Sign::Words, is_prose(text) && !is_comment(line));
    signs.set(Sign::WideRow, pdf::is_wide_row(line));
}

/// Sets the signs that lines show only together.
fn of_text(text: &str, lines: &[Line], signs: &mut [Signs]) {
    let mut set_if = |sign: Sign, is: &dyn Fn(usize) -> bool| {
        signs.iter_mut().enumerate().for_each(|(at, signs)| signs.set(sign, is(at)));
    };
    let first = lines[0].text.trim();
    let closes = |line: &Line| line.text.trim_end() == "---";
    let has_front_matter = first == "---" && lines.iter().skip(1).take(FRONT_MATTER_LINES).any(closes);
    let has_preamble = ["#!/", "<?xml", "<?php"].iter().any(|begin| first.starts_with(begin));
    set_if(Sign::FrontMatter, &|at| at == 0 && has_front_matter);
    set_if(Sign::Preamble, &|at| at == 0 && has_preamble);

    let tagged = html::tagged_lines(text, lines);
    set_if(Sign::Tag, &|at| tagged.is_inside[at]);
    set_if(Sign::Html, &|at| at == 0 && tagged.is_html);

    set_if(Sign::Cue, &|at| subtitles::is_time(lines[at].text));
    let faults = log::faults(lines);
    set_if(Sign::Fault, &|at| faults[at]);
    if let Some(format) = chat::format(lines) {
        set_if(Sign::Speaker, &|at| format.head(lines[at].text).is_some());
    }
    if !tagged.is_html {
        let (heads, quotes) = mail::signs(lines);
        set_if(Sign::Head, &|at| heads[at]);
        set_if(Sign::Quote, &|at| quotes[at]);
    }
    match table::form(lines) {
        Some(table::Form::Pipes) => set_if(Sign::BarRow, &|_| true),
        Some(table::Form::Separated(_)) => set_if(Sign::Separated, &|_| true),
        Some(table::Form::Columns) if table::are_aligned(lines) => set_if(Sign::Columns, &|_| true),
        _ => {}
    }
    let is_page = pdf::is_page(lines);
    set_if(Sign::PageRow, &|_| is_page);
    let json = lines_of_json(signs);
    signs[0].set(Sign::JsonText, is_json_text(text, lines.len(), json));
}

/// How many lines front matter can have.
const FRONT_MATTER_LINES: usize = 60;

fn lines_of_json(signs: &[Signs]) -> usize {
    signs.iter().filter(|signs| signs.has(Sign::Json)).count()
}

/// Returns whether a text begins as JSON does and has its marks, or is the middle of such a text.
fn is_json_text(text: &str, lines: usize, json_lines: usize) -> bool {
    let text = text.trim_start();
    let keys = text.matches("\":").count() + text.matches("\" :").count();
    let inside = text.strip_prefix(['{', '[']).unwrap_or("").trim_start();
    let begins = match text.as_bytes().first() {
        Some(b'{') => inside.starts_with(['"', '}', '/']) && keys > 0,
        Some(b'[') => {
            inside.starts_with(['{', '[', '"'])
                && (keys > 0 || text.contains("\",") || inside.starts_with('['))
        }
        _ => false,
    };
    let is_dense = json_lines * 10 >= lines * 6;
    // A text that begins in the middle has many keys, and brackets between them.
    let brackets = text.matches(['{', '}', '[', ']']).count();
    let is_rest_of_line = lines == 1 && keys >= 4 && brackets >= 2 && keys * 120 >= text.len();
    let is_rest = is_rest_of_line || lines >= 3 && keys >= 2 && is_dense;
    begins && (is_dense || lines <= 2 || keys * 200 >= text.len()) || is_rest
}

fn is_json(text: &str) -> bool {
    let is_member = text.starts_with('"') && text.contains("\":");
    let is_value = text.starts_with('"') && (text.ends_with("\",") || text.len() > 1 && text.ends_with('"'));
    is_member
        || is_value
        || text.starts_with(['{', '[']) && text.contains("\":")
        || text.chars().all(|c| "{}[], ".contains(c))
}

fn is_comment(line: &str) -> bool {
    let text = line.trim();
    let begins = ["//", "/*", "*/", "# ", "#!", "<!--"].iter().any(|mark| text.starts_with(mark));
    // The lines of a block comment are one column further right than its code; those of a list are not.
    let indent = &line[..line.len() - line.trim_start().len()];
    let is_inside = text.starts_with("* ") && indent.chars().rev().take_while(|&c| c == ' ').count() % 2 == 1;
    begins || is_inside || line.starts_with("-- ") || text == "#" || text == "*"
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
    let word = text.split([' ', '(', ':', '<', '"', ';', '!']).next().unwrap_or_default();
    let begins = has(Class::Keyword, word);
    let is_query = is_capitals(word) && has(Class::Query, &word.to_ascii_lowercase())
        || has_capitals(text, Class::Schema);
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

/// The levels that tell a log from a chat: words in capitals.
fn has_level(text: &str) -> bool {
    has_capitals(text, Class::Level)
}

/// Returns whether a text has a word or two words of a class in capitals.
fn has_capitals(text: &str, class: Class) -> bool {
    // Most lines have no two capitals, and need no look at their words.
    if !text.as_bytes().windows(2).any(|pair| pair.iter().all(u8::is_ascii_uppercase)) {
        return false;
    }
    let mut before = String::new();
    text.split(|c: char| !c.is_ascii_alphabetic()).any(|word| {
        let lower = if is_capitals(word) { word.to_ascii_lowercase() } else { String::new() };
        let is_one = !lower.is_empty() && (has(class, &lower) || has(class, &format!("{before}_{lower}")));
        before = lower;
        is_one
    })
}

fn is_capitals(word: &str) -> bool {
    word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase())
}

/// The fewest words of a line of running text, and the share of them that have only letters.
const PROSE_WORDS_MIN: usize = 5;
const PROSE_SHARE: f64 = 0.7;

/// Returns whether a line is running text: several words, most of them of letters only.
fn is_prose(text: &str) -> bool {
    let is_word = |word: &str| {
        let bare = word.trim_matches(|c: char| ".,;:!?()\"'“”‘’*`".contains(c));
        !bare.is_empty() && bare.chars().all(|c| c.is_alphabetic() || "-'’".contains(c))
    };
    let (mut words, mut of_letters) = (0_usize, 0_usize);
    for word in text.split_whitespace() {
        words += 1;
        of_letters += usize::from(word.bytes().all(|byte| byte.is_ascii_alphabetic()) || is_word(word));
    }
    words >= PROSE_WORDS_MIN && of_letters as f64 >= PROSE_SHARE * words as f64
}
