//! The unigram model of SentencePiece (Kudo, 2018, "Subword Regularization", section 3.2) in little memory: the pieces of a
//! text are those with the highest sum of scores.
//!
//! The library's own model keeps its pieces in a tree of hash maps, which take 280 MB for the 250,000 pieces of XLM-RoBERTa.
//! Here they are one sorted list, which takes 8 MB. The result is the same, but for one thing: as in SentencePiece, a text that
//! looks like a special token, such as `</s>`, is never read as that token.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenizers::models::unigram::UnigramTrainer;
use tokenizers::{Model, Result, Token};

/// By how much an unknown character's score is below the lowest score of a piece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// The pieces of a vocabulary, and the most probable division of a text into them.
#[derive(Debug, Clone)]
pub struct Unigram {
    /// The pieces in the order of their ids, one behind the other.
    text: String,
    /// `[id + 1]`: where each piece begins in the text, and where the last one ends.
    starts: Vec<u32>,
    /// `[id]`: the logarithm of the probability of each piece.
    scores: Vec<f64>,
    /// The ids in the order of the bytes of their pieces, without those of special tokens.
    sorted: Vec<u32>,
    special: Vec<u32>,
    unknown: u32,
    unknown_score: f64,
}

#[derive(Debug, Deserialize)]
pub struct UnigramFile {
    unk_id: Option<u32>,
    vocab: Vec<(String, f64)>,
    #[serde(default)]
    byte_fallback: bool,
}

/// The best division of a text up to one of its bytes.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Where its last piece begins; `None` if no piece ends here.
    start: Option<usize>,
    id: u32,
}

impl Unigram {
    /// Returns the model of a file whose special tokens have the ids `special`, or `None` if it is one that only the library
    /// reads: without an unknown piece, with bytes for unknown characters, with an empty piece, or with two equal pieces.
    pub fn new(file: &UnigramFile, mut special: Vec<u32>) -> Option<Self> {
        // Tokens beyond the vocabulary are the library's to find.
        special.retain(|id| (*id as usize) < file.vocab.len());
        let unknown = file.unk_id.filter(|id| (*id as usize) < file.vocab.len() && !file.byte_fallback)?;
        let mut model = Self {
            text: String::new(),
            starts: vec![0],
            scores: Vec::with_capacity(file.vocab.len()),
            sorted: Vec::new(),
            special,
            unknown,
            unknown_score: 0.0,
        };
        for (piece, score) in &file.vocab {
            model.text.push_str(piece);
            model.starts.push(u32::try_from(model.text.len()).ok()?);
            model.scores.push(*score);
        }
        model.unknown_score = model.scores.iter().copied().fold(f64::INFINITY, f64::min) - UNKNOWN_PENALTY;
        let mut sorted: Vec<u32> = (0..u32::try_from(file.vocab.len()).ok()?).collect();
        sorted.sort_unstable_by_key(|id| model.piece(*id));
        let is_unique = sorted.windows(2).all(|pair| model.piece(pair[0]) != model.piece(pair[1]));
        sorted.retain(|id| !model.special.contains(id));
        model.sorted = sorted;
        model.text.shrink_to_fit();
        let is_empty = file.vocab.iter().any(|(piece, _)| piece.is_empty());
        (is_unique && !is_empty).then_some(model)
    }

    fn piece(&self, id: u32) -> &str {
        let id = id as usize;
        &self.text[self.starts[id] as usize..self.starts[id + 1] as usize]
    }

    /// Calls `found` with the length and the id of each piece with which `text` begins, the shortest first.
    fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let mut rest = &self.sorted[..];
        for (at, byte) in text.iter().enumerate() {
            // All pieces in `rest` have the same first `at` bytes, and more.
            let byte_at = |id: &u32| self.piece(*id).as_bytes()[at];
            let first = rest.partition_point(|id| byte_at(id) < *byte);
            let count = rest[first..].partition_point(|id| byte_at(id) == *byte);
            rest = &rest[first..first + count];
            let Some((shortest, longer)) = rest.split_first() else { return };
            if self.piece(*shortest).len() == at + 1 {
                found(at + 1, *shortest);
                rest = longer;
            }
        }
    }

    /// Returns the ranges and ids of the best pieces of a text. Unknown characters that follow each other are one piece.
    fn pieces(&self, text: &str) -> Vec<(Range<usize>, u32)> {
        let unreached = Best { score: 0.0, start: None, id: self.unknown };
        let mut best = vec![unreached; text.len() + 1];
        for (start, character) in text.char_indices() {
            let score_before = best[start].score;
            let mut offer = |length: usize, id: u32, score: f64| {
                let (end, score) = (&mut best[start + length], score + score_before);
                if end.start.is_none() || score > end.score {
                    *end = Best { score, start: Some(start), id };
                }
            };
            let mut is_known = false;
            self.prefixes(&text.as_bytes()[start..], |length, id| {
                is_known |= length == character.len_utf8();
                offer(length, id, self.scores[id as usize]);
            });
            if !is_known {
                offer(character.len_utf8(), self.unknown, self.unknown_score);
            }
        }
        let mut pieces: Vec<(Range<usize>, u32)> = Vec::new();
        let mut end = text.len();
        while let Some(start) = best[end].start {
            match pieces.last_mut() {
                Some((after, id)) if [*id, best[end].id] == [self.unknown; 2] => after.start = start,
                _ => pieces.push((start..end, best[end].id)),
            }
            end = start;
        }
        pieces.reverse();
        pieces
    }
}

