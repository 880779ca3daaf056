//! The chunks that an answer may have come from: what can be cited of them, and which words they have.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use crate::domain::{ByteRange, Chunk, TokenSpan};
use crate::kv::store;
use crate::pipeline::blocks::Blocks;
use crate::pipeline::tokenize::tokens_under;
use crate::pipeline::units::{Unit, UnitSpan};
use crate::text::{self, Term};

/// Chunks, read once for all sentences of an answer.
pub struct Candidates {
    pub(super) chunks: Vec<Arc<Chunk>>,
    pub(super) blocks: Arc<Blocks>,
    /// The title of each chunk that has one, then its sentences, chunk by chunk. A title has no bytes: it is read, never cited.
    pub(super) units: Arc<[Unit]>,
    /// Which units are each chunk's.
    pub(super) of_chunk: Vec<Range<usize>>,
    /// For each chunk the first one that reads the same: they are no rivals.
    pub(super) twin_of: Vec<usize>,
    vocabulary: HashMap<String, u32>,
    /// Chunks that something was seen of, those that read the same counted once.
    distinct: usize,
    /// By number of the word: how many of these have it.
    holders: Vec<u32>,
    /// Words of each chunk, title included; of each unit. Ascending.
    chunk_terms: Vec<Vec<u32>>,
    unit_terms: Vec<Vec<u32>>,
    negated: Vec<bool>,
    /// Words of units that were asked about, as bytes of the unit.
    words: Vec<OnceLock<Vec<Term>>>,
}

impl Candidates {
    /// Of `seen` ranges of the chunks' texts only, where it is given.
    pub fn new(chunks: &[Arc<Chunk>], blocks: Arc<Blocks>, seen: Option<&[Vec<ByteRange>]>) -> Self {
        let (mut units, mut of_chunk) = (Vec::new(), Vec::with_capacity(chunks.len()));
        for (index, block) in blocks.blocks.iter().enumerate() {
            let first = units.len();
            let (at, titles) = (blocks.spans[index].start, block.title_tokens());
            let mut push = |bytes: ByteRange, tokens: TokenSpan| {
                let tokens = tokens.shifted(at);
                units.push(Unit { chunk: index, bytes, tokens, sentence: UnitSpan { bytes, tokens } });
            };
            let mut sentences: Vec<(ByteRange, TokenSpan)> =
                block.sentences().map(|sentence| (sentence.bytes, sentence.tokens)).collect();
            if let Some(seen) = seen.map(|seen| &seen[index]) {
                let offsets = block.offsets();
                // Of a sentence that was cut, what was left of it.
                let left = |(sentence, _): (ByteRange, TokenSpan)| {
                    let inside = |seen: &ByteRange| {
                        let (start, end) = (seen.start.max(sentence.start), seen.end.min(sentence.end));
                        (start < end).then(|| ByteRange::new(start, end))
                    };
                    let pieces: Vec<ByteRange> = seen.iter().filter_map(inside).collect();
                    pieces
                        .into_iter()
                        .map(|piece| (piece, tokens_under(&offsets, titles, piece)))
                        .collect::<Vec<_>>()
                };
                sentences = sentences.into_iter().flat_map(left).collect();
            }
            // A title speaks for a text: without one there is nothing to cite.
            if titles > 0 && !sentences.is_empty() {
                push(ByteRange::new(0, 0), TokenSpan::new(0, titles));
            }
            sentences.into_iter().for_each(|(bytes, tokens)| push(bytes, tokens));
            of_chunk.push(first..units.len());
        }
        let terms: Vec<Vec<Term>> =
            units.par_iter().with_min_len(64).map(|unit| words(unit, &chunks[unit.chunk])).collect();
        let mut candidates = Self {
            chunks: chunks.to_vec(),
            blocks,
            twin_of: twins(chunks, &units, &of_chunk),
            units: units.into(),
            of_chunk,
            vocabulary: HashMap::new(),
            distinct: 0,
            holders: Vec::new(),
            chunk_terms: Vec::new(),
            unit_terms: Vec::new(),
            negated: terms.iter().map(|terms| terms.iter().any(Term::is_negation)).collect(),
            words: terms.iter().map(|_| OnceLock::new()).collect(),
        };
        candidates.count(terms);
        candidates
    }

