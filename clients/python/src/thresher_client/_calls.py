"""Each endpoint as data: what is sent, and as what the answer is read. Both clients have these and nothing else to say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx

from ._decode import DecodeError, decode
from .errors import AnswerInvalidError, api_error
from .types import (
    AnswerFormat,
    Attribution,
    Budget,
    ChunkInput,
    ChunkPage,
    Changes,
    Chunk,
    Compression,
    Format,
    Granularity,
    Include,
    KvOptions,
    Models,
    Offsets,
    OnError,
    Order,
    Progress,
    Rank,
    RegisteredChunk,
    Reranking,
    SearchResults,
    Tokenizer,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the type of its answer. All of them may be repeated: they read, or put things where they are already."""

    kind: type[T]
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str] | None = None

    def content(self) -> bytes | None:
        """The body as it is sent."""
        return None if self.body is None else to_json(self.body)

    def answer(self, response: httpx.Response) -> T:
        """The answer, or the error that it is."""
        if self.kind is bytes and response.status_code < 400:
            return cast(T, response.content)
        return read(self.kind, response)


def to_json(body: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8. What has no place in it (NaN, lone surrogates, objects) is a ValueError or a TypeError before anything is sent."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def read(kind: type[T], response: httpx.Response) -> T:
    """The body of an answer that has been read."""
    try:
        body = json.loads(response.content)
    except ValueError as error:
        if response.status_code >= 400:
            raise api_error(response, None) from None
        raise AnswerInvalidError("answer_invalid", "the answer is not JSON", response.request) from error
    if response.status_code >= 400:
        raise api_error(response, body)
    try:
        return decode(kind, body)
    except DecodeError as error:
        raise AnswerInvalidError("answer_invalid", str(error), response.request) from error


def fields(extra_body: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
    """What was said; None is not said. `extra_body` is for fields that this client has no name for."""
    return {name: value for name, value in named.items() if value is not None} | dict(extra_body or {})


def chunk(given: ChunkInput) -> Any:
    """A chunk as the wire has it."""
    match given:
        case str():
            return given
        case Chunk():
            return fields(text=given.text, id=given.id, title=given.title, metadata=given.metadata)
        case Mapping():
            return dict(given)
        case _:
            raise TypeError(f"a chunk is a text, a Chunk or a mapping, not a {type(given).__name__}")


def chunks(given: Iterable[ChunkInput] | None) -> list[Any] | None:
    """Chunks as the wire has them."""
    if isinstance(given, (str, Chunk, Mapping)):
        raise TypeError("chunks is a list of chunks, not one chunk")
    return None if given is None else [chunk(one) for one in given]


def ids(given: Iterable[str] | None, name: str) -> list[str] | None:
    """Ids; a single text would be taken for a list of letters."""
    if isinstance(given, str):
        raise TypeError(f"{name} is a list of ids, not one id")
    return None if given is None else list(given)


def compress(
    query: str,
    given: Iterable[ChunkInput] | None = None,
    *,
    chunk_ids: Iterable[str] | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    granularity: Granularity | None = None,
    keep: Iterable[str] | None = None,
    order: Order | None = None,
    format: Format | None = None,
    tokenizer: Tokenizer | None = None,
    offsets: Offsets | None = None,
    explain: bool | None = None,
    deadline_ms: int | None = None,
    on_error: OnError | None = None,
    include: Iterable[Include] | None = None,
    kv: KvOptions | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Call[Compression]:
    body = fields(
        extra_body,
        query=query,
        chunks=chunks(given),
        chunk_ids=ids(chunk_ids, "chunk_ids"),
        budget=budget,
        granularity=granularity,
        keep=ids(keep, "keep"),
        order=order,
        format=format,
        tokenizer=tokenizer,
        offsets=offsets,
        explain=explain,
        deadline_ms=deadline_ms,
        on_error=on_error,
        include=ids(include, "include"),
        kv=kv,
    )
    return Call(Compression, "POST", "/v1/compress", body)


def kv(handle: str, fingerprint: str | None = None) -> Call[bytes]:
    if not handle:
        raise ValueError("a handle is what an answer that includes \"kv\" names: kv.handle")
    return Call(bytes, "GET", f"/v1/kv/{quote(handle, safe='')}", params=fields(fingerprint=fingerprint))


def attribute_fields(
    given: Iterable[ChunkInput] | None,
    *,
    chunk_ids: Iterable[str] | None,
    compress_id: str | None,
    granularity: str | None,
    sources_max: int | None,
    offsets: Offsets | None,
    deadline_ms: int | None,
    extra_body: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a whole answer and one that is still to come are asked about with."""
    return fields(
        extra_body,
        chunks=chunks(given),
        chunk_ids=ids(chunk_ids, "chunk_ids"),
        compress_id=compress_id,
        granularity=granularity,
        sources_max=sources_max,
        offsets=offsets,
        deadline_ms=deadline_ms,
    )


def attribute(
    answer: str,
    given: Iterable[ChunkInput] | None = None,
    *,
    chunk_ids: Iterable[str] | None = None,
    compress_id: str | None = None,
    granularity: str | None = None,
    spans: Iterable[tuple[int, int]] | None = None,
    sources_max: int | None = None,
    offsets: Offsets | None = None,
    format: AnswerFormat | None = None,
    receipt: bool | None = None,
    deadline_ms: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Call[Attribution]:
    body = attribute_fields(
        given,
        chunk_ids=chunk_ids,
        compress_id=compress_id,
        granularity=granularity,
        sources_max=sources_max,
        offsets=offsets,
        deadline_ms=deadline_ms,
        extra_body=extra_body,
    )
    places = None if spans is None else [{"start": start, "end": end} for start, end in spans]
    body = fields(body, answer=answer, spans=places, format=format, receipt=receipt)
    return Call(Attribution, "POST", "/v1/attribute", body)


def register_chunks(
    given: Iterable[ChunkInput],
    *,
    wait: bool | None = None,
    deadline_ms: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Call[Changes]:
    body = fields(extra_body, chunks=chunks(given), wait=wait, deadline_ms=deadline_ms)
    return Call(Changes, "POST", "/v1/chunks", body)


def delete_chunks(chunk_ids: Iterable[str]) -> Call[Changes]:
    # The batch, also for one: it answers `unknown` where `DELETE` of a path answers 404, so that repeating it is no error.
    return Call(Changes, "POST", "/v1/chunks/delete", fields(ids=ids(chunk_ids, "chunk_ids")))


def get_chunk(chunk_id: str) -> Call[RegisteredChunk]:
    return Call(RegisteredChunk, "GET", f"/v1/chunks/{quote(chunk_id, safe='')}")


def list_chunks(
    *, limit: int | None = None, after: str | None = None, filter: Mapping[str, Any] | None = None
) -> Call[ChunkPage]:
    said = None if filter is None else to_json(filter).decode()
    params = fields(limit=None if limit is None else str(limit), after=after, filter=said)
    return Call(ChunkPage, "GET", "/v1/chunks", params=params)


def progress() -> Call[Progress]:
    return Call(Progress, "GET", "/v1/registry")


def search(
    query: str,
    *,
    limit: int | None = None,
    candidates: int | None = None,
    filter: Mapping[str, Any] | None = None,
    rank: Rank | None = None,
    deadline_ms: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Call[SearchResults]:
    body = fields(
        extra_body,
        query=query,
        limit=limit,
        candidates=candidates,
        filter=filter,
        rank=rank,
        deadline_ms=deadline_ms,
    )
    return Call(SearchResults, "POST", "/v1/search", body)


def rerank(
    query: str,
    documents: Iterable[str | Mapping[str, Any]],
    *,
    top_n: int | None = None,
    rank_fields: Iterable[str] | None = None,
    return_documents: bool | None = None,
    relevant_spans: Mapping[str, Any] | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Call[Reranking]:
    body = fields(
        extra_body,
        query=query,
        documents=documents_of(documents),
        top_n=top_n,
        rank_fields=ids(rank_fields, "rank_fields"),
        return_documents=return_documents,
        relevant_spans=relevant_spans,
    )
    return Call(Reranking, "POST", "/v2/rerank", body)


def documents_of(documents: Iterable[str | Mapping[str, Any]]) -> list[Any]:
    """Documents as the wire has them."""
    if isinstance(documents, (str, Mapping)):
        raise TypeError("documents is a list of documents, not one document")
    return [one if isinstance(one, str) else dict(one) for one in documents]


def models() -> Call[Models]:
    return Call(Models, "GET", "/v1/models")
