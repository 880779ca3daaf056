//! Quotations: checks whether what an answer puts between quotation marks stands in a chunk, word by word.
//!
//! Words are compared in their normalized form, so letter case and punctuation may differ. A *run* is a row of
//! words that the quotation and a chunk have in the same order without a word between.

use std::collections::HashMap;

use schemars::JsonSchema;

use super::candidates::Candidates;
use super::term_ids::{TermId, id_of};
use crate::domain::{AttributeRequest, ByteRange, Parts, Value};
use crate::pipeline::PipelineError;
use crate::pipeline::cancel::Cancel;
use crate::text;

/// The fewest words of a quotation. Shorter ones are names and terms more often than quotations.
const WORDS_MIN: usize = 3;

/// The fewest words of a run. In quotations of fewer than twice as many words, two are enough.
const RUN_WORDS_MIN: usize = 3;

/// The least share of a quotation's words that runs of one chunk cover if the quotation was altered. With less,
/// nothing says that it was taken from that chunk.
const ALTERED_SHARE_MIN: f32 = 0.6;

/// How many words beside those that were altered may be left out of the source, or added to it, where single words
/// are looked up.
const ALTERED_REACH: usize = 2;

/// The longest row of altered words in which single words are looked up.
const ALTERED_ROW_MAX: usize = 50;

/// The most places at which a pair of words is looked up. It bounds the time for texts that repeat themselves.
const PLACES_MAX: usize = 1_000;

/// How many bytes after a quotation a marker may begin.
const MARKER_BYTES_MAX: usize = 160;

/// What is left out of a quotation is marked with one of these.
const ELLIPSES: [&str; 2] = ["…", "..."];

/// Whether a quotation stands in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuoteVerdict {
    /// All its words stand in one chunk, in this order, without a word between.
    Exact,
    /// It consists of several passages.
    Stitched,
    /// Most of its words stand in one chunk, and others do not.
    Altered,
    /// It stands in a chunk, but not in the one that the answer names after it.
    Misattributed,
    /// No chunk has most of its words in this order.
    Fabricated,
}

/// What a quotation of the answer came from.
#[derive(Debug, Clone, PartialEq)]
pub struct QuoteOutcome {
    /// Byte range in the answer, without the quotation marks.
    pub bytes: ByteRange,
    pub verdict: QuoteVerdict,
    /// Whether marks such as `…` say that something was left out.
    pub has_ellipsis: bool,
    /// The passages that it came from, in the order of the quotation. Empty if it is fabricated.
    pub passages: Vec<QuotedSpan>,
    /// The words that the passages do not have, as byte ranges of the answer. Empty unless it was altered.
    pub altered: Vec<ByteRange>,
}

/// A passage of a chunk that a quotation repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotedSpan {
    /// The index of the chunk in the request.
    pub chunk: usize,
    /// Byte range in the chunk's text.
    pub bytes: ByteRange,
}

/// A run of words of a quotation.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// The index of its first word in the quotation.
    start: usize,
    len: usize,
    chunk: usize,
    /// The index of its first word in the chunk.
    at: usize,
}

/// Checks the quotations of a request's answer: what is between quotation marks, or the values of a JSON answer.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub(super) fn all(
    candidates: &Candidates,
    request: &AttributeRequest,
    cancel: &Cancel,
) -> Result<Vec<QuoteOutcome>, PipelineError> {
    let answer = &*request.answer;
    let mut found = Vec::new();
    match &request.parts {
        Parts::Values(values) => {
            let passages = Passages::new(candidates, cancel)?;
            for value in values {
                let whole = ByteRange::new(0, value.text.len());
                let outcome = passages.check(&value.text, whole, None, cancel)?;
                found.extend(outcome.map(|outcome| outcome.in_value(value)));
            }
        }
        Parts::Sentences | Parts::Words | Parts::Spans(_) => {
            let quotations = text::quotations(answer);
            if quotations.is_empty() {
                return Ok(found);
            }
            let passages = Passages::new(candidates, cancel)?;
            let nexts = quotations.iter().skip(1).map(|next| next.start).chain([answer.len()]);
            for (&bytes, next) in quotations.iter().zip(nexts) {
                let numbers = markers_after(&answer[bytes.end..next]);
                let is_named = !numbers.is_empty();
                let named: Vec<usize> =
                    numbers.into_iter().filter_map(|number| chunk_of(request, number)).collect();
                found.extend(passages.check(answer, bytes, is_named.then_some(&named[..]), cancel)?);
            }
        }
    }
    Ok(found)
}

