//! Writes the strings of a conversation anew, with what is kept of their passages.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;
use thresher_core::domain::Chunk;

use super::pieces::{self, Piece};
use super::{NOTHING_KEPT, Rewritten, SeenText, SentTurn, Shortened, gaps, ranges};
use crate::middleware::dialect::PartKind;
use crate::middleware::find::{Passage, Turn};
use crate::middleware::json::Located;
use crate::middleware::marks::mark;

/// The strings of the body in which a turn is sent.
#[derive(Clone, Copy)]
pub(super) struct Strings<'a> {
    pub(super) body: Located<'a>,
    pub(super) turn: &'a Turn,
    pub(super) sent: &'a SentTurn,
}

/// Encodes the results of tools in a turn of which `sent` says what is kept. The passages of those strings are kept whole that would become
/// no shorter, such as by a mark.
pub(super) fn encode_results(body: Located, turn: &Turn, sent: &mut SentTurn) {
    let strings = Strings { body, turn, sent };
    let longer = strings.written().into_iter().filter(|(_, string)| !is_shorter(string));
    for passage in longer.flat_map(|(passages, _)| passages).collect::<Vec<usize>>() {
        sent.kept[passage] = None;
    }
    let strings = Strings { body, turn, sent };
    let written: HashMap<usize, Shortened> =
        strings.written().into_iter().map(|(_, string)| (string.at.start, string)).collect();
    let mut encoded = Vec::with_capacity(turn.results.len());
    for result in &turn.results {
        if !result.may_encode {
            encoded.push(None);
            continue;
        }
        let text = match written.get(&result.string.start) {
            Some(string) => string.text_without_mark().to_owned(),
            None => strings.original(&result.string),
        };
        encoded.push(match thresher_codec::encode(&text) {
            Cow::Owned(shorter) if shorter.len() < text.len() => Some(shorter),
            _ => None,
        });
    }
    sent.encoded = encoded;
}

fn is_shorter(string: &Shortened) -> bool {
    string.text.len() < string.original.len()
}

impl Strings<'_> {
    /// Adds to `out` the sources of the turn and the strings of the body that become shorter.
    pub(super) fn apply(self, chunks: &[Arc<Chunk>], out: &mut Rewritten) {
        for ((passage, chunk), kept) in self.turn.passages.iter().zip(chunks).zip(&self.sent.kept) {
            let all = [(0, passage.text.len())];
            let seen = ranges(kept.as_deref().unwrap_or(&all)).collect();
            out.add_source(SeenText { chunk: Arc::clone(chunk), kind: Some(passage.kind.clone()), seen });
        }
        let mut written: Vec<Shortened> = self.written().into_iter().map(|(_, string)| string).collect();
        for (result, encoded) in self.turn.results.iter().zip(&self.sent.encoded) {
            let Some(encoded) = encoded else { continue };
            match written.iter_mut().find(|string| string.at == result.string) {
                Some(string) => string.encode(encoded),
                None => written.push(Shortened {
                    at: result.string.clone(),
                    original: self.original(&result.string),
                    text: encoded.clone(),
                    is_json: false,
                    left_out: String::new(),
                    is_marked: false,
                }),
            }
        }
        out.shortened.extend(written.into_iter().filter(is_shorter));
    }

    fn original(self, at: &Range<usize>) -> String {
        original(self.body, at)
    }

    /// The strings of the body of which the turn leaves something out, as they are written anew, with the indexes of their passages.
    fn written(self) -> Vec<(Range<usize>, Shortened)> {
        let Self { turn, sent, .. } = self;
        let mut written = Vec::new();
        for indexes in turn.strings() {
            let (passages, kept) = (&turn.passages[indexes.clone()], &sent.kept[indexes.clone()]);
            if kept.iter().all(Option::is_none) {
                continue;
            }
            let at = passages[0].string.clone();
            let original = self.original(&at);
            let is_json = passages.iter().any(|passage| passage.is_quoted);
            let is_result =
                passages.iter().all(|passage| matches!(passage.kind, PartKind::ToolResult { .. }));
            let dropped: Vec<Range<usize>> = passages
                .iter()
                .zip(kept)
                .flat_map(|(passage, kept)| dropped(passage, kept.as_deref()))
                .collect();
            let left_out = if is_json { String::new() } else { pieces::left_out(&original, &dropped) };
            let is_emptied = kept.iter().all(|kept| kept.as_ref().is_some_and(Vec::is_empty));
            let piece = |index: usize| {
                let passage = &turn.passages[index];
                let text = match sent.text_of(turn, index) {
                    // The delimiters of a context never enclose nothing.
                    Some(_) if is_emptied && index == indexes.start => NOTHING_KEPT.to_owned(),
                    // What is kept whole is not encoded anew.
                    None => original[passage.range.clone()].to_owned(),
                    Some(text) if passage.is_quoted => Value::from(text).to_string(),
                    Some(text) => text.into_owned(),
                };
                Piece { range: passage.range.clone(), text }
            };
            let pieces: Vec<Piece> = indexes.clone().map(piece).collect();
            let mut text = pieces::replaced(&original, &pieces);
            let is_marked = sent.marked && is_result && !is_json;
            if is_marked {
                text.push_str(&mark(&original, &left_out));
            }
            written.push((indexes, Shortened { at, text, original, is_json, left_out, is_marked }));
        }
        written
    }
}

/// The decoded text of a JSON string of the body.
pub(super) fn original(body: Located, at: &Range<usize>) -> String {
    let start = body.range().start;
    let string = &body.json()[at.start - start..at.end - start];
    serde_json::from_str(string).expect("a text is in a JSON string")
}

impl Shortened {
    pub(super) fn text_without_mark(&self) -> &str {
        let mark = if self.is_marked { mark(&self.original, &self.left_out).len() } else { 0 };
        &self.text[..self.text.len() - mark]
    }

    /// Replaces the text before the mark.
    fn encode(&mut self, encoded: &str) {
        self.text.replace_range(..self.text_without_mark().len(), encoded);
    }
}

/// The ranges of a passage that are not kept, in bytes of the string around it.
fn dropped(passage: &Passage, kept: Option<&[(usize, usize)]>) -> Vec<Range<usize>> {
    let Some(kept) = kept else { return Vec::new() };
    let (start, len) = (passage.range.start, passage.text.len());
    gaps(kept.iter().map(|&(from, to)| from..to), len).map(|gap| start + gap.start..start + gap.end).collect()
}
