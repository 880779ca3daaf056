//! The lexical head: scores chunks and units by the character n-grams that they share with words of the
//! question. Its values take the place of raw logits: RC is computed from them as from those of any other
//! head. Knows nothing of models and blocks.
//!
//! Words in scripts that the model's tokenizer does not know are scored by this head alone, and with them all
//! other words of a question that is mostly in such scripts. If some chunk is not prose or is in such a script,
//! the head also scores the names with digits in a question, such as order numbers, besides the model. A
//! question with none of these words has no lexical head.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ndarray::{Array2, Axis, concatenate};

use super::units::{Outlines, Unit, sentences_of};
use crate::domain::{ByteRange, Chunk, Granularity};
use crate::model::tokenizer::{ModelTokenizer, Tokens};
use crate::rc;
use crate::text::{Gram, GramWord, gram_words, script_of};

/// How fast repetitions of an n-gram in one text count less: `k1` of BM25.
const SATURATION: f64 = 0.5;

/// How much an n-gram counts less in a long text: `b` of BM25.
const LENGTH_NORMALIZATION: f64 = 0.4;

/// The RC of the lexical head, and which of the model's rows it replaces.
#[derive(Debug, Clone, PartialEq)]
pub struct LexicalRc {
    /// `[question_token]`: whether the model's logits of the token count.
    counts: Vec<bool>,
    /// `[word, chunk]`.
    pub chunks: Array2<f32>,
    /// `[word, unit]`; empty if units are chunks.
    pub units: Array2<f32>,
    /// `[word, sentence]`; empty unless units are words.
    pub sentences: Array2<f32>,
    /// The mean over words, weighted by how rare they are, of the largest logit of any chunk: the share of the
    /// question that some chunk has. It is at most 1.5.
    pub reach: f32,
    /// Whether the model knows all scripts of the question.
    pub knows_all: bool,
}

impl LexicalRc {
    /// Computes the RC of the question's words that the head scores; `None` if there are none. `units` are those
    /// of `chunks` at this granularity.
    pub fn of(
        (query, tokens): (&str, &Tokens),
        tokenizer: &ModelTokenizer,
        chunks: &[Arc<Chunk>],
        (granularity, units, outlines): (Granularity, &[Unit], &Outlines),
    ) -> Option<Self> {
        let scores_all = is_mostly_unknown(query, tokenizer);
        let is_unknown = |word: &GramWord| scores_all || !tokenizer.knows(word.script);
        let mut texts = chunks.iter().map(|chunk| &*chunk.text);
        let scores_names = !outlines.is_prose() || texts.any(|text| is_mostly_unknown(text, tokenizer));
        let words = words(query, |word| is_unknown(word) || scores_names && is_name(word.bytes.of(query)));
        if words.is_empty() {
            return None;
        }
        let of_unknown: Vec<ByteRange> =
            words.iter().filter(|word| is_unknown(word)).map(|word| word.bytes).collect();
        let head = LexicalHead::new(words);
        let leaves = |bytes: ByteRange| {
            let is_word = bytes.of(query).contains(char::is_alphanumeric);
            of_unknown.is_empty() || is_word && !of_unknown.iter().any(|word| word.overlaps(bytes))
        };
        let text = |chunk: usize, bytes: ByteRange| bytes.of(&chunks[chunk].text);
        let titled = chunks.iter().map(|chunk| [chunk.title.as_deref().unwrap_or_default(), &chunk.text]);
        let none = || Array2::zeros((head.words.len(), 0));
        let of_chunks = head.logits(titled);
        Some(Self {
            counts: tokens.offsets.iter().map(|&bytes| leaves(bytes)).collect(),
            reach: of_chunks.reach(),
            knows_all: of_unknown.is_empty(),
            chunks: of_chunks.rc(),
            units: match granularity {
                Granularity::Chunk => none(),
                _ => head.logits(units.iter().map(|unit| [text(unit.chunk, unit.bytes)])).rc(),
            },
            sentences: match granularity {
                Granularity::Token => {
                    let (sentences, _) = sentences_of(units);
                    head.logits(sentences.iter().map(|(chunk, sentence)| [text(*chunk, sentence.bytes)])).rc()
                }
                _ => none(),
            },
        })
    }

    /// Returns `[row, segment]`: the model's RC `[question_token, segment]` of the tokens that count, and the
    /// rows of the lexical head for the same segments. Without segments there is nothing to join.
    pub fn joined(&self, of_model: &Array2<f32>, lexical: &Array2<f32>) -> Array2<f32> {
        if of_model.is_empty() {
            return of_model.clone();
        }
        let counts: Vec<usize> = (0..self.counts.len()).filter(|&token| self.counts[token]).collect();
        concatenate![Axis(0), of_model.select(Axis(0), &counts), *lexical]
    }
}

/// Returns the distinct words of the question that are `wanted`.
fn words(query: &str, wanted: impl Fn(&GramWord) -> bool) -> Vec<GramWord> {
    let mut seen = HashSet::new();
    let mut words = gram_words(query);
    words.retain(|word| wanted(word) && seen.insert(word.grams.clone()));
    words
}

/// The question's words, and the index of each of their n-grams.
struct LexicalHead {
    words: Vec<GramWord>,
    grams: HashMap<Gram, usize>,
}

/// How often the question's n-grams occur in one text.
struct Counts {
    /// `[gram]`.
    grams: Vec<u32>,
    /// The number of all n-grams of the text.
    total: usize,
}