impl Model for Unigram {
    type Trainer = UnigramTrainer;

    fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        let token = |(range, id): (Range<usize>, u32)| {
            Token::new(id, text[range.clone()].to_owned(), (range.start, range.end))
        };
        Ok(self.pieces(text).into_iter().map(token).collect())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self.sorted.binary_search_by_key(&token, |id| self.piece(*id)) {
            Ok(at) => Some(self.sorted[at]),
            Err(_) => self.special.iter().copied().find(|id| self.piece(*id) == token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        ((id as usize) < self.scores.len()).then(|| self.piece(id).to_owned())
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        (self.sorted.iter().chain(&self.special)).map(|id| (self.piece(*id).to_owned(), *id)).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.scores.len()
    }

    fn save(&self, _folder: &Path, _prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        Err("a tokenizer is never written".into())
    }

    fn get_trainer(&self) -> UnigramTrainer {
        UnigramTrainer::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::models::unigram;

    use super::*;

    const PIECES: [(&str, f64); 14] = [
        ("<unk>", 0.0),
        ("\u{2581}", -2.0),
        ("a", -3.0),
        ("b", -3.5),
        ("ab", -4.0),
        ("abc", -4.5),
        ("bc", -4.0),
        ("c", -3.0),
        ("\u{2581}ab", -3.0),
        ("ü", -5.0),
        ("üb", -5.5),
        ("水", -6.0),
        ("水b", -5.0),
        ("cab", -9.0),
    ];

    fn file() -> UnigramFile {
        let vocab = PIECES.map(|(piece, score)| (piece.to_owned(), score)).to_vec();
        UnigramFile { unk_id: Some(0), vocab, byte_fallback: false }
    }

    proptest! {
        #[test]
        fn the_pieces_are_those_of_the_library(text in "[abcüé水火\u{2581}<]{0,24}") {
            let of_library = unigram::Unigram::from(file().vocab, Some(0), false).expect("a model");
            let model = Unigram::new(&file(), vec![0]).expect("a model");
            let listed = |tokens: Vec<Token>| -> Vec<_> {
                tokens.into_iter().map(|token| (token.id, token.value, token.offsets)).collect()
            };
            let found = listed(model.tokenize(&text).expect("tokens"));
            prop_assert_eq!(found, listed(of_library.tokenize(&text).expect("tokens")));
        }
    }

    #[test]
    fn models_that_only_the_library_reads_are_left_to_it() {
        assert!(Unigram::new(&UnigramFile { unk_id: None, ..file() }, vec![0]).is_none());
        assert!(Unigram::new(&UnigramFile { unk_id: Some(14), ..file() }, vec![0]).is_none());
        assert!(Unigram::new(&UnigramFile { byte_fallback: true, ..file() }, vec![0]).is_none());
        let empty = [file().vocab, vec![(String::new(), -1.0)]].concat();
        assert!(Unigram::new(&UnigramFile { vocab: empty, ..file() }, vec![0]).is_none());
        let twice = [file().vocab, vec![("ab".to_owned(), -1.0)]].concat();
        assert!(Unigram::new(&UnigramFile { vocab: twice, ..file() }, vec![0]).is_none());
    }

    #[test]
    fn a_text_that_looks_like_a_special_token_is_none() {
        let ids = |special| -> Vec<u32> {
            let model = Unigram::new(&file(), special).expect("a model");
            model.tokenize("aab").expect("tokens").into_iter().map(|token| token.id).collect()
        };
        assert_eq!((ids(vec![0]), ids(vec![0, 4])), (vec![2, 4], vec![2, 2, 3]));
    }

    #[test]
    fn ids_and_pieces_belong_together() {
        let model = Unigram::new(&file(), vec![0, 4]).expect("a model");
        for (id, (piece, _)) in PIECES.into_iter().enumerate() {
            assert_eq!(model.token_to_id(piece), Some(id as u32));
            assert_eq!(model.id_to_token(id as u32).as_deref(), Some(piece));
        }
        assert_eq!((model.token_to_id("x"), model.id_to_token(14)), (None, None));
        assert_eq!(model.get_vocab().len(), model.get_vocab_size());
        let beyond = Unigram::new(&file(), vec![0, 14]).expect("a model with an added token");
        assert_eq!((beyond.token_to_id("x"), beyond.get_vocab().len()), (None, 14));
    }
}
