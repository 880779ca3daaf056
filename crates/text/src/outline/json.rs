//! The pieces of a JSON text. Knows which members say what record they belong to. Must not know how values
//! are read from the text: see [`reader`].
//!
//! - An object or an array of up to [`RECORD_BYTES_WHOLE`] bytes is one piece, and so is every other value.
//!   Of a longer one, the brackets are frames: the opening one, with its key, requires the one around it and
//!   the closing one. Each member requires the opening one.
//! - Members with names and numbers of the record are required by its other members, because a price without
//!   the name of the article says nothing.
//! - Several short elements of an array are one piece.

mod reader;

use super::{Joint, Pieces};
use crate::lexicon::{Class, is};
use crate::range::ByteRange;
use reader::{Form, Node, Nodes};

/// The longest object or array that is one piece, in bytes.
const RECORD_BYTES_WHOLE: usize = 240;
/// The longest element of an array that may share a piece with its neighbours, in bytes.
const ELEMENT_BYTES_SHARED: usize = 48;
/// The longest member that says what record it belongs to, in bytes.
const IDENTITY_BYTES_MAX: usize = 160;
/// The most members that say what record they belong to.
const IDENTITIES_MAX: usize = 3;

/// Returns whether a text can be JSON, or a part of it: it has a key, or is a whole value. The reader takes brackets
/// and quotes in any text for JSON, and would write commas between the pieces of a log.
pub(super) fn is_plausible(text: &str) -> bool {
    let is_value = || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    text.contains("\":") || text.contains("\" :") || is_value()
}

/// Returns the pieces of a JSON text; none if the text has no key, no object and no array.
pub(super) fn outline(text: &str) -> Pieces {
    let nodes = reader::read(text);
    let is_json = |node: &Node| !node.key.is_empty() || matches!(node.form, Form::Container { .. });
    if !nodes.list.iter().any(is_json) {
        return Pieces::default();
    }
    let mut writer = Writer { text, nodes: &nodes, pieces: Pieces::default(), open: vec![Open::top()] };
    writer.open[0].identities = identities(text, &nodes, 0, nodes.list.len());
    let mut index = 0;
    while index < nodes.list.len() {
        writer.close_before(index);
        index = writer.node(index);
    }
    writer.close_before(usize::MAX);
    writer.end_record();
    writer.pieces
}

/// An object or an array whose pieces are being written.
struct Open {
    /// The node after its last one.
    next: usize,
    opener: Option<usize>,
    close: Option<ByteRange>,
    is_array: bool,
    /// The nodes that say what record this is.
    identities: Vec<usize>,
    identity_pieces: Vec<usize>,
    other_pieces: Vec<usize>,
    /// The piece that the next short element joins.
    shared: Option<usize>,
}

impl Open {
    /// What stands in no object and no array.
    fn top() -> Self {
        Self {
            next: usize::MAX,
            opener: None,
            close: None,
            is_array: false,
            identities: Vec::new(),
            identity_pieces: Vec::new(),
            other_pieces: Vec::new(),
            shared: None,
        }
    }
}

struct Writer<'a> {
    text: &'a str,
    nodes: &'a Nodes,
    pieces: Pieces,
    open: Vec<Open>,
}

