"""The LlamaIndex adapter after LlamaIndex' own retriever, in a query engine, against a running daemon."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

from corpus import ABSENT, BUDGET, FLEMING, QUESTION, SENTENCE, TEXTS, embed, is_cut_from
from daemon import Daemon, unused_port
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)
from thresher_client import Client, ConnectionFailedError, Retries
from thresher_client.llama_index import ThresherPostprocessor

daemon: Daemon


def setUpModule() -> None:
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Hashed(MockEmbedding):
    def _get_text_embedding(self, text: str) -> list[float]:
        return embed(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return embed(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embed(query)


def nodes() -> list[BaseNode]:
    return [
        TextNode(
            id_=f"n{at}",
            text=text,
            metadata={"file": f"f{at}", "tags": [at]},
            excluded_llm_metadata_keys=["tags"],
            start_char_idx=100 * at,
            end_char_idx=100 * at + len(text),
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc{at}")},
        )
        for at, text in enumerate(TEXTS)
    ]


def found() -> list[NodeWithScore]:
    return [NodeWithScore(node=node, score=0.5) for node in nodes()]


class Pipeline(unittest.TestCase):
    def engine(self, **options: Any) -> RetrieverQueryEngine:
        index = VectorStoreIndex(nodes(), embed_model=Hashed(embed_dim=64))
        return RetrieverQueryEngine.from_args(
            index.as_retriever(similarity_top_k=4),
            llm=MockLLM(),
            response_synthesizer=get_response_synthesizer(llm=MockLLM()),
            node_postprocessors=[ThresherPostprocessor(base_url=daemon.url, **options)],
        )

    def check(self, answer: Any) -> None:
        (fleming,) = [one for one in answer.source_nodes if one.node_id == f"n{FLEMING}"]
        metadata = fleming.metadata["thresher"]
        self.assertTrue(is_cut_from(metadata, fleming.text, TEXTS[FLEMING]))
        self.assertEqual(fleming.score, metadata["score"])
        # The mock LLM repeats its prompt, so this is what a real LLM would receive.
        prompt = str(answer)
        self.assertIn(SENTENCE, prompt)
        self.assertIn("file: f1", prompt)
        for absent in (*ABSENT, "thresher", "tags:"):
            self.assertNotIn(absent, prompt)

    def test_compress(self) -> None:
        self.check(self.engine().query(QUESTION))

    def test_compress_asynchronously_on_several_event_loops(self) -> None:
        engine = self.engine()
        for _ in range(2):
            self.check(asyncio.run(engine.aquery(QUESTION)))

    def test_rerank(self) -> None:
        answer = self.engine(mode="rerank", top_n=2).query(QUESTION)
        self.assertEqual([one.text for one in answer.source_nodes][:1], [TEXTS[FLEMING]])
        first, second = answer.source_nodes
        self.assertGreater(first.score or 0.0, second.score or 0.0)


class Nodes(unittest.TestCase):
    def process(self, given: list[NodeWithScore], **options: Any) -> list[NodeWithScore]:
        return ThresherPostprocessor(base_url=daemon.url, **options).postprocess_nodes(given, query_str=QUESTION)

    def test_the_originals_are_not_changed(self) -> None:
        given = found()
        processed = self.process(given, budget=BUDGET)
        processed[0].node.metadata["tags"].append("mine")
        processed[0].node.relationships.clear()
        self.assertEqual([one.to_dict() for one in given], [one.to_dict() for one in found()])

    def test_ids_relationships_and_positions_stay(self) -> None:
        (one,) = self.process(found(), budget=BUDGET)
        self.assertEqual(one.text, SENTENCE)
        self.assertEqual((one.node_id, one.node.ref_doc_id), ("n1", "doc1"))
        self.assertIsInstance(one.node, TextNode)
        assert isinstance(one.node, TextNode)
        # The position of the node in its document. Spans are positions in the node.
        self.assertEqual(one.node.start_char_idx, 100)
        span = one.metadata["thresher"]["spans"][0]
        self.assertEqual(TEXTS[FLEMING][span["start"] : span["end"]], SENTENCE)
        self.assertNotIn("thresher", one.get_content(MetadataMode.LLM) + one.get_content(MetadataMode.EMBED))

    def test_keep_empty_and_the_order(self) -> None:
        kept = self.process(found(), keep_empty=True, budget=BUDGET)
        self.assertEqual([one.node_id for one in kept], ["n0", "n1", "n2", "n3"])
        self.assertEqual([one.text for one in kept], ["", SENTENCE, "", ""])

    def test_other_kinds_of_nodes(self) -> None:
        document = NodeWithScore(node=Document(text=TEXTS[FLEMING], id_="whole"), score=0.1)
        image = NodeWithScore(node=ImageNode(image_url="http://example.org/a.png"), score=0.2)
        given = [document, image]
        one, other = self.process(given, keep_empty=True)
        self.assertEqual((type(one.node), type(other.node)), (Document, ImageNode))
        self.assertIn(SENTENCE, one.node.get_content())
        self.assertEqual(document.node.get_content(), TEXTS[FLEMING], "the original is not changed")
        self.assertEqual([kept.node_id for kept in self.process(given)], ["whole"])

    def test_no_nodes(self) -> None:
        self.assertEqual(self.process([]), [])

    def test_a_postprocessor_can_be_saved_and_loaded(self) -> None:
        saved = ThresherPostprocessor(base_url=daemon.url, budget=BUDGET, top_n=1).to_dict()
        self.assertNotIn("api_key", saved)
        loaded = ThresherPostprocessor.from_dict(saved)
        self.assertEqual([one.text for one in loaded.postprocess_nodes(found(), query_str=QUESTION)], [SENTENCE])


class Failures(unittest.TestCase):
    def absent(self, **options: Any) -> ThresherPostprocessor:
        client = Client(f"http://127.0.0.1:{unused_port()}", retries=Retries(0))
        self.addCleanup(client.close)
        return ThresherPostprocessor(client=client, **options)

    def test_an_error_is_raised(self) -> None:
        with self.assertRaises(ConnectionFailedError):
            self.absent().postprocess_nodes(found(), query_str=QUESTION)

    def test_on_error_originals_returns_the_originals(self) -> None:
        with self.assertLogs("thresher_client", "WARNING"):
            processed = self.absent(on_error="originals").postprocess_nodes(found(), query_str=QUESTION)
        self.assertEqual([(one.node_id, one.text, one.score) for one in processed], [(one.node_id, one.text, 0.5) for one in found()])
        self.assertEqual({one.metadata["thresher"]["degraded"] for one in processed}, {"connection_failed"})

    def test_a_missing_question_is_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "needs a question"):
            ThresherPostprocessor(base_url=daemon.url).postprocess_nodes(found())

    def test_invalid_options_are_refused(self) -> None:
        for options in ({"mode": "rank"}, {"mode": "rerank", "granularity": "chunk"}, {"top_n": 0}, {"budget": 7}):
            with self.subTest(options), self.assertRaises(ValueError):
                ThresherPostprocessor(**options)


if __name__ == "__main__":
    unittest.main()
