//! Server-sent events: splits a stream of bytes into events, and reads the data of an event.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::json::Located;

/// Splits a stream of bytes into events, without changing a byte.
#[derive(Debug)]
pub struct Events {
    buffer: BytesMut,
    /// No event ends before this position of the buffer.
    searched: usize,
    /// The most bytes of one event.
    bytes_max: usize,
}

impl Events {
    /// Creates an empty splitter. An event of more than `bytes_max` bytes is too long.
    pub fn new(bytes_max: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, bytes_max }
    }

    /// Adds bytes, and returns the events that they complete, each with the blank line that ends it.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Bytes> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.end() {
            events.push(self.buffer.split_to(end).freeze());
            self.searched = 0;
        }
        events
    }

    /// Removes and returns the buffered bytes: the rest at the end of the stream, or an event that is too long.
    pub fn rest(&mut self) -> Bytes {
        self.searched = 0;
        self.buffer.split().freeze()
    }

    /// Returns whether the buffered event is longer than the limit.
    pub fn is_too_long(&self) -> bool {
        self.buffer.len() > self.bytes_max
    }

    /// Returns the number of buffered bytes.
    pub fn held_bytes(&self) -> usize {
        self.buffer.len()
    }

    fn end(&mut self) -> Option<usize> {
        let ends = [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"];
        let from = self.searched.saturating_sub(3);
        for at in from..self.buffer.len() {
            if !matches!(self.buffer[at], b'\n' | b'\r') {
                continue;
            }
            if let Some(end) = ends.iter().find(|end| self.buffer[at..].starts_with(end)) {
                return Some(at + end.len());
            }
        }
        self.searched = self.buffer.len();
        None
    }
}

/// Returns the `sequence_number` of an event, if it has one.
pub fn sequence_number(event: &[u8]) -> Option<u64> {
    Located::parse(&data(event)?).ok()?.get("sequence_number")?.read()
}

/// Returns the data of an event, or `None` if it has no data, such as a comment. Servers send JSON in one line, which is borrowed; several
/// lines are joined. The data of an event that is not UTF-8 is empty.
pub fn data(event: &[u8]) -> Option<Cow<'_, str>> {
    let Ok(text) = std::str::from_utf8(event) else { return Some(Cow::Owned(String::new())) };
    let mut lines = text.split(['\n', '\r']).filter_map(|line| line.strip_prefix("data:"));
    let first = lines.next()?.trim();
    let rest: Vec<&str> = lines.collect();
    Some(if rest.is_empty() {
        Cow::Borrowed(first)
    } else {
        Cow::Owned(format!("{first}\n{}", rest.join("\n")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_split_at_blank_lines_however_the_bytes_arrive() {
        let stream = b"data: 1\n\nevent: x\r\ndata: 2\r\n\r\n: ping\n\ndata: 3\r\rdata: cut";
        for size in 1..stream.len() {
            let mut events = Events::new(1_000);
            let mut found: Vec<Bytes> = stream.chunks(size).flat_map(|bytes| events.push(bytes)).collect();
            assert_eq!(found.len(), 4, "{size}");
            found.push(events.rest());
            assert_eq!(found.concat(), stream, "{size}");
        }
    }

    #[test]
    fn an_event_without_end_is_too_long() {
        let mut events = Events::new(1_000);
        let mut sent = 0;
        while !events.is_too_long() {
            assert!(events.push(b"data: xx").is_empty());
            sent += 8;
        }
        assert_eq!((sent, events.held_bytes()), (1_008, 1_008));
        assert_eq!((events.rest().len(), events.held_bytes()), (1_008, 0));
    }
}
