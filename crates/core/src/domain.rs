//! The data types that every module shares: chunks, ranges, budgets, and the requests to compress and to
//! attribute. Knows nothing of models, HTTP or storage.
//!
//! Positions in a text are UTF-8 byte offsets ([`ByteRange`]); positions on the key axis of the model's
//! attention are token indices ([`TokenSpan`]). The daemon converts the offsets of its JSON API, see
//! [`OffsetMap`](crate::text::offsets::OffsetMap).

mod place;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
pub use thresher_text::{ByteRange, Kind};

pub use self::place::{Anchors, InvalidAnchors, PAGES_MAX, PageStart};

/// The name of a tenant. Tenants are isolated: no request can observe another tenant's data. The default
/// tenant, whose name is empty, is the only tenant of a daemon without API keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

const TENANT_NAME_BYTES_MAX: usize = 64;

impl Tenant {
    /// Returns the tenant with this name, or the default tenant for an empty name. Returns `None` for an
    /// invalid name: a valid one has at most 64 bytes, consists of ASCII lower-case letters, digits, `-`, `_`
    /// and `.`, and does not begin with `.`.
    ///
    /// The name is also the name of a directory and a part of a journal's name. Without upper-case letters,
    /// two tenants never share a directory, even on a file system that ignores letter case.
    ///
    /// ```
    /// use thresher_core::domain::Tenant;
    ///
    /// assert_eq!(Tenant::new("team-a").expect("a valid name").name(), "team-a");
    /// assert!(Tenant::new("").expect("the default tenant").is_default());
    /// assert!(Tenant::new("Team A").is_none());
    /// ```
    pub fn new(name: &str) -> Option<Self> {
        let is_allowed =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
        let is_valid =
            name.len() <= TENANT_NAME_BYTES_MAX && name.bytes().all(is_allowed) && !name.starts_with('.');
        is_valid.then(|| Self(name.into()))
    }

    /// Returns the tenant's name, which is empty for the default tenant.
    pub fn name(&self) -> &str {
        &self.0
    }

    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self("".into())
    }
}

/// A half-open range `start..end` of token indices on a key axis: a segment that is scored as one, such as a
/// token, a sentence or a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSpan {
    pub start: usize,
    /// Index one past the last token; never below `start`.
    pub end: usize,
}

