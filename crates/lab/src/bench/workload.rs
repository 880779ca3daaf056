//! Questions and chunks to measure on: sentences of common words in an order that means nothing, from a fixed seed.
//! The same arguments give the same texts everywhere.

use thresher_core::domain::{Chunk, CompressRequest};
use thresher_core::model::ModelError;
use thresher_core::model::tokenizer::ModelTokenizer;

/// Shape of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Chunks of a request.
    pub chunks: usize,
    /// Tokens of a chunk; with `mixed`, about their mean.
    pub tokens: usize,
    /// Tokens of the question.
    pub query_tokens: usize,
    /// Lengths drawn evenly from 10 to twice `tokens`, as retrievers return them.
    pub mixed: bool,
}

/// Shortest chunk of a mixed workload.
const TOKENS_MIN: usize = 10;

impl Workload {
    /// The request of one round; another round's has other texts.
    ///
    /// # Errors
    /// When the tokenizer refuses a text.
    pub fn request(&self, round: u64, tokenizer: &ModelTokenizer) -> Result<CompressRequest, ModelError> {
        let mut random = Random::new(round, "");
        let query = text(&mut random, self.query_tokens, '?', tokenizer)?;
        let chunk = |index: usize| {
            let tokens = match self.mixed {
                true => random.between(TOKENS_MIN, (2 * self.tokens).max(TOKENS_MIN)),
                false => self.tokens,
            };
            let text = text(&mut random, tokens, '.', tokenizer)?;
            Ok(Chunk { id: index.to_string(), title: None, text, metadata: None })
        };
        let chunks = (0..self.chunks).map(chunk).collect::<Result<_, ModelError>>()?;
        Ok(CompressRequest::new(query, chunks))
    }

    /// Another question, of the length that a request's has.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub fn question(&self, n: u64, tokenizer: &ModelTokenizer) -> Result<String, ModelError> {
        text(&mut Random::new(n, "question"), self.query_tokens, '?', tokenizer)
    }
}

/// Tokens of each of a request's chunks.
///
/// # Errors
/// When the tokenizer refuses a text.
pub fn ids(request: &CompressRequest, tokenizer: &ModelTokenizer) -> Result<Vec<Vec<u32>>, ModelError> {
    request.chunks.iter().map(|chunk| Ok(tokenizer.encode(&chunk.text)?.ids)).collect()
}

/// Tokens of a word, by the default tokenizer.
const TOKENS_PER_WORD: f64 = 1.4;

/// Sentences of about `tokens` tokens together.
pub fn prose_of(random: &mut Random, tokens: usize) -> String {
    prose(random, (tokens as f64 / TOKENS_PER_WORD) as usize)
}

/// Sentences of about `words` words together: never fewer, and never a sentence more than it takes.
pub fn prose(random: &mut Random, words: usize) -> String {
    let (mut text, mut written) = (String::new(), 0);
    while written < words {
        written += sentence(&mut text, random);
    }
    text
}

/// Sentences of exactly `tokens` tokens together (with a tokenizer that merges across words, of about as many).
fn text(
    random: &mut Random,
    tokens: usize,
    end: char,
    tokenizer: &ModelTokenizer,
) -> Result<String, ModelError> {
    let mut text = String::new();
    let mut words = 0;
    // A word is a token at least.
    while words < tokens {
        words += sentence(&mut text, random);
    }
    let offsets = tokenizer.encode(&text)?.offsets;
    text.truncate(offsets[tokens.max(2) - 2].end);
    if tokens > 1 {
        text.push(end);
    }
    Ok(text)
}

