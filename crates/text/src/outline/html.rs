//! The pieces of an HTML page: paragraphs, items and rows, with their headings and headers. Knows what
//! elements are for, and must not know how they are read: see [`tree`].
//!
//! - An element with text is a piece with its own tags, if no other one inside is divided from it, or if it
//!   is short. A longer paragraph is divided into sentences.
//! - A heading is a frame that what stands below it requires, until its section ends. The header of a table,
//!   a caption and a legend are such frames inside their element.
//! - The tags of lists and tables are frames that their items and rows require. Tags that only arrange,
//!   scripts and navigation are frames that nothing requires, so that they are never kept.

mod tag;
mod tree;

use super::{Pieces, Role, Sentences};
use crate::line::Line;
use crate::range::ByteRange;
use tag::Class;
use tree::Node;

/// The longest element with other elements inside that is one piece, in bytes.
const BLOCK_BYTES_WHOLE: usize = 600;
/// The longest element that only arranges others and is one piece with them, in bytes.
const WRAPPER_BYTES_WHOLE: usize = 300;
/// The longest row with other rows inside that is one piece, in bytes.
const ROW_BYTES_WHOLE: usize = 1200;
/// The longest heading that the headings below it require, in bytes, tags included.
const HEADING_BYTES_SHORT: usize = 120;

/// Returns the pieces of a page; none if it has no tags.
pub(super) fn outline(text: &str, sentences: &Sentences) -> Pieces {
    let nodes = tree::read(text);
    if nodes.iter().all(|node| node.name.is_empty()) {
        return Pieces::default();
    }
    let top = Open { next: usize::MAX, ..Open::default() };
    let mut writer = Writer {
        text,
        sentences,
        nodes: &nodes,
        pieces: Pieces::default(),
        open: vec![top],
        headings: Vec::new(),
    };
    let mut index = 0;
    while index < nodes.len() {
        writer.close_before(index);
        index = writer.node(index);
    }
    writer.close_before(usize::MAX);
    writer.pieces
}

/// What the tags of a text say about its lines.
pub(super) struct Tagged {
    /// `[line]`: whether a tag begins with the line or goes over it.
    pub is_inside: Vec<bool>,
    /// Whether tags are so large a part of the text that it is a page or a part of one.
    pub is_html: bool,
}

/// The most bytes and lines for each tag that opens or closes an element, in a text that is HTML.
const BYTES_PER_TAG: usize = 400;
const LINES_PER_TAG: usize = 3;

/// Finds the tags of a text that is divided into `lines`.
pub(super) fn tagged_lines(text: &str, lines: &[Line]) -> Tagged {
    let mut is_inside = vec![false; lines.len()];
    let (mut opened, mut closed, mut at, mut is_known) = (0, 0, 0, true);
    while let Some(tag) = tag::next_tag(text, at) {
        let class = tag::class_of(tag.name);
        if at == 0 {
            is_known = !matches!(class, Class::Inline) || tag::is_inline(tag.name);
        }
        if !matches!(class, Class::Inline) {
            *(if tag.closes { &mut closed } else { &mut opened }) += 1;
        }
        let first = lines.partition_point(|line| line.end() <= tag.range.start);
        let end = lines.partition_point(|line| line.start < tag.range.end);
        for line in first..end {
            is_inside[line] |= line > first || lines[line].trimmed().start == tag.range.start;
        }
        at = tag.range.end;
    }
    let begins = text.trim_start().starts_with('<');
    let is_page = begins && tag::begins_page(text.trim_start());
    let tags = opened + closed;
    let is_dense = tags * LINES_PER_TAG >= lines.len() && tags * BYTES_PER_TAG >= text.len();
    let inside = is_inside.iter().filter(|is| **is).count();
    let are_blocks = tags >= 4 && opened >= 2 && inside * 2 >= lines.len();
    Tagged { is_inside, is_html: is_known && (is_page || is_dense && (begins && tags >= 2 || are_blocks)) }
}

