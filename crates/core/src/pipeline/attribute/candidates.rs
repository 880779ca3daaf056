//! Candidates: the chunks that an answer may have come from, with the units that can be cited and an index of
//! their words.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use super::term_ids::{TermId, TermIds, id_of, sorted_distinct};
use crate::domain::{ByteRange, Chunk, Lang, TokenSpan};
use crate::kv::block::Block;
use crate::kv::store;
use crate::pipeline::blocks::Blocks;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::repeats::Repeats;
use crate::pipeline::tokenize::tokens_under;
use crate::pipeline::units::{Unit, UnitSpan};
use crate::pipeline::{Pipeline, PipelineError};
use crate::text::outline::{Layout, Piece};
use crate::text::{self, Term, Writing};

/// The fewest words that the two halves of a sentence share, where chunks overlap.
const HALF_WORDS_MIN: usize = 3;

/// The longest context of a sentence, such as its heading, that a model reads with it.
const CONTEXT_BYTES_MAX: usize = 240;

/// The chunks that an answer may have come from. They are read and indexed once for all sentences of the
/// answer.
///
/// A *term* is a normalized word; its id is its hash. A number or a date has more ids, for its [other names](Term::other_names).
/// A *unit* is a title or a sentence of a chunk.
pub struct Candidates {
    pub(super) chunks: Vec<Arc<Chunk>>,
    pub(super) blocks: Arc<Blocks>,
    /// The units, chunk by chunk: the title of the chunk, if it has one, and then its sentences. A title has
    /// an empty byte range, because it is scored but never cited.
    pub(super) units: Arc<[Unit]>,
    /// `[chunk]`: the indices of the chunk's units.
    pub(super) units_of_chunk: Vec<Range<usize>>,
    /// `[chunk]`: the first chunk with the same title, text and visible ranges, which is the chunk itself if
    /// it has no duplicate before it. Duplicates are not rivals of each other.
    pub(super) duplicate_of: Vec<usize>,
    /// `[chunk]`: the language of its text, as far as it can be told.
    pub(super) langs: Vec<Option<Lang>>,
    /// The language of all chunks of which it can be told, if it is one: a sentence that may be of any language is read as they are.
    pub(super) lang: Option<Lang>,
    /// The number of chunks with visible text, duplicates counted once.
    distinct_chunks: usize,
    /// The ids of all terms, ascending, with the number of distinct chunks that contain them.
    chunk_frequency: Vec<(TermId, u32)>,
    /// `[chunk]`: the ids of the terms in title and visible text, ascending and distinct.
    chunk_terms: Vec<Vec<TermId>>,
    /// `[unit]`: the ids of the terms in the unit, ascending and distinct.
    unit_terms: Vec<Arc<[TermId]>>,
    /// `[unit]`: the words of the unit, computed at the first use.
    words: Vec<OnceLock<Vec<Term>>>,
    /// `[chunk]`: the pieces of its text, computed at the first use.
    layouts: Vec<OnceLock<Layout>>,
    /// Pairs of chunks of which one repeats something of the other, in both orders; computed at the first use.
    repeats: OnceLock<HashSet<(usize, usize)>>,
}

