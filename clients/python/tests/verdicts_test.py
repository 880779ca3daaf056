"""The attributors of the three frameworks, behind chains and pipelines of the frameworks, against a running daemon."""

from __future__ import annotations

import asyncio
import json
import unittest
from typing import Any

from corpus import BUDGET, FLEMING, QUESTION, TEXTS
from daemon import Daemon, unused_port
from haystack import Document as HaystackDocument
from haystack import Pipeline
from haystack.dataclasses import ChatMessage
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.response.schema import Response
from llama_index.core.schema import NodeWithScore, TextNode
from thresher_client import Client, ConnectionFailedError, Retries
from thresher_client import haystack, langchain, llama_index

ANSWER = "Alexander Fleming discovered penicillin in 1928. He discovered penicillin in 1938."
NOTHING: dict[str, Any] = {"parts": [], "quotes": []}

daemon: Daemon


def setUpModule() -> None:
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


def nobody() -> Client:
    """A client of a daemon that cannot be reached."""
    return Client(f"http://127.0.0.1:{unused_port()}", retries=Retries(0))


class Attributors(unittest.TestCase):
    def check(self, attribution: Any, index: int) -> None:
        """Asserts the attribution of `ANSWER`, whose source is at `index`."""
        self.assertEqual(json.loads(json.dumps(attribution)), attribution, "it is plain data")
        supported, contradicted = attribution["parts"]
        self.assertEqual((supported["verdict"], contradicted["verdict"]), ("supported", "contradicted"))
        self.assertEqual((supported["sources"][0]["index"], supported["sources"][0]["cited"]), (index, True))
        (conflict,) = contradicted["conflicts"]
        self.assertEqual((conflict["text"], conflict["source"]["text"], conflict["index"]), ("1938", "1928", index))
        self.assertNotIn("extra", supported)
        self.assertEqual(attribution["quotes"], [])

    def test_langchain(self) -> None:
        documents = [Document(text) for text in TEXTS]
        compressor = langchain.ThresherCompressor(base_url=daemon.url, budget=BUDGET)
        attributor = langchain.ThresherAttributor(base_url=daemon.url)
        model = FakeListChatModel(responses=[ANSWER])

        def answered(question: str) -> dict[str, Any]:
            return {"input": question, "context": compressor.compress_documents(documents, question), "answer": model.invoke(question)}

        chain = RunnableLambda(answered) | attributor
        for found in (chain.invoke(QUESTION), asyncio.run(chain.ainvoke(QUESTION))):
            # The compressor left one document.
            self.check(found["attribution"], 0)
            self.assertIsInstance(found["answer"], AIMessage)
        self.assertEqual(attributor.invoke({"answer": " ", "context": documents})["attribution"], NOTHING)
        self.assertEqual(attributor.invoke({"answer": ANSWER, "context": []})["attribution"], NOTHING)
        failing = {"answer": ANSWER, "context": documents}
        with self.assertRaises(ConnectionFailedError):
            langchain.ThresherAttributor(client=nobody()).invoke(failing)
        with self.assertLogs("thresher_client", "WARNING"):
            self.assertIsNone(langchain.ThresherAttributor(client=nobody(), on_error="none").invoke(failing)["attribution"])

    def test_llama_index(self) -> None:
        nodes = [NodeWithScore(node=TextNode(text=text), score=1.0) for text in TEXTS]
        response = Response(response=ANSWER, source_nodes=nodes, metadata={"kept": 1})
        attributor = llama_index.ThresherAttributor(daemon.url)
        for found in (attributor.attribute(response), asyncio.run(attributor.aattribute(response))):
            assert found.metadata is not None
            self.check(found.metadata["thresher"], FLEMING)
            self.assertEqual((found.metadata["kept"], found.response, found.source_nodes), (1, ANSWER, nodes))
        self.assertEqual(response.metadata, {"kept": 1})
        empty = attributor.attribute(Response(response=None, source_nodes=nodes))
        self.assertEqual(empty.metadata, {"thresher": NOTHING})
        with self.assertRaises(ConnectionFailedError):
            llama_index.ThresherAttributor(client=nobody()).attribute(response)
        with self.assertLogs("thresher_client", "WARNING"):
            failed = llama_index.ThresherAttributor(client=nobody(), on_error="none").attribute(response)
        self.assertEqual(failed.metadata, {"kept": 1, "thresher": None})

    def test_haystack(self) -> None:
        documents = [HaystackDocument(content=text) for text in TEXTS]
        pipeline = Pipeline()
        pipeline.add_component("attributor", haystack.ThresherAttributor(daemon.url))
        loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["thresher_client.haystack"])
        for replies in ([ANSWER], [ChatMessage.from_assistant(ANSWER)]):
            run = loaded.run({"attributor": {"replies": replies, "documents": documents}})
            (attribution,) = run["attributor"]["attributions"]
            self.check(attribution, FLEMING)
        component = haystack.ThresherAttributor(daemon.url)
        (attribution,) = asyncio.run(component.run_async([ANSWER], documents))["attributions"]
        self.check(attribution, FLEMING)
        absent = haystack.ThresherAttributor(f"http://127.0.0.1:{unused_port()}", on_error="none", timeout_s=0.5)
        with self.assertLogs("thresher_client", "WARNING"):
            self.assertEqual(absent.run([ANSWER], documents)["attributions"], [None])

    def test_options_are_checked(self) -> None:
        with self.assertRaises(ValueError):
            haystack.ThresherAttributor(on_error="originals")  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
