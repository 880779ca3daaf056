//! Grammars: which signs make a text of a kind. A grammar is a value; a text is of the kind whose grammar has the best score, and prose if
//! none is better than [`PROSE`]: prose that is taken for something else loses more than anything else that is taken for prose.

use super::sign::{Sign, Signs, signs};
use crate::kind::Kind;
use crate::line::lines;
use Sign::*;

/// How much of a text is read, in bytes.
const READ_BYTES: usize = 16 * 1024;

const PROSE: f64 = 0.5;

/// How a text of a kind looks. A kind can look in several ways.
struct Grammar {
    kind: Kind,
    /// A line counts if it has one of these signs; so many lines have to, at least, and this share of all.
    signs: Signs,
    lines: usize,
    share: f64,
    /// Lines with one of these signs alone are left out of all that is counted.
    apart: Signs,
    /// Whether the first line has to count.
    begins: bool,
    /// The score if twice the share counts, or all lines; below, it is less in proportion. The more seldom other texts look so, the higher it is.
    score: f64,
    /// Signs that at least one in so many lines has.
    also: (Signs, usize),
    /// Signs that at most one in so many lines has; 0 is none at all.
    few: (Signs, usize),
}

const fn grammar(kind: Kind, score: f64, signs: &[Sign]) -> Grammar {
    const NONE: Signs = Signs::of(&[]);
    Grammar {
        kind,
        signs: Signs::of(signs),
        lines: 1,
        share: 0.0,
        apart: NONE,
        begins: false,
        score,
        also: (NONE, 0),
        few: (NONE, 1),
    }
}

impl Grammar {
    const fn on(self, lines: usize, share: f64) -> Self {
        Self { lines, share, ..self }
    }

    const fn begins(self) -> Self {
        Self { begins: true, ..self }
    }

    /// Lines that have these signs and not the own ones do not count.
    const fn apart(self, signs: &[Sign]) -> Self {
        Self { apart: Signs::of(signs), ..self }
    }

    /// One in `lines` has one of these signs, too.
    const fn with(self, signs: &[Sign], lines: usize) -> Self {
        Self { also: (Signs::of(signs), lines), ..self }
    }

    /// At most one in `lines` has one of these signs; none if that is 0.
    const fn without(self, signs: &[Sign], lines: usize) -> Self {
        Self { few: (Signs::of(signs), lines), ..self }
    }

    fn score(&self, signs: &[Signs]) -> f64 {
        let count = |of: Signs| signs.iter().filter(|signs| signs.any(of)).count();
        let is_apart = |signs: &&Signs| signs.any(self.apart) && !signs.any(self.signs);
        let lines = signs.len() - signs.iter().filter(is_apart).count();
        let (own, also, few) = (count(self.signs), count(self.also.0), count(self.few.0));
        let is_so = own >= self.lines
            && own as f64 >= self.share * lines as f64
            && also * self.also.1 >= if self.also.1 > 0 { lines } else { 0 }
            && (few == 0 || self.few.1 > 0 && few * self.few.1 <= lines)
            && (!self.begins || signs[0].any(self.signs));
        if !is_so {
            return 0.0;
        }
        let full = (2.0 * self.share).min(1.0) * lines as f64;
        self.score * if full > 0.0 { (own as f64 / full).min(1.0) } else { 1.0 }
    }
}

