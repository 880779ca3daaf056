//! The pieces of a Markdown text: sentences, list items, rows and code, with the headings that they stand
//! under. Knows the layout of Markdown, and must not know what a sentence is.
//!
//! - A heading is a frame. What stands under it requires it, and it requires the heading above it if that one
//!   is short.
//! - A paragraph before a list that ends with a colon is required by the items, and an item with a colon by
//!   the items inside it.
//! - Fenced code of up to [`CODE_BYTES_WHOLE`] bytes is one piece; a longer one is divided as code.

mod block;

use super::{Pieces, Role, Sentences, code, table};
use crate::line::{Line, fence, fences, lines, span};
use crate::range::ByteRange;
pub(super) use block::is_item;
use block::{Block, block_of};

/// The largest fenced code block that is one piece, in bytes.
const CODE_BYTES_WHOLE: usize = 600;
/// The longest heading, or item around items, that what stands under it requires from further up, in bytes.
const HEADING_BYTES_SHORT: usize = 80;
/// The longest list item that is one piece even if it has several sentences, in bytes.
const ITEM_BYTES_WHOLE: usize = 400;

pub(super) fn outline(text: &str, sentences: &Sentences) -> Pieces {
    let lines = lines(text);
    let mut writer = Writer {
        text,
        sentences,
        pieces: Pieces::default(),
        headings: Vec::new(),
        items: Vec::new(),
        lead: None,
        list_lead: None,
    };
    let fences = fences(&lines);
    let mut at = 0;
    while at < lines.len() {
        let (block, end) = block_of(&lines, &fences, at);
        writer.block(&block, &lines[at..end]);
        at = end;
    }
    writer.pieces
}

struct Heading {
    level: usize,
    piece: usize,
}

/// A list item that further items can stand inside.
struct Item {
    indent: usize,
    piece: usize,
    leads: bool,
}

struct Writer<'a, 'b> {
    text: &'a str,
    sentences: &'a Sentences<'b>,
    pieces: Pieces,
    headings: Vec<Heading>,
    items: Vec<Item>,
    /// The piece that ends with a colon directly above.
    lead: Option<usize>,
    /// The piece that ends with a colon above the list.
    list_lead: Option<usize>,
}

impl Writer<'_, '_> {
    fn block(&mut self, block: &Block, lines: &[Line]) {
        if *block == Block::Blank {
            return;
        }
        let bytes = span(lines);
        let lead = self.lead.take();
        if !matches!(block, Block::Item { .. } | Block::Code | Block::Paragraph { .. }) {
            self.items.clear();
            self.list_lead = None;
        }
        match *block {
            Block::Blank => {}
            Block::FrontMatter => _ = self.pieces.push(bytes, &[]),
            Block::Rule => _ = self.pieces.frame(bytes, &[]),
            Block::Heading { level } => self.heading(level, bytes),
            Block::Table => {
                let requires = self.requires(lead);
                table::pipes(&mut self.pieces, self.text, lines, &requires);
            }
            Block::Code => self.code(lines, bytes, lead),
            Block::Item { indent } => self.item(indent, bytes, lead),
            Block::Paragraph { indent } => self.paragraph(indent, bytes),
        }
    }

    /// The pieces that a piece requires here: its heading, and the line with a colon above it.
    fn requires(&self, lead: Option<usize>) -> Vec<usize> {
        self.headings.last().map(|heading| heading.piece).into_iter().chain(lead).collect()
    }

    fn heading(&mut self, level: usize, bytes: ByteRange) {
        self.headings.retain(|heading| heading.level < level);
        let above = self.headings.last().map(|heading| heading.piece);
        let is_short = |piece: &usize| self.pieces.list[*piece].bytes.len() <= HEADING_BYTES_SHORT;
        let piece = self.pieces.add(Role::Heading, bytes, &Vec::from_iter(above.filter(is_short)));
        self.headings.push(Heading { level, piece });
    }

    fn code(&mut self, lines: &[Line], bytes: ByteRange, lead: Option<usize>) {
        let item = self.items.last().filter(|item| lines[0].indent() > item.indent).map(|item| item.piece);
        let requires = self.requires(lead.or(item));
        if bytes.len() <= CODE_BYTES_WHOLE || lines.len() < 3 {
            self.pieces.push(bytes, &requires);
            return;
        }
        let open = self.pieces.frame(span(&lines[..1]), &requires);
        let close = &lines[lines.len() - 1];
        let is_closed = fence(close.text).is_some();
        let end = lines.len() - usize::from(is_closed);
        code::block(&mut self.pieces, self.text, &lines[1..end], Some(open));
        if is_closed {
            let close = self.pieces.frame(close.trimmed(), &[open]);
            self.pieces.require(open, close);
        }
    }

    fn item(&mut self, indent: usize, bytes: ByteRange, lead: Option<usize>) {
        self.items.retain(|item| item.indent < indent);
        let above = match self.items.last() {
            Some(item) if item.leads => Some(item.piece),
            Some(_) => None,
            None => {
                self.list_lead = lead.or(self.list_lead);
                self.list_lead
            }
        };
        let requires = self.requires(above);
        let piece = self.pieces.len();
        let parts = if bytes.len() > ITEM_BYTES_WHOLE {
            (self.sentences)(bytes.slice(self.text))
        } else {
            Vec::new()
        };
        if parts.len() > 1 {
            self.pieces.prose(self.text, bytes, &requires, self.sentences);
            for later in piece + 1..self.pieces.len() {
                self.pieces.require(later, piece);
            }
        } else {
            self.pieces.push(bytes, &requires);
        }
        let leads = bytes.slice(self.text).ends_with(':') || bytes.len() <= HEADING_BYTES_SHORT;
        self.items.push(Item { indent, piece, leads });
    }

    fn paragraph(&mut self, indent: usize, bytes: ByteRange) {
        self.items.retain(|item| item.indent < indent);
        let item = self.items.last().map(|item| item.piece);
        if item.is_none() {
            self.list_lead = None;
        }
        let requires = self.requires(item);
        let pieces = self.pieces.prose(self.text, bytes, &requires, self.sentences);
        // "(in thousands of euros)" above a table says what its numbers are.
        let text = bytes.slice(self.text);
        if text.ends_with(':')
            || text.starts_with('(') && text.ends_with(')') && bytes.len() <= HEADING_BYTES_SHORT
        {
            self.lead = pieces.last();
        }
    }
}
