//! Units: the smallest pieces of the chunks that selection keeps or drops (chunks, sentences or words), with
//! their positions in the text and on the key axis.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::blocks::Blocks;
use super::tokenize::tokens_under;
use crate::domain::{ByteRange, Chunk, Granularity, Kind, TokenSpan};
use crate::kv::block::{Block, Sentence};
use crate::text;
#[cfg(test)]
use crate::text::outline::{Joint, Role, Why};
use crate::text::outline::{Layout, Link, Piece};
use crate::text_cache::TextCache;

/// A piece of one chunk that is kept or dropped as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// The index of the chunk in the request.
    pub chunk: usize,
    /// Byte range in the chunk's text.
    pub bytes: ByteRange,
    /// The unit's tokens on the key axis of the request. Empty if the tokenizer finds no token in the unit.
    pub tokens: TokenSpan,
    /// The sentence that contains the unit, if units are words; otherwise the unit itself.
    pub sentence: UnitSpan,
}

/// A piece of a chunk, as a range of bytes and as a span of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitSpan {
    /// Byte range in the chunk's text.
    pub bytes: ByteRange,
    /// Tokens on the key axis of the request.
    pub tokens: TokenSpan,
}

/// How the units of each chunk belong together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outlines {
    /// `[chunk]`: the layout of the text. If it has pieces, these are the units of the chunk.
    layouts: Vec<Arc<Layout>>,
    /// `[chunk]`: the index of the chunk's first unit.
    first_units: Vec<usize>,
    /// Whether some chunk is not prose, also where units are chunks or words.
    has_structure: bool,
    /// Whether some chunk of prose has a list.
    has_items: bool,
    /// Whether some chunk has rows of a table, also where units are chunks or words.
    has_rows: bool,
    /// The units that a unit requires wherever they stand: the rest of a sentence in another chunk, or the definition of a term.
    across: HashMap<usize, Vec<usize>>,
}

impl Outlines {
    /// Returns the outlines of so many chunks of prose.
    pub fn of_prose(chunks: usize) -> Self {
        Self {
            layouts: std::iter::repeat_n(Arc::new(Layout::prose()), chunks).collect(),
            first_units: vec![0; chunks],
            ..Self::default()
        }
    }

    /// Returns the outline of one chunk in which each piece requires the one before.
    #[cfg(test)]
    pub fn of_chain(pieces: impl Iterator<Item = ByteRange>) -> Self {
        let piece = |(at, bytes): (usize, ByteRange)| Piece {
            bytes,
            role: Role::Text,
            joint: Joint::Gap,
            links: at.checked_sub(1).map(|to| Link { to, why: Why::Needs }).into_iter().collect(),
        };
        let pieces = pieces.enumerate().map(piece).collect();
        let layouts = vec![Arc::new(Layout { kind: Kind::Prose, pieces })];
        Self { layouts, first_units: vec![0], ..Self::default() }
    }

    /// Returns `[chunk]`, the layouts of the texts.
    pub fn layouts(&self) -> &[Arc<Layout>] {
        &self.layouts
    }

    pub fn is_prose(&self) -> bool {
        !self.has_structure
    }

    /// Returns whether a mark can be longer than the shortest one: it counts lines or items of a list.
    pub fn has_long_marks(&self) -> bool {
        self.has_structure || self.has_items
    }

    /// Returns the units of a chunk that has pieces.
    pub fn units_of(&self, chunk: usize) -> Range<usize> {
        let first = self.first_units[chunk];
        first..first + self.layouts[chunk].pieces.len()
    }

    /// Returns whether any chunk has rows of a table.
    pub fn has_rows(&self) -> bool {
        self.has_rows
    }

    /// Returns the piece that a unit is; `None` for one that stands for itself.
    pub fn piece(&self, unit: usize, chunk: usize) -> Option<&Piece> {
        self.layouts[chunk].pieces.get(unit - self.first_units[chunk])
    }

    /// Returns whether a unit is never chosen for itself.
    pub fn is_frame(&self, unit: usize, chunk: usize) -> bool {
        self.piece(unit, chunk).is_some_and(Piece::is_frame)
    }

    pub fn is_row(&self, unit: usize, chunk: usize) -> bool {
        self.piece(unit, chunk).is_some_and(Piece::is_row)
    }