/// An element whose pieces are being written.
#[derive(Default)]
struct Open {
    /// The node after its last one.
    next: usize,
    close: Option<ByteRange>,
    /// The frame of its opening tag, if what is inside needs it.
    frame: Option<usize>,
    /// The caption, the legend or the first text of the element, which the rest requires.
    caption: Option<usize>,
    header: Option<usize>,
    has_rows: bool,
    is_table: bool,
    /// How many headings there were when it was opened.
    headings: usize,
    /// Whether something stands below the headings in it.
    has_text_below: bool,
}

struct Heading {
    level: u8,
    piece: usize,
}

struct Writer<'a, 'b> {
    text: &'a str,
    sentences: &'a Sentences<'b>,
    nodes: &'a [Node<'a>],
    pieces: Pieces,
    open: Vec<Open>,
    headings: Vec<Heading>,
}

impl Writer<'_, '_> {
    /// Writes a node, and returns the next one to write.
    fn node(&mut self, index: usize) -> usize {
        let node = &self.nodes[index];
        match node.class {
            Class::Junk => self.junk(node.range),
            Class::Void | Class::Raw => self.alone(node),
            Class::Heading(level) => self.heading(level, node.range),
            Class::Caption => {
                let piece = self.pieces.frame(node.range, &self.requires());
                self.top().caption = Some(piece);
            }
            Class::Row if self.is_page_in_row(index) => return self.open(index),
            Class::Row if node.name.eq_ignore_ascii_case("tr") => self.row(index),
            Class::Inline if !node.has_text => self.junk(node.range),
            Class::Inline => self.text(node.range),
            Class::Row => _ = self.block(node.range),
            Class::Block | Class::Cell | Class::Wrapper if node.has_text && self.is_whole(index) => {
                return self.whole(index);
            }
            Class::Block | Class::Cell | Class::Wrapper | Class::List => return self.open(index),
        }
        node.next
    }

    fn top(&mut self) -> &mut Open {
        self.open.last_mut().expect("the page is never closed")
    }

    /// What a piece requires here: its heading, the caption and the tags of the lists around it.
    fn requires(&self) -> Vec<usize> {
        let heading = self.headings.last().map(|heading| heading.piece);
        let open = &self.open[self.open.len() - 1];
        let caption = self.open.iter().rev().take(3).find_map(|open| open.caption);
        let mut requires: Vec<usize> = heading.into_iter().chain(open.frame).collect();
        requires.extend(caption.filter(|_| open.frame.is_some() || open.caption.is_some()));
        requires
    }

    fn junk(&mut self, range: ByteRange) {
        self.pieces.frame(range, &[]);
    }

    /// A title and a description are of use; other elements without elements inside are not.
    fn alone(&mut self, node: &Node) {
        let text = node.range.slice(self.text);
        let is_of_use = node.name.eq_ignore_ascii_case("title")
            || node.name.eq_ignore_ascii_case("textarea")
            || node.name.eq_ignore_ascii_case("meta") && text.contains("description");
        if is_of_use { _ = self.pieces.push(node.range, &[]) } else { self.junk(node.range) }
    }

    fn heading(&mut self, level: u8, range: ByteRange) {
        let kept = self.headings.iter().take_while(|heading| heading.level < level).count();
        self.headings.truncate(kept);
        let above = self.headings.last().map(|heading| heading.piece);
        let is_short = |piece: &usize| self.pieces.list[*piece].bytes.len() <= HEADING_BYTES_SHORT;
        let piece = self.pieces.add(Role::Heading, range, &Vec::from_iter(above.filter(is_short)));
        self.headings.push(Heading { level, piece });
    }

    /// Returns whether a long row has rows inside, so that the table only arranges the page.
    fn is_page_in_row(&self, index: usize) -> bool {
        let node = &self.nodes[index];
        let has_rows = || self.nodes[index + 1..node.next].iter().any(|inner| inner.class == Class::Row);
        node.range.len() > ROW_BYTES_WHOLE && has_rows()
    }