impl Writer<'_> {
    /// Writes a node, and returns the next one to write.
    fn node(&mut self, index: usize) -> usize {
        let node = &self.nodes.list[index];
        match node.form {
            Form::StrayClose => {
                self.stray_close(index);
                node.next
            }
            Form::Container { open_end, close, is_object } if node.end - node.start > RECORD_BYTES_WHOLE => {
                self.open_container(index, open_end, close, is_object);
                index + 1
            }
            _ => {
                self.whole(index);
                node.next
            }
        }
    }

    fn whole(&mut self, index: usize) {
        let node = &self.nodes.list[index];
        let joint = self.joint(Joint::Member);
        let open = self.open.last_mut().expect("the top is never closed");
        let shares = open.is_array && node.key.is_empty() && node.end - node.start <= ELEMENT_BYTES_SHARED;
        if let Some(shared) = open.shared.filter(|_| shares) {
            let bytes = &mut self.pieces.list[shared].bytes;
            if node.end - bytes.start <= RECORD_BYTES_WHOLE {
                bytes.end = node.end;
                return;
            }
        }
        let piece = self.pieces.push(ByteRange::new(node.start, node.end), &Vec::from_iter(open.opener));
        self.pieces.list[piece].joint = joint;
        open.shared = shares.then_some(piece);
        self.member(index, piece);
    }

    fn open_container(&mut self, index: usize, open_end: usize, close: Option<usize>, is_object: bool) {
        let node = &self.nodes.list[index];
        let parent = self.open.last_mut().expect("the top is never closed");
        parent.shared = None;
        let requires = Vec::from_iter(parent.opener);
        let opener = self.pieces.frame(ByteRange::new(node.start, open_end), &requires);
        self.pieces.list[opener].joint = self.joint(Joint::Open);
        self.member(index, opener);
        let names =
            if is_object { identities(self.text, self.nodes, index + 1, node.next) } else { Vec::new() };
        self.open.push(Open {
            next: node.next,
            opener: Some(opener),
            close: close.map(|at| ByteRange::new(at, at + 1)),
            is_array: !is_object,
            identities: names,
            ..Open::top()
        });
    }

    /// The role of a value: those that stand in nothing have none, unless commas divide them.
    fn joint(&self, inside: Joint) -> Joint {
        if self.open.len() == 1 && !self.nodes.commas_at_top { Joint::Gap } else { inside }
    }

    /// Remembers a piece of the record that is open, to require the pieces that say what record it is.
    fn member(&mut self, index: usize, piece: usize) {
        let open = self.open.last_mut().expect("the top is never closed");
        if open.identities.contains(&index) {
            open.identity_pieces.push(piece);
        } else if !self.nodes.list[index].key.is_empty() {
            open.other_pieces.push(piece);
        }
    }

    /// Closes the objects and arrays that end before the node `index`.
    fn close_before(&mut self, index: usize) {
        while self.open.len() > 1 && self.open.last().is_some_and(|open| open.next <= index) {
            self.end_record();
            let open = self.open.pop().expect("there are several");
            if let (Some(opener), Some(close)) = (open.opener, open.close) {
                let closer = self.pieces.frame(close, &[opener]);
                self.pieces.list[closer].joint = Joint::Close;
                self.pieces.require(opener, closer);
            }
        }
    }

    /// Lets the members of the record that is open require those that say what record it is.
    fn end_record(&mut self) {
        let open = self.open.last_mut().expect("the top is never closed");
        let (names, others) =
            (std::mem::take(&mut open.identity_pieces), std::mem::take(&mut open.other_pieces));
        for &piece in &others {
            names.iter().for_each(|&name| self.pieces.require(piece, name));
        }
    }

    /// Ends a record whose beginning is missing.
    fn stray_close(&mut self, index: usize) {
        self.end_record();
        let node = &self.nodes.list[index];
        let piece = self.pieces.frame(ByteRange::new(node.start, node.end), &[]);
        self.pieces.list[piece].joint = Joint::Close;
        self.open[0].identities = identities(self.text, self.nodes, index + 1, self.nodes.list.len());
    }
}

/// Returns those of the members `first..end` that say what record they belong to: those with a key that says
/// so, or else the first one that is short.
fn identities(text: &str, nodes: &Nodes, first: usize, end: usize) -> Vec<usize> {
    let (mut named, mut short, mut index) = (Vec::new(), None, first);
    while index < end && named.len() < IDENTITIES_MAX {
        let node = &nodes.list[index];
        if matches!(node.form, Form::StrayClose) {
            break;
        }
        let is_short = matches!(node.form, Form::Scalar) && node.end - node.start <= IDENTITY_BYTES_MAX;
        if is_short && !node.key.is_empty() {
            short = short.or(Some(index));
            if is(Class::Identity, node.key.slice(text)) {
                named.push(index);
            }
        }
        index = node.next;
    }
    if named.is_empty() { Vec::from_iter(short) } else { named }
}