    /// Returns the units that `unit` directly requires: those of its chunk first.
    pub fn required_by(&self, unit: usize, chunk: usize) -> impl Iterator<Item = usize> {
        let first = self.first_units[chunk];
        let own = self.piece(unit, chunk).into_iter().flat_map(Piece::required);
        own.map(move |at| first + at).chain(self.across.get(&unit).into_iter().flatten().copied())
    }

    pub fn require_across(&mut self, needs: impl Iterator<Item = (usize, usize)>) {
        for (unit, other) in needs {
            self.across.entry(unit).or_default().push(other);
        }
    }

    /// Returns the units that require others wherever these stand, each with one of these.
    pub fn needs_across(&self) -> impl Iterator<Item = (usize, usize)> {
        self.across.iter().flat_map(|(&unit, others)| others.iter().map(move |&other| (unit, other)))
    }

    /// Returns the unit that `unit` says nothing without, if it is chosen for itself.
    pub fn introduced_by(&self, unit: usize, chunk: usize) -> Option<usize> {
        self.piece(unit, chunk)?.introduces().map(|other| self.first_units[chunk] + other)
    }

    /// Returns the units that `unit` is scored with: those that it requires for its structure, such as its heading. Outside running
    /// text, those of other chunks are among them, such as the header of a table that began there.
    pub fn contexts_of(&self, unit: usize, chunk: usize) -> impl Iterator<Item = usize> {
        let first = self.first_units[chunk];
        let is_running_text = self.layouts[chunk].kind.is_running_text();
        let own = self.piece(unit, chunk).filter(|_| is_running_text).into_iter().flat_map(Piece::contexts);
        let all = (!is_running_text).then(|| self.required_by(unit, chunk));
        own.map(move |at| first + at).chain(all.into_iter().flatten())
    }

    /// Returns the units that share an identifier with `unit`, such as the events of a log about one request.
    pub fn related_to(&self, unit: usize, chunk: usize) -> impl Iterator<Item = usize> {
        let first = self.first_units[chunk];
        self.piece(unit, chunk).into_iter().flat_map(Piece::near).map(move |at| first + at)
    }
}

/// A cache of layouts, also by the kind that the caller named. Requests name the same chunks again and again, and finding the layouts of a
/// hundred takes longer than scoring them.
pub struct Layouts(TextCache<Kind, Arc<Layout>>);

/// The bytes of all layouts in the cache together.
const LAYOUT_BYTES_MAX: usize = 16 << 20;

/// The number of layouts that the cache is made for; more or fewer may fit.
const LAYOUTS: usize = 1 << 14;

/// The fewest chunks without a layout that another thread is asked to help with.
const LAYOUTS_PER_THREAD_MIN: usize = 4;

impl Layouts {
    /// Returns the bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Returns the layout of the text of a chunk, from the cache if possible.
    pub fn of_chunk(&self, chunk: &Chunk) -> Arc<Layout> {
        self.0.get_or_find(chunk.kind, &chunk.text, || Arc::new(Layout::detect(&chunk.text, chunk.kind)))
    }

    /// Returns `[chunk]`, the layouts of texts, from the cache if possible. `blocks` are the blocks of the same chunks.
    fn of_chunks(&self, chunks: &[Arc<Chunk>], blocks: &Blocks) -> Vec<Arc<Layout>> {
        let known: Option<Vec<_>> = chunks.iter().map(|chunk| self.0.get(chunk.kind, &chunk.text)).collect();
        known.unwrap_or_else(|| {
            let chunks = chunks.par_iter().zip(&blocks.blocks).with_min_len(LAYOUTS_PER_THREAD_MIN);
            let find = |(chunk, block): (&Arc<Chunk>, &Block)| {
                self.0.get_or_find(chunk.kind, &chunk.text, || Arc::new(layout_of(chunk, block)))
            };
            chunks.map(find).collect()
        })
    }
}

impl Default for Layouts {
    fn default() -> Self {
        Self(TextCache::with_bytes(LAYOUTS, LAYOUT_BYTES_MAX, |layout| bytes_of(layout)))
    }
}

fn bytes_of(layout: &Layout) -> usize {
    let of_piece = |piece: &Piece| size_of::<Piece>() + piece.links.capacity() * size_of::<Link>();
    size_of::<Layout>() + layout.pieces.iter().map(of_piece).sum::<usize>()
}

