//! From which chunk does each part of an answer come? Each sentence of the answer takes a question's place and is read on its own, so
//! that what is said of it does not depend on what follows it: an answer that arrives piece by piece gets what the whole would get.
//!
//! ```text
//! chunks ─▶ blocks ─▶ Candidates ─┐
//! answer ─▶ sentences ─▶ hear ─▶ Heard: RC over chunks and their sentences, words both have ─▶ trace ─▶ support ─▶ cite ─▶ PartOutcome
//! ```
//!
//! RC says what a token of the answer was contextualised by; that a chunk has the very word is worth as much again, by how rare the word
//! is among the chunks. The rule and its constants are in `docs/evaluation.md`, with what they were measured on.

mod candidates;
mod cite;
mod hear;
mod support;
mod trace;

use rayon::prelude::*;

pub use self::candidates::Candidates;
pub use self::cite::{PartOutcome, Source};
pub use self::hear::Heard;
pub use self::support::{Lack, LackKind, SUPPORT_MIN};
use super::cancel::Cancel;
use super::clock::{Clock, Timings};
use super::{Pipeline, PipelineError, validate};
use crate::domain::{AttributeRequest, ByteRange, Parts};
use crate::kv::store;
use crate::text;

/// Where the parts of an answer came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Attributed {
    /// In the order of the answer.
    pub parts: Vec<PartOutcome>,
    /// Where the chunks' blocks came from.
    pub blocks_from: store::Sources,
    /// Time per stage.
    pub timings: Timings,
}

impl Pipeline {
    /// Ties the parts of an answer to chunks.
    ///
    /// # Errors
    /// [`PipelineError::Invalid`] names what to change; a deadline or a failure of the model are said as such.
    pub fn attribute(
        &self,
        request: &AttributeRequest,
        cancel: &Cancel,
    ) -> Result<Attributed, PipelineError> {
        let limits = &self.settings.limits;
        validate::check_attribution(request, limits)?;
        let mut clock = Clock::start();
        let candidates = self.candidates(request, &mut clock, cancel)?;
        let sentences = clock.stage("sentences", || text::arrived(&request.answer));
        let cuts = cuts(&request.parts);
        let hear = |&sentence: &ByteRange| self.hear(&candidates, (&request.answer, sentence), &cuts, cancel);
        let heard: Vec<Heard> =
            clock.stage("answer", || sentences.par_iter().map(hear).collect::<Result<_, _>>())?;
        let parts = clock.stage("trace", || {
            let parts = parts(&request.parts, &heard);
            let cite = |&part: &ByteRange| self.part(&candidates, &heard, part, request.sources_max, cancel);
            parts.par_iter().map(cite).collect::<Result<Vec<_>, PipelineError>>()
        })?;
        Ok(Attributed { parts, blocks_from: candidates.blocks_from(), timings: clock.finish() })
    }

    /// Ties one sentence, or its words, of an answer that is still arriving: what [`Self::attribute`] says of it in the whole.
    ///
    /// # Errors
    /// As [`Self::attribute`].
    pub fn attribute_sentence(
        &self,
        candidates: &Candidates,
        (request, sentence): (&AttributeRequest, ByteRange),
        cancel: &Cancel,
    ) -> Result<Vec<PartOutcome>, PipelineError> {
        let heard = [self.hear(candidates, (&request.answer, sentence), &[], cancel)?];
        let cite = |part: ByteRange| self.part(candidates, &heard, part, request.sources_max, cancel);
        parts(&request.parts, &heard).into_iter().map(cite).collect()
    }

    /// Whether chunks can be read for an answer that is still to come.
    ///
    /// # Errors
    /// [`PipelineError::Invalid`].
    pub fn check_sources(&self, request: &AttributeRequest) -> Result<(), PipelineError> {
        Ok(validate::check_chunks(&request.chunks, request.registered, &self.settings.limits)?)
    }

    /// Whether an answer may have so many bytes.
    ///
    /// # Errors
    /// [`PipelineError::Invalid`].
    pub fn check_answer_bytes(&self, bytes: usize) -> Result<(), PipelineError> {
        Ok(validate::check_answer_bytes(bytes, &self.settings.limits)?)
    }

    /// Reads the chunks that an answer may have come from.
    ///
    /// # Errors
    /// As [`Self::attribute`].
    pub fn candidates(
        &self,
        request: &AttributeRequest,
        clock: &mut Clock,
        cancel: &Cancel,
    ) -> Result<Candidates, PipelineError> {
        let blocks =
            clock.stage("blocks", || self.reader.blocks(&request.chunks, &self.settings.limits, cancel))?;
        cancel.check()?;
        Ok(clock.stage("terms", || Candidates::new(&request.chunks, blocks, request.seen.as_deref())))
    }

    /// Reads one sentence of `answer` over the chunks. Words are cut at `cuts`, bytes of the answer.
    ///
    /// # Errors
    /// As [`Self::attribute`].
    pub fn hear(
        &self,
        candidates: &Candidates,
        sentence: (&str, ByteRange),
        cuts: &[usize],
        cancel: &Cancel,
    ) -> Result<Heard, PipelineError> {
        cancel.check()?;
        let (answer, bytes) = sentence;
        let tokens = self.tokenizer.encode(bytes.of(answer))?;
        hear::sentence(
            candidates,
            (bytes.of(answer), bytes.start),
            (tokens, cuts),
            (&*self.model, &self.settings),
            cancel,
        )
    }

    /// What one part of an answer came from, by the sentences that it lies in.
    ///
    /// # Errors
    /// As [`Self::attribute`].
    pub fn part(
        &self,
        candidates: &Candidates,
        heard: &[Heard],
        part: ByteRange,
        sources_max: usize,
        cancel: &Cancel,
    ) -> Result<PartOutcome, PipelineError> {
        cancel.check()?;
        let first = heard.partition_point(|heard| heard.bytes.end <= part.start);
        let after = heard.partition_point(|heard| heard.bytes.start < part.end);
        cite::part(candidates, &heard[first..after.max(first)], part, sources_max, cancel)
    }
}

/// Where words have to be cut for parts to be made of whole ones.
fn cuts(parts: &Parts) -> Vec<usize> {
    match parts {
        Parts::Spans(spans) => spans.iter().flat_map(|span| [span.start, span.end]).collect(),
        Parts::Sentences | Parts::Words => Vec::new(),
    }
}

fn parts(asked: &Parts, heard: &[Heard]) -> Vec<ByteRange> {
    match asked {
        Parts::Sentences => heard.iter().map(|heard| heard.bytes).collect(),
        Parts::Words => heard.iter().flat_map(Heard::words).collect(),
        Parts::Spans(spans) => spans.clone(),
    }
}
