"""I/O of the asynchronous client, on asyncio and trio: nothing but it."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Union

import anyio
import httpx
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from ._calls import Call
from ._retry import Send, Sent, Step, Wait, attempts
from ._settings import Settings
from ._stream import PATH, Exchange, Target
from .errors import TimedOutError
from .types import Part

T = TypeVar("T")
Deltas = Union[AsyncIterable[str], Iterable[str]]


async def carry_out(
    settings: Settings, timeout_s: float, attempt: Callable[[float], Awaitable[T]]
) -> T:
    """`attempt` within so many seconds, again as the policy says."""
    steps: Generator[Step, Sent[T], T] = attempts(settings.retries, timeout_s)
    sent: Sent[T] = None
    try:
        while True:
            match steps.send(sent):
                case Wait(seconds):
                    await anyio.sleep(seconds)
                    sent = None
                case Send(left_s):
                    try:
                        sent = await attempt(left_s)
                    except Exception as error:
                        sent = error
    except StopIteration as done:
        result: T = done.value
        return result


async def call_once(http: httpx.AsyncClient, settings: Settings, call: Call[T], left_s: float) -> T:
    """One attempt."""
    request = settings.request(call)
    request.extensions["timeout"] = settings.timeout(left_s)
    try:
        with anyio.fail_after(left_s):
            response = await http.send(request)
    except TimeoutError as error:
        raise httpx.ReadTimeout("the answer took too long", request=request) from error
    return call.answer(response)


@asynccontextmanager
async def attribution_stream(
    settings: Settings, deltas: Deltas, body: Mapping[str, Any], timeout_s: float
) -> AsyncIterator[AsyncAttributionStream]:
    """Sends in a task that ends with the block; who iterates receives."""

    async def attempt(left_s: float) -> AsyncAttributionStream:
        return await _open(settings, body, timeout_s, left_s)

    parts = await carry_out(settings, timeout_s, attempt)
    raised: Exception | None = None
    async with parts, anyio.create_task_group() as tasks:
        tasks.start_soon(parts._send_all, deltas)
        try:
            yield parts
        except Exception as error:
            # Raised below: a task group would wrap it.
            raised = error
        tasks.cancel_scope.cancel()
    if raised is not None:
        raise raised


async def _open(
    settings: Settings, body: Mapping[str, Any], timeout_s: float, left_s: float
) -> AsyncAttributionStream:
    """Nothing is taken of the answer before the daemon has agreed to read it."""
    target = Target.of(settings.base_url + PATH, settings.headers)
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
        raise httpx.ReadTimeout("the stream was not taken in time", request=target.request) from error
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    return parts


class AsyncAttributionStream:
    """Parts of an answer, each as soon as it is sure: iterate in an `async with` block."""

    def __init__(self, stream: ByteStream, exchange: Exchange, timeout_s: float) -> None:
        self.exchange = exchange
        self._stream = stream
        self._timeout_s = timeout_s
        self._until = math.inf
        self._receiving = anyio.CancelScope()
        self._sender_failed: Exception | None = None

    @property
    def ended(self) -> bool | None:
        """False: the answer was cut off; None: not at its end yet."""
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
        with anyio.CancelScope(deadline=self._until) as self._receiving:
            try:
                data = await self._stream.receive()
            except anyio.EndOfStream:
                data = b""
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                raise self._sender_failed or self.exchange.broken(str(error)) from error
        if self._receiving.cancelled_caught:
            raise TimedOutError("timed_out", f"the stream stood still for {self._timeout_s:g} s")
        parts = self.exchange.receive(data)
        if parts and self._until < math.inf:
            self._until = anyio.current_time() + self._timeout_s
        return parts

    async def _send_all(self, deltas: Deltas) -> None:
        try:
            async for delta in _asynchronous(deltas):
                await self._stream.send(self.exchange.delta(delta))
            await self._stream.send(self.exchange.end())
        except (anyio.BrokenResourceError, OSError):
            # The daemon has hung up; what it said before, whoever receives will read.
            pass
        except Exception as error:
            # Of the caller's own answer: wakes whoever receives.
            self._sender_failed = error
            await self._stream.aclose()
        # From here on the daemon has all it needs.
        self._until = self._receiving.deadline = anyio.current_time() + self._timeout_s


async def _asynchronous(deltas: Deltas) -> AsyncIterator[str]:
    if isinstance(deltas, AsyncIterable):
        async for delta in deltas:
            yield delta
    else:
        for delta in deltas:
            yield delta
