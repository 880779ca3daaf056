//! Attribution: finds the chunks that each part of an answer came from, and the words that no chunk supports.
//!
//! ```text
//! chunks ─▶ blocks ─▶ Candidates ─┐
//! answer ─▶ sentences ────────────┴─▶ SentenceScores ─▶ Trace of each word ─▶ citations, Evidence ─▶ verdict ─▶ PartOutcome
//! ```
//!
//! Each sentence of the answer is scored by itself, as a question would be. The evidence of a token for a
//! chunk is its RC, plus a bonus if the chunk contains the same word; rare words count more. The scores of a
//! sentence do not depend on what follows it, so an answer that arrives in pieces gets the same result as a
//! whole one. `docs/attribution.md` has the rules, `docs/evaluation.md` the measurements.

mod candidates;
mod cite;
mod evidence;
mod gather;
mod part;
mod quotes;
mod second_opinion;
mod sentence_scores;
mod term_ids;
mod trace;
mod verdict;

use std::borrow::Cow;
use std::collections::HashSet;
use std::slice;
use std::sync::Arc;

use rayon::prelude::*;

pub use self::candidates::Candidates;
pub use self::cite::{PartOutcome, SOURCES_INDEPENDENT_MAX, Source};
pub use self::evidence::{Conflict, ConflictKind, Evidence, SecondOpinion, UnsupportedKind, UnsupportedSpan};
pub use self::quotes::{QuoteOutcome, QuoteVerdict, QuotedSpan};
use self::second_opinion::Question;
use self::sentence_scores::{AnswerSentence, SentenceScores};
pub(super) use self::term_ids::TermIds;
pub use self::verdict::{Method, Verdict};
use super::blocks::Blocks;
use super::cancel::Cancel;
use super::clock::{Clock, Timings};
use super::source_conflicts::{self, CONFLICTS_MAX, SourceConflict};
use super::validate::{self, InvalidRequest};
use super::{Pipeline, PipelineError};
use crate::domain::{AttributeRequest, ByteRange, Chunk, Parts, Value};
use crate::kv::store;
use crate::text;

/// The name of this scoring method, which results report in place of the name of an estimator.
pub const ESTIMATOR: &str = "attribution";

/// How many bytes of a JSON value's name the model reads before the value. A longer text is hardly a name.
const NAME_BYTES_MAX: usize = 200;

/// The result of [`Pipeline::attribute`]: where the parts of an answer came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Attributed {
    /// The parts, in the order of the answer.
    pub parts: Vec<PartOutcome>,
    /// The quotations in the answer of at least three words, in its order.
    pub quotes: Vec<QuoteOutcome>,
    /// The conflicts between a cited sentence and a sentence of another chunk.
    pub conflicts: Vec<SourceConflict>,
    pub block_sources: store::BlockOrigins,
    pub timings: Timings,
}

