"""The Haystack adapter after Haystack's own retriever, against a running daemon."""

from __future__ import annotations

import asyncio
import copy
import os
import unittest
from typing import Any
from unittest import mock

# Haystack sends usage data to its makers by default.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from corpus import ABSENT, BUDGET, FLEMING, QUESTION, SENTENCE, TEXTS, is_cut_from
from daemon import Daemon, unused_port
from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.dataclasses import ByteStream
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from thresher_client import ConnectionFailedError, RequestInvalidError
from thresher_client.haystack import ThresherCompressor

TEMPLATE = "{% for one in documents %}{{ one.content }}\n{% endfor %}Question: {{ query }}"

daemon: Daemon


def setUpModule() -> None:
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


def documents() -> list[Document]:
    return [Document(id=f"d{at}", content=text, meta={"page": at, "tags": [at]}) for at, text in enumerate(TEXTS)]


class InAPipeline(unittest.TestCase):
    def pipeline(self, **options: Any) -> Pipeline:
        store = InMemoryDocumentStore()
        store.write_documents(documents())
        pipeline = Pipeline()
        pipeline.add_component("retriever", InMemoryBM25Retriever(store))
        pipeline.add_component("thresher", ThresherCompressor(daemon.url, **options))
        pipeline.add_component("prompt", PromptBuilder(TEMPLATE, required_variables="*"))
        pipeline.connect("retriever", "thresher.documents")
        pipeline.connect("thresher.documents", "prompt.documents")
        return pipeline

    def data(self) -> dict[str, Any]:
        return {name: {"query": QUESTION} for name in ("retriever", "thresher", "prompt")}

    def check(self, answer: dict[str, Any]) -> None:
        (fleming,) = [one for one in answer["thresher"]["documents"] if one.id == f"d{FLEMING}"]
        metadata = fleming.meta["thresher"]
        self.assertTrue(is_cut_from(metadata, fleming.content, TEXTS[FLEMING]))
        self.assertEqual((fleming.score, fleming.meta["page"]), (metadata["score"], FLEMING))
        self.assertEqual((metadata["related"], metadata["answerable"]["answerable"]), (True, True))
        prompt = answer["prompt"]["prompt"]
        self.assertIn(SENTENCE, prompt)
        for absent in ABSENT:
            self.assertNotIn(absent, prompt)

    def test_compress(self) -> None:
        self.check(self.pipeline().run(self.data(), include_outputs_from={"thresher"}))

    def test_compress_asynchronously_on_several_event_loops(self) -> None:
        pipeline = self.pipeline()
        for _ in range(2):
            self.check(asyncio.run(pipeline.run_async(self.data(), include_outputs_from={"thresher"})))

    def test_a_pipeline_can_be_saved_and_loaded(self) -> None:
        pipeline = Pipeline()
        component = ThresherCompressor(daemon.url, Secret.from_env_var("MY_KEY"), budget={"coverage": 0.5}, top_n=1)
        pipeline.add_component("thresher", component)
        saved = pipeline.dumps()
        self.assertIn("MY_KEY", saved)
        with mock.patch.dict("os.environ", {"MY_KEY": "secret"}):
            loaded = Pipeline.loads(saved, allowed_modules=["thresher_client.haystack"])
            self.assertEqual(loaded.dumps(), saved)
            answer = loaded.run({"thresher": {"query": QUESTION, "documents": documents()}})
        self.assertEqual([one.content for one in answer["thresher"]["documents"]], [SENTENCE])

    def test_rerank(self) -> None:
        answer = self.pipeline(mode="rerank").run(
            {**self.data(), "thresher": {"query": QUESTION, "top_n": 2}}, include_outputs_from={"thresher"}
        )
        first, second = answer["thresher"]["documents"]
        self.assertEqual(first.content, TEXTS[FLEMING])
        self.assertGreater(first.score, second.score)


class Documents(unittest.TestCase):
    def run_on(self, given: list[Document], **options: Any) -> list[Document]:
        component = ThresherCompressor(daemon.url, **options)
        return component.run(query=QUESTION, documents=given)["documents"]

    def test_the_originals_are_not_changed(self) -> None:
        given = documents()
        before = copy.deepcopy(given)
        self.run_on(given)[0].meta["tags"].append("mine")
        self.assertEqual(given, before)

    def test_keep_empty_and_the_order(self) -> None:
        kept = self.run_on(documents(), keep_empty=True, budget=BUDGET)
        self.assertEqual([(one.id, one.content) for one in kept], [("d0", ""), ("d1", SENTENCE), ("d2", ""), ("d3", "")])

    def test_documents_without_text(self) -> None:
        image = Document(id="i", blob=ByteStream(b"\x89PNG"))
        self.assertEqual(self.run_on([image]), [])
        (kept,) = self.run_on([image], keep_empty=True)
        self.assertEqual((kept.content, kept.blob), (None, image.blob))
        self.assertEqual(self.run_on([]), [])


class Failures(unittest.TestCase):
    def absent(self, **options: Any) -> ThresherCompressor:
        return ThresherCompressor(f"http://127.0.0.1:{unused_port()}", timeout_s=10.0, **options)

    def test_an_error_is_raised(self) -> None:
        with self.assertRaises(ConnectionFailedError):
            self.absent().run(query=QUESTION, documents=documents())
        with self.assertRaises(ConnectionFailedError):
            asyncio.run(self.absent().run_async(query=QUESTION, documents=documents()))
        with self.assertRaises(RequestInvalidError):
            ThresherCompressor(daemon.url).run(query="", documents=documents())

    def test_on_error_originals_returns_the_originals(self) -> None:
        with self.assertLogs("thresher_client", "WARNING"):
            found = self.absent(on_error="originals", top_n=3).run(query=QUESTION, documents=documents())["documents"]
        self.assertEqual([(one.id, one.content) for one in found], [(one.id, one.content) for one in documents()[:3]])
        self.assertEqual({one.meta["thresher"]["degraded"] for one in found}, {"connection_failed"})

    def test_a_component_with_a_token_cannot_be_saved(self) -> None:
        with self.assertRaises(ValueError):
            ThresherCompressor(daemon.url, Secret.from_token("k")).to_dict()

    def test_invalid_options_are_refused(self) -> None:
        for options in ({"mode": "rank"}, {"mode": "rerank", "order": "input"}, {"top_n": 0}):
            with self.subTest(options), self.assertRaises(ValueError):
                ThresherCompressor(**options)


if __name__ == "__main__":
    unittest.main()
