//! From which chunk does each part of an answer come? Each sentence of the answer takes a question's place and is read on its own, so
//! that what is said of it does not depend on what follows it: an answer that arrives piece by piece gets what the whole would get.
//!
//! ```text
//! chunks ─▶ blocks ─▶ Candidates ─┐
//! answer ─▶ sentences ─▶ hear ─▶ SentenceScores: RC over chunks and their sentences, words both have ─▶ trace ─▶ support ─▶ cite ─▶ PartOutcome
//! ```
//!
//! RC says what a token of the answer was contextualised by; that a chunk has the very word is worth as much again, by how rare the word
//! is among the chunks. The rule is in `docs/attribution.md`, what it was measured
//! on in `docs/evaluation.md`.

mod candidates;
mod cite;
mod sentence_scores;
mod support;
mod trace;

use std::borrow::Cow;
use std::sync::Arc;

use rayon::prelude::*;

pub use self::candidates::Candidates;
pub use self::cite::{PartOutcome, Source};
use self::sentence_scores::SentenceScores;
pub use self::support::{SUPPORT_MIN, UnsupportedKind, UnsupportedSpan};
use super::cancel::Cancel;
use super::clock::{Clock, Timings};
use super::validate::{self, InvalidRequest};
use super::{Pipeline, PipelineError};
use crate::domain::{AttributeRequest, ByteRange, Parts, Value};
use crate::kv::store;
use crate::text;

/// What this way of scoring is called, beside the estimators of compression.
pub const ESTIMATOR: &str = "attribution";

/// What is read of the name in front of a value: names are words, and whatever is longer is none.
const NAME_BYTES_MAX: usize = 200;

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
        let parts = clock.stage("answer", || self.parts(&candidates, request, cancel))?;
        Ok(Attributed { parts, blocks_from: candidates.blocks_from(), timings: clock.finish() })
    }

    /// The parts of an answer whose chunks have been read.
    ///
    /// # Errors
    /// As [`Self::attribute`].
    pub fn parts(
        &self,
        candidates: &Candidates,
        request: &AttributeRequest,
        cancel: &Cancel,
    ) -> Result<Vec<PartOutcome>, PipelineError> {
        let groups = match &request.parts {
            Parts::Values(values) => values.iter().map(Group::of_value).collect(),
            parts => Group::of_text(&request.answer, parts),
        };
        let attribute = |group: &Group| self.group(candidates, group, request, cancel);
        let parts: Vec<Vec<PartOutcome>> = match self.model.info().decoder {
            None => groups.par_iter().map(attribute).collect::<Result<_, _>>(),
            // Reading one takes all threads, and a thread that waits for them must not begin another.
            Some(_) => groups.iter().map(attribute).collect(),
        }?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// The parts of some sentences, which are forgotten then.
    fn group(
        &self,
        candidates: &Candidates,
        group: &Group,
        request: &AttributeRequest,
        cancel: &Cancel,
    ) -> Result<Vec<PartOutcome>, PipelineError> {
        let mut tokens = 0;
        let score = |&sentence: &ByteRange| {
            let scores = self.score_sentence(candidates, (&group.text, sentence), &group.cuts, cancel);
            let scores = scores.map_err(|error| group.placed(error))?;
            tokens += scores.tokens();
            self.settings.limits.check_answer_logits(tokens, candidates.segments())?;
            Ok(scores)
        };
        let scores = group.sentences.iter().map(score).collect::<Result<Vec<_>, PipelineError>>()?;
        let parts = match &group.parts {
            Some(parts) => parts.clone(),
            None => parts(&request.parts, &scores),
        };
        self.settings.limits.check_sources_named(parts.len(), request.sources_max)?;
        let cite = |part: ByteRange| {
            let found = self.part(candidates, &scores, part, request.sources_max, cancel)?;
            Ok(group.told(found))
        };
        parts.into_iter().map(cite).collect()
    }

    /// Ties one sentence, or its words, of an answer that is still arriving: what [`Self::attribute`] says of it in the whole.
    ///
    /// # Errors
    /// As [`Self::attribute`].
    pub fn attribute_sentence(
        &self,
        candidates: &Candidates,
        sentence: (&str, ByteRange),
        (asked, sources_max): (&Parts, usize),
        cancel: &Cancel,
    ) -> Result<Vec<PartOutcome>, PipelineError> {
        let scores = [self.score_sentence(candidates, sentence, &[], cancel)?];
        let parts = parts(asked, &scores);
        self.settings.limits.check_sources_named(parts.len(), sources_max)?;
        parts.into_iter().map(|part| self.part(candidates, &scores, part, sources_max, cancel)).collect()
    }

    /// Whether chunks can be read for an answer that is still to come.
    ///
    /// # Errors
    /// [`PipelineError::Invalid`].
    pub fn check_sources(&self, request: &AttributeRequest) -> Result<(), PipelineError> {
        Ok(validate::check_sources(request, &self.settings.limits)?)
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
        Ok(clock
            .stage("terms", || Candidates::new(&request.chunks, Arc::new(blocks), request.seen.as_deref())))
    }

    /// Reads one sentence of `answer` over the chunks. Words are cut at `cuts`, bytes of the answer.
    fn score_sentence(
        &self,
        candidates: &Candidates,
        sentence: (&str, ByteRange),
        cuts: &[usize],
        cancel: &Cancel,
    ) -> Result<SentenceScores, PipelineError> {
        cancel.check()?;
        let (answer, bytes) = sentence;
        let tokens = self.tokenizer.encode(bytes.of(answer))?;
        cancel.spend(tokens.ids.len());
        sentence_scores::sentence(
            candidates,
            (bytes.of(answer), bytes.start),
            (tokens, cuts),
            (&*self.model, &self.settings),
            cancel,
        )
    }

    /// What one part of an answer came from, by the sentences that it lies in.
    fn part(
        &self,
        candidates: &Candidates,
        scores: &[SentenceScores],
        part: ByteRange,
        sources_max: usize,
        cancel: &Cancel,
    ) -> Result<PartOutcome, PipelineError> {
        cancel.check()?;
        let first = scores.partition_point(|scores| scores.bytes.end <= part.start);
        let after = scores.partition_point(|scores| scores.bytes.start < part.end);
        cite::part(candidates, &scores[first..after.max(first)], part, sources_max, cancel)
    }
}