impl Pipeline {
    /// Attributes the parts of an answer to chunks.
    ///
    /// The call blocks until the result is ready. It returns early with an error soon after `cancel` stops
    /// it.
    ///
    /// # Errors
    /// Returns [`PipelineError::Invalid`] if the request exceeds a limit or contradicts itself, and otherwise
    /// fails as [`Pipeline::compress`] does.
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
        let quotes = clock.stage("quotes", || self::quotes::all(&candidates, request, cancel))?;
        let conflicts = clock.stage("conflicts", || self.conflicts_of_cited(&candidates, &parts, cancel))?;
        let (block_sources, timings) = (candidates.block_sources(), clock.finish());
        Ok(Attributed { parts, quotes, conflicts, block_sources, timings })
    }

    /// Returns the conflicts between a cited sentence and a sentence of another chunk, which need not be cited: the answer may have chosen
    /// between them.
    fn conflicts_of_cited(
        &self,
        candidates: &Candidates,
        parts: &[PartOutcome],
        cancel: &Cancel,
    ) -> Result<Vec<SourceConflict>, PipelineError> {
        let cited = parts.iter().flat_map(|part| &part.sources).filter(|source| source.cited);
        let cited: HashSet<(usize, usize)> =
            cited.map(|source| (source.chunk, source.sentence.start)).collect();
        if cited.is_empty() {
            return Ok(Vec::new());
        }
        let layout_of = |chunk: usize| self.layouts.of_chunk(&candidates.chunks[chunk]);
        let mut found = source_conflicts::find(&candidates.chunks, &candidates.units, &layout_of, cancel)?;
        found.retain(|conflict| {
            conflict.units.iter().any(|unit| cited.contains(&(unit.chunk, unit.bytes.start)))
        });
        found.truncate(CONFLICTS_MAX);
        Ok(found)
    }

    /// Attributes the parts of an answer whose chunks have been read with [`Self::candidates`].
    ///
    /// # Errors
    /// Fails as [`Self::attribute`] does.
    pub fn parts(
        &self,
        candidates: &Candidates,
        request: &AttributeRequest,
        cancel: &Cancel,
    ) -> Result<Vec<PartOutcome>, PipelineError> {
        let groups = match &request.parts {
            Parts::Values(values) => {
                values.iter().map(|value| SentenceGroup::of_value(value, cancel)).collect::<Result<_, _>>()?
            }
            parts => SentenceGroup::of_answer(&request.answer, parts, cancel)?,
        };
        let attribute = |group: &SentenceGroup| self.attribute_group(candidates, group, request, cancel);
        let parts: Vec<Vec<PartOutcome>> = match self.model.info().decoder {
            None => groups.par_iter().map(attribute).collect::<Result<_, _>>(),
            // A decoder uses all threads for one sentence. A thread that waits for the others must not begin
            // another sentence.
            Some(_) => groups.iter().map(attribute).collect(),
        }?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Attributes the parts in one group of sentences. The scores of the sentences are dropped at the end.
    fn attribute_group(
        &self,
        candidates: &Candidates,
        group: &SentenceGroup,
        request: &AttributeRequest,
        cancel: &Cancel,
    ) -> Result<Vec<PartOutcome>, PipelineError> {
        let mut tokens = 0;
        let score = |&sentence: &ByteRange| {
            let scores = self.score_sentence(candidates, &group.text, sentence, &group.cuts, cancel);
            let scores = scores.map_err(|error| group.with_answer_offset(error))?;
            tokens += scores.token_count();
            self.settings.limits.check_answer_logits(tokens, candidates.segments())?;
            Ok(scores)
        };
        let scores = group.sentences.iter().map(score).collect::<Result<Vec<_>, PipelineError>>()?;
        let parts = match &group.parts {
            Some(parts) => parts.clone(),
            None => parts_of(&request.parts, &scores),
        };
        self.settings.limits.check_sources_named(parts.len(), request.sources_max)?;
        let attribute = |part: ByteRange| {
            let part = Part::new(&request.parts, &group.text, part);
            let outcome = self.attribute_part(candidates, &scores, part, request.sources_max, cancel)?;
            Ok(group.in_answer(outcome))
        };
        parts.into_iter().map(attribute).collect()
    }

    /// Checks the chunks and `sources_max` of a request whose answer is still arriving.
    ///
    /// # Errors
    /// Returns [`PipelineError::Invalid`] if they exceed a limit.
    pub fn check_sources(&self, request: &AttributeRequest) -> Result<(), PipelineError> {
        Ok(validate::check_sources(request, &self.settings.limits)?)
    }

    /// Checks the length of an answer in bytes.
    ///
    /// # Errors
    /// Returns [`PipelineError::Invalid`] if it is longer than its limit.
    pub fn check_answer_bytes(&self, bytes: usize) -> Result<(), PipelineError> {
        Ok(validate::check_answer_bytes(bytes, &self.settings.limits)?)
    }

    /// Finds or reads the blocks of the chunks that an answer may have come from, and indexes their words.
    ///
    /// # Errors
    /// Fails as [`Self::attribute`] does.
    pub fn candidates(
        &self,
        request: &AttributeRequest,
        clock: &mut Clock,
        cancel: &Cancel,
    ) -> Result<Candidates, PipelineError> {
        let blocks = clock.stage("blocks", || self.reader.blocks(&request.chunks, cancel))?;
        self.candidates_of(request, blocks, clock, cancel)
    }

    fn candidates_of(
        &self,
        request: &AttributeRequest,
        blocks: Blocks,
        clock: &mut Clock,
        cancel: &Cancel,
    ) -> Result<Candidates, PipelineError> {
        let seen = request.seen.as_deref();
        clock.stage("terms", || self.candidates_over(&request.chunks, Arc::new(blocks), seen, cancel))
    }

    /// Indexes the words of chunks whose `blocks` are known. `seen` `[chunk]` are the ranges of each chunk's text that the author of the answer
    /// saw; only these can be cited. `None` means all text.
    ///
    /// # Errors
    /// Returns the error of `cancel` if it stops the work.
    pub fn candidates_over(
        &self,
        chunks: &[Arc<Chunk>],
        blocks: Arc<Blocks>,
        seen: Option<&[Vec<ByteRange>]>,
        cancel: &Cancel,
    ) -> Result<Candidates, PipelineError> {
        Candidates::new(chunks, blocks, seen, &self.term_ids, cancel)
    }

    /// As [`Self::candidates`], for a stream, which may keep them for minutes.
    ///
    /// # Errors
    /// Fails as [`Self::attribute`] does, and with [`PipelineError::MemoryTaken`] if other streams have the memory.
    pub fn candidates_of_stream(
        &self,
        request: &AttributeRequest,
        clock: &mut Clock,
        cancel: &Cancel,
    ) -> Result<Candidates, PipelineError> {
        let blocks = clock.stage("blocks", || self.reader.blocks(&request.chunks, cancel))?;
        self.candidates_of(request, self.reader.for_stream(blocks)?, clock, cancel)
    }

    /// Scores one sentence of an answer over the chunks. `cuts` are byte offsets in the answer at which words
    /// are divided.
    fn score_sentence(
        &self,
        candidates: &Candidates,
        answer: &str,
        bytes: ByteRange,
        cuts: &[usize],
        cancel: &Cancel,
    ) -> Result<SentenceScores, PipelineError> {
        cancel.check()?;
        let sentence = bytes.slice(answer);
        let tokens = self.tokenizer.encode(sentence)?;
        cancel.spend(tokens.ids.len());
        // A sentence that arrives in a stream is read as it would be in a whole answer.
        let lang = text::sentence_lang(sentence).map(|found| found.lang).or(candidates.lang);
        let sentence = AnswerSentence { text: sentence, start: bytes.start, tokens, cuts, lang };
        let mut scores = sentence_scores::score(candidates, sentence, &*self.model, &self.settings, cancel)?;
        scores.traces = trace::terms(candidates, &scores, cancel)?;
        Ok(scores)
    }

    /// Attributes one part, by the scores of the sentences that it overlaps.
    fn attribute_part(
        &self,
        candidates: &Candidates,
        scores: &[SentenceScores],
        Part { text, bytes, claim }: Part,
        sources_max: usize,
        cancel: &Cancel,
    ) -> Result<PartOutcome, PipelineError> {
        cancel.check()?;
        let Some(claim) = claim else { return Ok(PartOutcome::without_claim(bytes)) };
        let question = Question { answer: text, model: self.verdict_model.as_deref() };
        let first = scores.partition_point(|scores| scores.bytes.end <= claim.start);
        let after = scores.partition_point(|scores| scores.bytes.start < claim.end);
        let scores = &scores[first..after.max(first)];
        let outcome = cite::attribute(candidates, scores, claim, question, sources_max, cancel)?;
        Ok(PartOutcome { bytes, ..outcome })
    }
}

