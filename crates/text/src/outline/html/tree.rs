//! Reads HTML, whole or broken, into a list of elements and runs of text with their places. Knows which
//! elements end without a closing tag. Must not know which element becomes a piece.

use super::tag::{Class, Tag, class_of, next_tag, raw_end};
use crate::line::trimmed;
use crate::range::ByteRange;

/// How many elements may stand inside each other; deeper ones are text.
const DEPTH_MAX: usize = 128;

/// An element that stands on its own lines of a page, or a run of text and other elements.
pub(super) struct Node<'a> {
    pub range: ByteRange,
    /// Lower-case names are not needed: names are compared without case. Empty for a run of text.
    pub name: &'a str,
    pub class: Class,
    /// One past the opening tag.
    pub open_end: usize,
    /// Where the closing tag begins, if there is one.
    pub close: Option<usize>,
    /// Index one past the last node inside this one.
    pub next: usize,
    /// Whether a run has text and not only tags, or an element has such a run.
    pub has_text: bool,
}

/// Returns the nodes of a page, each before the nodes inside it.
pub(super) fn read(text: &str) -> Vec<Node<'_>> {
    let mut reader =
        Reader { text, nodes: Vec::new(), stack: Vec::new(), run: None, run_has_text: false, end: 0 };
    reader.read_all();
    reader.nodes
}

struct Reader<'a> {
    text: &'a str,
    nodes: Vec<Node<'a>>,
    stack: Vec<usize>,
    /// Where the run of text begins that is open, and where it ends so far.
    run: Option<(usize, usize)>,
    run_has_text: bool,
    /// Where the last tag or text of a node ends.
    end: usize,
}

impl<'a> Reader<'a> {
    fn read_all(&mut self) {
        let mut at = 0;
        while let Some(tag) = next_tag(self.text, at) {
            self.words(at, tag.range.start);
            at = self.tag(&tag);
        }
        self.words(at, self.text.len());
        self.flush();
        let end = self.text.trim_end().len();
        while !self.stack.is_empty() {
            self.pop(end, None);
        }
    }

    /// Adds text to the run that is open.
    fn words(&mut self, start: usize, end: usize) {
        let words = trimmed(self.text, start, end);
        if !words.is_empty() {
            self.extend(words, true);
        }
    }

    fn extend(&mut self, range: ByteRange, has_text: bool) {
        let start = self.run.map_or(range.start, |(start, _)| start);
        self.run = Some((start, range.end));
        self.run_has_text |= has_text;
    }

    fn flush(&mut self) {
        if let Some((start, end)) = self.run.take() {
            let has_text = std::mem::take(&mut self.run_has_text);
            self.end = end;
            let next = self.nodes.len() + 1;
            self.nodes.push(Node {
                range: ByteRange::new(start, end),
                name: "",
                class: Class::Inline,
                open_end: start,
                close: None,
                next,
                has_text,
            });
        }
    }

    /// Reads a tag, and returns where the text after it begins.
    fn tag(&mut self, tag: &Tag<'a>) -> usize {
        let class = class_of(tag.name);
        match class {
            Class::Inline => {
                // Each field of a form begins a run of its own.
                if tag.name.eq_ignore_ascii_case("label") && !tag.closes {
                    self.flush();
                }
                let is_field = ["input", "img"].iter().any(|name| tag.name.eq_ignore_ascii_case(name));
                self.extend(tag.range, is_field);
                tag.range.end
            }
            Class::Void => self.alone(tag.range, tag.name, class),
            Class::Raw => {
                let end = if tag.closes { tag.range.end } else { raw_end(self.text, tag) };
                self.alone(ByteRange::new(tag.range.start, end), tag.name, class)
            }
            _ if tag.closes => self.close(tag),
            _ => self.open(tag, class),
        }
    }

    /// Adds an element without nodes inside.
    fn alone(&mut self, range: ByteRange, name: &'a str, class: Class) -> usize {
        self.flush();
        self.end = range.end;
        let next = self.nodes.len() + 1;
        let is_described = name.eq_ignore_ascii_case("title");
        self.nodes.push(Node {
            range,
            name,
            class,
            open_end: range.end,
            close: None,
            next,
            has_text: is_described,
        });
        range.end
    }

    fn open(&mut self, tag: &Tag<'a>, class: Class) -> usize {
        while self.stack.last().is_some_and(|&top| ends_before(self.nodes[top].name, tag.name)) {
            self.flush();
            self.pop(self.end, None);
        }
        if self.stack.len() >= DEPTH_MAX {
            self.extend(tag.range, false);
            return tag.range.end;
        }
        self.flush();
        self.end = tag.range.end;
        self.stack.push(self.nodes.len());
        let (range, open_end) = (tag.range, tag.range.end);
        let next = self.nodes.len() + 1;
        self.nodes.push(Node { range, name: tag.name, class, open_end, close: None, next, has_text: false });
        open_end
    }

    fn close(&mut self, tag: &Tag<'a>) -> usize {
        let is_same = |&index: &usize| self.nodes[index].name.eq_ignore_ascii_case(tag.name);
        let Some(depth) = self.stack.iter().rposition(is_same) else {
            if self.stack.len() >= DEPTH_MAX {
                self.extend(tag.range, false);
                return tag.range.end;
            }
            return self.alone(tag.range, tag.name, Class::Void);
        };
        self.flush();
        while self.stack.len() > depth + 1 {
            self.pop(self.end, None);
        }
        self.pop(tag.range.end, Some(tag.range.start));
        tag.range.end
    }

    fn pop(&mut self, end: usize, close: Option<usize>) {
        let Some(index) = self.stack.pop() else { return };
        let next = self.nodes.len();
        let has_text = self.nodes[index + 1..].iter().any(|node| node.has_text);
        let node = &mut self.nodes[index];
        node.range.end = end.max(node.range.end);
        self.end = node.range.end;
        (node.close, node.next, node.has_text) = (close, next, has_text);
    }
}

/// Which elements that are open end where others begin.
const ENDS: [(&str, &str); 8] = [
    ("h1 h2 h3 h4 h5 h6", "h1 h2 h3 h4 h5 h6 p ul ol table section article"),
    ("li", "li"),
    ("dt dd", "dt dd"),
    ("td th", "td th tr thead tbody tfoot"),
    ("tr", "tr thead tbody tfoot"),
    ("thead tbody tfoot", "thead tbody tfoot"),
    ("caption", "tr thead tbody tfoot"),
    ("head", "body"),
];

/// Returns whether an element that is open ends where another one begins, as an item does at the next item.
fn ends_before(open: &str, name: &str) -> bool {
    let is_in = |one: &str, names: &str| names.split(' ').any(|other| one.eq_ignore_ascii_case(other));
    is_in(open, "p") || ENDS.iter().any(|(ends, before)| is_in(open, ends) && is_in(name, before))
}