impl Candidates {
    /// Indexes `chunks`, whose blocks are `blocks`. `seen` `[chunk]` are the ranges of each chunk's text that
    /// the author of the answer saw; only these can be cited. `None` means all text. `term_ids` knows the terms of texts that were candidates
    /// before.
    ///
    /// # Errors
    /// Returns the error of `cancel` if it stops the work.
    pub(super) fn new(
        chunks: &[Arc<Chunk>],
        blocks: Arc<Blocks>,
        seen: Option<&[Vec<ByteRange>]>,
        term_ids: &TermIds,
        cancel: &Cancel,
    ) -> Result<Self, PipelineError> {
        let (mut units, mut units_of_chunk) = (Vec::new(), Vec::with_capacity(chunks.len()));
        for (index, block) in blocks.blocks.iter().enumerate() {
            cancel.check()?;
            let first_unit = units.len();
            let (first_token, title_tokens) = (blocks.spans[index].start, block.title_tokens());
            let mut push = |bytes: ByteRange, tokens: TokenSpan| {
                let tokens = tokens.shifted(first_token);
                units.push(Unit { chunk: index, bytes, tokens, sentence: UnitSpan { bytes, tokens } });
            };
            let mut sentences: Vec<(ByteRange, TokenSpan)> =
                block.sentences().map(|sentence| (sentence.bytes, sentence.tokens)).collect();
            if let Some(seen) = seen.map(|seen| &seen[index]) {
                let offsets = block.offsets();
                // Of a sentence that was seen in part, only that part is a unit.
                let visible = |(sentence, _): (ByteRange, TokenSpan)| {
                    let overlap = |seen: &ByteRange| {
                        let (start, end) = (seen.start.max(sentence.start), seen.end.min(sentence.end));
                        (start < end).then(|| ByteRange::new(start, end))
                    };
                    let ranges: Vec<ByteRange> = seen.iter().filter_map(overlap).collect();
                    ranges
                        .into_iter()
                        .map(|range| (range, tokens_under(&offsets, title_tokens, range)))
                        .collect::<Vec<_>>()
                };
                sentences = sentences.into_iter().flat_map(visible).collect();
            }
            // A title can only be evidence for the text of its chunk. Without text there is nothing to cite.
            if title_tokens > 0 && !sentences.is_empty() {
                push(ByteRange::new(0, 0), TokenSpan::new(0, title_tokens));
            }
            sentences.into_iter().for_each(|(bytes, tokens)| push(bytes, tokens));
            units_of_chunk.push(first_unit..units.len());
        }
        let lang_of = |(chunk, block): (&Arc<Chunk>, &Block)| {
            block.lang().or_else(|| text::sentence_lang(&chunk.text).map(|found| found.lang))
        };
        let langs: Vec<Option<Lang>> = chunks.iter().zip(&blocks.blocks).map(lang_of).collect();
        let mut recognised = langs.iter().flatten();
        let first = recognised.next().copied();
        let lang = first.filter(|first| recognised.all(|other| other == first));
        let terms = units.par_iter().with_min_len(64).map(|unit| {
            cancel.check()?;
            Ok(term_ids.of_text(text_of(unit, chunks), langs[unit.chunk]))
        });
        let unit_terms = terms.collect::<Result<Vec<Arc<[TermId]>>, PipelineError>>()?;
        let chunk_terms = |units: &Range<usize>| {
            cancel.check()?;
            Ok(sorted_distinct(
                unit_terms[units.clone()].iter().flat_map(|ids| ids.iter().copied()).collect(),
            ))
        };
        let chunk_terms =
            units_of_chunk.iter().map(chunk_terms).collect::<Result<Vec<Vec<TermId>>, PipelineError>>()?;
        let duplicate_of = find_duplicates(chunks, &units, &units_of_chunk);
        let is_distinct = |&chunk: &usize| duplicate_of[chunk] == chunk && !units_of_chunk[chunk].is_empty();
        let distinct: Vec<usize> = (0..chunks.len()).filter(is_distinct).collect();
        let mut all: Vec<TermId> =
            distinct.iter().flat_map(|&chunk| chunk_terms[chunk].iter().copied()).collect();
        all.sort_unstable();
        let with_count = |equal: &[TermId]| (equal[0], equal.len() as u32);
        Ok(Self {
            chunks: chunks.to_vec(),
            blocks,
            distinct_chunks: distinct.len(),
            chunk_frequency: all.chunk_by(TermId::eq).map(with_count).collect(),
            duplicate_of,
            words: units.iter().map(|_| OnceLock::new()).collect(),
            units: units.into(),
            units_of_chunk,
            langs,
            lang,
            chunk_terms,
            unit_terms,
            layouts: chunks.iter().map(|_| OnceLock::new()).collect(),
            repeats: OnceLock::new(),
        })
    }

    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns how many values are held for each token of the answer: one per chunk and two per unit.
    pub(super) fn segments(&self) -> usize {
        self.chunks.len() + 2 * self.units.len()
    }

