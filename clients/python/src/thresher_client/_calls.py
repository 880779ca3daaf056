"""Describes each endpoint as data: the request to send and the type of the answer. Does no I/O; both clients use it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx

from ._decode import DecodeError, decode
from ._requests import AttributeOptions, CompressOptions, RegisterOptions, RerankOptions, SearchOptions
from .errors import AnswerInvalidError, api_error
from .types import (
    Attribution,
    Changes,
    Chunk,
    ChunkInput,
    ChunkPage,
    Compression,
    Models,
    Progress,
    RegisteredChunk,
    Reranking,
    RerankingAnswerable,
    SearchResults,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

# The arguments that are lists.
_LISTS = {"chunk_ids", "ids", "include", "keep", "messages", "rank_fields"}
_RELATED = "x-thresher-related"
_ANSWERABLE = "x-thresher-answerable"
# Such as `false;p=0.031`.
_ANSWERABLE_VALUE = re.compile(r"(true|false);p=([01](?:\.\d+)?)")


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request and the type of its answer.

    Every call can be repeated safely: it reads, or it stores what is already stored.
    """

    answer_type: type[T]
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str] | None = None

    def content(self) -> bytes | None:
        """Returns the bytes of the request's body, or None if it has none."""
        return None if self.body is None else to_json(self.body)

    def answer(self, response: httpx.Response) -> T:
        """Returns the answer in `response`, or raises the error that it reports."""
        if self.answer_type is bytes and response.status_code < 400:
            return cast(T, response.content)
        return parse_answer(self.answer_type, response)


class RerankCall(Call[Reranking]):
    """The call of a rerank endpoint. Its body has Cohere's format, so the daemon's own results come in headers."""

    def answer(self, response: httpx.Response) -> Reranking:
        answer = super().answer(response)
        related = response.headers.get(_RELATED)
        answerable = _ANSWERABLE_VALUE.fullmatch(response.headers.get(_ANSWERABLE, ""))
        return replace(
            answer,
            related=None if related is None else related == "true",
            answerable=answerable
            and RerankingAnswerable(probability=float(answerable[2]), answerable=answerable[1] == "true"),
        )


def to_json(body: Mapping[str, Any]) -> bytes:
    """Returns `body` as JSON in UTF-8.

    Raises a `ValueError` for NaN, infinities and lone surrogates, and a `TypeError` for objects that JSON cannot represent.
    """
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def parse_answer(answer_type: type[T], response: httpx.Response) -> T:
    """Returns the body of a complete answer as an `answer_type`, or raises the error that it reports."""
    try:
        body = json.loads(response.content)
    except ValueError as error:
        if response.status_code >= 400:
            raise api_error(response, None) from None
        raise AnswerInvalidError("answer_invalid", "the answer is not JSON", response.request) from error
    if response.status_code >= 400:
        raise api_error(response, body)
    try:
        return decode(answer_type, body)
    except DecodeError as error:
        raise AnswerInvalidError("answer_invalid", str(error), response.request) from error


def fields(extra_body: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
    """Returns the arguments that are not None, and the fields of `extra_body`, which take precedence.

    Lists can be any iterable, but not a single string, which Python would treat as a list of characters.
    """
    body = {name: value for name, value in named.items() if value is not None}
    for name in _LISTS & body.keys():
        if isinstance(body[name], str):
            raise TypeError(f"{name} must be a list, but it is a single string: pass [{body[name]!r}]")
        body[name] = list(body[name])
    return body | dict(extra_body or {})


def chunk_json(chunk: ChunkInput) -> Any:
    """Returns a chunk as the request's JSON represents it."""
    match chunk:
        case str():
            return chunk
        case Chunk():
            return fields(**vars(chunk))
        case Mapping():
            return dict(chunk)
        case _:
            raise TypeError(f"a chunk is a str, a Chunk or a mapping, but this one is a {type(chunk).__name__}")


def chunks_json(chunks: Iterable[ChunkInput] | None) -> list[Any] | None:
    """Returns chunks as the request's JSON represents them, or None."""
    if isinstance(chunks, (str, Chunk, Mapping)):
        raise TypeError("chunks must be a list of chunks, but it is a single chunk: pass [chunk]")
    return None if chunks is None else [chunk_json(chunk) for chunk in chunks]


def checked(options: Mapping[str, Any], known: type) -> Mapping[str, Any]:
    """Returns `options`. Raises a `TypeError` if one of them is not an option of the method, as Python does for named arguments."""
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"there is no argument {name!r}; pass fields that this client does not know in extra_body")
    return options


