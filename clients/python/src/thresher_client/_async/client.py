"""The client. `_calls` describes the endpoints; this adds I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from .. import _calls
from .._calls import Call
from .._requests import (
    AttributeOptions,
    CompressOptions,
    RegisterOptions,
    RerankOptions,
    SearchOptions,
)
from .._retry import Retries
from .._settings import Settings
from ..types import (
    Attribution,
    Changes,
    ChunkInput,
    ChunkPage,
    Compression,
    Model,
    Progress,
    RegisteredChunk,
    Reranking,
    SearchResults,
)
from .io import send
from .retries import run_with_retries

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncClient:
    """A client of the daemon. `Client` is blocking, and threads can share it; `AsyncClient` is for asyncio and trio.

    Each method takes the fields of its request as keyword arguments: `compress` those of `thresher_client.types.CompressOptions`,
    which documents them. Every method also takes `timeout_s`, the limit in seconds for this call, instead of the client's. Those
    that send a body take `extra_body`: further fields of the request, for daemons that are newer than this client.

    Every method raises an `ApiError` if the daemon refuses the request or fails, and another `ThresherError` if the daemon cannot
    be reached or does not answer in time.

    Args:
        base_url: address of the daemon. Default: THRESHER_URL, or http://127.0.0.1:8080.
        api_key: key that is sent as a bearer token. Default: THRESHER_API_KEY, or none.
        timeout_s: limit in seconds for a whole call, including retries and the waits between them. Each call can set its own.
        connect_timeout_s: limit in seconds for opening a connection.
        retries: limits of retries.
        http_client: a client of httpx to use, with your own proxies and certificates. You have to close it.
        keep_connections: whether connections stay open between calls. Set it to False if an asynchronous client is used on several
            event loops, one after another.
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
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[CompressOptions],
    ) -> Compression:
        """Compresses chunks to the part that is worth sending to the language model, with citations.

        Args:
            query: the question.
            chunks: the chunks: strings, `Chunk`s or mappings with the same fields. Pass these or `chunk_ids`.
        """
        return await self._call(_calls.compress(query, chunks, extra_body=extra_body, **options), timeout_s)

    async def kv(self, handle: str, *, fingerprint: str | None = None, timeout_s: float | None = None) -> bytes:
        """Fetches exported keys and values, as the bytes of a safetensors file.

        `thresher_client.transformers.KvExport` loads them into a language model.

        Args:
            handle: `kv.handle` of a compression with `include=["kv"]`.
            fingerprint: fingerprint of your model's weights. If the daemon's model has other weights, it refuses
                (`model_mismatch`).
        """
        return await self._call(_calls.kv(handle, fingerprint), timeout_s)

    async def attribute(
        self,
        answer: str,
        chunks: Iterable[ChunkInput] | None = None,
        *,
        spans: Iterable[tuple[int, int]] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[AttributeOptions],
    ) -> Attribution:
        """Finds the chunk that each part of `answer` came from, and says whether the chunks support the part.

        The answer also has the words that no chunk supports, what the chunks say instead, and a verdict for each quotation. Pass one
        of `chunks`, `chunk_ids` and `compress_id`. With `compress_id`, only the text that the compression kept can be a source.

        Args:
            answer: the answer of a language model.
            chunks: the chunks: strings, `Chunk`s or mappings with the same fields.
            spans: with `granularity="span"`, ranges of the answer: `(start, end)` in the unit of `offsets`, ascending and without
                overlap.
        """
        call = _calls.attribute(answer, chunks, spans=spans, extra_body=extra_body, **options)
        return await self._call(call, timeout_s)

    async def register_chunks(
        self,
        chunks: Iterable[ChunkInput],
        *,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[RegisterOptions],
    ) -> Changes:
        """Registers chunks, so that requests can name them by their ids.

        Registering the same chunk again changes nothing. A chunk without an id gets a hash of its title, text and metadata. The
        model reads the chunks in the background. With `wait=True`, the answer comes when the model has read the chunks, or at the
        deadline; they are registered in both cases.
        """
        return await self._call(_calls.register_chunks(chunks, extra_body=extra_body, **options), timeout_s)

    async def delete_chunks(self, chunk_ids: Iterable[str | int], *, timeout_s: float | None = None) -> Changes:
        """Deletes registered chunks. An id that is not registered has the status `unknown`; it is not an error."""
        return await self._call(_calls.delete_chunks(chunk_ids), timeout_s)

    async def get_chunk(self, chunk_id: str, *, timeout_s: float | None = None) -> RegisteredChunk:
        """Returns a registered chunk. Raises a `NotFoundError` if `chunk_id` is not registered."""
        return await self._call(_calls.get_chunk(chunk_id), timeout_s)

    async def list_chunks(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        timeout_s: float | None = None,
    ) -> ChunkPage:
        """Returns a page of registered chunks, in the order of their ids.

        Args:
            limit: number of chunks, at most 1,000. A page has fewer if it would exceed the daemon's limit of bytes.
            after: `next` of the page before.
        """
        return await self._call(_calls.list_chunks(limit=limit, after=after), timeout_s)

    async def progress(self, *, timeout_s: float | None = None) -> Progress:
        """Returns how many chunks are registered, and how many of them the model has read."""
        return await self._call(_calls.progress(), timeout_s)

    async def search(
        self,
        query: str,
        *,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResults:
        """Finds registered chunks by words (BM25) and metadata, and orders them by relevance (RC)."""
        return await self._call(_calls.search(query, extra_body=extra_body, **options), timeout_s)

    async def rerank(
        self,
        query: str,
        documents: Iterable[str | Mapping[str, Any]],
        *,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[RerankOptions],
    ) -> Reranking:
        """Orders whole documents by relevance, best first.

        Args:
            query: the question.
            documents: the documents: strings, or mappings whose field `text` is read.
        """
        return await self._call(_calls.rerank(query, documents, extra_body=extra_body, **options), timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """Returns the models that the daemon has loaded."""
        return (await self._call(_calls.models(), timeout_s)).thresher

    async def _call(self, call: Call[T], timeout_s: float | None) -> T:
        attempt = partial(self._attempt, call)
        return await run_with_retries(self._settings, self._seconds(timeout_s), attempt)

    async def _attempt(self, call: Call[T], left_s: float) -> T:
        request = self._settings.request(call)
        request.extensions["timeout"] = self._settings.timeout(left_s)
        return call.answer(await send(self._http, request, left_s))

    def _seconds(self, timeout_s: float | None) -> float:
        return self._settings.timeout_s if timeout_s is None else timeout_s