/// Returns the numbers of the markers that follow a quotation, such as `[2]`, `[1, 2]` or `[1][2]`, before the next line
/// or sentence. `after` is the text from the end of the quotation to the next one.
fn markers_after(after: &str) -> Vec<usize> {
    let line = after.split('\n').next().unwrap_or_default();
    let line = &line[..line.floor_char_boundary(MARKER_BYTES_MAX)];
    let mut numbers = Vec::new();
    let mut end = None;
    for marker in text::markers(line).into_iter().filter(|marker| marker.slice(line).starts_with(['[', '【']))
    {
        let between = &line[end.unwrap_or(0)..marker.start];
        let ends_sentence = |at: usize| between[at..].chars().any(char::is_alphanumeric);
        let is_next = match end {
            // Markers that follow each other belong to the same words.
            Some(_) => between.chars().all(|c| c.is_whitespace() || c == ','),
            None => !between.rfind(['.', '!', '?']).is_some_and(ends_sentence),
        };
        if !is_next {
            break;
        }
        end = Some(marker.end);
        // `【2†source】` and `【4:0†source】` name one source.
        let name = marker.slice(line).split(['†', ':']).next().unwrap_or_default();
        let digits = name.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        numbers.extend(digits.filter_map(|digits| digits.parse::<usize>().ok()));
    }
    numbers
}

/// Returns the chunk that the author of the answer knew by a number.
fn chunk_of(request: &AttributeRequest, number: usize) -> Option<usize> {
    match &request.markers {
        Some(markers) => markers.iter().position(|marker| *marker == Some(number)),
        None => number.checked_sub(1).filter(|&chunk| chunk < request.chunks.len()),
    }
}

impl Run {
    /// Adds the run to `runs`, as a part of the last one if it continues it in the quotation and in the chunk.
    fn join(self, runs: &mut Vec<Self>) {
        match runs.last_mut() {
            Some(last)
                if (last.chunk, last.start + last.len, last.at + last.len)
                    == (self.chunk, self.start, self.at) =>
            {
                last.len += self.len;
            }
            _ => runs.push(self),
        }
    }
}

impl QuoteOutcome {
    /// Changes the byte ranges from a JSON value's text to the answer. If the value's JSON notation differs from
    /// its text, they become the whole value.
    fn in_value(mut self, value: &Value) -> Self {
        let is_verbatim = value.bytes.len() == value.text.len();
        for altered in &mut self.altered {
            *altered = if is_verbatim { altered.shifted(value.bytes.start) } else { value.bytes };
        }
        self.altered.dedup();
        self.bytes = value.bytes;
        self
    }
}

/// The words of all chunks, by pairs of neighbours.
pub(super) struct Passages<'a> {
    candidates: &'a Candidates,
    /// `[chunk]`: the id and the byte range of each visible word; empty for duplicates.
    words: Vec<Vec<(TermId, ByteRange)>>,
    /// The places of each pair of words: the chunk, and the index of the first word.
    places: HashMap<(TermId, TermId), Vec<(usize, usize)>>,
}

impl<'a> Passages<'a> {
    /// Indexes the visible words of the chunks.
    pub(super) fn new(candidates: &'a Candidates, cancel: &Cancel) -> Result<Self, PipelineError> {
        let mut words = vec![Vec::new(); candidates.len()];
        let mut places: HashMap<_, Vec<_>> = HashMap::new();
        for (chunk, words) in
            words.iter_mut().enumerate().filter(|(at, _)| candidates.duplicate_of[*at] == *at)
        {
            for unit in candidates.sentences(chunk) {
                cancel.check()?;
                let start = candidates.units[unit].bytes.start;
                let words_of_unit = candidates.words(unit).iter();
                words.extend(words_of_unit.map(|term| (id_of(&term.folded), term.bytes.shifted(start))));
            }
            for (at, pair) in words.windows(2).enumerate() {
                let places = places.entry((pair[0].0, pair[1].0)).or_default();
                if places.len() < PLACES_MAX {
                    places.push((chunk, at));
                }
            }
        }
        Ok(Self { candidates, words, places })
    }

    /// Checks a quotation: the byte range `bytes` of the answer, whose whole text is `answer`. `named` are
    /// the chunks that the answer names as its sources, if it names any. Returns `None` if it is too short.
    pub(super) fn check(
        &self,
        answer: &str,
        bytes: ByteRange,
        named: Option<&[usize]>,
        cancel: &Cancel,
    ) -> Result<Option<QuoteOutcome>, PipelineError> {
        let quoted = bytes.slice(answer);
        let terms = text::terms_in(quoted, &[], None);
        if terms.len() < WORDS_MIN {
            return Ok(None);
        }
        let ids: Vec<Option<TermId>> = terms.iter().map(|term| self.candidates.term(&term.folded)).collect();
        let runs = self.runs(&ids, named.unwrap_or_default(), cancel)?;
        let covered: usize = runs.iter().map(|run| run.len).sum();
        let chunk = self.main_chunk(&runs);
        let of_chunk: usize = runs.iter().filter(|run| Some(run.chunk) == chunk).map(|run| run.len).sum();
        let verdict = match &*runs {
            [run] if run.len == terms.len() => {
                let is_named = |&named: &usize| self.candidates.duplicate_of[named] == run.chunk;
                if named.is_none_or(|named| named.iter().any(is_named)) {
                    QuoteVerdict::Exact
                } else {
                    QuoteVerdict::Misattributed
                }
            }
            _ if covered == terms.len() => QuoteVerdict::Stitched,
            _ if of_chunk as f32 >= ALTERED_SHARE_MIN * terms.len() as f32 => QuoteVerdict::Altered,
            _ => QuoteVerdict::Fabricated,
        };
        let (mut passages, mut altered) = (Vec::new(), Vec::new());
        let is_altered = verdict == QuoteVerdict::Altered;
        if verdict != QuoteVerdict::Fabricated {
            let kept = match chunk.filter(|_| is_altered) {
                Some(chunk) => self.with_words_between(&ids, &runs, chunk),
                None => runs,
            };
            passages.extend(kept.iter().map(|run| self.passage(run)));
            let mut is_covered = vec![false; terms.len()];
            kept.iter().for_each(|run| is_covered[run.start..run.start + run.len].fill(true));
            let others = (0..terms.len()).filter(|&at| !is_covered[at]);
            altered.extend(others.map(|at| terms[at].bytes.shifted(bytes.start)));
        }
        let has_ellipsis = ELLIPSES.iter().any(|ellipsis| quoted.contains(ellipsis));
        Ok(Some(QuoteOutcome { bytes, verdict, has_ellipsis, passages, altered }))
    }

