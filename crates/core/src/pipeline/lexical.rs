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
use rayon::prelude::*;

use super::PipelineError;
use super::cancel::Cancel;
use super::units::{Outlines, Unit, sentences_of};
use super::validate::RequestLimits;
use crate::domain::{ByteRange, Chunk, Granularity};
use crate::model::tokenizer::{ModelTokenizer, Tokens};
use crate::rc;
use crate::text::{Gram, GramWord, gram_words, is_compared_by_characters, script_of};

/// How fast repetitions of an n-gram in one text count less: `k1` of BM25.
const SATURATION: f64 = 0.5;

/// How much an n-gram counts less in a long text: `b` of BM25.
const LENGTH_NORMALIZATION: f64 = 0.4;

/// The number of characters at the beginning of a text that tell its script.
const SAMPLE_CHARS_MAX: usize = 200;

/// The RC of the lexical head, and which of the model's rows it replaces.
#[derive(Debug, Clone, PartialEq)]
pub struct LexicalRc {
    /// `[question_token]`: whether the model's logits of the token count.
    model_scores: Vec<bool>,
    /// `[word, chunk]`: the RC of each word.
    pub chunks: Array2<f32>,
    /// `[word, unit]`; empty if units are chunks.
    pub units: Array2<f32>,
    /// `[word, sentence]`; empty unless units are words.
    pub sentences: Array2<f32>,
    /// The mean over words, weighted by how rare they are, of the largest logit of any chunk: the share of the
    /// question that some chunk has. It is at most 1.5.
    pub relevance: f32,
    /// Whether the model knows all scripts of the question.
    pub knows_all: bool,
}

/// A question over chunks, and their units at one granularity.
#[derive(Clone, Copy)]
pub struct LexicalInput<'a> {
    pub query: &'a str,
    /// The model's tokens of the question.
    pub tokens: &'a Tokens,
    /// The tokenizer of the model, which says which scripts the model knows.
    pub tokenizer: &'a ModelTokenizer,
    pub chunks: &'a [Arc<Chunk>],
    pub granularity: Granularity,
    pub units: &'a [Unit],
    pub outlines: &'a Outlines,
}

impl LexicalRc {
    /// Computes the RC of the question's words that the head scores; `None` if there are none.
    ///
    /// # Errors
    /// Returns [`PipelineError::Invalid`] if the question has more characters in scripts without spaces than it may have
    /// tokens, or if words × chunks and units are more than the logits that a request may have, and the error of
    /// `cancel` if it stops the work.
    pub fn compute(
        input: LexicalInput,
        limits: &RequestLimits,
        cancel: &Cancel,
    ) -> Result<Option<Self>, PipelineError> {
        let LexicalInput { query, tokens, tokenizer, chunks, granularity, units, outlines } = input;
        let scores_all = is_mostly_unknown(query, tokenizer);
        let is_unknown = |word: &GramWord| scores_all || !tokenizer.knows(word.script);
        let mut texts = chunks.iter().map(|chunk| &*chunk.text);
        // Most questions have no such name, and the chunks need not be looked at.
        let scores_names =
            is_name(query) && (!outlines.is_prose() || texts.any(|text| is_mostly_unknown(text, tokenizer)));
        // The model may have one token for a whole run of such characters, and each becomes several words.
        limits.check_query(unknown_unspaced_chars(query, tokenizer))?;
        let words = words(query, |word| is_unknown(word) || scores_names && is_name(word.bytes.slice(query)));
        if words.is_empty() {
            return Ok(None);
        }
        limits.check_logits(words.len(), chunks.len() + units.len())?;
        let of_unknown: Vec<ByteRange> =
            words.iter().filter(|word| is_unknown(word)).map(|word| word.bytes).collect();
        let head = LexicalHead::new(words);
        let model_scores = |bytes: ByteRange| {
            let is_word = bytes.slice(query).contains(char::is_alphanumeric);
            of_unknown.is_empty() || is_word && !of_unknown.iter().any(|word| word.overlaps(bytes))
        };
        let text = |chunk: usize, bytes: ByteRange| bytes.slice(&chunks[chunk].text);
        let titled: Vec<_> =
            chunks.iter().map(|chunk| [chunk.title.as_deref().unwrap_or_default(), &*chunk.text]).collect();
        let none = || Array2::zeros((head.words.len(), 0));
        let of_chunks = head.logits(&titled, cancel)?;
        Ok(Some(Self {
            model_scores: tokens.offsets.iter().map(|&bytes| model_scores(bytes)).collect(),
            relevance: of_chunks.relevance(),
            knows_all: of_unknown.is_empty(),
            chunks: of_chunks.rc(),
            units: match granularity {
                Granularity::Chunk => none(),
                _ => {
                    let texts: Vec<_> = units.iter().map(|unit| [text(unit.chunk, unit.bytes)]).collect();
                    head.logits(&texts, cancel)?.rc()
                }
            },
            sentences: match granularity {
                Granularity::Word => {
                    let (sentences, _) = sentences_of(units);
                    let texts: Vec<_> =
                        sentences.iter().map(|(chunk, sentence)| [text(*chunk, sentence.bytes)]).collect();
                    head.logits(&texts, cancel)?.rc()
                }
                _ => none(),
            },
        }))
    }

