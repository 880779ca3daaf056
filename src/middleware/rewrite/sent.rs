//! What was sent of a turn, which later requests resend.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use thresher_core::domain::{ByteRange, Kind, Omissions};
use thresher_core::pipeline::assemble;
use thresher_core::text::outline::Layout;

use super::{NOTHING_KEPT, pieces, ranges};
use crate::middleware::dialect::PartKind;
use crate::middleware::find::{Passage, Turn};

/// Start and end of ranges of a text, in bytes, ascending.
pub(super) type Spans = Vec<(usize, usize)>;

/// What the middleware sent to the upstream of one turn. It is stored as JSON, so that later requests resend the turn byte-identically.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SentTurn {
    /// The options of the compression, as [`CompressOptions::id`] returns them; empty: the turn was not compressed.
    #[serde(rename = "way")]
    pub(super) options: String,
    /// For each passage, the ranges that were kept; `None`: the whole passage.
    pub(super) kept: Vec<Option<Spans>>,
    /// For each passage, the text that was sent in its place; `None`: all of it. Empty: nothing was shortened. The texts are stored because
    /// another version may write gaps differently, and because finding how a text is divided takes far longer than reading it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) written: Vec<Option<String>>,
    /// For each result of a tool, the encoded text or the reference that was sent in its place, without its mark; `None`: neither. Empty: none of
    /// all. The texts are stored because another version may encode differently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) encoded: Vec<Option<String>>,
    /// Whether shortened results of tools were sent with a mark.
    #[serde(default)]
    pub(super) marked: bool,
    /// Whether texts were sent whole because there was no time to read them.
    #[serde(default)]
    pub(super) late: bool,
}

impl SentTurn {
    /// Returns a turn of which these ranges of each passage were sent.
    #[cfg(test)]
    pub fn keeping(kept: Vec<Option<Spans>>) -> Self {
        Self { kept, ..Self::default() }
    }

    /// Returns a turn that is sent whole. It names no options, so that the turn is compressed when a later request asks for that.
    pub(super) fn whole(turn: &Turn) -> Self {
        Self {
            options: String::new(),
            kept: vec![None; turn.passages.len()],
            written: Vec::new(),
            encoded: Vec::new(),
            marked: false,
            late: false,
        }
    }

    /// Writes what is kept of the passages.
    pub(super) fn write(&mut self, turn: &Turn) {
        let texts = (0..turn.passages.len()).map(|passage| self.text_of(turn, passage).map(Cow::into_owned));
        let texts: Vec<Option<String>> = texts.collect();
        self.written = if texts.iter().all(Option::is_none) { Vec::new() } else { texts };
    }

    /// Returns the text that is sent in place of a passage; `None`: all of it.
    pub(super) fn text_of(&self, turn: &Turn, passage: usize) -> Option<Cow<'_, str>> {
        let kept = self.kept[passage].as_ref()?;
        let written = self.written.get(passage).and_then(Option::as_deref);
        Some(written.map_or_else(|| shortened(&turn.passages[passage], kept).into(), Cow::from))
    }

    /// Returns whether less is sent than the turn has.
    pub(super) fn is_shortened(&self) -> bool {
        self.kept.iter().any(Option::is_some) || self.encoded.iter().any(Option::is_some)
    }

    /// Returns what was sent of each result of a tool of which something was left out, with its keys: for its question, and for a
    /// conversation of which the question was cut away. Of a turn that is whole now, all are returned: they may have been shortened before.
    pub(super) fn by_result(&self, turn: &Turn) -> Vec<([u8; 32], Self)> {
        let is_whole = self.kept.iter().all(Option::is_none);
        let mut found = Vec::new();
        for string in turn.strings() {
            let kept = &self.kept[string.clone()];
            if !is_whole && kept.iter().all(Option::is_none) {
                continue;
            }
            let keys =
                [&*turn.query, ""].map(|query| Passage::key_of_result(&turn.passages[string.clone()], query));
            // The text is stored with the turn only: this is for a client that has changed what is before it.
            let part = || Self { kept: kept.to_vec(), marked: self.marked, ..Self::default() };
            found.extend(keys.into_iter().flatten().map(|key| (key, part())));
        }
        for (result, text) in turn.results.iter().zip(&self.encoded) {
            if text.is_some() {
                found.push((result.key, Self { encoded: vec![text.clone()], ..Self::default() }));
            }
        }
        found
    }

    /// Puts together what was sent of the results in a turn; `None` if nothing is known of any of them.
    pub(super) fn from_results(turn: &Turn, before: &dyn Fn(&[u8; 32]) -> Option<Self>) -> Option<Self> {
        let mut sent = Self::whole(turn);
        let mut is_known = false;
        for string in turn.strings() {
            let passages = &turn.passages[string.clone()];
            let find = |question| Passage::key_of_result(passages, question).and_then(|key| before(&key));
            let found = find(&*turn.query).or_else(|| find("").filter(|_| passages[0].has_unique_call()));
            if let Some(found) = found.filter(|found| found.fits(passages)) {
                is_known = true;
                sent.marked |= found.marked;
                sent.kept[string].clone_from_slice(&found.kept);
            }
        }
        sent.encoded = vec![None; turn.results.len()];
        for (result, text) in turn.results.iter().zip(&mut sent.encoded) {
            // Nothing was sent in the place of others, and a conversation has many of them.
            if result.may_encode || result.may_refer {
                *text = before(&result.key).and_then(|mut found| found.encoded.pop()).flatten();
            }
            is_known |= text.is_some();
        }
        is_known.then_some(sent)
    }

    /// Returns what was sent of a passage, in its own form or encoded; `None`: all of it.
    pub fn kept_of(&self, passage: usize) -> Option<&[(usize, usize)]> {
        self.kept.get(passage)?.as_deref()
    }

    /// The strings of the body that are sent encoded.
    pub(super) fn encoded_strings(&self, turn: &Turn) -> impl Iterator<Item = Range<usize>> {
        let results = turn.results.iter().zip(&self.encoded);
        results.filter(|(_, encoded)| encoded.is_some()).map(|(result, _)| result.string.clone())
    }

    pub(super) fn fits_turn(&self, turn: &Turn) -> bool {
        self.fits(&turn.passages)
            && (self.written.is_empty() || self.written.len() == turn.passages.len())
            && (self.encoded.is_empty() || self.encoded.len() == turn.results.len())
    }

    /// Whether the ranges fit these passages: as many passages, and ranges that ascend and end at characters.
    fn fits(&self, passages: &[Passage]) -> bool {
        let inside = |(kept, passage): (&Option<Spans>, &Passage)| {
            let ends = kept.iter().flatten().all(|&(start, end)| passage.text.get(start..end).is_some());
            let ascends = kept.iter().flatten().is_sorted_by(|a, b| a.1 <= b.0);
            ends && ascends
        };
        self.kept.len() == passages.len() && self.kept.iter().zip(passages).all(inside)
    }
}

/// The text that replaces a passage.
fn shortened(passage: &Passage, kept: &[(usize, usize)]) -> String {
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
