//! Places: the page, the line and the headings at which a passage of a chunk stands, for readers who want to open it. They come from the
//! chunk's [`Anchors`](crate::domain::Anchors) or, without these, from the text itself. What neither says is unknown: a wrong page is worse
//! than none.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::domain::{ByteRange, Chunk, PAGES_MAX, PageStart};
use crate::text::outline::Layout;

/// The fewest pages that agree on how the pages of a text are numbered. A single number may be anything.
const PAGES_NUMBERED_MIN: usize = 2;

/// The fewest lines that show that the lines of a text are numbered.
const LINES_NUMBERED_MIN: usize = 3;

/// The most headings above a passage, the nearest ones, and the most bytes of each: every citation repeats them.
const HEADINGS_MAX: usize = 6;
const HEADING_BYTES_MAX: usize = 120;

/// Where a passage stands in its document, as far as that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The pages on which the passage begins and ends.
    pub pages: Option<RangeInclusive<u32>>,
    /// The number of the line on which it begins, from 1.
    pub line: Option<u64>,
    /// The headings that it stands under, the outermost first.
    pub headings: Vec<String>,
}

#[derive(Debug)]
pub struct Places<'a> {
    text: &'a str,
    layout: Arc<Layout>,
    /// `[piece]`: the nearest heading above, as an index of a piece.
    headings: Vec<Option<usize>>,
    pages: Cow<'a, [PageStart]>,
    lines: Option<Lines>,
}

#[derive(Debug)]
struct Lines {
    /// The number of the first line.
    first: u32,
    /// The byte offsets of the line ends.
    ends: Vec<usize>,
}

impl<'a> Places<'a> {
    pub fn new(chunk: &'a Chunk, layout: Arc<Layout>) -> Self {
        let text = &*chunk.text;
        let pages = match chunk.anchors.pages() {
            [] => Cow::Owned(shown_pages(text)),
            pages => Cow::Borrowed(pages),
        };
        let first = chunk.anchors.line().or_else(|| shown_line(text));
        let lines = first.map(|first| Lines { first, ends: line_ends(text) });
        Self { text, headings: layout.headings(), layout, pages, lines }
    }

    pub fn at(&self, bytes: ByteRange) -> Place {
        let page = |at: usize| {
            let begun = self.pages.partition_point(|page| page.start <= at);
            begun.checked_sub(1).map(|last| self.pages[last].page)
        };
        let last = bytes.end.saturating_sub(1).max(bytes.start);
        let line = |lines: &Lines| {
            u64::from(lines.first) + lines.ends.partition_point(|&end| end < bytes.start) as u64
        };
        Place {
            pages: page(bytes.start).zip(page(last)).map(|(first, last)| first..=last),
            line: self.lines.as_ref().map(line),
            headings: self.headings_at(bytes.start),
        }
    }

    /// Returns the headings above an offset. A heading that begins there is one of them.
    fn headings_at(&self, at: usize) -> Vec<String> {
        let pieces = &self.layout.pieces;
        let piece = pieces.partition_point(|piece| piece.bytes.end <= at);
        let Some(own) = pieces.get(piece) else { return Vec::new() };
        let nearest = if own.is_heading() { Some(piece) } else { self.headings[piece] };
        let above = std::iter::successors(nearest, |&heading| self.headings[heading]);
        let named =
            above.take(HEADINGS_MAX).map(|heading| heading_text(pieces[heading].bytes.slice(self.text)));
        // A line such as "Page 8" above a text may look like its heading.
        let are_shown = matches!(&self.pages, Cow::Owned(pages) if !pages.is_empty());
        let is_number = |text: &str| are_shown && page_number(text).is_some();
        let is_heading = |text: &String| !text.is_empty() && !is_number(text);
        let mut found: Vec<String> = named.filter(is_heading).collect();
        found.reverse();
        found
    }
}

