"""The protocol of `POST /v1/attribute/stream`, without I/O: produces bytes to send, and parses received bytes into parts.

A stream sends and receives at the same time. httpx cannot do this, because it sends all of a body before it reads the answer, so
each stream has its own connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
import httpx

from ._calls import parse_answer, to_json
from ._decode import DecodeError, decode
from .errors import AnswerInvalidError, ApiError, ConnectionFailedError, api_error
from .types import Part

PATH = "/v1/attribute/stream"
_END = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Target:
    """The address of a stream: host, port, whether it uses TLS, and the HTTP request."""

    host: str
    port: int
    tls: bool
    request: httpx.Request

    @classmethod
    def from_url(cls, url: str, headers: Mapping[str, str]) -> Target:
        request = httpx.Request("POST", url, headers={**headers, "Accept": "text/event-stream"})
        parts = urlsplit(str(request.url))
        tls = parts.scheme == "https"
        return cls(parts.hostname or "", parts.port or (443 if tls else 80), tls, request)


@dataclass
class Exchange:
    """The state of one stream: parses what was received, and produces what to send next."""

    target: Target
    _http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))
    _head: h11.Response | None = None
    _body: bytearray = field(default_factory=bytearray)
    _is_over: bool = False
    ended: bool | None = None
    """True if the answer was complete, False if the body ended without the answer's own end marker, None before the end."""

    def open(self, body: Mapping[str, Any]) -> bytes:
        """Returns the bytes of the request's head and of its first event, which is `body`."""
        request = self.target.request
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        headers += [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")]
        head = h11.Request(method="POST", target=request.url.raw_path, headers=headers)
        return self._bytes(head) + self._event(to_json(body))

    def delta(self, text: str) -> bytes:
        """Returns the bytes of an event with the next piece of the answer."""
        return self._event(to_json({"delta": text})) if text else b""

    def end(self) -> bytes:
        """Returns the bytes that end the request."""
        return self._bytes(h11.Data(data=_END)) + self._bytes(h11.EndOfMessage())

    @property
    def is_open(self) -> bool:
        """Whether the daemon has accepted the stream."""
        return self._head is not None and self._head.status_code < 400

    @property
    def is_over(self) -> bool:
        """Whether the daemon has sent everything."""
        return self._is_over

    def receive(self, data: bytes) -> list[Part]:
        """Returns the parts that `data` completes. Empty `data` means that the connection was closed.

        Raises an `ApiError` if the daemon sent an error, and a `ConnectionFailedError` if the stream ended too early.
        """
        try:
            self._http.receive_data(data)
            return self._events()
        except h11.RemoteProtocolError as error:
            raise self.connection_error(str(error)) from error

    def connection_error(self, message: str) -> ConnectionFailedError:
        """Returns the error for a connection that broke."""
        return ConnectionFailedError("connection_failed", message, self.target.request)

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
                    raise self.connection_error("the connection was closed before the end of the stream")
                case h11.NEED_DATA | h11.PAUSED:
                    break
        return parts

    def _parts(self) -> list[Part]:
        parts = []
        # The daemon writes simple server-sent events: no carriage returns, and one line of data for each event.
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
        """Returns the error for an error event, which comes after the status 200 was sent."""
        response = httpx.Response(200, request=self.target.request)
        return api_error(response, body)

    def _finish(self) -> None:
        self._is_over = True
        if self._head is not None and not self.is_open:
            headers = [(bytes(name), bytes(value)) for name, value in self._head.headers]
            response = httpx.Response(
                self._head.status_code, headers=headers, content=bytes(self._body), request=self.target.request
            )
            parse_answer(Part, response)
        if self.ended is None:
            raise self.connection_error("the stream ended without its last event")

    def _event(self, data: bytes) -> bytes:
        return self._bytes(h11.Data(data=b"data: " + data + b"\n\n"))

    def _bytes(self, event: h11.Event) -> bytes:
        return self._http.send(event) or b""
