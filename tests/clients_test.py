"""The official clients of Cohere, unchanged, against the running daemon.

`make test` sets THRESHER_TEST_SDK to the directory of the clients.
"""

import os
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, os.environ.get("THRESHER_TEST_SDK", str(ROOT / "models/.cache/sdk")))

import cohere  # noqa: E402
from daemon import Daemon  # noqa: E402

QUESTION = "Who discovered penicillin?"
DOCUMENTS = [
    "Penicillium is a genus of moulds.",
    "It began by chance. Alexander Fleming discovered penicillin in 1928, in London.",
    "The tower is 324 metres high.",
]


def setUpModule():
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Cohere(unittest.TestCase):
    def test_rerank_v2(self):
        client = cohere.ClientV2(api_key="none", base_url=daemon.url)
        answer = client.rerank(model="rerank-v3.5", query=QUESTION, documents=DOCUMENTS, top_n=2)
        self.assertEqual([result.index for result in answer.results], [1, 0])
        self.assertTrue(all(0 <= result.relevance_score <= 1 for result in answer.results))
        self.assertEqual(answer.meta.api_version.version, "2")

    def test_relevant_spans(self):
        client = cohere.ClientV2(api_key="none", base_url=daemon.url)
        spans = cohere.RerankRelevantSpans(mode="enabled", threshold=0.0, max_spans=1)
        answer = client.rerank(model="x", query=QUESTION, documents=DOCUMENTS, relevant_spans=spans)
        (span,) = answer.results[0].relevant_spans
        self.assertEqual(
            DOCUMENTS[1][span.start : span.end], "Alexander Fleming discovered penicillin in 1928, in London."
        )

    def test_rerank_v1(self):
        client = cohere.Client(api_key="none", base_url=daemon.url)
        documents = [{"text": text, "page": str(page)} for page, text in enumerate(DOCUMENTS)]
        answer = client.rerank(model="rerank-v3.5", query=QUESTION, documents=documents, return_documents=True)
        self.assertEqual(len(answer.results), 3)
        self.assertEqual(answer.results[0].document.text, DOCUMENTS[1])

    def test_the_asynchronous_client(self):
        import asyncio

        async def ask():
            client = cohere.AsyncClientV2(api_key="none", base_url=daemon.url)
            return await client.rerank(model="x", query=QUESTION, documents=DOCUMENTS)

        self.assertEqual(asyncio.run(ask()).results[0].index, 1)

    def test_an_invalid_request_raises_the_clients_error(self):
        client = cohere.ClientV2(api_key="none", base_url=daemon.url)
        with self.assertRaises(cohere.UnprocessableEntityError) as raised:
            client.rerank(model="x", query=QUESTION, documents=[])
        self.assertIn("at least one", raised.exception.body["message"])


if __name__ == "__main__":
    unittest.main()
