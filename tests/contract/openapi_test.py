"""The running daemon behaves as its OpenAPI document describes."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request
from pathlib import Path

import jsonschema
from daemon import ROOT, Daemon

HERE = Path(__file__).resolve().parent
EXAMPLES = ROOT / "docs" / "examples"
SECONDS_MAX = 900


class Upstream(http.server.BaseHTTPRequestHandler):
    """Gives every request the same response."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"object": "answer"}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def setUpModule():
    global daemon, document
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    upstream.daemon_threads = True
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    unittest.addModuleCleanup(upstream.shutdown)
    daemon = Daemon(THRESHER__MIDDLEWARE__UPSTREAMS=f'[{{url = "http://127.0.0.1:{upstream.server_port}"}}]')
    unittest.addModuleCleanup(daemon.stop)
    document = json.load(urllib.request.urlopen(f"{daemon.url}/openapi.json"))


def operations():
    """Path, method and operation of all that is described."""
    return [(path, method, operation) for path, item in document["paths"].items() for method, operation in item.items()]


def validator(schema):
    """A validator of a schema of the document, which resolves its references."""
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})


def example_requests():
    """Path, name, body and schema of every example of a request."""
    for path, _, operation in operations():
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for name, example in content.get("examples", {}).items():
            yield path, name, example["value"], content["schema"]


class Document(unittest.TestCase):
    def test_every_schema_is_valid(self):
        for name, schema in document["components"]["schemas"].items():
            with self.subTest(name):
                jsonschema.Draft202012Validator.check_schema(schema)

    def test_examples_and_their_responses_match_the_schemas(self):
        for path, name, body, schema in example_requests():
            with self.subTest(path, name=name):
                validator(schema).validate(body)
                request = urllib.request.Request(daemon.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
                answer = json.load(urllib.request.urlopen(request, timeout=300))
                described = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
                validator(described).validate(answer)

    def test_the_document_has_all_examples_of_the_repository(self):
        shown = [body for _, _, body, _ in example_requests()]
        for file in EXAMPLES.glob("*.json"):
            with self.subTest(file.name):
                self.assertIn(json.loads(file.read_text()), shown)

    def test_requests_that_the_schema_forbids_are_refused(self):
        chunk = {"text": "a"}
        for path, body in [
            ("/v1/compress", {"query": "a", "chunks": [chunk], "chunk_ids": ["a"]}),
            ("/v1/compress", {"query": "a", "chunks": [{**chunk, "more": 1}]}),
            ("/v1/attribute", {"answer": "a", "chunks": [chunk], "sources_max": 101}),
            ("/v1/rerank", {"query": "a", "documents": [{"title": "no text"}]}),
            ("/v1/rerank", {"query": "a", "texts": ["a"]}),
            ("/rerank", {"query": "a", "documents": ["a"]}),
        ]:
            with self.subTest(body=body):
                schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
                self.assertFalse(validator(schema).is_valid(body))
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    json_body = {"content-type": "application/json"}
                    urllib.request.urlopen(urllib.request.Request(daemon.url + path, json.dumps(body).encode(), json_body))
                self.assertIn(refused.exception.code, (400, 422))


class Schemathesis(unittest.TestCase):
    def test_schemathesis_finds_no_failure(self):
        """No 5xx, no undescribed response, no refused valid request, and no accepted invalid one."""
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        folder = self.enterContext(tempfile.TemporaryDirectory())
        run = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "--config-file", HERE / "schemathesis.toml", "run", f"{daemon.url}/openapi.json",
             "--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--seed", "1", "--generation-database", "none",
             "--continue-on-failure", "--no-shrink", "--no-color"],
            # It writes a directory into its working directory.
            cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX,
        )
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        # It does not test the path of the document itself.
        count = len(operations()) - 1
        self.assertIn(f"Tested: {count}", run.stdout)


if __name__ == "__main__":
    unittest.main()