/// Returns the text of a heading without its markup, cut to [`HEADING_BYTES_MAX`].
fn heading_text(source: &str) -> String {
    let is_underline = |line: &&str| line.trim().chars().all(|c| matches!(c, '=' | '-'));
    let mut text = String::with_capacity(source.len());
    for line in source.lines().filter(|line| !is_underline(line)) {
        text.push_str(line);
        text.push(' ');
    }
    if source.starts_with('<') {
        text = without_tags(&text);
    }
    let text = text.trim().trim_start_matches('#');
    // "## C#" is about C#, and "## Usage ##" about usage.
    let closed = text.rsplit_once(' ').filter(|(_, end)| end.bytes().all(|byte| byte == b'#'));
    let text = closed.map_or(text, |(text, _)| text);
    let is_markup = |c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`' | '=');
    let text = text.trim_matches(is_markup).split_whitespace().collect::<Vec<_>>().join(" ");
    if text.len() <= HEADING_BYTES_MAX {
        return text;
    }
    format!("{}…", text[..text.floor_char_boundary(HEADING_BYTES_MAX)].trim_end())
}

fn without_tags(html: &str) -> String {
    let (mut text, mut is_tag) = (String::new(), false);
    for c in html.chars() {
        match c {
            '<' => is_tag = true,
            '>' if is_tag => is_tag = false,
            c if !is_tag => text.push(c),
            _ => {}
        }
    }
    let names =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")];
    names.iter().fold(text, |text, (name, c)| text.replace(name, c))
}

/// Returns the pages of a text that form feeds divide, if enough of them have their number in their first or last line.
fn shown_pages(text: &str) -> Vec<PageStart> {
    let sheets: Vec<&str> = text.split('\u{c}').take(PAGES_MAX + 1).collect();
    if !(PAGES_NUMBERED_MIN..=PAGES_MAX).contains(&sheets.len()) {
        return Vec::new();
    }
    // How many sheets say that the text begins with this page, and how many say anything.
    let mut votes: HashMap<i64, usize> = HashMap::new();
    let mut numbered = 0;
    for (at, sheet) in (0..).zip(&sheets) {
        let mut lines = sheet.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().and_then(page_number).map(|page| page - at);
        let last = lines.next_back().and_then(page_number).map(|page| page - at);
        numbered += usize::from(first.is_some() || last.is_some());
        for begins_with in first.into_iter().chain(last.filter(|_| first != last)) {
            *votes.entry(begins_with).or_default() += 1;
        }
    }
    let most = votes.values().copied().max().unwrap_or_default();
    let mut likeliest = votes.into_iter().filter(|&(_, count)| count == most).map(|(first, _)| first);
    let (Some(first), None) = (likeliest.next(), likeliest.next()) else { return Vec::new() };
    // Numbers of a table agree by chance on two sheets of many.
    if most < PAGES_NUMBERED_MIN || 2 * most < numbered || first < 1 {
        return Vec::new();
    }
    let mut start = 0;
    let page = |(page, sheet): (i64, &&str)| {
        let found = PageStart { start, page: u32::try_from(page).ok()? };
        start += sheet.len() + 1;
        Some(found)
    };
    (first..).zip(&sheets).filter_map(page).collect()
}

/// Returns the number of a page in a line with nothing else: `12`, `- 12 -`, `Page 12`, `Seite 12 von 40`, `12/40`.
fn page_number(line: &str) -> Option<i64> {
    let is_joint = |c: char| c.is_whitespace() || matches!(c, '-' | '–' | '—' | '|' | '[' | ']' | '/');
    let mut words = line.split(is_joint).filter(|word| !word.is_empty());
    let is_name = |word: &str| word.chars().all(|c| c.is_alphabetic() || c == '.');
    let number = |word: &str| {
        let is_number = matches!(word.len(), 1..=4) && word.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| word.parse().ok()).flatten()
    };
    let first = words.next()?;
    let found = if is_name(first) { number(words.next()?)? } else { number(first)? };
    let is_count = |word: &str| number(word).is_some();
    let is_end = match (words.next(), words.next(), words.next()) {
        (None, ..) => true,
        (Some(count), None, _) => is_count(count),
        (Some(of), Some(count), None) => is_name(of) && is_count(count),
        _ => false,
    };
    is_end.then_some(found)
}

/// Returns the number of the first line if all lines have their numbers, as `cat -n` and editors for agents write them: blanks, the number, and
/// a tab or an arrow.
fn shown_line(text: &str) -> Option<u32> {
    let number = |line: &str| {
        let bare = line.trim_start_matches(' ');
        let digits = bare.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = bare.split_at(digits);
        // A first column of a table is not set to the right.
        let is_number = rest.starts_with('→') || rest.starts_with('\t') && bare.len() < line.len();
        number.parse::<u32>().ok().filter(|&number| is_number && number > 0)
    };
    let first = number(text.lines().next()?)?;
    let mut count = 0;
    for (line, expected) in text.lines().zip(u64::from(first)..) {
        if number(line).map(u64::from) != Some(expected) {
            return None;
        }
        count += 1;
    }
    (count >= LINES_NUMBERED_MIN).then_some(first)
}

/// Returns the byte offsets of the ends of lines: `\n`, `\r\n` or `\r`.
fn line_ends(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let is_end = |&at: &usize| bytes[at] == b'\n' || bytes[at] == b'\r' && bytes.get(at + 1) != Some(&b'\n');
    (0..bytes.len()).filter(is_end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Anchors, Kind};

    /// `expect` is such as `p12-13 l4 Leave > Carry-over`, without what is unknown.
    fn check_chunk(name: &str, chunk: &Chunk, passage: &str, expect: &str) {
        let layout = Arc::new(Layout::detect(&chunk.text, chunk.kind));
        let start = chunk.text.find(passage).expect(name);
        let place = Places::new(chunk, layout).at(ByteRange::new(start, start + passage.len()));
        let pages = place.pages.map(|pages| match (pages.start(), pages.end()) {
            (first, last) if first == last => format!("p{first}"),
            (first, last) => format!("p{first}-{last}"),
        });
        let line = place.line.map(|line| format!("l{line}"));
        let headings = Some(place.headings.join(" > ")).filter(|headings| !headings.is_empty());
        let found: Vec<String> = [pages, line, headings].into_iter().flatten().collect();
        assert_eq!(found.join(" "), expect, "{name}");
    }

    const LINES: &str = "Ä one. Two.\r\nThree.\rFour.\n\nFive.";

    #[test]
    fn the_places_that_a_caller_names_are_found_by_offset() {
        let check = |name: &str, pages: &[(usize, u32)], line, passage: &str, expect: &str| {
            let pages = pages.iter().map(|&(start, page)| PageStart { start, page }).collect();
            let anchors = Anchors::new(pages, line, LINES).expect(name);
            check_chunk(name, &Chunk { anchors, ..Chunk::new("a", LINES) }, passage, expect);
        };
        let three = LINES.find("Three.").expect("a line");
        check("nothing is known", &[], None, "Four.", "");
        check("the first line", &[], Some(120), "Two.", "l120");
        check("line ends of all systems", &[], Some(120), "Five.", "l124");
        check("one page", &[(0, 12)], None, "Five.", "p12");
        check("before the first page", &[(three, 12)], None, "Two.", "");
        check("at the beginning of a page", &[(0, 12), (three, 15)], None, "Three.", "p15");
        check("at the end of a page", &[(0, 12), (three, 15)], None, "Two.", "p12");
        check("on two pages", &[(0, 12), (three, 15)], Some(1), "Two.\r\nThree.", "p12-15 l1");
    }

    #[test]
    fn the_places_that_a_text_shows_are_found() {
        let check = |name: &str, text: &str, passage: &str, expect: &str| {
            check_chunk(name, &Chunk::new("a", text), passage, expect);
        };
        check("numbers below the pages", "One.\n- 7 -\n\u{c}Two.\n- 8 -\n\u{c}Three.", "Three.", "p9");
        check(
            "numbers above the pages",
            "cut off.\n\u{c}Page 8 of 9\nTwo.\n\u{c}Page 9 of 9\nThree.",
            "Two.",
            "p8",
        );
        check("a form feed without numbers", "One.\n\u{c}Two.", "Two.", "");
        check("a single number", "One.\n12\n\u{c}Two.", "Two.", "");
        check("numbers that do not follow each other", "One.\n7\n\u{c}Two.\n7\n\u{c}Three.\n7\n", "Two.", "");
        check("numbers without form feeds", "One.\n\n7\n\nTwo.\n\n8\n", "Two.", "");
        let numbered = "    41\tfn main() {\n    42\t    tide();\n    43\t}\n";
        check("numbered lines", numbered, "tide", "l42");
        check("numbered lines of an agent", "  9→fn main() {\n 10→    tide();\n 11→}", "tide", "l10");
        check("rows with numbers", "41\ta\tx\n42\ttide\ty\n43\tc\tz\n", "tide", "");
        check("lines that are left out", "    41\ta\n    43\ttide\n    44\tc\n", "tide", "");
    }

    #[test]
    fn the_headings_above_a_passage_are_named() {
        let check = |name: &str, kind: Kind, text: &str, passage: &str, expect: &str| {
            check_chunk(name, &Chunk { kind, ..Chunk::new("a", text) }, passage, expect);
        };
        let handbook = "# Leave policy #\n\nYou have 30 days.\n\n## **Carry-over**\n\n- Five days are carried over.\n\n\
                        | year | days |\n|---|---|\n| 2024 | 5 |\n\nC# ###\n===\n\nA language.\n";
        check("below a heading", Kind::Markdown, handbook, "You have", "Leave policy");
        check("below two", Kind::Markdown, handbook, "- Five", "Leave policy > Carry-over");
        check("the row of a table", Kind::Markdown, handbook, "| 2024", "Leave policy > Carry-over");
        check("a heading itself", Kind::Markdown, handbook, "## **Carry", "Leave policy > Carry-over");
        check("an underlined heading", Kind::Markdown, handbook, "A language", "C#");
        let page = "<h1>Leave &amp; rest</h1><p>You have 30 days.</p><h2 id=\"c\">Carry-<b>over</b></h2><p>Five days.</p>";
        check("a page", Kind::Html, page, "<p>Five", "Leave & rest > Carry-over");
        check(
            "clauses",
            Kind::Prose,
            "4.1 Notice\nEither side may end it.\n4.2 Rent\nIt is paid monthly.",
            "It is",
            "4.2 Rent",
        );
        check("prose", Kind::Auto, "You have 30 days. Five are carried over.", "Five", "");
        let long = format!("# {}\n\nText.", "long ".repeat(40));
        check(
            "a long heading",
            Kind::Markdown,
            &long,
            "Text.",
            &format!("{}…", "long ".repeat(24).trim_end()),
        );
    }
}
