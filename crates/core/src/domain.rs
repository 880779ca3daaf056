//! The words that every module shares: chunks, ranges, budgets, scores, citations.
//! Knows nothing of models, HTTP or storage.

use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A half-open range of UTF-8 bytes of some text; which text, the field that holds it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl ByteRange {
    /// # Panics
    /// When `start > end`: a reversed range is a bug of the caller, never of the input.
    pub fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "byte range is reversed: {start}..{end}");
        Self { start, end }
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether the range holds no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether the two share a byte.
    pub fn overlaps(self, other: Self) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }

    /// The same range, `bytes` further right.
    pub fn shifted(self, bytes: usize) -> Self {
        Self::new(self.start + bytes, self.end + bytes)
    }

    /// The text under the range.
    ///
    /// # Panics
    /// When the range does not lie on character boundaries of `text`.
    pub fn of(self, text: &str) -> &str {
        &text[self.start..self.end]
    }
}

/// Whose data it is: what one tenant sends is never found by another. The default is the one tenant of a daemon without keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

/// The longest name of a tenant, in bytes.
const TENANT_BYTES_MAX: usize = 64;

impl Tenant {
    /// A tenant by its name, which is the name of a folder and part of a journal's; empty: the default one. None where it is
    /// anything but lower-case letters, digits, `-`, `_` and `.`, or begins with `.`: two names are then never one folder, also
    /// where a file system does not tell cases apart.
    pub fn new(name: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
        let fits = name.len() <= TENANT_BYTES_MAX && name.bytes().all(plain) && !name.starts_with('.');
        fits.then(|| Self(name.into()))
    }

    /// Its name; empty for the default one.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether it is the one that has no name.
    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self("".into())
    }
}

impl From<Range<usize>> for ByteRange {
    fn from(range: Range<usize>) -> Self {
        Self::new(range.start, range.end)
    }
}

/// A half-open range of tokens along one key axis: a segment that is scored as one (a token, a sentence, a chunk).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSpan {
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
}

impl TokenSpan {
    /// # Panics
    /// When `start > end`.
    pub fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "token span is reversed: {start}..{end}");
        Self { start, end }
    }

    /// Number of tokens.
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether the span holds no token.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The same span, `tokens` further right.
    pub fn shifted(self, tokens: usize) -> Self {
        Self::new(self.start + tokens, self.end + tokens)
    }

    /// As a range for slicing.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

/// A retrieved passage as the caller sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// The caller's name for it; unique within a request.
    pub id: String,
    /// Title, read by the model in front of the text, never part of the output.
    pub title: Option<String>,
    /// The text that may be kept.
    pub text: String,
    /// Whatever the caller wants back beside the chunk: JSON, as it was written.
    pub metadata: Option<String>,
}

impl Chunk {
    /// A chunk without title or metadata.
    pub fn new(id: impl Into<String>, text: impl Into<String>) -> Self {
        Self { id: id.into(), title: None, text: text.into(), metadata: None }
    }

    /// Bytes of all its texts.
    pub fn bytes(&self) -> usize {
        let Self { id, title, text, metadata } = self;
        let part = |part: &Option<String>| part.as_ref().map_or(0, String::len);
        id.len() + part(title) + text.len() + part(metadata)
    }
}

/// How much may be kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// At most this many tokens of context.
    Tokens(usize),
    /// At most this share of the input's tokens, in (0, 1].
    Ratio(f64),
    /// As much as the scores say is worth keeping.
    Auto,
}

/// The unit that is kept or dropped as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// Whole chunks.
    Chunk,
    /// Sentences.
    #[default]
    Sentence,
    /// Words: the model's tokens, widened to where the text can be cut.
    Token,
}

/// The order of chunks in the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As the caller sent them.
    #[default]
    Input,
    /// Best first.
    Relevance,
}

/// How the context is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// `[1] text`, one block per chunk.
    #[default]
    Numbered,
    /// The text alone.
    Plain,
    /// `<document index="1" id="...">text</document>`; the text itself is not escaped, it stays the caller's.
    Xml,
}

/// The tokenizer that budgets and usage are counted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerName {
    /// The scoring model's own.
    #[default]
    Model,
    /// OpenAI's `o200k_base`.
    O200kBase,
    /// OpenAI's `cl100k_base`.
    Cl100kBase,
}