    fn count(&mut self, terms: Vec<Vec<Term>>) {
        let mut ids = |terms: Vec<Term>| {
            let next = |vocabulary: &HashMap<String, u32>| {
                u32::try_from(vocabulary.len()).expect("requests have fewer words than that")
            };
            let id = |term: Term| {
                let next = next(&self.vocabulary);
                *self.vocabulary.entry(term.folded).or_insert(next)
            };
            distinct(terms.into_iter().map(id).collect())
        };
        self.unit_terms = terms.into_iter().map(&mut ids).collect();
        let of_chunk = |units: &Range<usize>| {
            distinct(self.unit_terms[units.clone()].iter().flatten().copied().collect())
        };
        self.chunk_terms = self.of_chunk.iter().map(of_chunk).collect();
        self.holders = vec![0; self.vocabulary.len()];
        let counted: Vec<usize> = (0..self.chunks.len()).filter(|&chunk| self.counts(chunk)).collect();
        self.distinct = counted.len();
        for chunk in counted {
            self.chunk_terms[chunk].iter().for_each(|&term| self.holders[term as usize] += 1);
        }
    }

    /// Whether a chunk says something that none before it says.
    fn counts(&self, chunk: usize) -> bool {
        self.twin_of[chunk] == chunk && !self.of_chunk[chunk].is_empty()
    }

    /// How many chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// What holds a number for each token of an answer: the chunks, and twice titles and sentences.
    pub(super) fn segments(&self) -> usize {
        self.chunks.len() + 2 * self.units.len()
    }

    /// Whether there is no chunk.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The number of a word; none that no chunk has.
    pub(super) fn term(&self, folded: &str) -> Option<u32> {
        self.vocabulary.get(folded).copied()
    }

    /// How rare a word is among the chunks: 1 for one that at most one of many has, towards 0 for one that all have.
    pub(super) fn rarity(&self, term: Option<u32>) -> f32 {
        let chunks = self.distinct.max(1) as f32;
        let holders = term.map_or(0.0, |term| self.holders[term as usize] as f32);
        (chunks / (1.0 + holders)).ln_1p() / chunks.ln_1p()
    }

    pub(super) fn chunk_has(&self, chunk: usize, term: Option<u32>) -> bool {
        term.is_some_and(|term| self.chunk_terms[chunk].binary_search(&term).is_ok())
    }

    pub(super) fn unit_has(&self, unit: usize, term: Option<u32>) -> bool {
        term.is_some_and(|term| self.unit_terms[unit].binary_search(&term).is_ok())
    }

    /// Its words, as bytes of the unit.
    pub(super) fn words(&self, unit: usize) -> &[Term] {
        let place = &self.units[unit];
        self.words[unit].get_or_init(|| words(place, &self.chunks[place.chunk]))
    }

    /// Whether two units consist of the same words.
    pub(super) fn say_the_same(&self, one: usize, other: usize) -> bool {
        !self.unit_terms[one].is_empty() && self.unit_terms[one] == self.unit_terms[other]
    }

    /// Whether a unit holds a negation.
    pub(super) fn is_negated(&self, unit: usize) -> bool {
        self.negated[unit]
    }

    /// Units of a chunk that can be cited.
    pub(super) fn sentences(&self, chunk: usize) -> impl Iterator<Item = usize> + '_ {
        self.of_chunk[chunk].clone().filter(|&unit| !self.units[unit].bytes.is_empty())
    }

    /// The same chunks without one of them, as if it had not been sent.
    pub fn without(&self, chunk: usize) -> Self {
        let mut chunks = self.chunks.clone();
        chunks.remove(chunk);
        let mut blocks = self.blocks.blocks.clone();
        blocks.remove(chunk);
        Self::new(&chunks, Arc::new(Blocks::new(blocks, self.blocks.sources)), None)
    }

    /// Where the chunks' blocks came from.
    pub fn blocks_from(&self) -> store::Sources {
        self.blocks.sources
    }
}

fn words(unit: &Unit, chunk: &Chunk) -> Vec<Term> {
    match unit.bytes.is_empty() {
        true => text::terms(chunk.title.as_deref().unwrap_or_default(), &[]),
        false => text::terms(unit.bytes.of(&chunk.text), &[]),
    }
}

/// Chunks with the same title and text, of which the same was seen.
fn twins(chunks: &[Arc<Chunk>], units: &[Unit], of_chunk: &[Range<usize>]) -> Vec<usize> {
    let mut first: HashMap<(&Option<String>, &str, Vec<ByteRange>), usize> = HashMap::new();
    let mut twin_of = Vec::with_capacity(chunks.len());
    for (index, chunk) in chunks.iter().enumerate() {
        let seen = units[of_chunk[index].clone()].iter().map(|unit| unit.bytes).collect();
        twin_of.push(*first.entry((&chunk.title, &chunk.text, seen)).or_insert(index));
    }
    twin_of
}

fn distinct(mut terms: Vec<u32>) -> Vec<u32> {
    terms.sort_unstable();
    terms.dedup();
    terms
}
