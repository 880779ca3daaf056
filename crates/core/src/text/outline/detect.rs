//! What kind of text a text is. Knows signs that are rare in prose, and wants several lines with them: prose
//! that is taken for something else loses more than anything else that is taken for prose.

mod signs;

use super::{Kind, chat, html, line::Line, line::lines, log, mail, pdf, subtitles, table};
use signs::Signs;

/// How much of a text is read, in bytes.
const READ_BYTES: usize = 16 * 1024;

/// Returns the kind of a text, from its first [`READ_BYTES`] bytes.
pub fn detect(text: &str) -> Kind {
    let text = head(text);
    let mut lines = lines(text);
    lines.retain(|line| !line.is_blank());
    if lines.is_empty() {
        return Kind::Prose;
    }
    let signs = Signs::count(&lines);
    // The order matters: a line of an early kind can look like one of a later kind.
    let kinds: [(Kind, Test); 13] = [
        (Kind::Log, is_json_log),
        (Kind::Json, is_json),
        (Kind::Html, is_html),
        (Kind::Subtitles, is_subtitles),
        (Kind::Mail, is_mail),
        (Kind::Chat, is_chat),
        (Kind::Log, is_log),
        (Kind::Pdf, is_pdf),
        (Kind::Pdf, has_rows_and_prose),
        (Kind::Table, is_table),
        (Kind::Code, is_code),
        (Kind::Markdown, is_markdown),
        (Kind::Pdf, has_rows),
    ];
    let found = Found { text, lines: &lines, signs };
    kinds.into_iter().find(|(_, is)| is(&found)).map_or(Kind::Prose, |(kind, _)| kind)
}

/// Returns the whole lines at the beginning of a text, or a part of the first one if it is long.
fn head(text: &str) -> &str {
    if text.len() <= READ_BYTES {
        return text;
    }
    let part = &text[..text.floor_char_boundary(READ_BYTES)];
    part.rfind('\n').filter(|&end| !part[..end].trim().is_empty()).map_or(part, |end| &part[..end])
}

/// Returns whether a text is of a kind.
type Test = fn(&Found) -> bool;

struct Found<'a> {
    text: &'a str,
    lines: &'a [Line<'a>],
    signs: Signs,
}

/// Lines of JSON with points in time.
fn is_json_log(found: &Found) -> bool {
    let events = found.lines.iter().filter(|line| log::begins_event(line.text) && line.text.starts_with('{'));
    found.lines.len() >= 2 && events.count() * 2 >= found.lines.len()
}

fn is_json(found: &Found) -> bool {
    let (text, lines) = (found.text.trim_start(), found.lines.len());
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
    let is_dense = found.signs.json * 10 >= lines * 6;
    // A text that begins in the middle has many keys, and brackets between them.
    let brackets = text.matches(['{', '}', '[', ']']).count();
    let is_rest_of_line = lines == 1 && keys >= 4 && brackets >= 2 && keys * 120 >= text.len();
    let is_rest = is_rest_of_line || lines >= 3 && keys >= 2 && is_dense;
    begins && (is_dense || lines <= 2 || keys * 200 >= text.len()) || is_rest
}

fn is_html(found: &Found) -> bool {
    let text = found.text.trim_start();
    let Some((opened, closed)) = html::blocks(text) else { return false };
    let begins = text.starts_with('<');
    let is_page =
        begins && ["<!doctype html", "<html"].iter().any(|tag| signs::starts_with_any_case(text, tag));
    let are_blocks = opened + closed >= 4 && opened >= 2;
    let is_dense = (opened + closed) * 3 >= found.lines.len() && (opened + closed) * 400 >= text.len();
    is_page
        || begins && opened + closed >= 2 && is_dense
        || are_blocks && is_dense && found.signs.tagged * 2 >= found.lines.len()
}

fn is_subtitles(found: &Found) -> bool {
    subtitles::is_subtitles(found.lines)
}

fn is_mail(found: &Found) -> bool {
    // A page can show quotations and heads of mails.
    found.signs.headings == 0
        && found.signs.fences == 0
        && mail::is_mail(found.lines)
        && !log::is_report(found.lines)
}

fn is_chat(found: &Found) -> bool {
    // Levels are what a log has in the place of names.
    found.lines.len() >= 2
        && found.signs.levels * 5 <= found.lines.len()
        && chat::format(found.lines).is_some()
}

fn is_log(found: &Found) -> bool {
    let (signs, lines) = (&found.signs, found.lines.len());
    let begins = found.lines.iter().take(2).any(|line| log::begins_event(line.text));
    if signs.levels * 2 < lines && !log::begins_event(found.lines[0].text) && is_separated(found) {
        return false;
    }
    let is_page = signs.headings > 0 || signs.fences > 0;
    if !is_page && (log::is_trace(found.lines) || log::has_diagnostics(found.lines)) {
        return true;
    }
    let is_run = found.lines[0].text.starts_with("$ ") && lines >= 4 && signs.commands >= 2;
    let is_dense =
        signs.events >= 3 && signs.events * 2 >= lines || signs.events == 2 && lines <= 3 && begins;
    is_dense || begins && signs.events >= 3 && signs.events * 6 >= lines || is_run
}

/// Returns whether the lines are rows with separators. The first cell of such rows is often a point in time.
fn is_separated(found: &Found) -> bool {
    matches!(table::form(found.lines), Some(table::Form::Separated(_)))
}

