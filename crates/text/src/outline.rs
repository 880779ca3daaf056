//! Divides texts other than prose into pieces: JSON into members, tables into rows, logs into events, chats
//! into turns, code into statements. Knows which piece is of no use without which other one: a row without
//! the header of its table, an answer without its question. Must not know what a question asks for or what a
//! piece costs; the caller chooses pieces and closes the choice over [`Piece::required`].
//!
//! A text can be a fragment that begins or ends anywhere. Every reader takes what it is given: what is
//! missing is not required, and what cannot be understood is a piece of its own.

mod bonds;
mod chat;
mod code;
mod grammar;
mod html;
mod json;
mod log;
mod mail;
mod markdown;
mod pdf;
mod sign;
mod stamp;
mod subtitles;
mod table;
#[cfg(test)]
mod tests;

pub use self::grammar::kind_of;

use crate::kind::Kind;
use crate::line::Line;
use crate::range::ByteRange;

/// Returns the speaker of each text, as far as it names one, if the texts are turns of one dialogue: most begin with the name of a
/// speaker, and speakers come again.
pub fn speakers<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Vec<Option<&'a str>>> {
    let first_line = |text: &'a str| text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let lines: Vec<Line> = texts.map(|text| Line { start: 0, text: first_line(text) }).collect();
    let format = chat::format(&lines)?;
    Some(lines.iter().map(|line| Some(format.head(line.text)?.speaker)).collect())
}

/// The part that a piece of JSON plays, which decides what a writer must put before it. See [`Joint::comma`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Joint {
    /// No punctuation belongs between this piece and the one before it. Every piece of other kinds of text,
    /// and every value that stands for itself in a JSON text.
    #[default]
    Gap,
    /// Opens an object or an array inside another one.
    Open,
    /// A whole member of an object, or whole elements of an array.
    Member,
    /// Closes an object or an array.
    Close,
}

impl Joint {
    /// Returns whether a comma belongs between two kept pieces that were not neighbours. Neighbours are
    /// copied with the text between them, which has the comma.
    pub fn comma(before: Self, after: Self) -> bool {
        matches!(before, Self::Member | Self::Close) && matches!(after, Self::Open | Self::Member)
    }
}

/// What a piece is, which decides whether it is chosen for itself or only comes with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Text that can be chosen.
    #[default]
    Text,
    /// A row of a table that can be compared with its other rows.
    Row,
    /// A row that cannot be chosen, such as one of encoded data.
    RowFrame,
    /// A heading that can be chosen.
    Title,
    /// A heading that only comes with what requires it.
    Heading,
    /// Anything else that only comes with others: the header of a table, a closing brace.
    Frame,
}

impl Role {
    /// Returns the role of a piece of this role that cannot be chosen.
    fn framed(self) -> Self {
        match self {
            Self::Text | Self::Frame => Self::Frame,
            Self::Row | Self::RowFrame => Self::RowFrame,
            Self::Title | Self::Heading => Self::Heading,
        }
    }
}

/// Why a piece has a link to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The piece requires the other one and is scored with it, such as a row with the header of its table.
    Context,
    /// The piece requires the other one, but is scored without it.
    Needs,
    /// Without the other one, such as the first sentence under a heading, the piece says nothing. The other one is kept with it if it is
    /// chosen for itself. If a further piece requires it, that piece is enough.
    Introduces,
    /// The other piece is one of the nearest events of a log that share an identifier with this one.
    Near,
}

/// How a piece belongs to another one of the same list, whose index is `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub to: usize,
    pub why: Why,
}

/// A part of a text that is kept or left out as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub bytes: ByteRange,
    pub role: Role,
    /// What a writer must put before the piece.
    pub joint: Joint,
    /// At most one of them says [`Why::Introduces`].
    pub links: Vec<Link>,
}

impl Piece {
    /// Returns the pieces that the context must hold if it holds this one, those of [`Self::contexts`] first. Only the direct ones: the
    /// caller follows them further. They may form cycles.
    pub fn required(&self) -> impl Iterator<Item = usize> + Clone {
        self.linked(|why| matches!(why, Why::Context | Why::Needs))
    }

    /// Returns the required pieces that this one is scored with, such as its heading.
    pub fn contexts(&self) -> impl Iterator<Item = usize> + Clone {
        self.linked(|why| why == Why::Context)
    }

    /// Returns the piece without which this one says nothing. See [`Why::Introduces`].
    pub fn introduces(&self) -> Option<usize> {
        self.linked(|why| why == Why::Introduces).next()
    }