#[rustfmt::skip]
const GRAMMARS: [Grammar; 24] = [
    grammar(Kind::Subtitles, 2.0, &[Cue]).on(2, 0.15),
    grammar(Kind::Mail, 1.95, &[Head]).on(2, 0.0).without(&[Heading, Fence], 0),
    grammar(Kind::Mail, 1.5, &[Quote]).on(2, 0.0).without(&[Heading, Fence], 0),
    // Levels are what a log has in the place of names.
    grammar(Kind::Chat, 1.9, &[Speaker]).on(2, 0.2).without(&[Level], 5),
    grammar(Kind::Log, 1.85, &[Event]).on(2, 0.5).begins(),
    grammar(Kind::Log, 1.7, &[Event]).on(3, 0.16).begins(),
    grammar(Kind::Log, 1.7, &[Event]).on(3, 0.5),
    grammar(Kind::Log, 1.65, &[Fault]).without(&[Heading, Fence], 0),
    grammar(Kind::Log, 1.1, &[Command]).on(2, 0.0).begins(),
    grammar(Kind::Json, 1.8, &[JsonText]),
    grammar(Kind::Table, 1.75, &[Separated]).on(3, 0.5).without(&[Code, Html, Heading], 2),
    grammar(Kind::Table, 1.35, &[BarRow]).on(2, 0.5).without(&[Code, Heading, Item], 3),
    grammar(Kind::Table, 1.25, &[Columns]).on(3, 0.5).without(&[Code, Heading, Item, Term, Words], 5),
    grammar(Kind::Html, 1.6, &[Html]),
    grammar(Kind::Pdf, 1.4, &[PageRow]).on(3, 0.0),
    grammar(Kind::Pdf, 1.28, &[WideRow]).on(3, 0.0).with(&[Words], 4),
    grammar(Kind::Pdf, 0.52, &[WideRow]).on(3, 0.0),
    grammar(Kind::Code, 1.3, &[Preamble]),
    // What looks like a heading is a comment in code.
    grammar(Kind::Code, 1.2, &[Code]).apart(&[Comment]).on(2, 0.5).with(&[Strong], 8).without(&[Fence, FrontMatter], 0),
    grammar(Kind::Code, 1.1, &[Setting]).apart(&[Comment]).on(3, 0.7).without(&[Fence, FrontMatter], 0),
    // A line that looks like a heading is found in many texts, also in code.
    grammar(Kind::Markdown, 0.55, &[FrontMatter]),
    grammar(Kind::Markdown, 0.55, &[Heading]),
    grammar(Kind::Markdown, 0.55, &[Fence]).on(2, 0.0),
    grammar(Kind::Markdown, 0.55, &[Bar]).on(3, 0.0),
];

/// Returns the kind of a text, from its first 16 KiB.
pub fn kind_of(text: &str) -> Kind {
    let text = head(text);
    let mut lines = lines(text);
    lines.retain(|line| !line.is_blank());
    if lines.is_empty() {
        return Kind::Prose;
    }
    let signs = signs(text, &lines);
    let mut best = (Kind::Prose, PROSE);
    for grammar in &GRAMMARS {
        let score = grammar.score(&signs);
        // A single line is a heading of nothing.
        if score > best.1 && (lines.len() > 1 || grammar.kind != Kind::Markdown) {
            best = (grammar.kind, score);
        }
    }
    best.0
}

/// Returns the whole lines at the beginning of a text, or a part of the first one if it is long.
fn head(text: &str) -> &str {
    if text.len() <= READ_BYTES {
        return text;
    }
    let part = &text[..text.floor_char_boundary(READ_BYTES)];
    part.rfind('\n').filter(|&end| !part[..end].trim().is_empty()).map_or(part, |end| &part[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_recognised() {
        let check = |name: &str, text: &str, expect: Kind| assert_eq!(kind_of(text), expect, "{name}");
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
        check(
            "justified prose",
            "The keeper of the light has to  trim the\nlamp  every  four  hours,  because  the\nlimit for the oil is  set to fifty litres\nunless there is a storm, in which  case the\nmail  is brought on Saturday  morning.",
            Kind::Prose,
        );
        check(
            "changes of a package",
            "tide (1.2-1) unstable; urgency=medium\n\n  * New version (Closes: #12)\n  * Drop patch a.diff;\n  * debian/rules: call make()\n\n -- Ann Lee <ann@x.org>  Mon, 05 Jan 2026 10:00:00 +0100",
            Kind::Prose,
        );
        check(
            "tags over several lines",
            "<p\n>The tide is at noon.</p\n><p\n>The moon is far.</p\n><ul\n><li\n>Ships</li\n></ul\n>",
            Kind::Html,
        );
        check(
            "options of a command",
            "Usage: tide [OPTION]\n  -a, --all         show all tides\n  -b, --brief       show one line\n  -c, --colour      use colours\n  -d, --days=N      show so many days",
            Kind::Prose,
        );
        check("times", "At 9:00 the doors open.\nAt 10:30 it begins.\nAt 12:00 it ends.", Kind::Prose);
    }
}