/// What to do when a request cannot be answered in time or at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// An error.
    #[default]
    Fail,
    /// The caller's own chunks, whole, marked as degraded.
    Passthrough,
}

/// A question and the chunks to compress for it.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressRequest {
    /// The question.
    pub query: String,
    /// The retriever's chunks, in its order.
    pub chunks: Vec<Arc<Chunk>>,
    /// Whether the chunks were named by their ids in the registry: more of them are allowed then.
    pub registered: bool,
    /// How much may be kept.
    pub budget: Budget,
    /// What is kept or dropped as a whole.
    pub granularity: Granularity,
    /// Ids of chunks that are kept whole whatever their score.
    pub keep: Vec<String>,
    /// Order of chunks in the context.
    pub order: Order,
    /// How the context is written.
    pub format: Format,
    /// What budgets and usage are counted with.
    pub tokenizer: TokenizerName,
    /// Whether per-token RC is returned.
    pub explain: bool,
}

impl CompressRequest {
    /// Asks `query` of `chunks`, everything else as by default.
    pub fn new(query: impl Into<String>, chunks: Vec<Chunk>) -> Self {
        Self {
            query: query.into(),
            chunks: chunks.into_iter().map(Arc::new).collect(),
            registered: false,
            budget: Budget::Auto,
            granularity: Granularity::default(),
            keep: Vec::new(),
            order: Order::default(),
            format: Format::default(),
            tokenizer: TokenizerName::default(),
            explain: false,
        }
    }
}

/// A span of a chunk's text that the context holds, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptSpan {
    /// Index of the chunk in the request.
    pub chunk: usize,
    /// Bytes of the chunk's text.
    pub source: ByteRange,
    /// Bytes of the context. Empty until the context is written.
    pub output: ByteRange,
    /// The span's tokens on the key axis. Empty where the chunk was not read, as in a degraded answer.
    pub tokens: TokenSpan,
    /// The highest RC of a unit in the span. None where nothing was scored.
    pub score: Option<f32>,
}

impl KeptSpan {
    /// A span that no model has scored and that no context holds yet.
    pub fn unscored(chunk: usize, source: ByteRange) -> Self {
        Self { chunk, source, output: ByteRange::new(0, 0), tokens: TokenSpan::new(0, 0), score: None }
    }
}

/// An answer, and the chunks that it may have come from.
#[derive(Debug, Clone, PartialEq)]
pub struct AttributeRequest {
    /// The answer.
    pub answer: String,
    /// The chunks, in the caller's order.
    pub chunks: Vec<Arc<Chunk>>,
    /// Whether the chunks were named by their ids in the registry, or by an earlier request: more of them are allowed then.
    pub registered: bool,
    /// For each chunk the ranges of its text that the answer's author saw, ascending; none: all of it.
    pub seen: Option<Vec<Vec<ByteRange>>>,
    /// Which parts of the answer are asked about.
    pub parts: Parts,
    /// How many of the best chunks are named for one part; those that are cited are, whatever their number.
    pub sources_max: usize,
}

/// The parts of an answer that are tied to chunks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Parts {
    /// Its sentences.
    #[default]
    Sentences,
    /// Its words.
    Words,
    /// These bytes of it, ascending and apart from each other.
    Spans(Vec<ByteRange>),
    /// The values of an answer that is structured, each read by itself.
    Values(Vec<Value>),
}

/// A value of a structured answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Where it stands: a JSON pointer (RFC 6901).
    pub pointer: String,
    /// Bytes of the answer in which it is written.
    pub bytes: ByteRange,
    /// What it is called; empty where nobody calls it anything. Values of one list share it.
    pub key: Arc<str>,
    /// What it says.
    pub text: String,
}

/// Chunks that are named for one part of an answer, unless a request says otherwise.
pub const SOURCES_DEFAULT: usize = 3;

impl AttributeRequest {
    /// Asks for the sources of the sentences of `answer`.
    pub fn new(answer: impl Into<String>, chunks: Vec<Chunk>) -> Self {
        Self {
            answer: answer.into(),
            chunks: chunks.into_iter().map(Arc::new).collect(),
            registered: false,
            seen: None,
            parts: Parts::Sentences,
            sources_max: SOURCES_DEFAULT,
        }
    }
}
