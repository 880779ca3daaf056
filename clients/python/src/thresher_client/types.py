"""What goes in and what comes out, by the names of the wire. Places are half-open ranges.

Every answer has `extra`: what a newer daemon says that this client has no name for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, Union

Granularity = Literal["sentence", "chunk", "token"]
Order = Literal["input", "relevance"]
Format = Literal["numbered", "plain", "xml"]
Tokenizer = Literal["model", "o200k_base", "cl100k_base"]
Offsets = Literal["codepoint", "byte", "utf16"]
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
    """So many tokens at most."""

    tokens: int


class RatioBudget(TypedDict):
    """This part of what it takes with everything kept."""

    ratio: float


class AutoBudget(TypedDict):
    """As much as the evidence says."""

    auto: bool


Budget = Union[TokenBudget, RatioBudget, AutoBudget]


class KvOptions(TypedDict, total=False):
    """Which keys and values of the kept chunks are handed over: all, or with `heads` those that the question reaches."""

    policy: KvPolicy
    ratio: float
    mass: float
    sinks: int
    recent: int


@dataclass(frozen=True)
class Chunk:
    """A chunk to send. The daemon's answers name it by `id`, or by its place where it has none."""

    text: str
    id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] | None = None


ChunkInput = Union[str, Chunk, Mapping[str, Any]]
"""A chunk, its fields, or its text alone."""


@dataclass(frozen=True, kw_only=True)
class Extensible:
    """An answer, which may say more than this client knows."""

    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Range(Extensible):
    """From `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Text(Range):
    """A range and what stands there."""

    text: str


@dataclass(frozen=True, kw_only=True)
class ErrorInfo(Extensible):
    """An error inside an answer."""

    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, kw_only=True)
class Span(Range):
    """A kept part of a chunk: where it is there, and where it stands in the context."""

    score: float | None
    output: Range


@dataclass(frozen=True, kw_only=True)
class CompressedChunk(Extensible):
    """What became of one chunk; `index` is its place in the request."""

    id: str
    index: int
    kept: bool
    score: float | None
    text: str
    spans: tuple[Span, ...]
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    empty: bool = False


@dataclass(frozen=True, kw_only=True)
class Citation(Extensible):
    """A piece of the context and where it came from; `marker` is the chunk's number there."""

    marker: int
    chunk: str
    source: Range
    output: Range
    text: str


@dataclass(frozen=True, kw_only=True)
class Usage(Extensible):
    """Tokens with everything kept, and of what was kept."""

    tokens_in: int
    tokens_out: int
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Rc(Extensible):
    """By what it was scored."""

    estimator: str
    model: str | None = None
    fingerprint: str | None = None
    reach: float | None = None
    related: bool | None = None


@dataclass(frozen=True, kw_only=True)
class KvHandle(Extensible):
    """Where `kv` gets the kept chunks' keys and values, for `expires_s` seconds; `tokens` is the place of what comes next,
    `room_tokens` what the model's context still holds behind them."""

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
    """Answer of `compress`. `id` is what `attribute` takes as `compress_id`."""

    id: str | None
    context: str
    chunks: tuple[CompressedChunk, ...]
    citations: tuple[Citation, ...]
    usage: Usage | None
    rc: Rc
    degraded: ErrorInfo | None
    blocks: Mapping[str, int] | None = None
    timing_ms: Mapping[str, float] = field(default_factory=dict)
    explain: Any = None
    prefilter: Any = None
    kv: KvHandle | None = None


@dataclass(frozen=True, kw_only=True)
class Lack(Text):
    """Words of a part that speak against it."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Source(Extensible):
    """A chunk that a part may have come from."""

    chunk: str
    index: int
    score: float
    cited: bool
    sentence: Text
    run: Text
    tied: bool = False


@dataclass(frozen=True, kw_only=True)
class Part(Text):
    """A part of an answer; `supported` is None where it has no word."""

    supported: bool | None
    support: float | None
    unsupported: tuple[Lack, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class Attribution(Extensible):
    """Answer of `attribute`; `formatted` is in the shape that `format` asked for."""

    parts: tuple[Part, ...]
    rc: Rc
    formatted: Any = None
    blocks: Mapping[str, int] | None = None
    timing_ms: Mapping[str, float] = field(default_factory=dict)
    receipt: Any = None


@dataclass(frozen=True, kw_only=True)
class Change(Extensible):
    """What became of one chunk that was to be registered or deleted: `created`, `updated`, `unchanged`, `failed`; `deleted`, `unknown`."""

    index: int
    id: str | None
    status: str
    error: ErrorInfo | None = None


@dataclass(frozen=True, kw_only=True)
class Progress(Extensible):
    """Registered chunks, and how many of them the model has read."""

    registered: int
    warm: int
    queued: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Changes(Extensible):
    """One change per chunk, in the order of the request."""

    chunks: tuple[Change, ...]
    warming: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class RegisteredChunk(Extensible):
    """A chunk as it is registered."""

    id: str
    text: str
    title: str | None = None
    metadata: Any = None


@dataclass(frozen=True, kw_only=True)
class ChunkPage(Extensible):
    """Chunks in the order of their ids; `next` is what the next page is asked `after`, None on the last."""

    chunks: tuple[RegisteredChunk, ...]
    next: str | None


@dataclass(frozen=True, kw_only=True)
class SearchResult(RegisteredChunk):
    """A registered chunk that was found."""

    score: float
    bm25: float


@dataclass(frozen=True, kw_only=True)
class SearchResults(Extensible):
    """Answer of `search`, best first."""

    results: tuple[SearchResult, ...]
    rank: str
    candidates: int
    timing_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RelevantSpan(Range):
    """A sentence of a document, in code points."""

    score: float


@dataclass(frozen=True, kw_only=True)
class RerankResult(Extensible):
    """A document's place in the request, and its relevance from 0 to 1 within that request."""

    index: int
    relevance_score: float
    document: Mapping[str, Any] | None = None
    relevant_spans: tuple[RelevantSpan, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Reranking(Extensible):
    """Answer of `rerank`, best first."""

    id: str
    results: tuple[RerankResult, ...]
    model: str | None = None
    usage: Mapping[str, int] | None = None
    meta: Any = None


@dataclass(frozen=True, kw_only=True)
class Model(Extensible):
    """The model that the daemon has."""

    id: str
    fingerprint: str | None = None
    window_tokens_max: int | None = None
    estimator: str | None = None
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class Models(Extensible):
    """Answer of `models`."""

    data: tuple[Model, ...]
