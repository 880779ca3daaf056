"""Rerankers' clients, unchanged, against the running daemon.

`make test` puts the clients where THRESHER_TEST_SDK says, and the binary where THRESHER_TEST_BINARY says.
"""

import os
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, os.environ.get("THRESHER_TEST_SDK", str(ROOT / "models/.cache/sdk")))

import cohere  # noqa: E402

BINARY = os.environ.get("THRESHER_TEST_BINARY", str(ROOT / "target/debug/thresher"))
START_S = 120

QUESTION = "Who discovered penicillin?"
DOCUMENTS = [
    "Penicillium is a genus of moulds.",
    "It began by chance. Alexander Fleming discovered penicillin in 1928, in London.",
    "The tower is 324 metres high.",
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Daemon:
    def __init__(self):
        public, admin = free_port(), free_port()
        settings = {
            "THRESHER__HTTP__LISTEN": f"127.0.0.1:{public}",
            "THRESHER__ADMIN__LISTEN": f"127.0.0.1:{admin}",
            "THRESHER__KV__DIR": "",
            "THRESHER__REGISTRY__DIR": "",
        }
        self.url = f"http://127.0.0.1:{public}"
        self.process = subprocess.Popen(
            [BINARY, "serve"], cwd=ROOT, env={**os.environ, **settings}, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_S
        while not self.is_ready(admin):
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise AssertionError(f"the daemon does not become ready: {self.process.returncode}")
            time.sleep(0.1)

    def is_ready(self, admin):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5).status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def setUpModule():
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Cohere(unittest.TestCase):
    def test_v2(self):
        client = cohere.ClientV2(api_key="none", base_url=daemon.url)
        answer = client.rerank(model="rerank-v3.5", query=QUESTION, documents=DOCUMENTS, top_n=2)
        self.assertEqual([result.index for result in answer.results], [1, 0])
        self.assertTrue(all(0 <= result.relevance_score <= 1 for result in answer.results))
        self.assertEqual(answer.meta.api_version.version, "2")

    def test_v2_spans(self):
        client = cohere.ClientV2(api_key="none", base_url=daemon.url)
        spans = cohere.RerankRelevantSpans(mode="enabled", threshold=0.0, max_spans=1)
        answer = client.rerank(model="x", query=QUESTION, documents=DOCUMENTS, relevant_spans=spans)
        (span,) = answer.results[0].relevant_spans
        self.assertEqual(
            DOCUMENTS[1][span.start : span.end], "Alexander Fleming discovered penicillin in 1928, in London."
        )

    def test_v1(self):
        client = cohere.Client(api_key="none", base_url=daemon.url)
        documents = [{"text": text, "page": str(page)} for page, text in enumerate(DOCUMENTS)]
        answer = client.rerank(model="rerank-v3.5", query=QUESTION, documents=documents, return_documents=True)
        self.assertEqual(len(answer.results), 3)
        self.assertEqual(answer.results[0].document.text, DOCUMENTS[1])

    def test_async(self):
        import asyncio

        async def ask():
            client = cohere.AsyncClientV2(api_key="none", base_url=daemon.url)
            return await client.rerank(model="x", query=QUESTION, documents=DOCUMENTS)

        self.assertEqual(asyncio.run(ask()).results[0].index, 1)

    def test_mistakes_are_errors_of_the_client(self):
        client = cohere.ClientV2(api_key="none", base_url=daemon.url)
        with self.assertRaises(cohere.UnprocessableEntityError) as raised:
            client.rerank(model="x", query=QUESTION, documents=[])
        self.assertIn("at least one", raised.exception.body["message"])


if __name__ == "__main__":
    unittest.main()
