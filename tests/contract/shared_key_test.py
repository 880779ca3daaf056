"""Requests that are sent with a key that all tenants share, as servers in Python and Go read them: Starlette, Werkzeug and net/http.

The rows of tests/fixtures/shared_key.jsonl name the status of each request. What is forwarded has the model of the row's upstream for every
parser, and names nothing that the provider stores. clients/typescript/test/shared_key.test.ts does the same with parsers of Node.js.
`make test` puts the packages into PYTHONPATH. Without Go, its parser is skipped.
"""

from __future__ import annotations

import asyncio
import http.client
import http.server
import io
import json
import shutil
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import starlette.requests
import werkzeug.wrappers
from daemon import ROOT, Daemon

ROWS = [json.loads(line) for line in (ROOT / "tests/fixtures/shared_key.jsonl").read_text().splitlines()]


Parser = Callable[[str, list[tuple[str, str]], bytes], list[tuple[str, Any]]]


class Upstream(http.server.ThreadingHTTPServer):
    """Keeps the requests that it gets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.requests: list[tuple[str, list[tuple[str, str]], bytes]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answering(http.server.BaseHTTPRequestHandler):
    server: Upstream

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append((self.path, self.headers.items(), body))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


def read_with_starlette(path: str, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, Any]]:
    path, _, query = path.partition("?")
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "headers": raw}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def read() -> list[tuple[str, Any]]:
        request = starlette.requests.Request(scope, receive)
        if "json" in request.headers["content-type"]:
            return list((await request.json()).items())
        return (await request.form()).multi_items()

    return asyncio.run(read())


def read_with_werkzeug(path: str, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, Any]]:
    path, _, query = path.partition("?")
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "QUERY_STRING": query, "wsgi.input": io.BytesIO(body)}
    environ["CONTENT_LENGTH"] = str(len(body))
    for name, value in headers:
        environ[("" if name.lower().startswith("content-") else "HTTP_") + name.upper().replace("-", "_")] = value
    request = werkzeug.wrappers.Request(environ)
    if request.is_json:
        return list(request.get_json().items())
    return [*request.form.items(multi=True), *request.files.items(multi=True)]


def plain_json(_: str, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, Any]]:
    """The standard library: it guesses the encoding of a body."""
    return list(json.loads(body).items()) if "json" in dict(headers)["content-type"] else [("model", "gpt-x")]


class Go:
    """The program net_http.go, built in a folder."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "net_http"
        subprocess.run(["go", "build", "-o", self.program, ROOT / "tests/contract/net_http.go"], check=True, timeout=300)

    def read(self, path: str, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, Any]]:
        lines = [f"POST {path} HTTP/1.1", "host: upstream", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers if name.lower() not in {"host", "content-length"}]
        request = "\r\n".join([*lines, "", ""]).encode() + body
        read = subprocess.run([self.program], input=request, capture_output=True, check=True, timeout=60)
        return [(name, value) for name, value in json.loads(read.stdout)]


class SharedKeyTest(unittest.TestCase):
    """One daemon in front of an upstream that serves `gpt-*` with the operator's key."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.upstream = Upstream()
        cls.folder = tempfile.TemporaryDirectory()
        key = Path(cls.folder.name) / "key"
        key.write_text("sk-operator")
        key.chmod(0o600)
        url = f"http://127.0.0.1:{cls.upstream.server_address[1]}"
        upstreams = f"[{{url = {json.dumps(url)}, models = ['gpt-*'], key_file = {json.dumps(str(key))}}}]"
        cls.daemon = Daemon(THRESHER__MIDDLEWARE__UPSTREAMS=upstreams)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.daemon.stop()
        cls.upstream.shutdown()
        cls.upstream.server_close()
        cls.folder.cleanup()

    def forwarded(self, row: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]], bytes]]:
        """Sends a row, and returns what reached the upstream."""
        self.upstream.requests.clear()
        connection = http.client.HTTPConnection(self.daemon.url.removeprefix("http://"), timeout=60)
        body = row["body"].encode()
        connection.putrequest("POST", row["path"])
        for line in [*row["headers"], "authorization: Bearer caller", f"content-length: {len(body)}"]:
            connection.putheader(*line.split(": ", 1))
        connection.endheaders(body)
        response = connection.getresponse()
        self.assertEqual(response.status, row["status"], response.read())
        connection.close()
        self.assertEqual(len(self.upstream.requests), int(row["status"] == 200))
        return iter(self.upstream.requests)

    def check_models(self, parsers: list[Parser]) -> None:
        """Sends every row; what is forwarded has one model for every parser."""
        for row in ROWS:
            with self.subTest(row["name"]):
                for path, headers, body in self.forwarded(row):
                    self.assertIn(("authorization", "Bearer sk-operator"), headers)
                    self.assertEqual([name for name, _ in headers].count("content-type"), 1)
                    for parser in parsers:
                        fields = parser(path, headers, body)
                        models = [value for name, value in fields if "model" in name.lower()]
                        self.assertEqual(models, ["gpt-x"], f"{parser.__qualname__}: {body!r}")

    def test_every_parser_reads_the_same_model(self) -> None:
        self.check_models([read_with_starlette, read_with_werkzeug, plain_json])

    @unittest.skipUnless(shutil.which("go"), "Go is not installed (apt-get install golang-go)")
    def test_go_reads_the_same_model(self) -> None:
        self.check_models([Go(Path(self.folder.name)).read])

    def test_the_rows_mislead_these_parsers_if_they_are_sent_as_they_are(self) -> None:
        misled = set()
        for row in ROWS:
            headers = [tuple(line.split(": ", 1)) for line in row["headers"]]
            for parser in [read_with_starlette, read_with_werkzeug, plain_json]:
                try:
                    fields = dict(parser(row["path"], headers, row["body"].encode()))
                except Exception:  # noqa: BLE001
                    continue
                if fields.get("model") == "expensive" and row["status"] == 415:
                    misled.add(parser.__name__)
        self.assertLessEqual({"read_with_starlette", "read_with_werkzeug"}, misled)


if __name__ == "__main__":
    unittest.main()
