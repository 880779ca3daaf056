"""Rerankers of LangChain, LlamaIndex and Haystack for other services, unchanged except for the address, against the running daemon.

`make test` puts the packages into PYTHONPATH. Their versions differ from those of `tests/sdk`.
"""

from __future__ import annotations

import asyncio
import os
import unittest

# Haystack sends usage data to its makers by default.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import cohere
from daemon import Daemon
from haystack import Document as HaystackDocument
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_cohere import CohereRerank as LangChainCohere
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank as LlamaCohere
from llama_index.postprocessor.jinaai_rerank import JinaRerank as LlamaJina
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as LlamaTei
from llama_index.postprocessor.xinference_rerank import XinferenceRerank as LlamaXinference

daemon: Daemon
QUESTION = "Who discovered penicillin?"
TEXTS = [
    "Penicillium is a genus of moulds.",
    "It began by chance. Alexander Fleming discovered penicillin in 1928, in London.",
    "The tower is 324 metres high.",
]
BEST = [TEXTS[1], TEXTS[0]]


def setUpModule() -> None:
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class LangChain(unittest.TestCase):
    def test_cohere(self) -> None:
        store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        store.add_documents([Document(text, metadata={"at": at}) for at, text in enumerate(TEXTS)])
        reranker = LangChainCohere(model="any", cohere_api_key="none", base_url=daemon.url, top_n=2)
        retriever = ContextualCompressionRetriever(base_compressor=reranker, base_retriever=store.as_retriever())
        for found in (retriever.invoke(QUESTION), asyncio.run(retriever.ainvoke(QUESTION))):
            self.assertEqual([one.page_content for one in found], BEST)
            self.assertEqual(found[0].metadata["at"], 1)
            self.assertGreater(found[0].metadata["relevance_score"], found[1].metadata["relevance_score"])

    def test_cohere_with_rank_fields(self) -> None:
        reranker = LangChainCohere(model="any", cohere_api_key="none", base_url=daemon.url)
        documents = [{"text": text, "noise": QUESTION} for text in TEXTS]
        found = reranker.rerank(documents, QUESTION, rank_fields=["text"], top_n=None)
        self.assertEqual([one["index"] for one in found][0], 1)
        self.assertEqual(len(found), 3)


class LlamaIndex(unittest.TestCase):
    def nodes(self) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=text, id_=str(at)), score=0.5) for at, text in enumerate(TEXTS)]

    def test_all_rerankers(self) -> None:
        for reranker in (
            LlamaCohere(api_key="none", base_url=daemon.url, top_n=2),
            LlamaJina(api_key="none", base_url=f"{daemon.url}/v1", top_n=2),
            LlamaTei(base_url=daemon.url, top_n=2),
            LlamaTei(base_url=daemon.url, top_n=2),
            LlamaXinference(base_url=daemon.url, top_n=2),
        ):
            with self.subTest(type(reranker)):
                found = reranker.postprocess_nodes(self.nodes(), query_str=QUESTION)
                self.assertEqual([one.text for one in found], BEST)
                self.assertGreater(found[0].score or 0.0, found[1].score or 0.0)
                (later, *_) = asyncio.run(reranker.apostprocess_nodes(self.nodes(), query_str=QUESTION))
                self.assertEqual(later.node_id, "1")


class Haystack(unittest.TestCase):
    def documents(self) -> list[HaystackDocument]:
        return [HaystackDocument(content=text, meta={"at": at}) for at, text in enumerate(TEXTS)]

    def test_cohere(self) -> None:
        ranker = CohereRanker(api_key=Secret.from_token("none"), api_base_url=daemon.url, top_k=2)
        found = ranker.run(query=QUESTION, documents=self.documents())["documents"]
        self.assertEqual([one.content for one in found], BEST)
        self.assertEqual(found[0].meta["at"], 1)
        self.assertGreater(found[0].score, found[1].score)

    def test_jina(self) -> None:
        ranker = JinaRanker(api_key=Secret.from_token("none"), base_url=f"{daemon.url}/v1/rerank", top_k=2)
        found = ranker.run(query=QUESTION, documents=self.documents())
        self.assertEqual([one.content for one in found["documents"]], BEST)
        self.assertEqual(found["meta"]["model"], "minilm-l6")
        self.assertGreater(found["meta"]["usage"]["total_tokens"], 0)


class Mistakes(unittest.TestCase):
    """A refused query must raise the framework's error and not return an empty list."""

    def test_cohere(self) -> None:
        with self.assertRaises(cohere.UnprocessableEntityError) as raised:
            LangChainCohere(model="any", cohere_api_key="none", base_url=daemon.url).rerank(TEXTS, " ")
        self.assertIn("query is empty", raised.exception.body["message"])

    def test_jina(self) -> None:
        reranker = LlamaJina(api_key="none", base_url=f"{daemon.url}/v1")
        with self.assertRaises(RuntimeError) as raised:
            reranker.postprocess_nodes([NodeWithScore(node=TextNode(text="x"))], query_str=" ")
        self.assertIn("query is empty", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
