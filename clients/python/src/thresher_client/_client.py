"""The blocking and the asynchronous client. `_calls` describes the endpoints; the clients add I/O."""

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
    DeadlinePolicy,
    Format,
    Granularity,
    Include,
    KvOptions,
    Model,
    Offsets,
    Omissions,
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
    """A blocking client of the daemon. Threads can share it.

    Args:
        base_url: address of the daemon. Default: THRESHER_URL, or http://127.0.0.1:8080.
        api_key: key that is sent as a bearer token. Default: THRESHER_API_KEY, or none.
        timeout_s: limit in seconds for a whole call, including retries and the waits between them. Each call can set its own.
        connect_timeout_s: limit in seconds for opening a connection.
        retries: limits of retries.
        http_client: an `httpx.Client` to use, with your own proxies and certificates. You have to close it.
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
        self._settings = Settings.from_arguments(base_url, api_key, timeout_s, connect_timeout_s, retries)
        self._owns_http = http_client is None
        self._http = http_client or httpx.Client(trust_env=self._settings.trust_env)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, except those of an `http_client` that you passed."""
        if self._owns_http:
            self._http.close()

    @property
    def base_url(self) -> str:
        """The address of the daemon, without a slash at its end."""
        return self._settings.base_url

    def compress(
        self,
        query: str,
        chunks: Iterable[ChunkInput] | None = None,
        *,
        chunk_ids: Iterable[str] | None = None,
        messages: Iterable[Mapping[str, Any]] | None = None,
        budget: Budget | None = None,
        granularity: Granularity | None = None,
        keep: Iterable[str] | None = None,
        order: Order | None = None,
        format: Format | None = None,
        titles: bool | None = None,
        omissions: Omissions | None = None,
        tokenizer: Tokenizer | None = None,
        related_only: bool | None = None,
        missed_max: float | None = None,
        offsets: Offsets | None = None,
        explain: bool | None = None,
        deadline_ms: int | None = None,
        deadline_policy: DeadlinePolicy | None = None,
        on_error: OnError | None = None,
        include: Iterable[Include] | None = None,
        kv: KvOptions | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Compression:
        """Compresses chunks to the part that is worth sending to the language model, with citations.

        Args:
            query: the question.
            chunks: the chunks: strings, `Chunk`s or mappings with the same fields.
            chunk_ids: ids of registered chunks, instead of `chunks`.
            messages: the conversation before the question, oldest message first, each with `role` and `content`. With it, "When was
                she born?" is about the person of the turns before.
            budget: size of the context: `{"tokens": 800}`, `{"ratio": 0.25}` (share of what all chunks take), `{"coverage": 0.95}`
                (as little as holds all needed evidence with this probability, 0.5 to 0.99), or `{"auto": True}` (default): the
                fewest sentences that carry most of the evidence.
            granularity: what is kept or dropped as a unit: `"sentence"` (default), `"chunk"`, or `"token"` (words).
            keep: ids of chunks to keep whole.
            order: order of chunks in the context: `"input"` (default) or `"relevance"`.
            format: `"numbered"` (default: `[1] ...`), `"plain"` or `"xml"`.
            titles: whether the context has the titles of its chunks (default True).
            omissions: how the places are marked at which text was left out: `"none"`, `"ellipsis"`, `"range"`, or `"auto"`
                (default): marks in code, logs and tables.
            tokenizer: tokenizer that counts budgets and usage: `"model"` (default), `"o200k_base"` or `"cl100k_base"`.
            related_only: whether nothing is kept if no chunk is related to the question (default True).
            missed_max: share of answerable questions that `answerable` may miss, 0.01 to 0.5. The smaller it is, the more questions
                without an answer pass for answerable. Default: the daemon's setting.
            offsets: unit of offsets in the answer: `"codepoint"` (default), `"byte"` or `"utf16"`.
            explain: True adds the RC of every token, and what each word of the question matched.
            deadline_ms: how long the daemon may take, in milliseconds, including the time in its queue (default 10,000).
            deadline_policy: what happens if there is no time to read all chunks: `"fail"` (default), or `"best_effort"`: the best
                answer over the chunks that were read in time; the others are marked `unread`.
            on_error: `"fail"` (default), or `"passthrough"`: return the chunks unchanged, with `degraded` set, if the daemon
                fails, misses the deadline or is overloaded.
            include: `["kv"]` exports the keys and values of the kept chunks.
            kv: which keys and values are exported.
            extra_body: further fields of the request, for daemons that are newer than this client.
            timeout_s: limit in seconds for this call, instead of the client's.

        Raises:
            ApiError: the daemon refused the request or failed.
            ThresherError: the daemon could not be reached, or did not answer within `timeout_s`.
        """
        call = _calls.compress(
            query,
            chunks,
            chunk_ids=chunk_ids,
            messages=messages,
            budget=budget,
            granularity=granularity,
            keep=keep,
            order=order,
            format=format,
            titles=titles,
            omissions=omissions,
            tokenizer=tokenizer,
            related_only=related_only,
            missed_max=missed_max,
            offsets=offsets,
            explain=explain,
            deadline_ms=deadline_ms,
            deadline_policy=deadline_policy,
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
        """Fetches exported keys and values, as the bytes of a safetensors file.

        `thresher_client.transformers.KvExport` loads them into a language model.

        Args:
            handle: `kv.handle` of a compression with `include=["kv"]`.
            fingerprint: fingerprint of your model's weights. If the daemon's model has other weights, it refuses
                (`model_mismatch`).
            timeout_s: limit in seconds for this call, instead of the client's.
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
        """Finds the chunk that each part of `answer` came from, and says whether the chunks support the part.

        The answer also has the words that no chunk supports, what the chunks say instead, and a verdict for each quotation. Pass one
        of `chunks`, `chunk_ids` and `compress_id`.

        Args:
            answer: the answer of a language model.
            chunks: the chunks: strings, `Chunk`s or mappings with the same fields.
            chunk_ids: ids of registered chunks.
            compress_id: `id` of an earlier compression. Only the text that it kept can be a source.
            granularity: what a part is: `"sentence"` (default), `"token"` (words), or `"span"` with `spans`.
            spans: ranges of the answer, `(start, end)` in the unit of `offsets`, ascending and without overlap.
            sources_max: number of sources listed for each part, at most 100 (default 3). Further sources are listed if they are
                cited.
            offsets: unit of offsets: `"codepoint"` (default), `"byte"` or `"utf16"`.
            format: shape of the answer's field `formatted`: that of another API, markers, or JSON pointers. `"native"` (default)
                leaves it out.
            receipt: True adds a signed record of the attribution.
            deadline_ms: how long the daemon may take, in milliseconds, including the time in its queue.
            extra_body: further fields of the request, for daemons that are newer than this client.
            timeout_s: limit in seconds for this call, instead of the client's.
        """
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
        """Attributes an answer while it arrives, and returns a context manager over its parts.

        The stream uses its own connection, not that of `http_client`. `timeout_s` limits the time to open it, and every later
        period in which nothing is sent or received. Parts are returned only when `deltas` yields its next piece.

        Args:
            deltas: an iterable over pieces of the answer's text.
            chunks: as for `attribute`; so are `chunk_ids`, `compress_id`, `granularity`, `sources_max`, `offsets` and
                `extra_body`.
            deadline_ms: how long the daemon may take for each sentence, in milliseconds.
            timeout_s: limit in seconds, instead of the client's.
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
        """Registers chunks, so that requests can name them by their ids.

        Registering the same chunk again changes nothing. A chunk without an id gets a hash of its title, text and metadata. The
        model reads the chunks in the background.

        Args:
            chunks: the chunks: strings, `Chunk`s or mappings with the same fields.
            wait: True waits until the model has read the chunks, or until the deadline. They are registered in both cases.
            deadline_ms: how long the daemon may take, in milliseconds.
            extra_body: further fields of the request, for daemons that are newer than this client.
            timeout_s: limit in seconds for this call, instead of the client's.
        """
        call = _calls.register_chunks(chunks, wait=wait, deadline_ms=deadline_ms, extra_body=extra_body)
        return self._call(call, timeout_s)

    def delete_chunks(
        self,
        chunk_ids: Iterable[str],
        *,
        timeout_s: float | None = None,
    ) -> Changes:
        """Deletes registered chunks. An id that is not registered has the status `unknown`; it is not an error."""
        call = _calls.delete_chunks(chunk_ids)
        return self._call(call, timeout_s)

    def get_chunk(
        self,
        chunk_id: str,
        *,
        timeout_s: float | None = None,
    ) -> RegisteredChunk:
        """Returns a registered chunk. Raises a `NotFoundError` if `chunk_id` is not registered."""
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
        """Returns a page of registered chunks, in the order of their ids.

        Args:
            limit: number of chunks, at most 1,000. A page has fewer if it would exceed the daemon's limit of bytes.
            after: `next` of the page before.
            filter: only chunks whose metadata matches this filter, for example `{"lang": "en"}`.
            timeout_s: limit in seconds for this call, instead of the client's.
        """
        call = _calls.list_chunks(limit=limit, after=after, filter=filter)
        return self._call(call, timeout_s)

    def progress(
        self,
        *,
        timeout_s: float | None = None,
    ) -> Progress:
        """Returns how many chunks are registered, and how many of them the model has read."""
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
        """Finds registered chunks by words (BM25) and metadata, and orders them by relevance (RC).

        Args:
            query: the question.
            limit: number of results (default 10).
            candidates: number of chunks that BM25 finds for the model to order, at least `limit` (default 100).
            filter: only chunks whose metadata matches this filter, for example `{"year": {"gte": 2020}}`.
            rank: `"rc"` (default), or `"bm25"`, which skips the model.
            deadline_ms: how long the daemon may take, in milliseconds, including the time in its queue.
            extra_body: further fields of the request, for daemons that are newer than this client.
            timeout_s: limit in seconds for this call, instead of the client's.
        """
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
        """Orders whole documents by relevance, best first.

        Args:
            query: the question.
            documents: the documents: strings, or mappings whose field `text` is read.
            top_n: number of results; all if it is None.
            rank_fields: fields of documents that are mappings to read, instead of `text`.
            return_documents: True returns each document with its result.
            relevant_spans: Cohere's options for relevant sentences, for example `{"mode": "enabled"}`.
            extra_body: further fields of the request, for daemons that are newer than this client.
            timeout_s: limit in seconds for this call, instead of the client's.
        """
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
        """Returns the models that the daemon has loaded."""
        return self._call(_calls.models(), timeout_s).data

    def _call(self, call: Call[T], timeout_s: float | None) -> T:
        attempt = partial(_sync.call_once, self._http, self._settings, call)
        return _sync.run_with_retries(self._settings, self._seconds(timeout_s), attempt)

    def _seconds(self, timeout_s: float | None) -> float:
        return self._settings.timeout_s if timeout_s is None else timeout_s


class AsyncClient:
    """An asynchronous client of the daemon, for asyncio and trio.

    Args:
        base_url: address of the daemon. Default: THRESHER_URL, or http://127.0.0.1:8080.
        api_key: key that is sent as a bearer token. Default: THRESHER_API_KEY, or none.
        timeout_s: limit in seconds for a whole call, including retries and the waits between them. Each call can set its own.
        connect_timeout_s: limit in seconds for opening a connection.
        retries: limits of retries.
        http_client: an `httpx.AsyncClient` to use, with your own proxies and certificates. You have to close it.
        keep_connections: whether connections stay open between calls. Set it to False if the client is used on several event
            loops, one after another.
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
        self._settings = Settings.from_arguments(base_url, api_key, timeout_s, connect_timeout_s, retries)
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
        """Closes the connections, except those of an `http_client` that you passed."""
        if self._owns_http:
            await self._http.aclose()

    @property
    def base_url(self) -> str:
        """The address of the daemon, without a slash at its end."""
        return self._settings.base_url

    async def compress(
        self,
        query: str,
        chunks: Iterable[ChunkInput] | None = None,
        *,
        chunk_ids: Iterable[str] | None = None,
        messages: Iterable[Mapping[str, Any]] | None = None,
        budget: Budget | None = None,
        granularity: Granularity | None = None,
        keep: Iterable[str] | None = None,
        order: Order | None = None,
        format: Format | None = None,
        titles: bool | None = None,
        omissions: Omissions | None = None,
        tokenizer: Tokenizer | None = None,
        related_only: bool | None = None,
        missed_max: float | None = None,
        offsets: Offsets | None = None,
        explain: bool | None = None,
        deadline_ms: int | None = None,
        deadline_policy: DeadlinePolicy | None = None,
        on_error: OnError | None = None,
        include: Iterable[Include] | None = None,
        kv: KvOptions | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Compression:
        """Compresses chunks to the part that is worth sending to the language model, with citations.

        `Client.compress` documents the arguments.
        """
        call = _calls.compress(
            query,
            chunks,
            chunk_ids=chunk_ids,
            messages=messages,
            budget=budget,
            granularity=granularity,
            keep=keep,
            order=order,
            format=format,
            titles=titles,
            omissions=omissions,
            tokenizer=tokenizer,
            related_only=related_only,
            missed_max=missed_max,
            offsets=offsets,
            explain=explain,
            deadline_ms=deadline_ms,
            deadline_policy=deadline_policy,
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
        """Fetches exported keys and values, as the bytes of a safetensors file.

        `Client.kv` documents the arguments.
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
        """Finds the chunk that each part of `answer` came from, and says whether the chunks support the part.

        `Client.attribute` documents the arguments.
        """
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
        """Attributes an answer while it arrives, and returns a context manager over its parts.

        The stream uses its own connection, not that of `http_client`. `timeout_s` limits the time to open it, and after the last
        piece of `deltas` the time in which no part arrives. `deltas` can be synchronous or asynchronous.
        `Client.attribute_stream` documents the other arguments.
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
        """Registers chunks, so that requests can name them by their ids.

        `Client.register_chunks` documents the arguments.
        """
        call = _calls.register_chunks(chunks, wait=wait, deadline_ms=deadline_ms, extra_body=extra_body)
        return await self._call(call, timeout_s)

    async def delete_chunks(
        self,
        chunk_ids: Iterable[str],
        *,
        timeout_s: float | None = None,
    ) -> Changes:
        """Deletes registered chunks. An id that is not registered has the status `unknown`; it is not an error."""
        call = _calls.delete_chunks(chunk_ids)
        return await self._call(call, timeout_s)

    async def get_chunk(
        self,
        chunk_id: str,
        *,
        timeout_s: float | None = None,
    ) -> RegisteredChunk:
        """Returns a registered chunk. Raises a `NotFoundError` if `chunk_id` is not registered."""
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
        """Returns a page of registered chunks, in the order of their ids.

        `Client.list_chunks` documents the arguments.
        """
        call = _calls.list_chunks(limit=limit, after=after, filter=filter)
        return await self._call(call, timeout_s)

    async def progress(
        self,
        *,
        timeout_s: float | None = None,
    ) -> Progress:
        """Returns how many chunks are registered, and how many of them the model has read."""
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
        """Finds registered chunks by words (BM25) and metadata, and orders them by relevance (RC).

        `Client.search` documents the arguments.
        """
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
        """Orders whole documents by relevance, best first.

        `Client.rerank` documents the arguments.
        """
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
        """Returns the models that the daemon has loaded."""
        return (await self._call(_calls.models(), timeout_s)).data

    async def _call(self, call: Call[T], timeout_s: float | None) -> T:
        attempt = partial(_async.call_once, self._http, self._settings, call)
        return await _async.run_with_retries(self._settings, self._seconds(timeout_s), attempt)

    def _seconds(self, timeout_s: float | None) -> float:
        return self._settings.timeout_s if timeout_s is None else timeout_s
