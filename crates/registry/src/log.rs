//! The log in which sidecars write what they register, so that each of them can follow: what it has to do, and how a
//! change is written into it.
//! Knows nothing of where it is kept, or of the index that follows it.

pub mod journal;
pub mod memory;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::domain::Chunk;

use super::change::Change;

/// An answer that comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A log of changes, and what they add up to. All who share it see the same changes in the same order.
///
/// What an implementation owes: an entry changes the log and what it adds up to at one moment; positions only grow; a
/// tail misses nothing, or says what it may have missed.
pub trait ChangeLog: Send + Sync {
    /// Names this log: the same for all who share it, and another one once its content has been lost. Made on first use.
    fn identity(&self) -> Later<'_, Result<String, LogError>>;

    /// Appends `changes` in their order, as one entry or as several where they are many; the place of the last. After an
    /// error some of the first may have been made; publishing all again is harmless.
    fn publish(&self, changes: Vec<Change>) -> Later<'_, Result<Position, LogError>>;

    /// The place of the last entry; none in an empty log.
    fn end(&self) -> Later<'_, Result<Option<Position>, LogError>>;

    /// Follows behind `position`, from the beginning when there is none.
    fn follow(&self, position: Option<Position>) -> Box<dyn Tail>;

    /// Part of the chunks that the log adds up to: from the beginning, or where the page before ended. A chunk that is
    /// there all the time is on one page at least; one may be on two.
    fn page(&self, cursor: Option<String>) -> Later<'_, Result<LogPage, LogError>>;
}

/// What comes behind a place of a log.
pub trait Tail: Send {
    /// The next entry, however long it takes. Dropping what it returned loses no entry.
    fn next(&mut self) -> Later<'_, Event>;
}

/// What a tail has to say.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The next entry.
    Entry(Position, Vec<Change>),
    /// Entries are missing here: the log was trimmed past this place, or one is damaged. The tail has nothing more to say.
    Missing,
    /// This place is in the log no more: it has lost its end, or all. The tail has nothing more to say.
    Rewound,
}

/// A page of what a log adds up to.
#[derive(Debug, Clone, PartialEq)]
pub struct LogPage {
    /// Chunks, in no order.
    pub chunks: Vec<Arc<Chunk>>,
    /// Ids of chunks that are damaged there: who has them may publish them again.
    pub unreadable: Vec<String>,
    /// Where the next page begins; none after the last.
    pub next: Option<String>,
}

/// The place of an entry; later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Position {
    /// The log's clock in milliseconds.
    pub ms: u64,
    /// Tells entries of one millisecond apart.
    pub seq: u64,
}

/// A place of one log: those of different logs do not compare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its [`ChangeLog::identity`].
    pub log: String,
    /// Up to here; the default is before the first entry.
    pub position: Position,
}

/// The log does not answer, or refuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the change log that sidecars share is unavailable: {reason}")]
pub struct LogError {
    /// What it, or the way to it, said, and whether anything may have been changed.
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
    /// JSON in a text: it comes back as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
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
        let Chunk { id, title, text, metadata } = chunk.clone();
        Self { id, title, text, metadata }
    }

    fn chunk(self) -> Arc<Chunk> {
        let Self { id, title, text, metadata } = self;
        Arc::new(Chunk { id, title, text, metadata })
    }
}

/// A chunk as bytes.
pub fn encode_chunk(chunk: &Chunk) -> Vec<u8> {
    serde_json::to_vec(&ChunkWire::new(chunk)).expect("texts are JSON")
}

/// A chunk from [`encode_chunk`]'s bytes; none when they are damaged.
pub fn decode_chunk(bytes: &[u8]) -> Option<Arc<Chunk>> {
    serde_json::from_slice(bytes).ok().map(ChunkWire::chunk)
}

/// Changes as bytes.
pub fn encode_changes(changes: &[Change]) -> Vec<u8> {
    let wire = |change: &Change| match change {
        Change::Put(chunk) => ChangeWire::Put(ChunkWire::new(chunk)),
        Change::Offer(chunk) => ChangeWire::Offer(ChunkWire::new(chunk)),
        Change::Delete(id) => ChangeWire::Delete(id.clone()),
    };
    serde_json::to_vec(&changes.iter().map(wire).collect::<Vec<_>>()).expect("texts are JSON")
}

/// Changes from [`encode_changes`]' bytes; none when they are damaged.
pub fn decode_changes(bytes: &[u8]) -> Option<Vec<Change>> {
    let change = |wire| match wire {
        ChangeWire::Put(chunk) => Change::Put(chunk.chunk()),
        ChangeWire::Offer(chunk) => Change::Offer(chunk.chunk()),
        ChangeWire::Delete(id) => Change::Delete(id),
    };
    serde_json::from_slice::<Vec<ChangeWire>>(bytes).ok().map(|wires| wires.into_iter().map(change).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_as_they_were() {
        let metadata = Some("{\"n\": 1e400}".to_owned());
        let chunk =
            Arc::new(Chunk { id: "ü\n".to_owned(), title: None, text: "\u{0}潮".to_owned(), metadata });
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
    fn positions_read_and_order() {
        let position = |text: &str| text.parse::<Position>().expect("a position");
        assert_eq!(position("12-3").to_string(), "12-3");
        assert!(position("9-10") > position("9-9") && position("10-0") > position("9-10"));
    }
}