    /// Divides a quotation into runs from its start to its end, each as long as possible; of equally long ones,
    /// that of the `named` chunk, then that of the chunk of the run before.
    fn runs(
        &self,
        ids: &[Option<TermId>],
        named: &[usize],
        cancel: &Cancel,
    ) -> Result<Vec<Run>, PipelineError> {
        let named: Vec<usize> = named.iter().map(|&named| self.candidates.duplicate_of[named]).collect();
        let least = if ids.len() < 2 * RUN_WORDS_MIN { 2 } else { RUN_WORDS_MIN };
        let (mut runs, mut start): (Vec<Run>, usize) = (Vec::new(), 0);
        while start + 1 < ids.len() {
            cancel.check()?;
            let pair = ids[start].zip(ids[start + 1]);
            let places = pair.and_then(|pair| self.places.get(&pair)).map_or(&[][..], Vec::as_slice);
            let before = runs.last().map(|run| run.chunk);
            let run = |&(chunk, at): &(usize, usize)| {
                let pairs = ids[start..].iter().zip(&self.words[chunk][at..]);
                let len = pairs.take_while(|(id, (word, _))| **id == Some(*word)).count();
                Run { start, len, chunk, at }
            };
            let rank = |run: &Run| (run.len, named.contains(&run.chunk), Some(run.chunk) == before);
            let best = places
                .iter()
                .map(run)
                .reduce(|best, next| if rank(&next) > rank(&best) { next } else { best });
            match best.filter(|run| run.len >= least) {
                Some(run) => {
                    start += run.len;
                    runs.push(run);
                }
                None => start += 1,
            }
        }
        Ok(runs)
    }

    /// Returns the runs of one chunk, and the single words beside altered ones that match in place but are too few for
    /// a run.
    fn with_words_between(&self, ids: &[Option<TermId>], runs: &[Run], chunk: usize) -> Vec<Run> {
        let words = &self.words[chunk];
        let mut kept: Vec<Run> = Vec::new();
        // The next word of the quotation, and the next word of the chunk.
        let (mut next, mut at) = (0, None);
        for run in runs.iter().filter(|run| run.chunk == chunk).map(Some).chain([None]) {
            let end = run.map_or(ids.len(), |run| run.start);
            let reach = end - next + ALTERED_REACH;
            let last = match run {
                Some(run) => run.at,
                None => words.len(),
            };
            let first = at.unwrap_or_else(|| last.saturating_sub(reach));
            let last = if at.is_some() { last.min(first.saturating_add(reach)) } else { last };
            let mut place = first;
            // In a long row of other words, single ones match by chance, and looking for them takes long.
            let end = if end - next > ALTERED_ROW_MAX { next } else { end };
            for (start, id) in ids.iter().enumerate().take(end).skip(next) {
                let between = words.get(place..last).unwrap_or_default();
                if let Some(found) = between.iter().position(|(word, _)| Some(*word) == *id) {
                    Run { start, len: 1, chunk, at: place + found }.join(&mut kept);
                    place += found + 1;
                }
            }
            if let Some(run) = run {
                run.join(&mut kept);
                (next, at) = (run.start + run.len, Some(run.at + run.len));
            }
        }
        kept
    }

    /// Returns the chunk whose runs have most words; the first of several.
    fn main_chunk(&self, runs: &[Run]) -> Option<usize> {
        let mut words = vec![0; self.words.len()];
        runs.iter().for_each(|run| words[run.chunk] += run.len);
        let best = words.iter().copied().max().filter(|&best| best > 0)?;
        words.iter().position(|&words| words == best)
    }

    fn passage(&self, run: &Run) -> QuotedSpan {
        let words = &self.words[run.chunk][run.at..run.at + run.len];
        QuotedSpan { chunk: run.chunk, bytes: ByteRange::new(words[0].1.start, words[run.len - 1].1.end) }
    }
}