fn layout_of(chunk: &Chunk, block: &Block) -> Layout {
    // The block has the sentences of the text already.
    let sentences = |part: &str| {
        if part.len() == chunk.text.len() {
            block.sentences().map(|sentence| sentence.bytes).collect()
        } else {
            text::sentences(part)
        }
    };
    Layout::with_sentences(&chunk.text, chunk.kind, &sentences)
}

/// Returns all units of `chunks`, in the order of the text, and how they belong together. A chunk without text
/// has none. `blocks` are the blocks of the same chunks.
pub fn split_units(
    granularity: Granularity,
    chunks: &[Arc<Chunk>],
    blocks: &Blocks,
    layouts: &Layouts,
) -> (Vec<Unit>, Outlines) {
    let mut units = Vec::new();
    let mut outlines = Outlines::default();
    let prose = Arc::new(Layout::prose());
    let layouts = layouts.of_chunks(chunks, blocks);
    for (index, ((chunk, block), layout)) in chunks.iter().zip(&blocks.blocks).zip(layouts).enumerate() {
        let first = blocks.spans[index].start;
        outlines.first_units.push(units.len());
        outlines.has_structure |= layout.kind != Kind::Prose;
        outlines.has_items |=
            layout.pieces.iter().any(|piece| text::is_list_item(piece.bytes.slice(&chunk.text)));
        outlines.has_rows |= layout.pieces.iter().any(Piece::is_row);
        let layout = match granularity {
            Granularity::Sentence => layout,
            Granularity::Chunk | Granularity::Word => Arc::clone(&prose),
        };
        let on_key_axis =
            |bytes: ByteRange, tokens: TokenSpan| UnitSpan { bytes, tokens: tokens.shifted(first) };
        let mut push = |UnitSpan { bytes, tokens }: UnitSpan, sentence: UnitSpan| {
            units.push(Unit { chunk: index, bytes, tokens, sentence });
        };
        match granularity {
            Granularity::Chunk if block.sentences().len() == 0 => {}
            Granularity::Chunk => {
                let text = TokenSpan::new(block.title_tokens(), block.tokens());
                let whole = on_key_axis(ByteRange::new(0, chunk.text.len()), text);
                push(whole, whole);
            }
            Granularity::Sentence if layout.kind != Kind::Prose => {
                let offsets = block.offsets();
                for Piece { bytes, .. } in &layout.pieces {
                    let tokens = tokens_under(&offsets, block.title_tokens(), *bytes);
                    let piece = on_key_axis(*bytes, tokens);
                    push(piece, piece);
                }
            }
            Granularity::Sentence => {
                block.sentences().map(|s| on_key_axis(s.bytes, s.tokens)).for_each(|s| push(s, s));
            }
            Granularity::Word => {
                for (sentence, words) in words_by_sentence(chunk, block) {
                    let sentence = on_key_axis(sentence.bytes, sentence.tokens);
                    words.into_iter().for_each(|(bytes, tokens)| push(on_key_axis(bytes, tokens), sentence));
                }
            }
        }
        outlines.layouts.push(layout);
    }
    (units, outlines)
}

/// Returns each sentence of a chunk with its words. The tokens are counted from the block's first token.
fn words_by_sentence(chunk: &Chunk, block: &Block) -> Vec<(Sentence, Vec<(ByteRange, TokenSpan)>)> {
    let offsets = block.offsets();
    let with_words = |sentence: Sentence| {
        let word = |word: ByteRange| {
            let bytes = word.shifted(sentence.bytes.start);
            (bytes, tokens_under(&offsets, block.title_tokens(), bytes))
        };
        (sentence, text::words(sentence.bytes.slice(&chunk.text)).into_iter().map(word).collect())
    };
    block.sentences().map(with_words).collect()
}

/// Returns the distinct sentences that contain `units`, each with the index of its chunk, in order; and
/// `[unit]`, the index among them of each unit's sentence.
pub fn sentences_of(units: &[Unit]) -> (Vec<(usize, UnitSpan)>, Vec<usize>) {
    let mut sentences: Vec<(usize, UnitSpan)> = Vec::new();
    let index = |unit: &Unit| {
        if sentences.last() != Some(&(unit.chunk, unit.sentence)) {
            sentences.push((unit.chunk, unit.sentence));
        }
        sentences.len() - 1
    };
    let indices = units.iter().map(index).collect();
    (sentences, indices)
}