/// A part of an answer, and what it claims.
struct Part<'a> {
    text: &'a str,
    bytes: ByteRange,
    /// The part without a clause that finds no answer. `None` if it is a sentence that says nothing a source could say.
    claim: Option<ByteRange>,
}

impl<'a> Part<'a> {
    /// What a request chooses is always compared, and so is an answer of a few words in bold.
    fn new(kind: &Parts, text: &'a str, bytes: ByteRange) -> Self {
        let sentence = bytes.slice(text);
        let trimmed = sentence.trim();
        let is_answer = trimmed.starts_with("**") && !trimmed.contains(':') && trimmed == text.trim();
        let claim = if !matches!(kind, Parts::Sentences) || is_answer {
            Some(bytes)
        } else {
            text::claim(sentence).map(|claim| claim.shifted(bytes.start))
        };
        Self { text, bytes, claim }
    }
}

/// Sentences that are scored together, because one part may overlap several of them.
struct SentenceGroup<'a> {
    /// The answer, or the text of one of its JSON values with the value's name before it.
    text: Cow<'a, str>,
    /// The sentences, as byte ranges of `text`.
    sentences: Vec<ByteRange>,
    /// The byte offsets at which words are divided, so that each part consists of whole words.
    cuts: Vec<usize>,
    /// The parts, as byte ranges of `text`. `None` means that the sentences, or their words, are the parts.
    parts: Option<Vec<ByteRange>>,
    /// The JSON value that the text belongs to.
    value: Option<&'a Value>,
}

