//! Shadow mode: what compression would have kept of a conversation that is sent whole, and whether the sources of the answer are in it.

use std::sync::Arc;

use thresher_core::domain::{ByteRange, Chunk};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, PipelineError};

use super::cite::SeenTexts;
use super::rewrite::{Rewritten, SeenText};

/// Returns the key under which a turn of shadow mode is stored.
pub fn shadow_key(key: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("thresher 2026 shadow turn 1", key)
}

/// The whole texts of a conversation that could be compressed, and what compression would have kept of them.
pub struct WouldKeep {
    sources: SeenTexts,
    kept: Vec<Vec<ByteRange>>,
}

/// How many sentences of an answer, and how many of their sources, would have been kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptSources {
    pub sentences: u64,
    /// Of these, those of which at least one source would have been kept.
    pub sentences_kept: u64,
    /// Sources of these sentences.
    pub sources: u64,
    /// Of these, those that would have been kept.
    pub sources_kept: u64,
}

impl WouldKeep {
    /// Takes the sources of a conversation as it would have been sent, and the chunks that the request added. Returns `None` if there is no text
    /// that could be compressed.
    pub fn new(rewritten: &Rewritten, added: &[Arc<Chunk>]) -> Option<Self> {
        let in_place = rewritten.sources.iter().filter(|source| source.kind.is_some());
        let of_conversation =
            in_place.map(|source| (Arc::clone(&source.chunk), source.kind.clone(), source.seen.clone()));
        let of_added = added.iter().map(|chunk| {
            let is_it = |source: &&SeenText| source.kind.is_none() && Arc::ptr_eq(&source.chunk, chunk);
            let seen = rewritten.sources.iter().find(is_it).map(|source| source.seen.clone());
            (Arc::clone(chunk), None, seen.unwrap_or_default())
        });
        let (mut sources, mut kept) = (Vec::new(), Vec::new());
        for (chunk, kind, seen) in of_conversation.chain(of_added) {
            let whole = vec![ByteRange::new(0, chunk.text.len())];
            sources.push(SeenText { chunk, kind, seen: whole });
            kept.push(seen);
        }
        let count = sources.len();
        Some(Self { sources: SeenTexts::new(sources, Vec::new(), count)?, kept })
    }

    /// Finds the sources of the sentences of an answer in the whole texts, and counts those that would have been kept.
    ///
    /// # Errors
    /// Fails as [`Pipeline::attribute`] does.
    pub fn sources_of(
        &self,
        answer: &str,
        pipeline: &Pipeline,
        cancel: &Cancel,
    ) -> Result<KeptSources, PipelineError> {
        let mut counts = KeptSources::default();
        for part in self.sources.parts(answer, pipeline, cancel)? {
            let kept: Vec<bool> = part
                .citations()
                .map(|source| {
                    let text = self.sources.text(source.chunk);
                    is_kept(text, source.sentence, &self.kept[source.chunk])
                })
                .collect();
            counts.sentences += u64::from(!kept.is_empty());
            counts.sentences_kept += u64::from(kept.contains(&true));
            counts.sources += kept.len() as u64;
            counts.sources_kept += kept.iter().filter(|kept| **kept).count() as u64;
        }
        Ok(counts)
    }
}

/// Whether all of a range of `text`, apart from white space, is in the ranges `kept`, which ascend.
fn is_kept(text: &str, range: ByteRange, kept: &[ByteRange]) -> bool {
    let is_blank = |start: usize, end: usize| start >= end || text[start..end].trim().is_empty();
    let mut at = range.start;
    for span in kept.iter().filter(|span| span.end > range.start && span.start < range.end) {
        if !is_blank(at, span.start.min(range.end)) {
            return false;
        }
        at = at.max(span.end);
    }
    is_blank(at, range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_kept_if_nothing_but_white_space_of_it_is_missing() {
        let text = "One is. Two are.  Three.";
        let check = |range: (usize, usize), kept: &[(usize, usize)], expect: bool| {
            let kept: Vec<ByteRange> = kept.iter().map(|&(start, end)| ByteRange::new(start, end)).collect();
            assert_eq!(is_kept(text, ByteRange::new(range.0, range.1), &kept), expect, "{range:?} {kept:?}");
        };
        check((8, 16), &[(8, 16)], true);
        check((8, 16), &[(0, 24)], true);
        check((8, 18), &[(8, 16)], true);
        check((0, 16), &[(0, 7), (8, 16)], true);
        check((0, 16), &[(0, 7)], false);
        check((8, 16), &[], false);
        check((8, 16), &[(0, 7), (18, 24)], false);
        check((8, 16), &[(8, 12)], false);
        check((8, 16), &[(9, 16)], false);
        check((0, 24), &[(0, 7), (8, 16), (18, 24)], true);
        check((0, 24), &[(0, 7), (18, 24)], false);
    }

    #[test]
    fn the_keys_of_shadow_mode_are_others() {
        let key = [7; 32];
        assert_ne!(shadow_key(&key), key);
        assert_eq!(shadow_key(&key), shadow_key(&key));
        assert_ne!(shadow_key(&key), shadow_key(&[8; 32]));
    }
}
