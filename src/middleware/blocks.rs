//! The text blocks of an answer of Anthropic's Messages that arrives as events. A block is split at the ends of its sentences, so that each
//! sentence has its own citations. The blocks after it get new indexes.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};
use thresher_core::text::{Relayed, RelayedPiece};

use super::answer::TEXT_BYTES;
use super::json::{Edits, Located};
use super::sse;

/// What follows from an event, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum BlockStep {
    Send(Bytes),
    /// The end of a sentence, whose citations come before all that follows.
    Sentence {
        text: String,
        /// The index of its block for the client.
        index: u64,
    },
}

#[derive(Debug, Default)]
pub struct BlockStream {
    /// Text blocks that have begun and not ended, by the upstream's index.
    open: BTreeMap<u64, OpenBlock>,
    /// The largest index of a block that has begun.
    newest: Option<u64>,
    /// Blocks that were split, in order: the upstream's index, and how many blocks were added so far.
    splits: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
struct OpenBlock {
    text: Relayed,
    /// Whether the last sentence of the block has ended, so that the next one begins a block.
    has_ended: bool,
}

impl BlockStream {
    /// Returns whether the indexes of later events change.
    pub fn renumbers(&self) -> bool {
        !self.splits.is_empty()
    }

    pub fn held_bytes(&self) -> usize {
        self.open.values().map(|block| block.text.held_bytes() + TEXT_BYTES).sum()
    }

    /// Reads a block's first event. `text` is the text that it has; `None`: the block is not a text, or the upstream has cited it.
    pub fn start(&mut self, index: u64, text: Option<&str>, event: Bytes) -> Vec<BlockStep> {
        self.newest = self.newest.max(Some(index));
        let mut steps = self.pass(event);
        if let Some(text) = text {
            let mut block = OpenBlock::default();
            block.text.skip(text.len());
            let pieces = block.text.push(text);
            self.open.insert(index, block);
            self.relay(index, pieces, None, &mut steps);
        }
        steps
    }

    /// Returns whether a text block with this index is open.
    pub fn is_open(&self, index: u64) -> bool {
        self.open.contains_key(&index)
    }

    pub fn text(&mut self, index: u64, more: &str, event: Bytes) -> Vec<BlockStep> {
        let Some(block) = self.open.get_mut(&index).filter(|_| !more.is_empty()) else {
            return self.pass(event);
        };
        let pieces = block.text.push(more);
        let mut steps = Vec::new();
        self.relay(index, pieces, Some((more, event)), &mut steps);
        steps
    }

    pub fn stop(&mut self, index: u64, event: Bytes) -> Vec<BlockStep> {
        let mut steps = Vec::new();
        if let Some(block) = self.open.get_mut(&index) {
            let pieces = block.text.finish();
            self.relay(index, pieces, None, &mut steps);
            self.open.remove(&index);
        }
        steps.push(BlockStep::Send(self.renumbered(event)));
        steps
    }

    /// Passes an event that is not text, behind the text that was held back.
    pub fn pass(&mut self, event: Bytes) -> Vec<BlockStep> {
        let mut steps: Vec<BlockStep> = self.flush().into_iter().map(BlockStep::Send).collect();
        steps.push(BlockStep::Send(self.renumbered(event)));
        steps
    }

    /// Leaves the rest of a block whole.
    pub fn forget(&mut self, index: u64) -> Option<Bytes> {
        let held = self.open.get_mut(&index)?.text.flush();
        self.open.remove(&index);
        held.map(|text| delta(self.client_index(index), &text))
    }

    /// Returns the text that was held back, as an event.
    pub fn flush(&mut self) -> Option<Bytes> {
        let held: Vec<(u64, String)> =
            self.open.iter_mut().filter_map(|(&index, block)| Some((index, block.text.flush()?))).collect();
        let events: Vec<Bytes> =
            held.iter().map(|(index, text)| delta(self.client_index(*index), text)).collect();
        (!events.is_empty()).then(|| events.concat().into())
    }