    /// Returns whether an element is one piece: it is short, or it has only text.
    fn is_whole(&self, index: usize) -> bool {
        let node = &self.nodes[index];
        let has_only_text = self.nodes[index + 1..node.next].iter().all(|inner| inner.class == Class::Inline);
        let is_divided = |inner: &Node| {
            matches!(inner.class, Class::Heading(_) | Class::Caption | Class::Row | Class::List)
        };
        let limit = if node.class == Class::Wrapper { WRAPPER_BYTES_WHOLE } else { BLOCK_BYTES_WHOLE };
        has_only_text || node.range.len() <= limit && !self.nodes[index + 1..node.next].iter().any(is_divided)
    }

    /// Writes an element as a whole. What a list of definitions says about a name is one piece with the name.
    fn whole(&mut self, index: usize) -> usize {
        let node = &self.nodes[index];
        let (mut range, mut next) = (node.range, node.next);
        if node.name.eq_ignore_ascii_case("dt") {
            while let Some(below) = self.nodes.get(next) {
                let is_meaning = below.name.eq_ignore_ascii_case("dd") && self.is_whole(next);
                if !is_meaning || below.range.end - range.start > BLOCK_BYTES_WHOLE {
                    break;
                }
                (range.end, next) = (below.range.end, below.next);
            }
        }
        if range.len() > BLOCK_BYTES_WHOLE {
            self.text(range)
        } else {
            _ = self.block(range)
        }
        next
    }

    fn block(&mut self, range: ByteRange) -> usize {
        self.top().has_text_below = true;
        let requires = self.requires();
        self.pieces.push(range, &requires)
    }

    /// Writes a run of text, as sentences if it is long.
    fn text(&mut self, range: ByteRange) {
        if range.len() <= BLOCK_BYTES_WHOLE {
            self.block(range);
        } else {
            self.top().has_text_below = true;
            let requires = self.requires();
            self.pieces.prose(self.text, range, &requires, self.sentences);
        }
    }

    /// Writes a row. The first rows of a table with nothing but names in them are its header.
    fn row(&mut self, index: usize) {
        let node = &self.nodes[index];
        let cells = || self.nodes[index + 1..node.next].iter().filter(|inner| inner.class == Class::Cell);
        let is_header = cells().count() > 0 && cells().all(|cell| cell.name.eq_ignore_ascii_case("th"));
        let mut requires = self.requires();
        let table = self.open.iter().rposition(|open| open.is_table).unwrap_or(self.open.len() - 1);
        requires.extend(self.open[table].header);
        if is_header && !self.open[table].has_rows {
            self.open[table].header = Some(self.pieces.frame(node.range, &requires));
        } else {
            self.open[table].has_rows = true;
            self.top().has_text_below = true;
            self.pieces.add(Role::Row, node.range, &requires);
        }
    }

    /// Writes the opening tag of an element, and goes into it.
    fn open(&mut self, index: usize) -> usize {
        let node = &self.nodes[index];
        let is_list = matches!(node.class, Class::List | Class::Block | Class::Cell);
        let requires = if is_list { self.requires() } else { Vec::new() };
        let frame = self.pieces.frame(ByteRange::new(node.range.start, node.open_end), &requires);
        let close = node.close.map(|at| ByteRange::new(at, node.range.end));
        let is_table = node.name.eq_ignore_ascii_case("table");
        let headings = self.headings.len();
        let frame = is_list.then_some(frame);
        self.open.push(Open { next: node.next, close, frame, is_table, headings, ..Open::default() });
        index + 1
    }

    fn close_before(&mut self, index: usize) {
        while self.open.len() > 1 && self.open.last().is_some_and(|open| open.next <= index) {
            let open = self.open.pop().expect("there are several");
            if let Some(range) = open.close {
                let closer = self.pieces.frame(range, &Vec::from_iter(open.frame));
                if let Some(frame) = open.frame {
                    self.pieces.require(frame, closer);
                }
            }
            // A heading that has its text in the same element says nothing about what stands below that.
            if open.has_text_below {
                self.headings.truncate(open.headings);
                self.top().has_text_below |= self.headings.len() > self.open[self.open.len() - 1].headings;
            }
        }
    }
}