impl TokenSpan {
    /// Returns the span `start..end`.
    ///
    /// # Panics
    /// When `start > end`.
    pub fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "token span is reversed: {start}..{end}");
        Self { start, end }
    }

    pub fn len(self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    pub fn shifted(self, tokens: usize) -> Self {
        Self::new(self.start + tokens, self.end + tokens)
    }

    /// Returns the span as a [`Range`], for slicing and iterating.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

/// A language by its ISO 639-3 code, such as `eng` or `rus`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct Lang([u8; 3]);

impl Lang {
    /// Returns the language whose code has these bytes, or `None` if they are not three lower-case ASCII
    /// letters.
    pub fn from_bytes(code: [u8; 3]) -> Option<Self> {
        code.iter().all(u8::is_ascii_lowercase).then_some(Self(code))
    }

    pub fn as_bytes(self) -> [u8; 3] {
        self.0
    }

    pub fn code(&self) -> &str {
        std::str::from_utf8(&self.0).expect("the constructor takes only ASCII letters")
    }
}

impl fmt::Debug for Lang {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Serialize for Lang {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

/// How the places are marked at which text of a chunk was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Omissions {
    /// As `range` in code, logs and tables. In other texts, `…` between two kept parts that were not neighbours.
    #[default]
    Auto,
    /// No marks: a new line begins where text was left out.
    None,
    /// `[…]`, in code as a comment.
    Ellipsis,
    /// The number of lines, such as `[… 14 lines]`, in code as a comment. `[…]` if what was left out is not a
    /// line.
    Range,
}

/// A retrieved passage, as the caller sent it.
///
/// ```
/// use thresher_core::domain::{Anchors, Chunk, Kind};
///
/// let chunk = Chunk {
///     id: "tides-3".to_owned(),
///     title: Some("Tides".to_owned()),
///     text: "The moon raises two tides a day.".to_owned(),
///     kind: Kind::Auto,
///     metadata: Some(r#"{"page": 3}"#.to_owned()),
///     anchors: Anchors::default(),
/// };
/// assert_eq!(chunk.bytes(), 7 + 5 + 32 + 11);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// The caller's id of the chunk, unique within a request.
    pub id: String,
    /// The title of the document. The model reads it in front of the text. It is never selected; the context
    /// has it before the text of the chunk, or as an attribute ([`Format::Xml`]).
    pub title: Option<String>,
    /// The text from which sentences are kept or dropped.
    pub text: String,
    /// What the text is; found out from the text by default.
    pub kind: Kind,
    /// JSON that is returned with the chunk exactly as the caller wrote it. Of this, the pipeline reads only the
    /// field `date`, to tell which of two chunks that disagree is newer.
    pub metadata: Option<String>,
    /// Where the text stands in its document. Only citations name it.
    pub anchors: Anchors,
}

impl Chunk {
    /// Returns a chunk without title and metadata.
    pub fn new(id: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            title: None,
            text: text.into(),
            kind: Kind::Auto,
            metadata: None,
            anchors: Anchors::default(),
        }
    }

    /// Returns the total size of id, title, text, metadata and anchors in bytes.
    pub fn bytes(&self) -> usize {
        let Self { id, title, text, kind: _, metadata, anchors } = self;
        let len = |field: &Option<String>| field.as_ref().map_or(0, String::len);
        id.len() + len(title) + text.len() + len(metadata) + anchors.bytes()
    }
}

/// How much context a compression keeps. Tokens are counted with the request's [`TokenizerName`].
///
/// A budget has two sides: `coverage` says how much is enough, and `at_most` how much is too much. With neither, enough is what
/// [`COVERAGE_DEFAULT`] promises. With `at_most` alone, the context is filled up to it. With both, the context ends where it is enough,
/// and never above `at_most`.
///
/// ```
/// use thresher_core::domain::{AtMost, Budget, Chunk, CompressRequest};
///
/// let chunk = Chunk::new("moon", "The moon raises two tides a day. It is 384,400 km away.");
/// let mut request = CompressRequest::new("How many tides are there a day?", vec![chunk]);
/// assert_eq!(request.budget, Budget::default(), "as much as the answer needs");
/// request.budget = Budget { at_most: Some(AtMost::Tokens(2_000)), ..Budget::coverage(0.9) };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    pub at_most: Option<AtMost>,
    /// The least probability with which the context holds the evidence that the answer needs, from 0.5 to 0.99; see
    /// [`coverage`](crate::pipeline::decide::coverage).
    pub coverage: Option<f64>,
    /// The tokens that the context has at least if the chunks have as many, whatever `coverage` says. A unit is kept whole, so there may be
    /// a few hundred tokens more.
    pub at_least: usize,
}

/// The coverage of a budget that names neither side.
pub const COVERAGE_DEFAULT: f64 = 0.9;

/// The most that a context may hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AtMost {
    Tokens(usize),
    /// This share of the input's tokens, above 0 and at most 1. A share of 1 keeps everything.
    Ratio(f64),
}

impl Budget {
    /// Returns a budget that is filled with the best text up to so many tokens.
    pub const fn tokens(tokens: usize) -> Self {
        Self { at_most: Some(AtMost::Tokens(tokens)), coverage: None, at_least: 0 }
    }

    /// Returns a budget that is filled with the best text up to a share of the input's tokens.
    pub const fn ratio(ratio: f64) -> Self {
        Self { at_most: Some(AtMost::Ratio(ratio)), coverage: None, at_least: 0 }
    }

