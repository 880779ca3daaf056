"""The LangChain adapter after LangChain's own retriever, against a running daemon."""

from __future__ import annotations

import asyncio
import copy
import datetime
import unittest
from typing import Any

from corpus import ABSENT, BUDGET, FLEMING, QUESTION, SENTENCE, TEXTS, embed, is_cut_from
from daemon import Daemon, unused_port
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import BaseDocumentCompressor, BaseDocumentTransformer, Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from thresher_client import Client, ConnectionFailedError, RequestInvalidError, Retries
from thresher_client.langchain import ThresherCompressor

daemon: Daemon


def setUpModule() -> None:
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Hashed(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [embed(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return embed(text)


def documents() -> list[Document]:
    """Returns documents with metadata that JSON cannot represent."""
    return [
        Document(id=f"d{at}", page_content=text, metadata={"source": f"s{at}", "at": datetime.date(2020, 1, 1 + at), "n": [at]})
        for at, text in enumerate(TEXTS)
    ]


class Pipeline(unittest.TestCase):
    def retriever(self, **options: Any) -> ContextualCompressionRetriever:
        store = InMemoryVectorStore(Hashed())
        store.add_documents(documents())
        compressor = ThresherCompressor(base_url=daemon.url, **options)
        return ContextualCompressionRetriever(
            base_compressor=compressor, base_retriever=store.as_retriever(search_kwargs={"k": 4})
        )

    def check(self, found: list[Document]) -> None:
        (fleming,) = [one for one in found if one.id == f"d{FLEMING}"]
        self.assertIn(SENTENCE, fleming.page_content)
        self.assertNotIn(ABSENT[0], fleming.page_content)
        original = documents()[FLEMING].metadata
        self.assertEqual({key: fleming.metadata[key] for key in original}, original)
        metadata = fleming.metadata["thresher"]
        self.assertEqual(fleming.metadata["relevance_score"], metadata["score"])
        self.assertTrue(metadata["id"].startswith("cmp_"))
        self.assertEqual((metadata["related"], metadata["answerable"]["answerable"]), (True, True))
        self.assertTrue(is_cut_from(metadata, fleming.page_content, TEXTS[FLEMING]))
        self.assertLess(len(found), len(TEXTS), "documents without evidence are left out")

    def test_compress(self) -> None:
        self.check(self.retriever().invoke(QUESTION))

    def test_compress_asynchronously_on_several_event_loops(self) -> None:
        retriever = self.retriever()
        for _ in range(2):
            self.check(asyncio.run(retriever.ainvoke(QUESTION)))

    def test_rerank(self) -> None:
        found = self.retriever(mode="rerank", top_n=2).invoke(QUESTION)
        self.assertEqual((len(found), found[0].page_content), (2, TEXTS[FLEMING]))
        metadata = found[0].metadata["thresher"]
        self.assertEqual((metadata["related"], metadata["answerable"]["answerable"]), (True, True))
        self.assertGreater(found[0].metadata["relevance_score"], found[1].metadata["relevance_score"])

    def test_in_a_pipeline_of_compressors(self) -> None:
        steps: list[BaseDocumentTransformer | BaseDocumentCompressor] = [
            ThresherCompressor(base_url=daemon.url, mode="rerank", top_n=3),
            ThresherCompressor(base_url=daemon.url, budget=BUDGET),
        ]
        found = DocumentCompressorPipeline(transformers=steps).compress_documents(documents(), QUESTION)
        self.assertEqual(found[0].page_content, SENTENCE)


class Documents(unittest.TestCase):
    def compress(self, given: list[Document], question: str = QUESTION, **options: Any) -> list[Document]:
        return list(ThresherCompressor(base_url=daemon.url, **options).compress_documents(given, question))

    def test_the_originals_are_not_changed(self) -> None:
        given = documents()
        before = copy.deepcopy(given)
        found = self.compress(given)
        found[0].metadata["n"].append("mine")
        self.assertEqual(given, before)

    def test_keep_empty_order_and_top_n(self) -> None:
        kept = self.compress(documents(), keep_empty=True, budget=BUDGET)
        self.assertEqual([one.id for one in kept], ["d0", "d1", "d2", "d3"])
        self.assertEqual([bool(one.page_content) for one in kept], [one.metadata["thresher"]["kept"] for one in kept])
        self.assertEqual([one.metadata["thresher"]["marker"] for one in kept if one.page_content], [1])
        many: dict[str, Any] = {"budget": {"ratio": 0.9}}
        by_input, by_score = self.compress(documents(), **many), self.compress(documents(), order="relevance", **many)
        self.assertEqual([one.id for one in by_input], sorted(one.id or "" for one in by_input))
        self.assertEqual(by_score[0].id, "d1")
        self.assertEqual([one.id for one in self.compress(documents(), top_n=1, **many)], ["d1"])

    def test_a_question_without_an_answer(self) -> None:
        for mode in ("compress", "rerank"):
            found = self.compress(documents(), "What colour is the bicycle?", mode=mode, keep_empty=True)
            self.assertEqual(len(found), len(TEXTS))
            for one in found:
                answerable = one.metadata["thresher"]["answerable"]
                self.assertFalse(answerable["answerable"], mode)
                self.assertLess(answerable["probability"], 0.5)

    def test_a_budget_of_coverage(self) -> None:
        def length(coverage: float) -> int:
            return sum(len(one.page_content) for one in self.compress(documents(), budget={"coverage": coverage}))

        self.assertLess(length(0.5), length(0.99))

    def test_granularity(self) -> None:
        whole = self.compress(documents(), granularity="chunk", top_n=1)
        self.assertEqual(whole[0].page_content, TEXTS[FLEMING])

    def test_a_title_improves_the_score(self) -> None:
        text = "It was completed in 1874 after two years of work."
        given = [Document(page_content=text, metadata={"title": "Cape Orrin Light"}), Document(page_content=text)]
        found = self.compress(given, "When was Cape Orrin Light completed?", mode="rerank")
        self.assertEqual([one.metadata.get("title") for one in found], ["Cape Orrin Light", None])
        self.assertEqual(found[0].page_content, text)
        with_number = [*given, Document(page_content="x", metadata={"title": 7})]
        self.assertTrue(self.compress(with_number, "When was Cape Orrin Light completed?"))

    def test_no_documents_and_blank_documents(self) -> None:
        self.assertEqual(self.compress([]), [])
        self.assertEqual(self.compress([Document(page_content=" \n")]), [])
        (blank,) = self.compress([Document(page_content=" \n")], keep_empty=True)
        self.assertEqual((blank.page_content, blank.metadata["thresher"]["kept"]), ("", False))

    def test_a_client_of_the_caller(self) -> None:
        with Client(daemon.url) as client:
            compressor = ThresherCompressor(base_url="http://127.0.0.1:9", client=client)
            self.assertTrue(compressor.compress_documents(documents(), QUESTION))


class Failures(unittest.TestCase):
    def absent(self, **options: Any) -> ThresherCompressor:
        client = Client(f"http://127.0.0.1:{unused_port()}", retries=Retries(0))
        self.addCleanup(client.close)
        return ThresherCompressor(client=client, base_url=client.base_url, **options)

    def test_an_error_is_raised(self) -> None:
        with self.assertRaises(ConnectionFailedError):
            self.absent().compress_documents(documents(), QUESTION)
        with self.assertRaises(ConnectionFailedError):
            asyncio.run(self.absent(timeout_s=10.0).acompress_documents(documents(), QUESTION))
        with self.assertRaises(RequestInvalidError) as raised:
            ThresherCompressor(base_url=daemon.url).compress_documents(documents(), " ")
        self.assertEqual(raised.exception.code, "field_empty")

    def test_on_error_originals_returns_the_originals(self) -> None:
        for mode in ("compress", "rerank"):
            compressor = self.absent(on_error="originals", mode=mode)
            with self.subTest(mode), self.assertLogs("thresher_client", "WARNING") as logs:
                found = compressor.compress_documents(documents(), QUESTION)
            self.assertEqual([(one.id, one.page_content) for one in found], [(one.id, one.page_content) for one in documents()])
            self.assertEqual({one.metadata["thresher"]["degraded"] for one in found}, {"connection_failed"})
            self.assertNotIn("penicillin", "".join(logs.output))

    def test_invalid_options_are_refused(self) -> None:
        rows: list[dict[str, Any]] = [
            {"mode": "rank"},
            {"mode": "rerank", "budget": {"tokens": 10}},
            {"top_n": 0},
            {"on_error": "ignore"},
            {"nonsense": 1},
        ]
        for options in rows:
            with self.subTest(options), self.assertRaises(ValueError):
                ThresherCompressor(**options)


if __name__ == "__main__":
    unittest.main()