    /// Returns the id of a term, or `None` if no chunk contains it.
    pub(super) fn term(&self, folded: &str) -> Option<TermId> {
        Some(id_of(folded)).filter(|&id| self.frequency(id) > 0)
    }

    /// Returns how many distinct chunks contain a term.
    fn frequency(&self, term: TermId) -> u32 {
        let found = self.chunk_frequency.binary_search_by_key(&term, |&(id, _)| id);
        found.map_or(0, |at| self.chunk_frequency[at].1)
    }

    /// Returns the rarity of a term: ln(1 + n / (1 + f)) / ln(1 + n) for n distinct chunks, of which f
    /// contain the term. It is 1 for a term that no chunk contains, and falls towards 0 for a term that all
    /// of many chunks contain.
    pub(super) fn rarity(&self, term: Option<TermId>) -> f32 {
        let chunks = self.distinct_chunks.max(1) as f32;
        let frequency = term.map_or(0.0, |term| self.frequency(term) as f32);
        (chunks / (1.0 + frequency)).ln_1p() / chunks.ln_1p()
    }

    pub(super) fn chunk_has(&self, chunk: usize, term: Option<TermId>) -> bool {
        term.is_some_and(|term| self.chunk_terms[chunk].binary_search(&term).is_ok())
    }

    pub(super) fn unit_has(&self, unit: usize, term: Option<TermId>) -> bool {
        term.is_some_and(|term| self.unit_terms[unit].binary_search(&term).is_ok())
    }

    /// Returns the words of a unit. Their byte ranges are relative to the unit.
    pub(super) fn words(&self, unit: usize) -> &[Term] {
        let of = &self.units[unit];
        let writing = self.langs[of.chunk].and_then(Writing::in_lang);
        self.words[unit].get_or_init(|| text::terms_in(text_of(of, &self.chunks), &[], writing))
    }

    /// Returns the ranges of a chunk's text without which some `ranges` of it cannot be understood, such as their heading, and that are not
    /// among these. None is longer than [`CONTEXT_BYTES_MAX`], and each is text that can be cited.
    pub(super) fn contexts(&self, chunk: usize, ranges: &[ByteRange]) -> Vec<ByteRange> {
        let Chunk { text, kind, .. } = &*self.chunks[chunk];
        let pieces = &self.layouts[chunk].get_or_init(|| Layout::detect(text, *kind)).pieces;
        let mut found: Vec<ByteRange> = Vec::new();
        let inside = pieces.iter().filter(|piece| ranges.iter().any(|range| range.overlaps(piece.bytes)));
        for required in inside.flat_map(Piece::required) {
            let bytes = pieces[required].bytes;
            let is_known = ranges.iter().chain(&found).any(|range| range.overlaps(bytes));
            let is_visible = self.sentences(chunk).any(|unit| self.units[unit].bytes.encloses(bytes));
            if !is_known && is_visible && bytes.len() <= CONTEXT_BYTES_MAX {
                found.push(bytes);
            }
        }
        found
    }

    /// Returns the unit of another chunk that has the rest of a sentence, if the sentence is cut at the start or the end of its chunk: the end
    /// of one and the beginning of the other are the same words.
    pub(super) fn other_half(&self, unit: usize) -> Option<usize> {
        let chunks = (0..self.len()).filter(|&chunk| self.duplicate_of[chunk] == chunk);
        let mut edges = chunks.flat_map(|chunk| [self.sentences(chunk).next(), self.sentences(chunk).last()]);
        edges.find_map(|edge| edge.filter(|&edge| edge != unit && self.are_halves(unit, edge)))
    }

