"""Types of arguments and answers. Fields have the names of the HTTP API.

Ranges are half-open: `start` is inside, `end` is not. Offsets into text count the unit that the request set with `offsets`
(code points by default). Every answer has `extra`, which holds the fields that this version of the client does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, Union

Granularity = Literal["sentence", "chunk", "token"]
Kind = Literal["auto", "prose", "markdown", "code", "json", "table", "log", "chat", "html", "pdf", "mail", "subtitles"]
Omissions = Literal["auto", "none", "ellipsis", "range"]
Order = Literal["input", "relevance"]
Format = Literal["numbered", "plain", "xml"]
Tokenizer = Literal["model", "o200k_base", "cl100k_base"]
Offsets = Literal["codepoint", "byte", "utf16"]
DeadlinePolicy = Literal["fail", "best_effort"]
OnError = Literal["fail", "passthrough"]
Rank = Literal["rc", "bm25"]
Include = Literal["kv"]
KvPolicy = Literal["chunks", "heads"]
AnswerFormat = Literal[
    "native",
    "anthropic_document",
    "anthropic_search_result",
    "openai_responses",
    "openai_chat",
    "markers",
    "json",
]


class TokenBudget(TypedDict):
    """A budget that limits the context to `tokens` tokens, counted by the tokenizer of the request."""

    tokens: int


class RatioBudget(TypedDict):
    """A budget that limits the context to `ratio` (0 to 1) of the tokens it has with everything kept."""

    ratio: float


class AutoBudget(TypedDict):
    """A budget that keeps the fewest sentences that carry most of the evidence."""

    auto: bool


class CoverageBudget(TypedDict):
    """A budget that keeps the fewest sentences that hold all needed evidence with at least the probability `coverage` (0.5 to 0.99)."""

    coverage: float


Budget = Union[TokenBudget, RatioBudget, AutoBudget, CoverageBudget]


class KvOptions(TypedDict, total=False):
    """Chooses which keys and values of the kept chunks are exported.

    `policy` is `"chunks"` (all of them, the default) or `"heads"` (a part of each head's, chosen for the question). The other
    fields are for `"heads"` only: `ratio` is the share of all keys, `mass` (instead of `ratio`) the share of RC that
    each head's keys carry; `sinks` and `recent` are how many first and last tokens every head exports; `prompt` is the text that
    the model will read after the chunks, with the question (default: the query).
    """

    policy: KvPolicy
    ratio: float
    mass: float
    sinks: int
    recent: int
    prompt: str


@dataclass(frozen=True)
class Chunk:
    """A chunk of a request. Answers name it by `id`; a chunk without one gets its index in the request as its id."""

    text: str
    id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    kind: Kind | None = None


ChunkInput = Union[str, Chunk, Mapping[str, Any]]
"""A chunk as a `Chunk`, as a mapping with the same fields, or as a plain string: its text."""


@dataclass(frozen=True, kw_only=True)
class Extensible:
    """Base class of answers. `extra` holds the fields of the daemon's answer that this version of the client does not know."""

    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Range(Extensible):
    """A half-open range of a text: `start` is inside, `end` is not."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class TextRange(Range):
    """A range of a text, with the text in that range."""

    text: str


@dataclass(frozen=True, kw_only=True)
class ErrorInfo(Extensible):
    """An error inside a successful answer. `param` is the path of the wrong field in the request, if one field is at fault."""

    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, kw_only=True)
class Span(Range):
    """A kept part of a chunk: its range in the chunk's text, and in `output` its range in the context.

    `score` is None in a degraded answer.
    """

    score: float | None
    output: Range


@dataclass(frozen=True, kw_only=True)
class CompressedChunk(Extensible):
    """What a compression kept of one chunk.

    `index` is the chunk's position in the request, and `text` its text as it is in the context. `empty` is true if the chunk has no
    text to read, and `unread` if the deadline left no time to read it (`deadline_policy="best_effort"`). `kind` says how the text was
    divided; None if units are chunks or words. `lang` is the language of its text as an ISO 639-3 code; None if it is unknown. Scores
    rank chunks within one request; `score` is None in a degraded answer and for an unread chunk.
    """

    id: str
    index: int
    kept: bool
    score: float | None
    text: str
    spans: tuple[Span, ...]
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    empty: bool = False
    unread: bool = False
    kind: str | None = None
    lang: str | None = None


@dataclass(frozen=True, kw_only=True)
class Citation(Extensible):
    """The origin of one piece of the context.

    `marker` is the chunk's number in the context (1 for the first kept chunk), `chunk` its id, `source` the range in the chunk's
    text, `output` the range in the context, and `text` the piece itself.
    """

    marker: int
    chunk: str
    source: Range
    output: Range
    text: str


@dataclass(frozen=True, kw_only=True)
class Usage(Extensible):
    """Size of a context in tokens: `tokens_in` with everything kept, `tokens_out` as it is; `ratio` is the second over the first."""

    tokens_in: int
    tokens_out: int
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Rc(Extensible):
    """The statistic and the model that computed the scores.

    `reach` is the mean over question tokens of each token's largest logit over all chunks. `related` is true if `reach` is high
    enough for at least one chunk to concern the question; if it is false, nothing is kept, and `reason` says why. Both are None
    for decoders and in degraded answers. `turns_read` says how many turns of `messages` the question was read with. `lang` is
    the language of the question as an ISO 639-3 code; None if it is unknown.
    """

    estimator: str
    model: str | None = None
    fingerprint: str | None = None
    reach: float | None = None
    related: bool | None = None
    reason: str | None = None
    turns_read: int | None = None
    lang: str | None = None


@dataclass(frozen=True, kw_only=True)
class Answerable(Extensible):
    """Says whether the chunks answer the question.

    `probability` is the probability that they do, and `answerable` is true if it is at least `least`, the limit that `missed_max`
    sets. `source` is the range of the text that comes closest to an answer, in the chunk with the id `chunk`. These three are None
    in a reranking.
    """

    probability: float
    answerable: bool
    least: float | None = None
    chunk: str | None = None
    source: Range | None = None


@dataclass(frozen=True, kw_only=True)
class CompressionWarning(Extensible):
    """Something to know about a compression, though it is not an error: `code`, `message`, and the id of the `chunk`, if any.

    Codes are `rows_left_out`, `group_cut`, `kind_unfit`, `script_unknown`, `question_shortened` and
    `unread`.
    """

    code: str
    message: str
    chunk: str | None = None


@dataclass(frozen=True, kw_only=True)
class KvHandle(Extensible):
    """Names an export of keys and values, which `Client.kv` fetches.

    - `handle`: the name to fetch the export by
    - `expires_s`: seconds until the handle expires; the daemon drops it earlier if newer exports need the memory
    - `policy`: `"chunks"` or `"heads"`
    - `tokens`: number of exported tokens, including the special tokens in front; also the position of the next token
    - `room_tokens`: number of tokens that still fit into the model's context, for the question and the answer
    - `share`: share of the chunks' keys that is exported, 0 to 1
    - `bytes`: size of the file
    - `fingerprint`: identifies the model's weights
    """

    handle: str
    expires_s: int
    policy: str
    tokens: int
    room_tokens: int
    share: float
    bytes: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Compression(Extensible):
    """Answer of `compress`.

    - `id`: the name of this compression, which `attribute` takes as `compress_id`
    - `context`: the text to send to the language model
    - `chunks`: one entry for each chunk of the request
    - `citations`: one entry for each piece of the context
    - `usage`: size of the context in tokens; None in a degraded answer
    - `answerable`: whether the chunks answer the question; None where this is not measured: for decoders, outside English prose, and
      in a degraded answer
    - `degraded`: the error that made the daemon return the chunks unchanged (`on_error="passthrough"`), otherwise None
    - `blocks`: number of chunks by where their keys came from: `memory`, `disk`, `shared`, `joined`, `read`
    - `timing_ms`: milliseconds for each stage, and `total`
    - `warnings`: what to know about the context
    - `explain`: RC of each token, if the request set `explain`
    - `prefilter`: how many registered chunks there were and how many the model scored, if BM25 left some out
    - `kv`: the export of keys and values, if the request included it
    """

    id: str | None
    context: str
    chunks: tuple[CompressedChunk, ...]
    citations: tuple[Citation, ...]
    usage: Usage | None
    rc: Rc
    degraded: ErrorInfo | None
    answerable: Answerable | None = None
    blocks: Mapping[str, int] | None = None
    timing_ms: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[CompressionWarning, ...] = ()
    explain: Any = None
    prefilter: Any = None
    kv: KvHandle | None = None


@dataclass(frozen=True, kw_only=True)
class UnsupportedSpan(TextRange):
    """Words of a part that speak against its support.

    `reason` is `number`, `name` or `negation` (no source has it), `negation_dropped` (the sources have a negation that the part
    lacks), or `word` (any other word).
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class Source(Extensible):
    """A chunk that a part of an answer may have come from.

    - `chunk`, `index`: the chunk's id, and its position in the request
    - `score`: compares the sources of one part; not comparable between parts
    - `cited`: whether to cite this chunk for the part
    - `sentence`: the sentence of the chunk that says most of the part
    - `run`: the shortest run of words in that sentence that says nearly as much
    - `tied`: whether the chunk is cited only because it says the same as another cited chunk
    """

    chunk: str
    index: int
    score: float
    cited: bool
    sentence: TextRange
    run: TextRange
    tied: bool = False


@dataclass(frozen=True, kw_only=True)
class Conflict(TextRange):
    """Words of a part, and what a chunk says instead.

    `reason` is `number`, `name`, `contrast` (a word that excludes the part's word, such as another weekday), `negation` or `roles`
    (two names in the opposite order). `source` is the word of the chunk, `chunk` the chunk's id, and `index` its position in the
    request.
    """

    reason: str
    chunk: str
    index: int
    source: TextRange


@dataclass(frozen=True, kw_only=True)
class Part(TextRange):
    """A part of an answer (a sentence, a word or a given span) with the chunks it may have come from, best first.

    - `verdict`: `supported`, `partly` (the chunks say some of it, and `unsupported` has the rest), `contradicted` (the chunks say
      something else, and `conflicts` says what), `not_found` (the chunks do not speak of it) or `no_claim` (the part has no word, or
      is a greeting, a question, a heading, or says that the chunks have no answer)
    - `supported`: whether the verdict is `supported`
    - `support`: the probability that the chunks support the part. With a decoder, it is not calibrated and only ranks parts.
    - `unsupported`: words that no source has
    - `conflicts`: what the chunks say instead, if the part is contradicted
    - `sources`: the chunks that the part may have come from

    `supported` and `support` are None for a part that makes no claim.
    """

    verdict: str
    supported: bool | None
    support: float | None
    unsupported: tuple[UnsupportedSpan, ...]
    sources: tuple[Source, ...]
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QuotePassage(TextRange):
    """A passage of a chunk that a quotation repeats. `chunk` is the chunk's id, and `index` its position in the request."""

    chunk: str
    index: int


@dataclass(frozen=True, kw_only=True)
class Quote(TextRange):
    """A quotation of an answer: the text between its quotation marks.

    - `verdict`: `exact`, `stitched` (it consists of several passages), `altered` (most of its words stand in one chunk),
      `misattributed` (it stands in another chunk than the one that the answer names) or `fabricated` (no chunk has most of its words)
    - `has_ellipsis`: whether a mark such as `…` says that something was left out
    - `passages`: the passages that it came from; none if it is fabricated
    - `altered`: its words that the passages do not have
    """

    verdict: str
    has_ellipsis: bool
    passages: tuple[QuotePassage, ...]
    altered: tuple[TextRange, ...]


@dataclass(frozen=True, kw_only=True)
class Attribution(Extensible):
    """Answer of `attribute`.

    `quotes` has the quotations of the answer that have at least three words. `formatted` has the shape that `format` requested.
    `receipt` is the signed record of the attribution, if requested. `blocks` and `timing_ms` are those of `Compression`.
    """

    parts: tuple[Part, ...]
    quotes: tuple[Quote, ...]
    rc: Rc
    formatted: Any = None
    blocks: Mapping[str, int] | None = None
    timing_ms: Mapping[str, float] = field(default_factory=dict)
    receipt: Any = None


@dataclass(frozen=True, kw_only=True)
class Change(Extensible):
    """Result of registering or deleting one chunk.

    `index` is its position in the request. `status` is `created`, `updated`, `unchanged` or `failed` (with `error`) after
    registering, and `deleted` or `unknown` (it was not registered) after deleting.
    """

    index: int
    id: str | None
    status: str
    error: ErrorInfo | None = None


@dataclass(frozen=True, kw_only=True)
class Progress(Extensible):
    """Numbers of chunks: `registered`, `warm` (the model has read them), `queued`, and `failed` (the model could not read them)."""

    registered: int
    warm: int
    queued: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Changes(Extensible):
    """Answer of `register_chunks` and `delete_chunks`: one result for each chunk, in the order of the request.

    `warming` says how many chunks of the request the model has read; it is None after deleting.
    """

    chunks: tuple[Change, ...]
    warming: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class RegisteredChunk(Extensible):
    """A chunk that is registered with the daemon."""

    id: str
    text: str
    title: str | None = None
    kind: str | None = None
    metadata: Any = None


@dataclass(frozen=True, kw_only=True)
class ChunkPage(Extensible):
    """A page of registered chunks, in the order of their ids. Pass `next` as `after` for the next page; None marks the last one."""

    chunks: tuple[RegisteredChunk, ...]
    next: str | None


@dataclass(frozen=True, kw_only=True)
class SearchResult(RegisteredChunk):
    """A registered chunk that a search found. `score` orders the results: RC, or `bm25` if the search ranked by BM25."""

    score: float
    bm25: float


@dataclass(frozen=True, kw_only=True)
class SearchResults(Extensible):
    """Answer of `search`, best first. `candidates` is the number of chunks that BM25 found for the model to rank."""

    results: tuple[SearchResult, ...]
    rank: str
    candidates: int
    timing_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RelevantSpan(Range):
    """A sentence of a document, with its relevance from 0 to 1. Its range is in code points."""

    score: float


@dataclass(frozen=True, kw_only=True)
class RerankResult(Extensible):
    """The relevance of one document: `index` is its position in the request.

    `relevance_score` is from 0 to 1 and compares the documents of one request only.
    """

    index: int
    relevance_score: float
    document: Mapping[str, Any] | None = None
    relevant_spans: tuple[RelevantSpan, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Reranking(Extensible):
    """Answer of `rerank`, best document first.

    `related` is true if at least one document concerns the question, and `answerable` says whether the documents answer it. Both
    come from headers of the response, and are None where they are not measured.
    """

    id: str
    results: tuple[RerankResult, ...]
    related: bool | None = None
    answerable: Answerable | None = None
    model: str | None = None
    usage: Mapping[str, int] | None = None
    meta: Any = None


@dataclass(frozen=True, kw_only=True)
class Model(Extensible):
    """A model that the daemon has loaded.

    `fingerprint` identifies how it was exported, including its weights; `window_tokens_max` is the number of tokens that it reads
    at once; `estimator` is the statistic that scores; `exports_kv` says whether keys and values are exported from it.
    """

    id: str
    fingerprint: str | None = None
    window_tokens_max: int | None = None
    estimator: str | None = None
    device: str | None = None
    exports_kv: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Models(Extensible):
    """Body of the answer of `GET /v1/models`."""

    data: tuple[Model, ...]