/// Sentences that are read together: those that some part lies in.
struct Group<'a> {
    /// The answer, or what one of its values says.
    text: Cow<'a, str>,
    sentences: Vec<ByteRange>,
    /// Where words have to be cut for parts to be made of whole ones.
    cuts: Vec<usize>,
    /// Of the text; none: the sentences, or their words.
    parts: Option<Vec<ByteRange>>,
    /// Of which value of the answer.
    value: Option<&'a Value>,
}

impl<'a> Group<'a> {
    fn of_text(answer: &'a str, parts: &Parts) -> Vec<Self> {
        let sentences = text::arrived(answer);
        let group = |sentences: &[ByteRange], parts: Option<&[ByteRange]>| Self {
            text: Cow::Borrowed(answer),
            sentences: sentences.to_vec(),
            cuts: parts.iter().copied().flatten().flat_map(|part| [part.start, part.end]).collect(),
            parts: parts.map(<[_]>::to_vec),
            value: None,
        };
        let Parts::Spans(spans) = parts else {
            return sentences.iter().map(|sentence| group(std::slice::from_ref(sentence), None)).collect();
        };
        let (mut groups, mut from) = (Vec::new(), 0);
        while from < spans.len() {
            let first = sentences.partition_point(|sentence| sentence.end <= spans[from].start);
            let behind = |span: &ByteRange| sentences.partition_point(|sentence| sentence.start < span.end);
            let (mut to, mut after) = (from + 1, behind(&spans[from]).max(first));
            // Spans that share a sentence are of one group.
            while to < spans.len() && after > first && spans[to].start < sentences[after - 1].end {
                after = behind(&spans[to]).max(after);
                to += 1;
            }
            groups.push(group(&sentences[first..after], Some(&spans[from..to])));
            from = to;
        }
        groups
    }

    /// A value is read behind what it is called.
    fn of_value(value: &'a Value) -> Self {
        let name = &value.key[..value.key.floor_char_boundary(NAME_BYTES_MAX)];
        let head = if name.is_empty() { String::new() } else { format!("{name}: ") };
        let text = head.clone() + &value.text;
        Self {
            sentences: text::arrived(&text),
            cuts: vec![head.len()],
            parts: Some(vec![ByteRange::new(head.len(), text.len())]),
            text: Cow::Owned(text),
            value: Some(value),
        }
    }

    /// An error with its place in the answer.
    fn placed(&self, error: PipelineError) -> PipelineError {
        match (error, self.value) {
            (PipelineError::Invalid(InvalidRequest::SentenceBeyondModel { found, max, .. }), Some(value)) => {
                InvalidRequest::SentenceBeyondModel { at: value.bytes.start, found, max }.into()
            }
            (error, _) => error,
        }
    }

    /// A part with its places in the answer: those inside a value that is written otherwise than it reads are the whole value.
    fn told(&self, mut part: PartOutcome) -> PartOutcome {
        if let Some(value) = self.value {
            let head = part.bytes.start;
            let as_it_reads = value.bytes.len() == value.text.len();
            for unsupported in &mut part.unsupported {
                unsupported.bytes = match as_it_reads && unsupported.bytes.start >= head {
                    true => ByteRange::new(unsupported.bytes.start - head, unsupported.bytes.end - head)
                        .shifted(value.bytes.start),
                    false => value.bytes,
                };
            }
            part.bytes = value.bytes;
        }
        part
    }
}

/// The parts that a request asks about by what they are.
fn parts(asked: &Parts, scores: &[SentenceScores]) -> Vec<ByteRange> {
    match asked {
        Parts::Words => scores.iter().flat_map(SentenceScores::words).collect(),
        Parts::Sentences | Parts::Spans(_) | Parts::Values(_) => {
            scores.iter().map(|scores| scores.bytes).collect()
        }
    }
}