    /// Returns the nearest events of a log that share an identifier with this one.
    pub fn near(&self) -> impl Iterator<Item = usize> + Clone {
        self.linked(|why| why == Why::Near)
    }

    fn linked(&self, is_wanted: fn(Why) -> bool) -> impl Iterator<Item = usize> + Clone {
        self.links.iter().filter(move |link| is_wanted(link.why)).map(|link| link.to)
    }

    /// Returns whether the piece only ever comes with others.
    pub fn is_frame(&self) -> bool {
        matches!(self.role, Role::RowFrame | Role::Heading | Role::Frame)
    }

    /// Returns whether the piece is a heading of what requires it.
    pub fn is_heading(&self) -> bool {
        matches!(self.role, Role::Title | Role::Heading)
    }

    /// Returns whether the piece is a row of a table that can be compared with its other rows.
    pub fn is_row(&self) -> bool {
        matches!(self.role, Role::Row | Role::RowFrame)
    }
}

/// What kind of text a chunk is, and its pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The kind by which the text is divided; never [`Kind::Auto`].
    pub kind: Kind,
    /// The pieces in the order of the text. Those of prose are its sentences; there are none if each of them stands for itself.
    pub pieces: Vec<Piece>,
}

impl Layout {
    /// Returns the layout of a text of a kind, or of the kind that it looks like. A text that does not have
    /// the form of its kind is prose.
    pub fn detect(text: &str, kind: Kind) -> Self {
        Self::with_sentences(text, kind, &crate::sentences::sentences)
    }

    /// As [`Self::detect`], with a function that divides prose into sentences. Every byte outside the ranges that it returns must be
    /// whitespace.
    pub fn with_sentences(text: &str, kind: Kind, sentences: &Sentences) -> Self {
        let kind = match kind {
            Kind::Auto => kind_of(text),
            Kind::Json if !json::is_plausible(text) => Kind::Prose,
            kind => kind,
        };
        match outline(text, kind, sentences) {
            Some(pieces) => Self { kind, pieces },
            None => Self::prose(),
        }
    }

    pub fn prose() -> Self {
        Self { kind: Kind::Prose, pieces: Vec::new() }
    }

    /// Returns `[piece]`, the nearest heading that each piece stands under, as an index into the same list; `None`: it stands under none.
    /// A heading stands under the heading of a higher level.
    pub fn headings(&self) -> Vec<Option<usize>> {
        let mut nearest: Vec<Option<usize>> = Vec::with_capacity(self.pieces.len());
        for (at, piece) in self.pieces.iter().enumerate() {
            let above = piece.required().filter(|&other| other < at);
            let own = above.clone().filter(|&other| self.pieces[other].is_heading()).max();
            // The rows of a table require its header, which requires the heading.
            let inherited = || above.filter_map(|other| nearest[other]).max();
            let found = if piece.is_heading() { own } else { own.or_else(inherited) };
            nearest.push(found);
        }
        nearest
    }
}

/// Divides prose into sentences. Every byte outside the returned ranges must be whitespace.
pub type Sentences<'a> = dyn Fn(&str) -> Vec<ByteRange> + 'a;

/// Returns the pieces of `text` in order, read as `kind`. The bytes outside them are whitespace and, in JSON,
/// commas. Returns `None` for prose whose sentences stand for themselves, and for a text that does not have the form of `kind`.
///
/// `sentences` divides the prose inside other kinds of text, for example a paragraph of Markdown.
fn outline(text: &str, kind: Kind, sentences: &Sentences) -> Option<Vec<Piece>> {
    let mut pieces = match kind {
        Kind::Auto => return None,
        Kind::Prose => Pieces::of_prose(text, sentences),
        Kind::Markdown => markdown::outline(text, sentences),
        Kind::Code => code::outline(text),
        Kind::Json => json::outline(text),
        // Markdown knows the headings and the prose around a table of bars.
        Kind::Table if table::has_bars(text) => markdown::outline(text, sentences),
        Kind::Table => table::outline(text, sentences),
        Kind::Log => log::outline(text),
        Kind::Chat => chat::outline(text, sentences),
        Kind::Html => html::outline(text, sentences),
        Kind::Pdf => pdf::outline(text, sentences),
        Kind::Mail => mail::outline(text, sentences),
        Kind::Subtitles => subtitles::outline(text),
    };
    if kind.is_running_text() {
        bonds::bind(&mut pieces, text, kind);
    }
    for piece in pieces.list.iter_mut().filter(|piece| is_encoded(piece.bytes.slice(text))) {
        piece.role = piece.role.framed();
    }
    let stands_alone = |piece: &Piece| piece.required().next().is_none() && !piece.is_frame();
    let is_bound = kind != Kind::Prose || !pieces.list.iter().all(stands_alone);
    pieces.finish().filter(|_| is_bound)
}

