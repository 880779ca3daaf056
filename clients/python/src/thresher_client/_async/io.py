"""I/O of the asynchronous client, on asyncio and trio: whole answers, and streams."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, Union

import anyio
import httpx
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from .._settings import Settings
from .._stream import PATH, Exchange, Target
from ..errors import TimedOutError
from ..types import Part
from .retries import run_with_retries

Deltas: TypeAlias = Union[AsyncIterable[str], Iterable[str]]
OpenStream: TypeAlias = "AbstractAsyncContextManager[AsyncAttributionStream]"


async def send(http: httpx.AsyncClient, request: httpx.Request, left_s: float) -> httpx.Response:
    """Sends the request once, and returns its whole answer within `left_s` seconds."""
    try:
        with anyio.fail_after(left_s):
            return await http.send(request)
    except TimeoutError as error:
        raise httpx.ReadTimeout("the answer took too long", request=request) from error


@asynccontextmanager
async def open_stream(
    settings: Settings, deltas: Deltas, body: Mapping[str, Any], timeout_s: float
) -> AsyncIterator[AsyncAttributionStream]:
    """Opens a stream. A task sends the answer until the block ends; iterating over the stream receives its parts."""

    async def attempt(left_s: float) -> AsyncAttributionStream:
        return await _open(settings, body, timeout_s, left_s)

    parts = await run_with_retries(settings, timeout_s, attempt)
    raised: Exception | None = None
    async with parts, anyio.create_task_group() as tasks:
        tasks.start_soon(parts._send_all, deltas)
        try:
            yield parts
        except Exception as error:
            # Raised below, because a task group would wrap it in an exception group.
            raised = error
        tasks.cancel_scope.cancel()
    if raised is not None:
        raise raised


async def _open(
    settings: Settings, body: Mapping[str, Any], timeout_s: float, left_s: float
) -> AsyncAttributionStream:
    """Connects and waits until the daemon has accepted the stream. Consumes nothing of the answer, so it can be repeated."""
    target = Target.from_url(settings.base_url + PATH, settings.headers)
    try:
        with anyio.fail_after(min(left_s, settings.connect_timeout_s)):
            stream: ByteStream = await anyio.connect_tcp(target.host, target.port)
            if target.tls:
                stream = await TLSStream.wrap(
                    stream,
                    hostname=target.host,
                    ssl_context=ssl.create_default_context(),
                    standard_compatible=False,
                )
    except TimeoutError as error:
        raise httpx.ConnectTimeout(str(error), request=target.request) from error
    except OSError as error:
        raise httpx.ConnectError(str(error), request=target.request) from error
    parts = AsyncAttributionStream(stream, Exchange(target), timeout_s)
    try:
        with anyio.fail_after(left_s):
            await stream.send(parts.exchange.open(body))
            while not parts.exchange.is_open:
                await parts._receive()
    except TimeoutError as error:
        await anyio.aclose_forcefully(stream)
        raise httpx.ReadTimeout("the daemon did not accept the stream in time", request=target.request) from error
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    return parts


class AsyncAttributionStream:
    """The parts of a streamed answer, each as soon as its end is certain. Iterate over it inside an `async with` block."""

    def __init__(self, stream: ByteStream, exchange: Exchange, timeout_s: float) -> None:
        self.exchange = exchange
        self._stream = stream
        self._timeout_s = timeout_s
        self._deadline = math.inf
        self._receiving = anyio.CancelScope()
        self._sender_failed: Exception | None = None

    @property
    def ended(self) -> bool | None:
        """True if the answer was complete, False if it was cut off, None before its end."""
        return self.exchange.ended

    async def __aenter__(self) -> AsyncAttributionStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await anyio.aclose_forcefully(self._stream)

    async def __aiter__(self) -> AsyncIterator[Part]:
        while not self.exchange.is_over:
            for part in await self._receive():
                yield part

    async def _receive(self) -> list[Part]:
        with anyio.CancelScope(deadline=self._deadline) as self._receiving:
            try:
                data = await self._stream.receive()
            except anyio.EndOfStream:
                data = b""
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                raise self._sender_failed or self.exchange.connection_error(str(error)) from error
        if self._receiving.cancelled_caught:
            raise TimedOutError("timed_out", f"nothing was received for {self._timeout_s:g} s")
        parts = self.exchange.receive(data)
        if parts and self._deadline < math.inf:
            self._deadline = anyio.current_time() + self._timeout_s
        return parts

    async def _send_all(self, deltas: Deltas) -> None:
        try:
            async for delta in _asynchronous(deltas):
                await self._stream.send(self.exchange.delta(delta))
            await self._stream.send(self.exchange.end())
        except (anyio.BrokenResourceError, OSError):
            # The daemon has closed the connection. The receiver reads what it sent before.
            pass
        except Exception as error:
            # The caller's iterator raised this. Closing the connection wakes the receiver, which raises it.
            self._sender_failed = error
            await self._stream.aclose()
        # The daemon has the whole answer: from now on, the receiver waits at most `timeout_s` for each part.
        self._deadline = self._receiving.deadline = anyio.current_time() + self._timeout_s


async def _asynchronous(deltas: Deltas) -> AsyncIterator[str]:
    if isinstance(deltas, AsyncIterable):
        async for delta in deltas:
            yield delta
    else:
        for delta in deltas:
            yield delta
