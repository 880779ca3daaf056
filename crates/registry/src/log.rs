//! The log of changes that sidecars share, so that each of them can follow: the trait that an implementation
//! provides, and the encoding of changes in the log. Does not know where the log is stored, or about the
//! index that follows it.

pub mod journal;
pub mod memory;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::domain::{Anchors, Chunk, Kind};

use super::change::Change;

/// The boxed future that the methods of a log return.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A log of changes, and the state (the registered chunks) that they add up to. All registries that share a
/// log see the same changes in the same order.
///
/// An implementation must append an entry and update the state atomically, give later entries greater
/// positions, and report on a [`Tail`] whenever entries may have been missed.
pub trait ChangeLog: Send + Sync {
    /// Returns the identity of the log. It is the same for all registries that share the log, and it changes
    /// when the log's content is lost. Identities are created on first use and never reused.
    ///
    /// # Errors
    /// Returns a [`LogError`] if the log is unavailable.
    fn identity(&self) -> Later<'_, Result<String, LogError>>;

    /// Appends `changes` in their order, as one entry, or as several if they are many. Returns the position
    /// of the last entry.
    ///
    /// # Errors
    /// Returns a [`LogError`] if the log is unavailable. The first of the changes may have been made then;
    /// publishing all of them again is harmless.
    fn publish(&self, changes: Vec<Change>) -> Later<'_, Result<Position, LogError>>;

    /// Returns the position of the last entry, or `None` if the log is empty.
    ///
    /// # Errors
    /// Returns a [`LogError`] if the log is unavailable.
    fn end(&self) -> Later<'_, Result<Option<Position>, LogError>>;

    /// Removes the entries before `first`, because they may have text that was deleted since. A registry that
    /// has not read them reads the whole state again.
    ///
    /// # Errors
    /// Returns a [`LogError`] if the log is unavailable.
    fn trim(&self, first: Position) -> Later<'_, Result<(), LogError>>;

    /// Returns a tail that delivers the entries after `position`, or all entries if it is `None`.
    fn follow(&self, position: Option<Position>) -> Box<dyn Tail>;

    /// Returns one page of the chunks that the log adds up to: the first page, or the page at `cursor`. A
    /// chunk that exists during the whole scan is on at least one page; a chunk may be on two pages.
    ///
    /// # Errors
    /// Returns a [`LogError`] if the log is unavailable.
    fn page(&self, cursor: Option<String>) -> Later<'_, Result<LogPage, LogError>>;
}

/// The entries of a log after a position.
pub trait Tail: Send {
    /// Waits for the next event, without a timeout. Dropping the future loses no entry.
    fn next(&mut self) -> Later<'_, Event>;
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Entry(Position, Vec<Change>),
    /// Entries are missing: the log was trimmed past the tail's position, or an entry is damaged. This is the
    /// tail's last event.
    Missing,
    /// The tail's position is not in the log any more, because the log has lost its last entries or all of
    /// them. This is the tail's last event.
    Rewound,
}

/// A page of the chunks that a log adds up to.
#[derive(Debug, Clone, PartialEq)]
pub struct LogPage {
    /// The chunks of the page, in no particular order.
    pub chunks: Vec<Arc<Chunk>>,
    /// The ids of chunks that are damaged in the log. A registry that has such a chunk may publish it again.
    pub unreadable: Vec<String>,
    /// The cursor of the next page; `None` after the last page.
    pub next: Option<String>,
}

/// The position of an entry in a log. Later entries have greater positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Position {
    /// The log's clock when the entry was appended, in milliseconds.
    pub ms: u64,
    /// The sequence number among the entries of one millisecond.
    pub seq: u64,
}

/// A position together with the log that it belongs to. Positions of different logs cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// The [`ChangeLog::identity`] of the log.
    pub log: String,
    /// The position of the last entry that is included; the default is before the first entry.
    pub position: Position,
}