/// The shortest run of characters without a blank that can be encoded data.
const ENCODED_BYTES_MIN: usize = 200;

/// Returns whether a text is mostly encoded data, such as the base64 of an image: no reader and no model can use it.
fn is_encoded(text: &str) -> bool {
    let is_data = |run: &&str| {
        let bytes = run.as_bytes();
        let is_one = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=_-".contains(byte);
        let has = |is: fn(&u8) -> bool| bytes.iter().any(is);
        bytes.iter().filter(|byte| is_one(byte)).count() * 50 >= bytes.len() * 49
            && has(u8::is_ascii_digit)
            && has(u8::is_ascii_uppercase)
            && has(u8::is_ascii_lowercase)
    };
    if text.len() < ENCODED_BYTES_MIN {
        return false;
    }
    let runs = text.split_whitespace().filter(|run| run.len() >= ENCODED_BYTES_MIN / 4).filter(is_data);
    let encoded: usize = runs.map(str::len).sum();
    encoded >= ENCODED_BYTES_MIN && encoded * 2 >= text.len()
}

/// The pieces of a text while it is read.
#[derive(Default)]
struct Pieces {
    list: Vec<Piece>,
}

impl Pieces {
    fn of_prose(text: &str, sentences: &Sentences) -> Self {
        let mut pieces = Self::default();
        pieces.prose(text, ByteRange::new(0, text.len()), &[], sentences);
        pieces
    }

    /// Adds a piece with the context that it requires, and returns its index.
    fn add(&mut self, role: Role, bytes: ByteRange, requires: &[usize]) -> usize {
        let links = requires.iter().map(|&to| Link { to, why: Why::Context }).collect();
        self.list.push(Piece { bytes, role, joint: Joint::Gap, links });
        self.list.len() - 1
    }

    /// Adds a piece that may be chosen, and returns its index.
    fn push(&mut self, bytes: ByteRange, requires: &[usize]) -> usize {
        self.add(Role::Text, bytes, requires)
    }

    /// Adds a piece that only comes with others, and returns its index.
    fn frame(&mut self, bytes: ByteRange, requires: &[usize]) -> usize {
        self.add(Role::Frame, bytes, requires)
    }

    /// Adds the sentences of a part of `text`, and returns the indices.
    fn prose(
        &mut self,
        text: &str,
        part: ByteRange,
        requires: &[usize],
        sentences: &Sentences,
    ) -> std::ops::Range<usize> {
        let first = self.list.len();
        for sentence in sentences(part.slice(text)) {
            if !sentence.slice(part.slice(text)).trim().is_empty() {
                self.push(sentence.shifted(part.start), requires);
            }
        }
        first..self.list.len()
    }

    /// Lets a piece require another one, and be scored with it.
    fn require(&mut self, piece: usize, other: usize) {
        self.link(piece, other, Why::Context);
    }

    /// Lets a piece require another one without being scored with it.
    fn need(&mut self, piece: usize, other: usize) {
        self.link(piece, other, Why::Needs);
    }

    fn link(&mut self, piece: usize, to: usize, why: Why) {
        if piece != to && self.list[piece].required().all(|other| other != to) {
            self.list[piece].links.push(Link { to, why });
        }
    }

    /// As [`Self::require`], also for a piece that needs the other one already. The other one comes before all that the piece requires.
    fn require_first(&mut self, piece: usize, to: usize) {
        let links = &mut self.list[piece].links;
        links.retain(|link| link.to != to || matches!(link.why, Why::Introduces | Why::Near));
        links.insert(0, Link { to, why: Why::Context });
    }

    /// Lets a piece introduce another one, in place of the one that it introduced before.
    fn introduce(&mut self, piece: usize, to: usize) {
        let links = &mut self.list[piece].links;
        links.retain(|link| link.why != Why::Introduces);
        links.push(Link { to, why: Why::Introduces });
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the first piece from `from` on that may be chosen.
    fn first_choosable(&self, from: usize) -> Option<usize> {
        (from..self.list.len()).find(|&index| !self.list[index].is_frame())
    }

    /// Returns the pieces, or `None` if none of them may be chosen.
    fn finish(self) -> Option<Vec<Piece>> {
        self.list.iter().any(|piece| !piece.is_frame()).then_some(self.list)
    }
}