    /// Ends the splitting of blocks. Returns the text that was held back, as an event.
    pub fn end(&mut self) -> Option<Bytes> {
        let held = self.flush();
        self.open.clear();
        held
    }

    /// Returns an event with the index that its block has for the client.
    pub fn renumbered(&self, event: Bytes) -> Bytes {
        if !self.renumbers() {
            return event;
        }
        let Some(data) = sse::data(&event) else { return event };
        let Ok(body) = Located::parse(&data) else { return event };
        let Some(index) = body.get("index").and_then(Located::read::<u64>) else { return event };
        let mut edits = Edits::default();
        edits.set_field(body, "index", &self.client_index(index).to_string());
        sse::with_data(&event, &data, &edits.apply(&data))
    }

    /// Returns the beginning of an event that is too long to be buffered, with the index that its block has for the client.
    pub fn renumbered_beginning(&self, beginning: Bytes) -> Bytes {
        if self.renumbers() {
            sse::with_number(beginning, "index", |index| self.client_index(index))
        } else {
            beginning
        }
    }

    /// Appends the steps that follow from pieces of a block's text. `whole` is a text and its event, which is sent if a piece is the whole text.
    fn relay(
        &mut self,
        index: u64,
        pieces: Vec<RelayedPiece>,
        whole: Option<(&str, Bytes)>,
        steps: &mut Vec<BlockStep>,
    ) {
        for piece in pieces {
            let Some(block) = self.open.get_mut(&index) else { return };
            match piece {
                RelayedPiece::Text(text) => {
                    let begins_block = has_words(&text) && std::mem::take(&mut block.has_ended);
                    // An event of a later block has its own index already.
                    if begins_block && self.newest == Some(index) {
                        steps.push(BlockStep::Send(self.split(index)));
                    }
                    let event = match &whole {
                        Some((whole, event)) if *whole == text => self.renumbered(event.clone()),
                        _ => delta(self.client_index(index), &text),
                    };
                    steps.push(BlockStep::Send(event));
                }
                RelayedPiece::End { sentence, is_exact } => {
                    block.has_ended = is_exact;
                    steps.push(BlockStep::Sentence { text: sentence, index: self.client_index(index) });
                }
            }
        }
    }

    /// Ends the client's block and begins another one.
    fn split(&mut self, index: u64) -> Bytes {
        let before = self.client_index(index);
        match self.splits.last_mut() {
            Some((at, added)) if *at == index => *added += 1,
            last => {
                let added = last.map_or(0, |(_, added)| *added) + 1;
                self.splits.push((index, added));
            }
        }
        let stop = json!({"type": "content_block_stop", "index": before});
        let block = json!({"type": "text", "text": ""});
        let start =
            json!({"type": "content_block_start", "index": self.client_index(index), "content_block": block});
        [event(&stop), event(&start)].concat().into()
    }

    /// Returns the index that the newest part of a block has for the client.
    fn client_index(&self, index: u64) -> u64 {
        let before = self.splits.partition_point(|(at, _)| *at <= index);
        let added = before.checked_sub(1).map_or(0, |at| self.splits[at].1);
        index.saturating_add(added)
    }
}

/// Returns the events that add citations to the client's block with this index.
pub fn citations(index: u64, citations: &[Value]) -> Bytes {
    let event = |citation: &Value| {
        let delta = json!({"type": "citations_delta", "citation": citation});
        event(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
    };
    citations.iter().map(event).collect::<String>().into()
}

fn delta(index: u64, text: &str) -> Bytes {
    let delta = json!({"type": "text_delta", "text": text});
    event(&json!({"type": "content_block_delta", "index": index, "delta": delta})).into()
}

fn event(data: &Value) -> String {
    let name = data["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}

fn has_words(text: &str) -> bool {
    !text.trim().is_empty()
}