    /// Returns a budget that ends where the evidence is held with this probability.
    pub const fn coverage(coverage: f64) -> Self {
        Self { at_most: None, coverage: Some(coverage), at_least: 0 }
    }

    /// Returns the probability at which the context is enough; `None` if it is filled.
    pub fn enough(&self) -> Option<f64> {
        match (self.coverage, self.at_most) {
            (None, Some(_)) => None,
            (coverage, _) => Some(coverage.unwrap_or(COVERAGE_DEFAULT)),
        }
    }
}

/// The unit of text that selection keeps or drops as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// Whole chunks.
    Chunk,
    /// Single sentences.
    #[default]
    Sentence,
    /// Single words: the model's tokens, widened to the nearest places where the text can be cut.
    Word,
}

/// The order of the chunks in the compressed context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The order in which the caller sent them.
    #[default]
    Input,
    /// Descending relevance score.
    Relevance,
}

/// How the chunks are written into the compressed context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Each chunk begins with its number in square brackets: `[1] text`. Its title, if it has one, stands on a
    /// line of its own after the number.
    #[default]
    Numbered,
    /// The text of the chunks without any markup. Their titles stand on a line before the text.
    Plain,
    /// Each chunk is an XML element: `<document index="1" id="..." title="...">text</document>`. Attributes
    /// are escaped; the text is not, so that it stays word for word the caller's.
    Xml,
}

/// The tokenizer that counts the tokens of budgets and usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerName {
    /// The tokenizer of the scoring model.
    Model,
    /// OpenAI's `o200k_base`.
    #[default]
    O200kBase,
    /// OpenAI's `cl100k_base`.
    Cl100kBase,
}

/// What the daemon answers when a request cannot be compressed in time or at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// An error response.
    #[default]
    Fail,
    /// The best answer over the chunks that were read before the deadline; the others are marked as unread. If there is no
    /// such answer, an error.
    BestEffort,
    /// The caller's chunks, uncompressed, in a response that is marked as degraded.
    Passthrough,
}

/// A request to compress: a question and the chunks to keep only the needed parts of.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressRequest {
    pub query: String,
    /// The texts of the turns of the conversation before the question, oldest first. They say what "she" is in
    /// "When was she born?".
    pub history: Vec<String>,
    /// The retrieved chunks, in the retriever's order.
    pub chunks: Vec<Arc<Chunk>>,
    /// Whether the caller named the chunks by their ids in the registry. More chunks are then allowed in one
    /// request.
    pub registered: bool,
    /// How much context is kept; as much as the answer needs by default.
    pub budget: Budget,
    /// The unit that is kept or dropped as a whole; sentences by default.
    pub granularity: Granularity,
    /// Ids of chunks that are kept whole, whatever their score.
    pub keep: Vec<String>,
    /// Whether the first unit of the first chunk, the last unit of the last one and what is
    /// [notable](crate::pipeline::notable) are kept, whatever their score; false by default.
    pub keeps_notable: bool,
    /// The order of the chunks in the context; the caller's order by default.
    pub order: Order,
    /// How the chunks are written into the context; numbered by default.
    pub format: Format,
    /// Whether the context has the titles of its chunks, in formats other than XML; true by default.
    pub titles: bool,
    pub omissions: Omissions,
    /// The tokenizer that counts the tokens of the budget and of usage; OpenAI's `o200k_base` by default.
    pub tokenizer: TokenizerName,
    /// Whether nothing is kept if no chunk is related to the question; false by default.
    pub related_only: bool,
    /// The share of answerable questions that may be taken for unanswerable; `None` means that of the settings.
    pub missed_max: Option<f64>,
    /// Whether only the chunks that can be read before the deadline are read; false by default: then a request without
    /// time for all of them fails.
    pub best_effort: bool,
    /// Whether the result contains RC per token.
    pub explain: bool,
}