    /// Returns whether one of two units ends its chunk with the words with which the other begins another chunk.
    pub(super) fn are_halves(&self, one: usize, other: usize) -> bool {
        let (first, second) = (self.units[one].chunk, self.units[other].chunk);
        let ends = |unit: usize| self.sentences(self.units[unit].chunk).last() == Some(unit);
        let begins = |unit: usize| self.sentences(self.units[unit].chunk).next() == Some(unit);
        let continues = |head: usize, tail: usize| {
            if !(ends(head) && begins(tail)) {
                return false;
            }
            let (head, tail) = (self.words(head), self.words(tail));
            let shared = head.len().min(tail.len().saturating_sub(1));
            (HALF_WORDS_MIN..=shared).any(|len| {
                let pairs = head[head.len() - len..].iter().zip(&tail[..len]);
                pairs.clone().all(|(one, other)| one.folded == other.folded)
            })
        };
        first != second && (continues(one, other) || continues(other, one))
    }

    /// Returns whether two units consist of the same terms. A unit without terms equals no unit.
    pub(super) fn have_equal_terms(&self, one: usize, other: usize) -> bool {
        !self.unit_terms[one].is_empty() && self.unit_terms[one] == self.unit_terms[other]
    }

    /// Returns whether two units come from one source: from chunks with the same text or the same title, or of which one repeats something of
    /// the other, as windows of one text do.
    pub(super) fn are_one_source(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.units[one].chunk, self.units[other].chunk);
        let (first, second) = (&self.chunks[one], &self.chunks[other]);
        let title = first.title.as_ref().filter(|title| !title.trim().is_empty());
        first.text == second.text
            || title.is_some_and(|title| second.title.as_ref() == Some(title))
            || self.repeats.get_or_init(|| self.find_repeats()).contains(&(one, other))
    }

    fn find_repeats(&self) -> HashSet<(usize, usize)> {
        // A title is no beginning of a window.
        let cited: Vec<usize> = (0..self.len()).flat_map(|chunk| self.sentences(chunk)).collect();
        let units: Vec<Unit> = cited.iter().map(|&unit| self.units[unit]).collect();
        let repeats = Repeats::find(&self.chunks, &units);
        let chunks = repeats.all().map(|at| (units[at].chunk, units[repeats.stays(at)].chunk));
        chunks.flat_map(|(one, other)| [(one, other), (other, one)]).collect()
    }

    /// Returns the units of a chunk that can be cited: all but its title.
    pub(super) fn sentences(&self, chunk: usize) -> impl Iterator<Item = usize> + '_ {
        self.units_of_chunk[chunk].clone().filter(|&unit| !self.units[unit].bytes.is_empty())
    }

    /// Returns the candidates as if one chunk had not been sent. All text of the other chunks can be cited.
    ///
    /// # Errors
    /// Fails as [`Pipeline::candidates_over`] does.
    pub fn without(&self, chunk: usize, pipeline: &Pipeline, cancel: &Cancel) -> Result<Self, PipelineError> {
        let mut chunks = self.chunks.clone();
        chunks.remove(chunk);
        pipeline.candidates_over(&chunks, Arc::new(self.blocks.without(chunk)), None, cancel)
    }

    /// Returns how many blocks of the chunks came from each source.
    pub fn block_sources(&self) -> store::BlockOrigins {
        self.blocks.sources
    }
}

/// Returns the text of a unit; the title of its chunk if the unit is the title.
fn text_of<'a>(unit: &Unit, chunks: &'a [Arc<Chunk>]) -> &'a str {
    let chunk = &chunks[unit.chunk];
    if unit.bytes.is_empty() {
        chunk.title.as_deref().unwrap_or_default()
    } else {
        unit.bytes.slice(&chunk.text)
    }
}

/// Returns `[chunk]`, the first chunk with the same title and text of which the same ranges are visible.
fn find_duplicates(chunks: &[Arc<Chunk>], units: &[Unit], units_of_chunk: &[Range<usize>]) -> Vec<usize> {
    let mut first: HashMap<(&Option<String>, &str, Vec<ByteRange>), usize> = HashMap::new();
    let mut duplicate_of = Vec::with_capacity(chunks.len());
    for (index, chunk) in chunks.iter().enumerate() {
        let visible = units[units_of_chunk[index].clone()].iter().map(|unit| unit.bytes).collect();
        duplicate_of.push(*first.entry((&chunk.title, &chunk.text, visible)).or_insert(index));
    }
    duplicate_of
}