impl<'a> SentenceGroup<'a> {
    /// Groups the sentences of an answer: spans that share a sentence are in one group. Without spans, each
    /// sentence is a group.
    fn of_answer(answer: &'a str, parts: &Parts, cancel: &Cancel) -> Result<Vec<Self>, PipelineError> {
        let sentences = sentences_of(answer, cancel)?;
        let group = |sentences: &[ByteRange], parts: Option<&[ByteRange]>| Self {
            text: Cow::Borrowed(answer),
            sentences: sentences.to_vec(),
            cuts: parts.iter().copied().flatten().flat_map(|part| [part.start, part.end]).collect(),
            parts: parts.map(<[_]>::to_vec),
            value: None,
        };
        let Parts::Spans(spans) = parts else {
            return Ok(sentences.iter().map(|sentence| group(slice::from_ref(sentence), None)).collect());
        };
        let (mut groups, mut from) = (Vec::new(), 0);
        while from < spans.len() {
            let first = sentences.partition_point(|sentence| sentence.end <= spans[from].start);
            let end_of = |span: &ByteRange| sentences.partition_point(|sentence| sentence.start < span.end);
            let (mut to, mut after) = (from + 1, end_of(&spans[from]).max(first));
            while to < spans.len() && after > first && spans[to].start < sentences[after - 1].end {
                after = end_of(&spans[to]).max(after);
                to += 1;
            }
            groups.push(group(&sentences[first..after], Some(&spans[from..to])));
            from = to;
        }
        Ok(groups)
    }

    /// Returns the group of one JSON value. The model reads `name: ` before the value; the value is the part.
    fn of_value(value: &'a Value, cancel: &Cancel) -> Result<Self, PipelineError> {
        let name = &value.key[..value.key.floor_char_boundary(NAME_BYTES_MAX)];
        let prefix = if name.is_empty() { String::new() } else { format!("{name}: ") };
        let text = prefix.clone() + &value.text;
        Ok(Self {
            sentences: sentences_of(&text, cancel)?,
            cuts: vec![prefix.len()],
            parts: Some(vec![ByteRange::new(prefix.len(), text.len())]),
            text: Cow::Owned(text),
            value: Some(value),
        })
    }

    /// Changes the byte offset in an error from the group's text to the answer.
    fn with_answer_offset(&self, error: PipelineError) -> PipelineError {
        match (error, self.value) {
            (PipelineError::Invalid(InvalidRequest::SentenceBeyondModel { found, max, .. }), Some(value)) => {
                InvalidRequest::SentenceBeyondModel { at: value.bytes.start, found, max }.into()
            }
            (error, _) => error,
        }
    }

    /// Changes the byte ranges of a part from the group's text to the answer. If the value's JSON notation
    /// differs from its text, an unsupported span inside the value becomes the whole value.
    fn in_answer(&self, mut part: PartOutcome) -> PartOutcome {
        if let Some(value) = self.value {
            let prefix = part.bytes.start;
            let is_verbatim = value.bytes.len() == value.text.len();
            let in_answer = |bytes: ByteRange| {
                if is_verbatim && bytes.start >= prefix {
                    ByteRange::new(bytes.start - prefix, bytes.end - prefix).shifted(value.bytes.start)
                } else {
                    value.bytes
                }
            };
            part.unsupported
                .iter_mut()
                .for_each(|unsupported| unsupported.bytes = in_answer(unsupported.bytes));
            part.conflicts.iter_mut().for_each(|conflict| conflict.bytes = in_answer(conflict.bytes));
            part.bytes = value.bytes;
        }
        part
    }
}

fn sentences_of(answer: &str, cancel: &Cancel) -> Result<Vec<ByteRange>, PipelineError> {
    let mut found = Vec::new();
    for sentence in text::arrived(answer) {
        cancel.check()?;
        found.push(sentence);
    }
    Ok(found)
}

/// Returns the parts of scored sentences: their words, or the sentences themselves.
fn parts_of(parts: &Parts, scores: &[SentenceScores]) -> Vec<ByteRange> {
    match parts {
        Parts::Words => scores.iter().flat_map(SentenceScores::words).collect(),
        Parts::Sentences | Parts::Spans(_) | Parts::Values(_) => {
            scores.iter().map(|scores| scores.bytes).collect()
        }
    }
}