    /// Returns `[row, segment]`: the model's RC `[question_token, segment]` of the tokens that count, and the
    /// rows of the lexical head for the same segments. Without segments there is nothing to join.
    pub fn joined(&self, of_model: &Array2<f32>, lexical: &Array2<f32>) -> Array2<f32> {
        if of_model.is_empty() {
            return of_model.clone();
        }
        let scored: Vec<usize> =
            (0..self.model_scores.len()).filter(|&token| self.model_scores[token]).collect();
        concatenate![Axis(0), of_model.select(Axis(0), &scored), *lexical]
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
    /// `[gram]`: the words that have the n-gram.
    words_with: Vec<Vec<usize>>,
}

/// How often the question's n-grams occur in one text.
struct Counts {
    /// The n-grams that the text has, by their indices, and how often.
    found: HashMap<usize, u32>,
    /// The number of all n-grams of the text.
    total: usize,
}

impl LexicalHead {
    fn new(words: Vec<GramWord>) -> Self {
        let (mut grams, mut words_with) = (HashMap::new(), Vec::new());
        for (index, word) in words.iter().enumerate() {
            for gram in &word.grams {
                let gram = *grams.entry(*gram).or_insert_with(|| {
                    words_with.push(Vec::new());
                    words_with.len() - 1
                });
                words_with[gram].push(index);
            }
        }
        Self { words, grams, words_with }
    }

    /// Returns the logits of texts, each of which may consist of several parts.
    fn logits<const PARTS: usize>(
        &self,
        texts: &[[&str; PARTS]],
        cancel: &Cancel,
    ) -> Result<LexicalLogits, PipelineError> {
        let count = |parts: &[&str; PARTS]| {
            cancel.check()?;
            Ok(self.count(parts))
        };
        let counts = texts.par_iter().map(count).collect::<Result<Vec<Counts>, PipelineError>>()?;
        let inverse_frequencies = self.inverse_frequencies(&counts);
        let most = inverse_frequency(counts.len(), 1);
        let weight = |word: &GramWord| {
            let rarest =
                word.grams.iter().map(|gram| inverse_frequencies[self.grams[gram]]).fold(0.0, f64::max);
            (rarest / most).min(1.0) as f32
        };
        Ok(LexicalLogits {
            logits: self.shares(&counts, &inverse_frequencies),
            weights: self.words.iter().map(weight).collect(),
        })
    }

    fn count<const PARTS: usize>(&self, parts: &[&str; PARTS]) -> Counts {
        let mut counts = Counts { found: HashMap::new(), total: 0 };
        for gram in parts.iter().flat_map(|part| gram_words(part)).flat_map(|word| word.grams) {
            counts.total += 1;
            if let Some(&index) = self.grams.get(&gram) {
                *counts.found.entry(index).or_default() += 1;
            }
        }
        counts
    }

    /// Returns `[gram]`: the inverse document frequency of each n-gram among the texts, as in BM25.
    fn inverse_frequencies(&self, counts: &[Counts]) -> Vec<f64> {
        let mut with = vec![0; self.words_with.len()];
        counts.iter().flat_map(|counts| counts.found.keys()).for_each(|&gram| with[gram] += 1);
        with.into_iter().map(|with| inverse_frequency(counts.len(), with)).collect()
    }

    /// Returns `[word, text]`: the share of the word's n-grams that the text has, each weighted by
    /// its inverse document frequency, and counted as in BM25.
    fn shares(&self, counts: &[Counts], inverse_frequencies: &[f64]) -> Array2<f32> {
        let mean =
            counts.iter().map(|counts| counts.total).sum::<usize>() as f64 / counts.len().max(1) as f64;
        let all_of = |word: &GramWord| {
            word.grams.iter().map(|gram| inverse_frequencies[self.grams[gram]]).sum::<f64>()
        };
        let all: Vec<f64> = self.words.iter().map(all_of).collect();
        let mut shares = Array2::zeros((self.words.len(), counts.len()));
        for (mut shares, Counts { found, total }) in shares.columns_mut().into_iter().zip(counts) {
            let length = 1.0 - LENGTH_NORMALIZATION + LENGTH_NORMALIZATION * *total as f64 / mean.max(1.0);
            // In the order of the n-grams, so that the sums have the same bits each time.
            let mut grams: Vec<(usize, u32)> = found.iter().map(|(&gram, &count)| (gram, count)).collect();
            grams.sort_unstable();
            let mut sums: HashMap<usize, f64> = HashMap::new();
            for (gram, count) in grams {
                let count = f64::from(count);
                let value =
                    inverse_frequencies[gram] * count * (SATURATION + 1.0) / (count + SATURATION * length);
                self.words_with[gram].iter().for_each(|&word| *sums.entry(word).or_default() += value);
            }
            sums.into_iter().for_each(|(word, sum)| shares[word] = (sum / all[word]) as f32);
        }
        shares
    }
}

/// Returns how many characters of `query` are of scripts that are compared by characters and that the tokenizer does
/// not know.
fn unknown_unspaced_chars(query: &str, tokenizer: &ModelTokenizer) -> usize {
    let is_counted = |c: &char| is_compared_by_characters(*c) && !tokenizer.knows(script_of(*c));
    query.chars().filter(is_counted).count()
}

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

    /// See [`LexicalRc::relevance`].
    fn relevance(&self) -> f32 {
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
