"""I/O of the blocking client: whole answers, and streams."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeAlias

import httpx

from .._settings import Settings
from .._stream import PATH, Exchange, Target
from ..errors import TimedOutError
from ..types import Part
from .retries import run_with_retries

Deltas: TypeAlias = Iterable[str]
_READ_BYTES = 65536


def send(http: httpx.Client, request: httpx.Request, left_s: float) -> httpx.Response:
    """Sends the request once, and returns its whole answer within `left_s` seconds."""
    deadline = time.monotonic() + left_s
    response = http.send(request, stream=True)
    body = bytearray()
    try:
        # httpx limits the time of each read only. This limits an answer that arrives in many small reads.
        for piece in response.iter_raw():
            body += piece
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the answer took too long", request=request)
    finally:
        response.close()
    return httpx.Response(response.status_code, headers=response.headers, content=bytes(body), request=request)


class AttributionStream:
    """The parts of a streamed answer, each as soon as its end is certain. Iterate over it once, inside a `with` block."""

    def __init__(self, settings: Settings, deltas: Deltas, body: Mapping[str, Any], timeout_s: float) -> None:
        self._settings = settings
        self._deltas = deltas
        self._body = body
        self._timeout_s = timeout_s
        self._exchange: Exchange
        self._socket: socket.socket | None = None

    @property
    def ended(self) -> bool | None:
        """True if the answer was complete, False if it was cut off, None before its end."""
        return self._exchange.ended

    def __enter__(self) -> AttributionStream:
        run_with_retries(self._settings, self._timeout_s, self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __iter__(self) -> Iterator[Part]:
        if self._socket is None:
            raise ValueError("the stream is not open: iterate once, inside `with client.attribute_stream(...) as parts:`")
        for delta in self._deltas:
            yield from self._send(self._exchange.delta(delta))
        yield from self._send(self._exchange.end())
        while not self._exchange.is_over:
            yield from self._receive(time.monotonic() + self._timeout_s)
        self._close()

    def _open(self, left_s: float) -> bool:
        """Connects and waits until the daemon has accepted the stream. Consumes nothing of the answer, so it can be repeated."""
        deadline = time.monotonic() + left_s
        target = Target.from_url(self._settings.base_url + PATH, self._settings.headers)
        self._exchange = Exchange(target)
        try:
            connecting_s = min(left_s, self._settings.connect_timeout_s)
            self._socket = socket.create_connection((target.host, target.port), connecting_s)
            if target.tls:
                context = ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=target.host)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error), request=target.request) from error
        except OSError as error:
            raise httpx.ConnectError(str(error), request=target.request) from error
        try:
            self._socket.setblocking(False)
            for _ in self._send(self._exchange.open(self._body)):
                pass
            while not self._exchange.is_open:
                self._receive(deadline)
        except BaseException:
            self._close()
            raise
        return True

    def _send(self, data: bytes) -> list[Part]:
        """Sends `data` and returns the parts that arrive meanwhile. A daemon that cannot send its parts stops reading."""
        deadline = time.monotonic() + self._timeout_s
        parts: list[Part] = []
        left = memoryview(data)
        while True:
            can_read, can_write = self._wait(bool(left), deadline if left else 0.0)
            if can_read:
                parts += self._read()
            if left and can_write:
                left = left[self._write(left) :]
            elif not left and not can_read:
                return parts

    def _receive(self, deadline: float) -> list[Part]:
        """Waits for at least one part, for the acceptance of the stream, or for its end."""
        while True:
            if self._wait(False, deadline)[0]:
                parts = self._read()
                if parts or self._exchange.is_over or self._exchange.is_open:
                    return parts

    def _wait(self, to_write: bool, deadline: float) -> tuple[bool, bool]:
        assert self._socket is not None
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True, False
        with selectors.DefaultSelector() as selector:
            interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if to_write else 0)
            selector.register(self._socket, interest)
            ready = selector.select(max(deadline - time.monotonic(), 0.0))
        if not ready and deadline:
            raise TimedOutError("timed_out", f"nothing was sent or received for {self._timeout_s:g} s")
        found = ready[0][1] if ready else 0
        return bool(found & selectors.EVENT_READ), bool(found & selectors.EVENT_WRITE)

    def _read(self) -> list[Part]:
        assert self._socket is not None
        try:
            return self._exchange.receive(self._socket.recv(_READ_BYTES))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return []
        except OSError as error:
            raise self._exchange.connection_error(str(error)) from error

    def _write(self, data: memoryview) -> int:
        assert self._socket is not None
        try:
            return self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            # The daemon has closed the connection. What it sent before may contain the reason.
            while not self._exchange.is_over:
                self._read()
            raise self._exchange.connection_error(str(error)) from error

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


OpenStream: TypeAlias = AttributionStream
open_stream = AttributionStream