/// Appends 6 to 22 words, some of them followed by a comma, and says how many.
fn sentence(text: &mut String, random: &mut Random) -> usize {
    let words = random.between(6, 22);
    for at in 0..words {
        let word = WORDS[random.between(0, WORDS.len() - 1)];
        match (text.is_empty(), at) {
            (true, 0) => text.push_str(&capital(word)),
            (false, 0) => text.extend([" ", &capital(word)]),
            _ => text.extend([" ", word]),
        }
        if at + 1 < words && random.between(1, 9) == 1 {
            text.push(',');
        }
    }
    text.push('.');
    words
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

/// splitmix64: the same numbers everywhere.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The `n`-th series of those for `purpose`.
    pub fn new(n: u64, purpose: &str) -> Self {
        let purpose =
            purpose.bytes().fold(0, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
        Self((n ^ purpose).wrapping_mul(0x2545_F491_4F6C_DD1D).wrapping_add(1))
    }

    /// In [0, 1), evenly.
    pub fn share(&mut self) -> f64 {
        self.between(0, (1 << 53) - 1) as f64 / (1_u64 << 53) as f64
    }

    /// From `min` to `max`, each magnitude as often as another: as many from 1 to 10 as from 10 to 100.
    pub fn magnitude(&mut self, min: usize, max: usize) -> usize {
        let (low, high) = ((min as f64).ln(), (max as f64 + 1.0).ln());
        ((low + self.share() * (high - low)).exp() as usize).clamp(min, max)
    }

    /// From `min` to `max`, evenly.
    pub fn between(&mut self, min: usize, max: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        min + ((bits ^ (bits >> 31)) % (max - min + 1) as u64) as usize
    }
}

/// Lower-case ASCII; the long ones at the end are several tokens each to most vocabularies.
#[rustfmt::skip]
const WORDS: [&str; 226] = [
    "the", "of", "and", "to", "a", "in", "is", "was", "for", "it", "with", "as", "on", "be", "at", "by", "this", "had",
    "not", "are", "but", "from", "or", "have", "an", "they", "which", "one", "you", "were", "her", "all", "she", "there",
    "would", "their", "we", "him", "been", "has", "when", "who", "will", "more", "no", "if", "out", "so", "said", "what",
    "up", "its", "about", "into", "than", "them", "can", "only", "other", "new", "some", "could", "time", "these", "two",
    "may", "then", "do", "first", "any", "my", "now", "such", "like", "our", "over", "man", "me", "even", "most", "made",
    "after", "also", "did", "many", "before", "must", "through", "back", "years", "where", "much", "your", "way", "well",
    "down", "should", "because", "each", "just", "those", "people", "too", "how", "little", "state", "good", "very",
    "make", "world", "still", "own", "see", "men", "work", "long", "get", "here", "between", "both", "life", "being",
    "under", "never", "day", "same", "another", "know", "while", "last", "might", "us", "great", "old", "year", "off",
    "come", "since", "against", "go", "came", "right", "used", "take", "three", "river", "market", "castle", "engine",
    "paper", "museum", "winter", "summer", "bridge", "village", "doctor", "teacher", "letter", "garden", "mountain",
    "island", "railway", "factory", "council", "election", "treaty", "battle", "language", "grammar", "orchestra",
    "symphony", "painter", "sculpture", "philosophy", "chemistry", "hydrogen", "electron", "molecule", "protein",
    "bacteria", "vaccine", "hospital", "surgery", "diagnosis", "insurance", "mortgage", "currency", "inflation",
    "budget", "parliament", "constitution", "amendment", "jurisdiction", "copyright", "software", "compiler", "protocol",
    "database", "satellite", "telescope", "galaxy", "volcano", "earthquake", "glacier", "monsoon", "harvest", "irrigation",
    "fertilizer", "livestock", "veterinarian", "archaeologist", "palaeontology", "crystallography", "phosphorylation",
    "electromagnetism", "neurotransmitter", "biodiversity", "photosynthesis", "thermodynamics", "counterintuitive",
    "interdisciplinary", "misapprehension", "unselfconscious", "quartermaster", "shipwright", "blacksmithing",
];

#[cfg(test)]
mod tests {
    use super::*;
    use thresher_core::model::scripted::ScriptedModel;

    fn request(mixed: bool, round: u64) -> CompressRequest {
        // One token a byte, so that lengths can be read off.
        let workload = Workload { chunks: 30, tokens: 200, query_tokens: 16, mixed };
        workload
            .request(round, &ScriptedModel::tokenizer(&[]))
            .expect("the scripted tokenizer takes any text")
    }

    #[test]
    fn lengths_are_exact() {
        let request = request(false, 0);
        assert_eq!(request.query.len(), 16);
        assert!(request.chunks.iter().all(|chunk| chunk.text.len() == 200));
        let single = text(&mut Random::new(0, ""), 1, '.', &ScriptedModel::tokenizer(&[])).expect("as above");
        assert_eq!(single.len(), 1);
    }

    #[test]
    fn magnitudes_are_even_on_a_logarithmic_scale() {
        let mut random = Random::new(1, "test");
        let drawn: Vec<usize> = (0..3_000).map(|_| random.magnitude(1, 999)).collect();
        assert!(drawn.iter().all(|n| (1..=999).contains(n)));
        for (low, high) in [(1, 9), (10, 99), (100, 999)] {
            let share = drawn.iter().filter(|n| (low..=high).contains(*n)).count();
            assert!((900..1_100).contains(&share), "{share} of 3000 from {low} to {high}");
        }
    }

    #[test]
    fn mixed_lengths_vary_within_their_bounds() {
        let lengths: Vec<_> = request(true, 0).chunks.iter().map(|chunk| chunk.text.len()).collect();
        assert!(lengths.iter().all(|length| (10..=400).contains(length)));
        assert!(lengths.iter().any(|&l| l < 100) && lengths.iter().any(|&l| l > 300), "{lengths:?}");
    }

    #[test]
    fn a_round_is_repeatable_and_unlike_the_others() {
        assert_eq!(request(true, 3), request(true, 3));
        assert_ne!(request(true, 3).chunks[0].text, request(true, 4).chunks[0].text);
    }
}
