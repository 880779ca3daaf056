"""The two clients: every endpoint is one line in each, since `_calls` says what it is."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, Union

import httpx

from . import _async, _calls, _sync
from ._calls import Call
from ._retry import Retries
from ._settings import Settings
from .types import (
    AnswerFormat,
    Attribution,
    Budget,
    Changes,
    ChunkInput,
    ChunkPage,
    Compression,
    Format,
    Granularity,
    Include,
    KvOptions,
    Model,
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


class Client:
    """Calls the daemon and waits for it. May be shared by threads.

    `base_url` is THRESHER_URL or http://127.0.0.1:8080 unless given; `api_key` (THRESHER_API_KEY) is sent as a bearer token.
    `timeout_s` bounds a whole call, retries and waits included, and can be given with each call. An `http_client` of yours brings
    its own proxies and certificates, and stays yours to close.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 5.0,
        retries: Retries | None = None,
        http_client: httpx.Client | None = None,
    ) -> None:
        self._settings = Settings.of(base_url, api_key, timeout_s, connect_timeout_s, retries)
        self._owns_http = http_client is None
        self._http = http_client or httpx.Client(trust_env=self._settings.trust_env)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections; not those of an `http_client` that was given."""
        if self._owns_http:
            self._http.close()

    @property
    def base_url(self) -> str:
        """Where the daemon is."""
        return self._settings.base_url

    def compress(
        self,
        query: str,
        chunks: Iterable[ChunkInput] | None = None,
        *,
        chunk_ids: Iterable[str] | None = None,
        budget: Budget | None = None,
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
        timeout_s: float | None = None,
    ) -> Compression:
        """The part of `chunks` (or of registered `chunk_ids`) that is worth sending to the LLM, with citations."""
        call = _calls.compress(
            query,
            chunks,
            chunk_ids=chunk_ids,
            budget=budget,
            granularity=granularity,
            keep=keep,
            order=order,
            format=format,
            tokenizer=tokenizer,
            offsets=offsets,
            explain=explain,
            deadline_ms=deadline_ms,
            on_error=on_error,
            include=include,
            kv=kv,
            extra_body=extra_body,
        )
        return self._call(call, timeout_s)

    def kv(
        self,
        handle: str,
        *,
        fingerprint: str | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Keys and values of the chunks that a compression kept, as a file; with `fingerprint` only if they are of that model.

        `thresher_client.transformers` gives them to a language model.
        """
        return self._call(_calls.kv(handle, fingerprint), timeout_s)

    def attribute(
        self,
        answer: str,
        chunks: Iterable[ChunkInput] | None = None,
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
        timeout_s: float | None = None,
    ) -> Attribution:
        """Which chunk each part of `answer` came from, and what no chunk supports."""
        call = _calls.attribute(
            answer,
            chunks,
            chunk_ids=chunk_ids,
            compress_id=compress_id,
            granularity=granularity,
            spans=spans,
            sources_max=sources_max,
            offsets=offsets,
            format=format,
            receipt=receipt,
            deadline_ms=deadline_ms,
            extra_body=extra_body,
        )
        return self._call(call, timeout_s)

    def attribute_stream(
        self,
        deltas: Iterable[str],
        chunks: Iterable[ChunkInput] | None = None,
        *,
        chunk_ids: Iterable[str] | None = None,
        compress_id: str | None = None,
        granularity: str | None = None,
        sources_max: int | None = None,
        offsets: Offsets | None = None,
        deadline_ms: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> _sync.AttributionStream:
        """Attributes an answer while it arrives in `deltas`; a context manager of parts.

        It has a connection of its own, past `http_client`. `timeout_s` bounds its opening, and any standstill after that. Parts are
        handed out when the next of `deltas` has come.
        """
        body = _calls.attribute_fields(
            chunks,
            chunk_ids=chunk_ids,
            compress_id=compress_id,
            granularity=granularity,
            sources_max=sources_max,
            offsets=offsets,
            deadline_ms=deadline_ms,
            extra_body=extra_body,
        )
        return _sync.AttributionStream(self._settings, deltas, body, self._seconds(timeout_s))

    def register_chunks(
        self,
        chunks: Iterable[ChunkInput],
        *,
        wait: bool | None = None,
        deadline_ms: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Changes:
        """Registers chunks, which are then named by their ids; `wait`: until the model has read them."""
        call = _calls.register_chunks(chunks, wait=wait, deadline_ms=deadline_ms, extra_body=extra_body)
        return self._call(call, timeout_s)

    def delete_chunks(
        self,
        chunk_ids: Iterable[str],
        *,
        timeout_s: float | None = None,
    ) -> Changes:
        """Takes registered chunks away; one that is not there is `unknown`, and no error."""
        call = _calls.delete_chunks(chunk_ids)
        return self._call(call, timeout_s)

    def get_chunk(
        self,
        chunk_id: str,
        *,
        timeout_s: float | None = None,
    ) -> RegisteredChunk:
        """A registered chunk."""
        call = _calls.get_chunk(chunk_id)
        return self._call(call, timeout_s)

    def list_chunks(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        filter: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> ChunkPage:
        """A page of registered chunks, in the order of their ids."""
        call = _calls.list_chunks(limit=limit, after=after, filter=filter)
        return self._call(call, timeout_s)

    def progress(
        self,
        *,
        timeout_s: float | None = None,
    ) -> Progress:
        """How many chunks are registered, and how many of them the model has read."""
        call = _calls.progress()
        return self._call(call, timeout_s)

    def search(
        self,
        query: str,
        *,
        limit: int | None = None,
        candidates: int | None = None,
        filter: Mapping[str, Any] | None = None,
        rank: Rank | None = None,
        deadline_ms: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> SearchResults:
        """Registered chunks by words and metadata, then by relevance."""
        call = _calls.search(
            query,
            limit=limit,
            candidates=candidates,
            filter=filter,
            rank=rank,
            deadline_ms=deadline_ms,
            extra_body=extra_body,
        )
        return self._call(call, timeout_s)

    def rerank(
        self,
        query: str,
        documents: Iterable[str | Mapping[str, Any]],
        *,
        top_n: int | None = None,
        rank_fields: Iterable[str] | None = None,
        return_documents: bool | None = None,
        relevant_spans: Mapping[str, Any] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Reranking:
        """Whole documents, best first."""
        call = _calls.rerank(
            query,
            documents,
            top_n=top_n,
            rank_fields=rank_fields,
            return_documents=return_documents,
            relevant_spans=relevant_spans,
            extra_body=extra_body,
        )
        return self._call(call, timeout_s)

    def models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """The models that the daemon has."""
        return (self._call(_calls.models(), timeout_s)).data

    def _call(self, call: Call[T], timeout_s: float | None) -> T:
        attempt = partial(_sync.call_once, self._http, self._settings, call)
        return _sync.carry_out(self._settings, self._seconds(timeout_s), attempt)

    def _seconds(self, timeout_s: float | None) -> float:
        return self._settings.timeout_s if timeout_s is None else timeout_s


class AsyncClient:
    """The same, asynchronous: on asyncio or trio. One that is used on several event loops, one after another, must not
    `keep_connections`.

    `base_url` is THRESHER_URL or http://127.0.0.1:8080 unless given; `api_key` (THRESHER_API_KEY) is sent as a bearer token.
    `timeout_s` bounds a whole call, retries and waits included, and can be given with each call. An `http_client` of yours brings
    its own proxies and certificates, and stays yours to close.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 5.0,
        retries: Retries | None = None,
        http_client: httpx.AsyncClient | None = None,
        keep_connections: bool = True,
    ) -> None:
        self._settings = Settings.of(base_url, api_key, timeout_s, connect_timeout_s, retries)
        self._owns_http = http_client is None
        limits = httpx.Limits() if keep_connections else httpx.Limits(max_keepalive_connections=0)
        self._http = http_client or httpx.AsyncClient(trust_env=self._settings.trust_env, limits=limits)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes connections; not those of an `http_client` that was given."""
        if self._owns_http:
            await self._http.aclose()

    @property
    def base_url(self) -> str:
        """Where the daemon is."""
        return self._settings.base_url

    async def compress(
        self,
        query: str,
        chunks: Iterable[ChunkInput] | None = None,
        *,
        chunk_ids: Iterable[str] | None = None,
        budget: Budget | None = None,
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
        timeout_s: float | None = None,
    ) -> Compression:
        """The part of `chunks` (or of registered `chunk_ids`) that is worth sending to the LLM, with citations."""
        call = _calls.compress(
            query,
            chunks,
            chunk_ids=chunk_ids,
            budget=budget,
            granularity=granularity,
            keep=keep,
            order=order,
            format=format,
            tokenizer=tokenizer,
            offsets=offsets,
            explain=explain,
            deadline_ms=deadline_ms,
            on_error=on_error,
            include=include,
            kv=kv,
            extra_body=extra_body,
        )
        return await self._call(call, timeout_s)

    async def kv(
        self,
        handle: str,
        *,
        fingerprint: str | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Keys and values of the chunks that a compression kept, as a file; with `fingerprint` only if they are of that model.

        `thresher_client.transformers` gives them to a language model.
        """
        return await self._call(_calls.kv(handle, fingerprint), timeout_s)

    async def attribute(
        self,
        answer: str,
        chunks: Iterable[ChunkInput] | None = None,
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
        timeout_s: float | None = None,
    ) -> Attribution:
        """Which chunk each part of `answer` came from, and what no chunk supports."""
        call = _calls.attribute(
            answer,
            chunks,
            chunk_ids=chunk_ids,
            compress_id=compress_id,
            granularity=granularity,
            spans=spans,
            sources_max=sources_max,
            offsets=offsets,
            format=format,
            receipt=receipt,
            deadline_ms=deadline_ms,
            extra_body=extra_body,
        )
        return await self._call(call, timeout_s)

    def attribute_stream(
        self,
        deltas: Union[AsyncIterable[str], Iterable[str]],
        chunks: Iterable[ChunkInput] | None = None,
        *,
        chunk_ids: Iterable[str] | None = None,
        compress_id: str | None = None,
        granularity: str | None = None,
        sources_max: int | None = None,
        offsets: Offsets | None = None,
        deadline_ms: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> AbstractAsyncContextManager[_async.AsyncAttributionStream]:
        """Attributes an answer while it arrives in `deltas`; a context manager of parts.

        It has a connection of its own, past `http_client`. `timeout_s` bounds its opening, and any standstill after that.
        """
        body = _calls.attribute_fields(
            chunks,
            chunk_ids=chunk_ids,
            compress_id=compress_id,
            granularity=granularity,
            sources_max=sources_max,
            offsets=offsets,
            deadline_ms=deadline_ms,
            extra_body=extra_body,
        )
        return _async.attribution_stream(self._settings, deltas, body, self._seconds(timeout_s))

    async def register_chunks(
        self,
        chunks: Iterable[ChunkInput],
        *,
        wait: bool | None = None,
        deadline_ms: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Changes:
        """Registers chunks, which are then named by their ids; `wait`: until the model has read them."""
        call = _calls.register_chunks(chunks, wait=wait, deadline_ms=deadline_ms, extra_body=extra_body)
        return await self._call(call, timeout_s)

    async def delete_chunks(
        self,
        chunk_ids: Iterable[str],
        *,
        timeout_s: float | None = None,
    ) -> Changes:
        """Takes registered chunks away; one that is not there is `unknown`, and no error."""
        call = _calls.delete_chunks(chunk_ids)
        return await self._call(call, timeout_s)

    async def get_chunk(
        self,
        chunk_id: str,
        *,
        timeout_s: float | None = None,
    ) -> RegisteredChunk:
        """A registered chunk."""
        call = _calls.get_chunk(chunk_id)
        return await self._call(call, timeout_s)

    async def list_chunks(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        filter: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> ChunkPage:
        """A page of registered chunks, in the order of their ids."""
        call = _calls.list_chunks(limit=limit, after=after, filter=filter)
        return await self._call(call, timeout_s)

    async def progress(
        self,
        *,
        timeout_s: float | None = None,
    ) -> Progress:
        """How many chunks are registered, and how many of them the model has read."""
        call = _calls.progress()
        return await self._call(call, timeout_s)

    async def search(
        self,
        query: str,
        *,
        limit: int | None = None,
        candidates: int | None = None,
        filter: Mapping[str, Any] | None = None,
        rank: Rank | None = None,
        deadline_ms: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> SearchResults:
        """Registered chunks by words and metadata, then by relevance."""
        call = _calls.search(
            query,
            limit=limit,
            candidates=candidates,
            filter=filter,
            rank=rank,
            deadline_ms=deadline_ms,
            extra_body=extra_body,
        )
        return await self._call(call, timeout_s)

    async def rerank(
        self,
        query: str,
        documents: Iterable[str | Mapping[str, Any]],
        *,
        top_n: int | None = None,
        rank_fields: Iterable[str] | None = None,
        return_documents: bool | None = None,
        relevant_spans: Mapping[str, Any] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Reranking:
        """Whole documents, best first."""
        call = _calls.rerank(
            query,
            documents,
            top_n=top_n,
            rank_fields=rank_fields,
            return_documents=return_documents,
            relevant_spans=relevant_spans,
            extra_body=extra_body,
        )
        return await self._call(call, timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """The models that the daemon has."""
        return (await self._call(_calls.models(), timeout_s)).data

    async def _call(self, call: Call[T], timeout_s: float | None) -> T:
        attempt = partial(_async.call_once, self._http, self._settings, call)
        return await _async.carry_out(self._settings, self._seconds(timeout_s), attempt)

    def _seconds(self, timeout_s: float | None) -> float:
        return self._settings.timeout_s if timeout_s is None else timeout_s
