//! Server-sent events: splits a stream of bytes into events, and reads the data of an event.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::json::{self, Located};

/// Splits a stream of bytes into events, without changing a byte.
#[derive(Debug)]
pub struct Events {
    buffer: BytesMut,
    /// No event ends before this position of the buffer.
    searched: usize,
    bytes_max: usize,
    /// Whether the buffer continues an event that is too long. Its bytes are returned as they arrive.
    is_skipping: bool,
}

/// The most bytes of a blank line that ends an event, less one.
const END_BYTES: usize = 3;

impl Events {
    /// Creates an empty splitter. An event of more than `bytes_max` bytes is too long.
    pub fn new(bytes_max: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, bytes_max, is_skipping: false }
    }

    /// Adds bytes, and returns the events that they complete, each with the blank line that ends it. Of an event that is skipped, what follows
    /// is returned as it arrives.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Bytes> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.end() {
            events.push(self.buffer.split_to(end).freeze());
            (self.searched, self.is_skipping) = (0, false);
        }
        if self.is_skipping {
            events.push(self.skip());
        }
        events
    }

    /// Returns what is buffered of an event that is too long, but for some bytes that may begin its end.
    pub fn skip(&mut self) -> Bytes {
        self.is_skipping = true;
        let skipped = self.buffer.split_to(self.buffer.len().saturating_sub(END_BYTES)).freeze();
        self.searched = self.buffer.len();
        skipped
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

    pub fn held_bytes(&self) -> usize {
        self.buffer.len()
    }

    fn end(&mut self) -> Option<usize> {
        let ends = [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"];
        let from = self.searched.saturating_sub(END_BYTES);
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

/// Returns the event with other data. `data` is what [`data`] returns of it.
pub fn with_data(event: &Bytes, data: &str, new: &str) -> Bytes {
    let at = (data.as_ptr() as usize).checked_sub(event.as_ptr() as usize);
    if let Some(at) = at.filter(|at| at + data.len() <= event.len()) {
        // The data is a slice of the event: the rest of the event does not change, whatever its line endings are.
        return [&event[..at], new.as_bytes(), &event[at + data.len()..]].concat().into();
    }
    let text = std::str::from_utf8(event).unwrap_or_default();
    let others = text.split(['\n', '\r']).filter(|line| !line.is_empty() && !line.starts_with("data:"));
    let lines = new.lines().map(|line| format!("data: {line}\n"));
    (others.map(|line| format!("{line}\n")).chain(lines).collect::<String>() + "\n").into()
}

/// Returns the beginning of an event with another number in a field of its data.
pub fn with_number(beginning: Bytes, name: &str, new: impl Fn(u64) -> u64) -> Bytes {
    let valid = beginning.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let Some(data) = valid.find("data:") else { return beginning };
    let Some(number) = json::number_in_beginning(&valid[data..], name) else { return beginning };
    let (start, end) = (data + number.start, data + number.end);
    let Ok(old) = valid[start..end].parse::<u64>() else { return beginning };
    [&beginning[..start], new(old).to_string().as_bytes(), &beginning[end..]].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_an_event_is_replaced() {
        let check = |event: &'static str, expect: &str| {
            let event = Bytes::from(event);
            let data = data(&event).expect("data");
            assert_eq!(with_data(&event, &data, &data.replace('1', "23")), expect);
        };
        check("event: a\r\nid: 1\r\ndata:  {1}\r\n\r\n", "event: a\r\nid: 1\r\ndata:  {23}\r\n\r\n");
        check("event: a\ndata: {\ndata: 1}\nid: 1\n\n", "event: a\nid: 1\ndata: {\ndata:  23}\n\n");
    }

    #[test]
    fn an_event_that_is_skipped_is_returned_as_it_arrives() {
        let long = format!("data: {}\r\n\r\n", "x".repeat(1_000));
        let stream = format!("{long}data: 2\n\n");
        for size in [1, 7, 500, stream.len()] {
            let (mut events, mut found) = (Events::new(100), Vec::new());
            for bytes in stream.as_bytes().chunks(size) {
                found.extend(events.push(bytes));
                if events.is_too_long() {
                    found.push(events.skip());
                }
                assert!(events.held_bytes() <= 100 + size);
            }
            assert_eq!(found.concat(), stream.as_bytes(), "{size}");
            assert_eq!(found.last().expect("events"), &b"data: 2\n\n"[..], "{size}");
        }
    }

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
