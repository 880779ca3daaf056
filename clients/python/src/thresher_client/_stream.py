"""`POST /v1/attribute/stream` without I/O: bytes to send, and parts out of bytes that came.

Both directions flow at the same time, and httpx sends all of a body before it reads; so a stream has a connection of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
import httpx

from ._calls import read, to_json
from ._decode import DecodeError, decode
from .errors import AnswerInvalidError, ApiError, ConnectionFailedError, api_error
from .types import Part

PATH = "/v1/attribute/stream"
_END = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Target:
    """Where a stream goes."""

    host: str
    port: int
    tls: bool
    request: httpx.Request

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str]) -> Target:
        request = httpx.Request("POST", url, headers={**headers, "Accept": "text/event-stream"})
        parts = urlsplit(str(request.url))
        tls = parts.scheme == "https"
        return cls(parts.hostname or "", parts.port or (443 if tls else 80), tls, request)


@dataclass
class Exchange:
    """One stream: what to send next, what came."""

    target: Target
    _http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))
    _head: h11.Response | None = None
    _body: bytearray = field(default_factory=bytearray)
    _is_over: bool = False
    ended: bool | None = None
    """What the daemon said of the answer's end: False where it was cut off; None before the end."""

    def open(self, body: Mapping[str, Any]) -> bytes:
        """The request: its head and its first event."""
        request = self.target.request
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        headers += [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")]
        head = h11.Request(method="POST", target=request.url.raw_path, headers=headers)
        return self._bytes(head) + self._event(to_json(body))

    def delta(self, text: str) -> bytes:
        """More of the answer."""
        return self._event(to_json({"delta": text})) if text else b""

    def end(self) -> bytes:
        """No more comes."""
        return self._bytes(h11.Data(data=_END)) + self._bytes(h11.EndOfMessage())

    @property
    def is_open(self) -> bool:
        """Whether the daemon has taken the stream."""
        return self._head is not None and self._head.status_code < 400

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes from the daemon."""
        return self._is_over

    def receive(self, data: bytes) -> list[Part]:
        """Parts out of what came; empty `data`: the connection was closed."""
        try:
            self._http.receive_data(data)
            return self._events()
        except h11.RemoteProtocolError as error:
            raise self.broken(str(error)) from error

    def broken(self, why: str) -> ConnectionFailedError:
        """The connection broke."""
        return ConnectionFailedError("connection_failed", why, self.target.request)

    def _events(self) -> list[Part]:
        parts: list[Part] = []
        while not self._is_over:
            match self._http.next_event():
                case h11.Response() as head:
                    self._head = head
                case h11.Data(data=data):
                    self._body += data
                    if self.is_open:
                        parts += self._parts()
                case h11.EndOfMessage():
                    self._finish()
                case h11.ConnectionClosed():
                    raise self.broken("the connection was closed before the end of the stream")
                case h11.NEED_DATA | h11.PAUSED:
                    break
        return parts

    def _parts(self) -> list[Part]:
        parts = []
        # Of server-sent events, the daemon writes the plain form: no carriage returns, one line of data.
        *events, rest = bytes(self._body).split(b"\n\n")
        self._body = bytearray(rest)
        for event in events:
            names = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and line[:1] != b":")
            data, name = names.get(b"data"), names.get(b"event")
            if data is None:
                continue
            match name:
                case b"part":
                    parts.append(self._decoded(data))
                case b"done":
                    self.ended = bool(json.loads(data).get("ended", True))
                    self._is_over = True
                case b"error":
                    raise self._error(json.loads(data))
        return parts

    def _decoded(self, data: bytes) -> Part:
        try:
            return decode(Part, json.loads(data), "part")
        except (DecodeError, ValueError) as error:
            raise AnswerInvalidError("answer_invalid", str(error), self.target.request) from error

    def _error(self, body: Any) -> ApiError:
        """An error that came after the status had been sent."""
        response = httpx.Response(200, request=self.target.request)
        return api_error(response, body)

    def _finish(self) -> None:
        self._is_over = True
        if self._head is not None and not self.is_open:
            headers = [(bytes(name), bytes(value)) for name, value in self._head.headers]
            response = httpx.Response(
                self._head.status_code, headers=headers, content=bytes(self._body), request=self.target.request
            )
            read(Part, response)
        if self.ended is None:
            raise self.broken("the stream ended without its last event")

    def _event(self, data: bytes) -> bytes:
        return self._bytes(h11.Data(data=b"data: " + data + b"\n\n"))

    def _bytes(self, event: h11.Event) -> bytes:
        return self._http.send(event) or b""
