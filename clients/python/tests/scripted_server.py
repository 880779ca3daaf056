"""An HTTP server with scripted responses, for what a real daemon does too rarely to wait for."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The response to one request. `wait_s` delays all of it, `trickle_s` each byte of its body; `hang_up` closes the connection instead."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_up: bool = False
    wait_s: float = 0.0
    trickle_s: float = 0.0


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that the server has received, at the monotonic time `at`."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    at: float


class ScriptedServer:
    """Gives the responses in turn, and then the last one again and again. `requests` are those it received."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[ReceivedRequest] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                content = json.loads(body) if body else None
                server.requests.append(ReceivedRequest(self.command, self.path, dict(self.headers), content, time.monotonic()))
                answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                time.sleep(answer.wait_s)
                if answer.hang_up:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                sent = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(sent)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for at in range(len(sent)) if answer.trickle_s else ():
                        self.wfile.write(sent[at : at + 1])
                        time.sleep(answer.trickle_s)
                    if not answer.trickle_s:
                        self.wfile.write(sent)
                except OSError:
                    self.close_connection = True

            do_GET = do_POST = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