impl CompressRequest {
    /// Returns a request for `query` over `chunks` with the default of every option.
    pub fn new(query: impl Into<String>, chunks: Vec<Chunk>) -> Self {
        Self {
            query: query.into(),
            history: Vec::new(),
            chunks: chunks.into_iter().map(Arc::new).collect(),
            registered: false,
            budget: Budget::default(),
            granularity: Granularity::default(),
            keep: Vec::new(),
            keeps_notable: false,
            order: Order::default(),
            format: Format::default(),
            titles: true,
            omissions: Omissions::default(),
            tokenizer: TokenizerName::default(),
            related_only: false,
            missed_max: None,
            best_effort: false,
            explain: false,
        }
    }
}

/// A span of a chunk's text that the context holds, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptSpan {
    /// Index of the chunk in the request.
    pub chunk: usize,
    /// Byte range in the chunk's text.
    pub source: ByteRange,
    /// Byte range in the compressed context; empty until the context is written.
    pub output: ByteRange,
    /// The span's tokens on the key axis; empty if the chunk was not read, as in a degraded answer.
    pub tokens: TokenSpan,
    /// The highest RC of a unit in the span; `None` if nothing was scored.
    pub score: Option<f32>,
}

impl KeptSpan {
    /// Returns a span that no model has scored and that no context holds yet.
    pub fn unscored(chunk: usize, source: ByteRange) -> Self {
        Self { chunk, source, output: ByteRange::new(0, 0), tokens: TokenSpan::new(0, 0), score: None }
    }
}

/// A request to attribute: an answer, and the chunks that its parts may come from.
#[derive(Debug, Clone, PartialEq)]
pub struct AttributeRequest {
    pub answer: String,
    /// The chunks that may be cited, in the caller's order.
    pub chunks: Vec<Arc<Chunk>>,
    /// Whether the caller named the chunks by their ids in the registry or by the id of an earlier request.
    /// More chunks are then allowed in one request.
    pub registered: bool,
    /// `[chunk]`: the ascending byte ranges of the chunk's text that the author of the answer saw. `None`
    /// means all text of all chunks.
    pub seen: Option<Vec<Vec<ByteRange>>>,
    /// `[chunk]`: the number by which the author of the answer knew the chunk, as in `[2]`. `None` means that
    /// the chunks were numbered from 1.
    pub markers: Option<Vec<Option<usize>>>,
    /// The parts of the answer that are attributed separately; its sentences by default.
    pub parts: Parts,
    /// How many of the best chunks are named as sources of one part. Cited chunks are named in any case.
    /// [`SOURCES_DEFAULT`] by default.
    pub sources_max: usize,
}

/// How an answer is divided into the parts that are attributed to chunks separately.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Parts {
    #[default]
    Sentences,
    Words,
    /// Each of these byte ranges of the answer is a part. The ranges are ascending and do not overlap.
    Spans(Vec<ByteRange>),
    /// Each of these values of a structured (JSON) answer is a part.
    Values(Vec<Value>),
}

/// A value of a structured (JSON) answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The position of the value in the answer: a JSON pointer (RFC 6901), such as `/items/0/price`.
    pub pointer: String,
    /// Byte range of the value in the answer, without the quotes of a string.
    pub bytes: ByteRange,
    /// The name of the member that holds the value; empty when there is none. All values of one list share
    /// the list's name.
    pub key: Arc<str>,
    /// The value as text: a string without JSON quotes and escapes, anything else as it is written.
    pub text: String,
}

/// How many chunks are named as sources of one part of an answer when a request does not say.
pub const SOURCES_DEFAULT: usize = 3;

impl AttributeRequest {
    /// Returns a request for the sources of every sentence of `answer`, with the default of every option.
    pub fn new(answer: impl Into<String>, chunks: Vec<Chunk>) -> Self {
        Self {
            answer: answer.into(),
            chunks: chunks.into_iter().map(Arc::new).collect(),
            registered: false,
            seen: None,
            markers: None,
            parts: Parts::Sentences,
            sources_max: SOURCES_DEFAULT,
        }
    }
}