impl LexicalHead {
    fn new(words: Vec<GramWord>) -> Self {
        let mut grams = HashMap::new();
        for gram in words.iter().flat_map(|word| &word.grams) {
            let next = grams.len();
            grams.entry(*gram).or_insert(next);
        }
        Self { words, grams }
    }

    /// Returns the logits of texts, each of which may consist of several parts.
    fn logits<'a, const PARTS: usize>(&self, texts: impl Iterator<Item = [&'a str; PARTS]>) -> LexicalLogits {
        let counts: Vec<Counts> = texts.map(|parts| self.count(parts)).collect();
        let inverse_frequencies = self.inverse_frequencies(&counts);
        let most = inverse_frequency(counts.len(), 1);
        let weight = |word: &GramWord| {
            let rarest =
                word.grams.iter().map(|gram| inverse_frequencies[self.grams[gram]]).fold(0.0, f64::max);
            (rarest / most).min(1.0) as f32
        };
        LexicalLogits {
            logits: self.shares(&counts, &inverse_frequencies),
            weights: self.words.iter().map(weight).collect(),
        }
    }

    fn count<const PARTS: usize>(&self, parts: [&str; PARTS]) -> Counts {
        let mut counts = Counts { grams: vec![0; self.grams.len()], total: 0 };
        for gram in parts.into_iter().flat_map(gram_words).flat_map(|word| word.grams) {
            counts.total += 1;
            if let Some(&index) = self.grams.get(&gram) {
                counts.grams[index] += 1;
            }
        }
        counts
    }

    /// Returns `[gram]`: the inverse document frequency of each n-gram among the texts, as in BM25.
    fn inverse_frequencies(&self, counts: &[Counts]) -> Vec<f64> {
        let with = |gram: usize| counts.iter().filter(|counts| counts.grams[gram] > 0).count();
        (0..self.grams.len()).map(|gram| inverse_frequency(counts.len(), with(gram))).collect()
    }

    /// Returns `[word, text]`: the share of the word's n-grams that the text has, each weighted by
    /// its inverse document frequency, and counted as in BM25.
    fn shares(&self, counts: &[Counts], inverse_frequencies: &[f64]) -> Array2<f32> {
        let mean =
            counts.iter().map(|counts| counts.total).sum::<usize>() as f64 / counts.len().max(1) as f64;
        Array2::from_shape_fn((self.words.len(), counts.len()), |(word, text)| {
            let Counts { grams, total } = &counts[text];
            let length = 1.0 - LENGTH_NORMALIZATION + LENGTH_NORMALIZATION * *total as f64 / mean.max(1.0);
            let (mut found, mut all) = (0.0, 0.0);
            for gram in &self.words[word].grams {
                let index = self.grams[gram];
                let count = f64::from(grams[index]);
                all += inverse_frequencies[index];
                found +=
                    inverse_frequencies[index] * count * (SATURATION + 1.0) / (count + SATURATION * length);
            }
            (found / all) as f32
        })
    }
}

/// The number of characters at the beginning of a text that tell its script.
const SAMPLE_CHARS_MAX: usize = 200;

/// Returns whether most letters at the beginning of `text` are of scripts that the tokenizer does not know.
fn is_mostly_unknown(text: &str, tokenizer: &ModelTokenizer) -> bool {
    if text.is_ascii() {
        return false;
    }
    let (mut known, mut unknown) = (0, 0);
    for letter in text.chars().take(SAMPLE_CHARS_MAX).filter(|c| c.is_alphabetic()) {
        let count = if tokenizer.knows(script_of(letter)) { &mut known } else { &mut unknown };
        *count += 1;
    }
    unknown > known
}

/// Returns whether a word is a number or a name with a digit, such as `20418` or `archive7`. Tokenizers divide such
/// words into pieces that tell little.
fn is_name(word: &str) -> bool {
    word.contains(|c: char| c.is_ascii_digit())
}

/// The logits of the question's words over some texts.
struct LexicalLogits {
    /// `[word, text]`: the share of the word's n-grams that the text has.
    logits: Array2<f32>,
    /// `[word]`: how rare the rarest n-gram of the word is, from 0 to 1.
    weights: Vec<f32>,
}

impl LexicalLogits {
    /// Returns the RC of each text for each word, `[word, text]`, weighted by the word.
    fn rc(self) -> Array2<f32> {
        let mut rc = match self.logits.ncols() {
            // A single text has no rivals: what it shares with the question is its score.
            1 => self.logits,
            _ => rc::ranked_rivals(self.logits.view().insert_axis(Axis(0))).index_axis_move(Axis(0), 0),
        };
        rc.outer_iter_mut().zip(self.weights).for_each(|(mut row, weight)| row *= weight);
        rc
    }

    /// See [`LexicalRc::reach`].
    fn reach(&self) -> f32 {
        let best = self.logits.outer_iter().map(|row| row.iter().copied().fold(0.0, f32::max));
        let found: f32 = best.zip(&self.weights).map(|(best, weight)| best * weight).sum();
        found / self.weights.iter().sum::<f32>().max(f32::MIN_POSITIVE)
    }
}

/// Returns the inverse document frequency of an n-gram that `with` of `texts` texts have. It is above 0.
fn inverse_frequency(texts: usize, with: usize) -> f64 {
    let (texts, with) = (texts as f64, with as f64);
    (1.0 + (texts - with + 0.5) / (with + 0.5)).ln()
}