def compress(
    query: str,
    chunks: Iterable[ChunkInput] | None = None,
    *,
    extra_body: Mapping[str, Any] | None = None,
    **options: Unpack[CompressOptions],
) -> Call[Compression]:
    body = fields(extra_body, query=query, chunks=chunks_json(chunks), **checked(options, CompressOptions))
    return Call(Compression, "POST", "/v1/compress", body)


def kv(handle: str, fingerprint: str | None = None) -> Call[bytes]:
    if not handle:
        raise ValueError('handle is empty: pass kv.handle of a compression with include=["kv"]')
    return Call(bytes, "GET", f"/v1/kv/{quote(handle, safe='')}", params=fields(fingerprint=fingerprint))


def attribute(
    answer: str,
    chunks: Iterable[ChunkInput] | None = None,
    *,
    spans: Iterable[tuple[int, int]] | None = None,
    extra_body: Mapping[str, Any] | None = None,
    **options: Unpack[AttributeOptions],
) -> Call[Attribution]:
    ranges = None if spans is None else [{"start": start, "end": end} for start, end in spans]
    body = fields(extra_body, chunks=chunks_json(chunks), **checked(options, AttributeOptions))
    return Call(Attribution, "POST", "/v1/attribute", fields(body, answer=answer, spans=ranges))


def register_chunks(
    chunks: Iterable[ChunkInput],
    *,
    extra_body: Mapping[str, Any] | None = None,
    **options: Unpack[RegisterOptions],
) -> Call[Changes]:
    body = fields(extra_body, chunks=chunks_json(chunks), **checked(options, RegisterOptions))
    return Call(Changes, "POST", "/v1/chunks", body)


def delete_chunks(chunk_ids: Iterable[str | int]) -> Call[Changes]:
    # Also for one id: this endpoint answers `unknown` where `DELETE /v1/chunks/{id}` answers 404, so a retry does not fail.
    return Call(Changes, "POST", "/v1/chunks/delete", fields(ids=chunk_ids))


def get_chunk(chunk_id: str) -> Call[RegisteredChunk]:
    return Call(RegisteredChunk, "GET", f"/v1/chunks/{quote(chunk_id, safe='')}")


def list_chunks(*, limit: int | None = None, after: str | None = None) -> Call[ChunkPage]:
    params = fields(limit=None if limit is None else str(limit), after=after)
    return Call(ChunkPage, "GET", "/v1/chunks", params=params)


def progress() -> Call[Progress]:
    return Call(Progress, "GET", "/v1/registry")


def search(
    query: str, *, extra_body: Mapping[str, Any] | None = None, **options: Unpack[SearchOptions]
) -> Call[SearchResults]:
    body = fields(extra_body, query=query, **checked(options, SearchOptions))
    return Call(SearchResults, "POST", "/v1/search", body)


def rerank(
    query: str,
    documents: Iterable[str | Mapping[str, Any]],
    *,
    extra_body: Mapping[str, Any] | None = None,
    **options: Unpack[RerankOptions],
) -> Call[Reranking]:
    body = fields(extra_body, query=query, documents=documents_json(documents), **checked(options, RerankOptions))
    return RerankCall(Reranking, "POST", "/v2/rerank", body)


def documents_json(documents: Iterable[str | Mapping[str, Any]]) -> list[Any]:
    """Returns documents as the request's JSON represents them."""
    if isinstance(documents, (str, Mapping)):
        raise TypeError("documents must be a list of documents, but it is a single document: pass [document]")
    return [document if isinstance(document, str) else dict(document) for document in documents]


def models() -> Call[Models]:
    # Without this, a daemon with upstreams lists their models.
    return Call(Models, "GET", "/v1/models", params=fields(upstreams="false"))
