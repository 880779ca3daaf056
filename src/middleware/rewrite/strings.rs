//! Writes the strings of a conversation anew, with what is kept of their passages.

use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;
use thresher_core::domain::{ByteRange, Chunk, Kind, Omissions};
use thresher_core::pipeline::assemble;
use thresher_core::text::outline::Layout;

use super::pieces::{self, Piece};
use super::{NOTHING_KEPT, Rewritten, SeenText, SentTurn, Shortened, ranges};
use crate::middleware::dialect::PartKind;
use crate::middleware::find::{Passage, Turn};
use crate::middleware::json::Located;
use crate::middleware::marks::mark;

/// Adds to `out` the sources of a turn and the strings of the body that `sent` shortens.
pub(super) fn apply(body: Located, turn: &Turn, chunks: &[Arc<Chunk>], sent: &SentTurn, out: &mut Rewritten) {
    for ((passage, chunk), kept) in turn.passages.iter().zip(chunks).zip(&sent.kept) {
        let all = [(0, passage.text.len())];
        let seen = ranges(kept.as_deref().unwrap_or(&all)).collect();
        out.add_source(SeenText { chunk: Arc::clone(chunk), kind: Some(passage.kind.clone()), seen });
    }
    let written = written(body, turn, sent).into_iter().map(|(_, string)| string);
    out.shortened.extend(written.filter(is_shorter));
}

/// Keeps the passages of those strings whole that would become no shorter, such as by a mark.
pub(super) fn keep_no_shorter(body: Located, turn: &Turn, sent: &mut SentTurn) {
    let longer = written(body, turn, sent).into_iter().filter(|(_, string)| !is_shorter(string));
    for passage in longer.flat_map(|(passages, _)| passages).collect::<Vec<usize>>() {
        sent.kept[passage] = None;
    }
}

fn is_shorter(string: &Shortened) -> bool {
    string.text.len() < string.original.len()
}

/// A passage with the ranges of it that are kept; `None`: all of it.
type KeptPassage<'a> = (&'a Passage, Option<&'a [(usize, usize)]>);

/// The strings of the body of which `sent` leaves something out, as they are written anew, with the indexes of their passages.
fn written(body: Located, turn: &Turn, sent: &SentTurn) -> Vec<(Range<usize>, Shortened)> {
    let body_start = body.range().start;
    let mut written = Vec::new();
    for indexes in turn.strings() {
        let kept = sent.kept[indexes.clone()].iter().map(Option::as_deref);
        if kept.clone().all(|kept| kept.is_none()) {
            continue;
        }
        let passages: Vec<KeptPassage> = turn.passages[indexes.clone()].iter().zip(kept).collect();
        let at = passages[0].0.string.clone();
        let string = &body.json()[at.start - body_start..at.end - body_start];
        let original: String = serde_json::from_str(string).expect("a passage is in a JSON string");
        let is_json = passages.iter().any(|(passage, _)| passage.is_quoted);
        let is_result =
            passages.iter().all(|(passage, _)| matches!(passage.kind, PartKind::ToolResult { .. }));
        let dropped: Vec<Range<usize>> =
            passages.iter().flat_map(|(passage, kept)| dropped(passage, *kept)).collect();
        let left_out = if is_json { String::new() } else { pieces::left_out(&original, &dropped) };
        let is_emptied = passages.iter().all(|(_, kept)| kept.is_some_and(<[_]>::is_empty));
        let first = passages[0].0.range.start;
        let piece = |(passage, kept): KeptPassage| {
            let text = match kept {
                // The delimiters of a context never enclose nothing.
                Some(_) if is_emptied && passage.range.start == first => NOTHING_KEPT.to_owned(),
                // What is kept whole is not encoded anew.
                None => original[passage.range.clone()].to_owned(),
                Some(kept) if passage.is_quoted => Value::from(shortened(passage, kept)).to_string(),
                Some(kept) => shortened(passage, kept),
            };
            Piece { range: passage.range.clone(), text }
        };
        let pieces: Vec<Piece> = passages.into_iter().map(piece).collect();
        let mut text = pieces::replaced(&original, &pieces);
        let is_marked = sent.marked && is_result && !is_json;
        if is_marked {
            text.push_str(&mark(&original, &left_out));
        }
        written.push((indexes, Shortened { at, text, original, is_json, left_out, is_marked }));
    }
    written
}

/// The ranges of a passage that are not kept, in bytes of the string around it.
fn dropped(passage: &Passage, kept: Option<&[(usize, usize)]>) -> Vec<Range<usize>> {
    let Some(kept) = kept else { return Vec::new() };
    let (start, len) = (passage.range.start, passage.text.len());
    let starts = std::iter::once(0).chain(kept.iter().map(|(_, end)| *end));
    let ends = kept.iter().map(|(start, _)| *start).chain([len]);
    starts.zip(ends).filter(|(from, to)| from < to).map(|(from, to)| start + from..start + to).collect()
}

/// The text that replaces a passage.
pub(super) fn shortened(passage: &Passage, kept: &[(usize, usize)]) -> String {
    match (kept.is_empty(), &passage.kind) {
        // The rest of the message remains, so an empty text is allowed.
        (true, PartKind::Message) => String::new(),
        (true, _) => NOTHING_KEPT.to_owned(),
        (false, _) => {
            let layout = Layout::detect(&passage.text, Kind::Auto);
            let spans: Vec<ByteRange> = ranges(kept).collect();
            let mut text = assemble::joined(&passage.text, &spans, &layout, omissions_of(&passage.kind));
            // Inside JSON there is no place for marks.
            if layout.kind == Kind::Json && !passage.is_quoted {
                text.push_str(&pieces::left_out_of_json(&passage.text, &text));
            }
            text
        }
    }
}

/// Returns how omissions from a passage are marked. The model takes the result of a tool for the whole result
/// unless it is told otherwise.
fn omissions_of(kind: &PartKind) -> Omissions {
    match kind {
        PartKind::ToolResult { .. } => Omissions::Range,
        _ => Omissions::Auto,
    }
}