fn is_pdf(found: &Found) -> bool {
    pdf::is_page(found.lines)
}

/// A table between paragraphs.
fn has_rows_and_prose(found: &Found) -> bool {
    let is_prose = |line: &&Line| {
        let words = line.text.split_whitespace().count();
        words > 8 && !line.text.trim().contains("   ") && !line.text.contains(['\t', '|'])
    };
    has_rows(found) && found.lines.iter().filter(is_prose).count() * 4 >= found.lines.len()
}

fn has_rows(found: &Found) -> bool {
    pdf::has_rows(found.lines)
}

fn is_table(found: &Found) -> bool {
    let (signs, lines) = (&found.signs, found.lines.len());
    let is_page = signs.headings >= 2 || signs.fences >= 2 || signs.items * 3 >= lines || signs.front_matter;
    match table::form(found.lines) {
        Some(table::Form::Columns) => !is_page && signs.code * 5 <= lines,
        Some(_) => !is_page && signs.code * 2 <= lines,
        None => false,
    }
}

fn is_code(found: &Found) -> bool {
    let (signs, lines) = (&found.signs, found.lines.len());
    // What looks like a heading is a comment in code.
    let other = lines.saturating_sub(signs.comments).max(1);
    let is_program = signs.code >= 2 && lines >= 3 && signs.code * 2 >= other && signs.strong * 8 >= other;
    let is_settings = signs.settings >= 3 && signs.settings * 10 >= other * 7;
    let is_page = signs.front_matter || signs.fences > 0;
    !is_page && (is_program || is_settings || signs.preamble)
}

fn is_markdown(found: &Found) -> bool {
    let (signs, lines) = (&found.signs, found.lines.len());
    lines >= 2 && (signs.front_matter || signs.headings > 0 || signs.fences >= 2 || signs.bar_rows >= 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_recognised() {
        let check = |name: &str, text: &str, expect: Kind| assert_eq!(detect(text), expect, "{name}");
        check("rest of an object", "12,\n  \"b\": 3,\n  \"c\": [\n    1\n  ]\n}", Kind::Json);
        check("rest of a line", r#"e","id":7},{"id":8,"n":"x"},{"id":9,"n":"y"},{"id":1"#, Kind::Json);
        check("an array", "[1, 2, 3]", Kind::Prose);
        check("events", "{\"ts\":\"2025\",\"m\":1}\n{\"ts\":\"2026\",\"m\":2}", Kind::Log);
        check("a page", "<!DOCTYPE html><html><body>", Kind::Html);
        check("items", "<li>a</li>\n<li>b</li>\n<li>c</li>", Kind::Html);
        check("a tag in a sentence", "Use the <p> tag and the </p> tag.\nThen <b>bold</b>.", Kind::Prose);
        check("xml", "<?xml version=\"1.0\"?>\n<a>\n  <b>1</b>\n</a>", Kind::Code);
        check(
            "trace",
            "Caused by: x.Y\n\tat a.b(C.java:1)\n2025-01-01 10:00:00 INFO a\n2025-01-01 10:00:01 INFO b\n2025-01-01 10:00:02 WARN c",
            Kind::Log,
        );
        check("levels", "ERROR: a failed\nWARN: b is slow\nINFO: c done", Kind::Log);
        check("a chat", "<ann> hi\n<bob> hello\n<ann> ok", Kind::Chat);
        check("facts", "Director: Ann Lee\nWriter: Bob Ray\nMusic: Cy Orr\nRuntime: 90 minutes", Kind::Prose);
        check("dialogue", "Ann: Who is there?\nBob: Me.\nAnn: Come in.\nBob: Thank you.", Kind::Chat);
        check("toml", "[package]\nname = \"a\"\nversion = \"1\"\n\n[lib]\npath = \"b\"", Kind::Code);
        check("go", "\tif err != nil {\n\t\treturn err\n\t}\n\treturn nil\n}", Kind::Code);
        check("ruby", "class A\n  def b\n    @c = 1\n  end\nend", Kind::Code);
        check("shell", "#!/bin/sh\necho hi", Kind::Code);
        check("a list", "Buy:\n- milk\n- bread\n- eggs", Kind::Prose);
        check("a heading", "# A\n\nSome text.", Kind::Markdown);
        check("headings and comments", "# A\n\nText.\n\n```sh\n# b\nrun x\n```\n\nMore.", Kind::Markdown);
        check("separated", "a;b;c\n1;2;3\n4;5;6", Kind::Table);
        check("a line break in a cell", "id,\"a\nb\",c\n1,\"2\n3\",4\n5,\"6\",7\n8,9,10", Kind::Table);
        check(
            "points in time in a table",
            "when,who,what\n2025-01-01 10:00,ann,x\n2025-01-01 11:00,bob,y",
            Kind::Table,
        );
        check(
            "names",
            "Smith, J., Jones, A., Brown, C.\nLee, D., Ray, E., Orr, F.\nFox, G., Kay, H., Hill, I.",
            Kind::Prose,
        );
        check(
            "verse",
            "The sun goes down;\nThe wind is still;\nA light in town,\nA mill on the hill.",
            Kind::Prose,
        );
        check(
            "words of programs",
            "import duties rose in 1890.\nfrom then on, trade fell.\nlet us see why.",
            Kind::Prose,
        );
        check("times", "At 9:00 the doors open.\nAt 10:30 it begins.\nAt 12:00 it ends.", Kind::Prose);
    }
}