/// The log does not answer, or refuses a command.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the change log that sidecars share is unavailable: {reason}")]
pub struct LogError {
    /// Why the log is unavailable, and whether anything may have been changed.
    pub reason: String,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl From<Position> for String {
    fn from(position: Position) -> Self {
        position.to_string()
    }
}

impl TryFrom<String> for Position {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl FromStr for Position {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (ms, seq) = text.split_once('-').unwrap_or((text, "0"));
        Ok(Self { ms: ms.parse()?, seq: seq.parse()? })
    }
}

#[derive(Serialize, Deserialize)]
struct ChunkWire {
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    text: String,
    /// As text: a sidecar of an earlier version takes a kind that it does not know for `auto`, and can still read the
    /// entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// JSON inside a string, so that it is read back exactly as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
    /// As JSON inside a string, which says nothing to a sidecar of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anchors: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChangeWire {
    Put(ChunkWire),
    Offer(ChunkWire),
    Delete(String),
}

impl ChunkWire {
    fn new(chunk: &Chunk) -> Self {
        let Chunk { id, title, text, kind, metadata, anchors } = chunk.clone();
        let kind = (!kind.is_auto()).then(|| kind.name().to_owned());
        Self { id, title, text, kind, metadata, anchors: anchors.to_json() }
    }

    fn into_chunk(self) -> Arc<Chunk> {
        let Self { id, title, text, kind, metadata, anchors } = self;
        let kind = kind.and_then(|name| Kind::named(&name)).unwrap_or_default();
        let anchors = anchors.map(|json| Anchors::from_json(&json, &text)).unwrap_or_default();
        Arc::new(Chunk { id, title, text, kind, metadata, anchors })
    }
}

pub fn encode_chunk(chunk: &Chunk) -> Vec<u8> {
    serde_json::to_vec(&ChunkWire::new(chunk)).expect("strings can be written as JSON")
}

/// Decodes a chunk that [`encode_chunk`] encoded. Returns `None` if the bytes are damaged.
pub fn decode_chunk(bytes: &[u8]) -> Option<Arc<Chunk>> {
    serde_json::from_slice(bytes).ok().map(ChunkWire::into_chunk)
}

pub fn encode_changes(changes: &[Change]) -> Vec<u8> {
    let wire = |change: &Change| match change {
        Change::Put(chunk) => ChangeWire::Put(ChunkWire::new(chunk)),
        Change::Offer(chunk) => ChangeWire::Offer(ChunkWire::new(chunk)),
        Change::Delete(id) => ChangeWire::Delete(id.clone()),
    };
    serde_json::to_vec(&changes.iter().map(wire).collect::<Vec<_>>()).expect("strings can be written as JSON")
}

/// Decodes changes that [`encode_changes`] encoded. Returns `None` if the bytes are damaged.
pub fn decode_changes(bytes: &[u8]) -> Option<Vec<Change>> {
    let change = |wire| match wire {
        ChangeWire::Put(chunk) => Change::Put(chunk.into_chunk()),
        ChangeWire::Offer(chunk) => Change::Offer(chunk.into_chunk()),
        ChangeWire::Delete(id) => Change::Delete(id),
    };
    serde_json::from_slice::<Vec<ChangeWire>>(bytes).ok().map(|wires| wires.into_iter().map(change).collect())
}

#[cfg(test)]
mod tests {
    use thresher_core::domain::PageStart;

    use super::*;

    #[test]
    fn encoded_changes_are_decoded_unchanged() {
        let metadata = Some("{\"n\": 1e400}".to_owned());
        let anchors = Anchors::new(vec![PageStart { start: 1, page: 7 }], Some(3), "\u{0}潮").expect("valid");
        let chunk = Arc::new(Chunk { metadata, anchors, ..Chunk::new("ü\n", "\u{0}潮") });
        let changes = vec![
            Change::Put(Arc::clone(&chunk)),
            Change::Delete("x".to_owned()),
            Change::Offer(Arc::clone(&chunk)),
        ];
        assert_eq!(decode_changes(&encode_changes(&changes)), Some(changes));
        assert_eq!(decode_chunk(&encode_chunk(&chunk)), Some(chunk));
        assert_eq!((decode_changes(b"[{\"put\"").is_none(), decode_chunk(b"{}")), (true, None));
    }

    #[test]
    fn positions_are_parsed_and_ordered() {
        let position = |text: &str| text.parse::<Position>().expect("a position");
        assert_eq!(position("12-3").to_string(), "12-3");
        assert!(position("9-10") > position("9-9") && position("10-0") > position("9-10"));
    }
}
