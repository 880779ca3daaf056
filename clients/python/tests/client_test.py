"""The blocking and the asynchronous client against a running daemon."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
from daemon import Daemon, unused_port
from thresher_client import (
    AsyncClient,
    Chunk,
    Client,
    ConnectionFailedError,
    NotFoundError,
    OverloadedError,
    RequestInvalidError,
    Retries,
    TimedOutError,
)

QUESTION = "Who discovered penicillin?"
CHUNKS = [
    Chunk("Penicillium is a genus of moulds. The weather was fine.", id="mould"),
    Chunk(
        "It began by chance 😀. Alexander Fleming discovered penicillin in 1928, in London.",
        id="fleming",
        title="Penicillin",
        metadata={"page": 7, "tags": ["a", None]},
    ),
    Chunk("The tower is 324 metres high."),
]
ANSWER = "Alexander Fleming discovered penicillin in 1928. The tower is 330 metres high, and it was painted green."

# Far longer than a busy machine needs, for what must happen in the end.
WAIT_S = 60.0

daemon: Daemon


def setUpModule() -> None:
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Blocking(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client(daemon.url)
        self.addCleanup(self.client.close)

    def test_compress(self) -> None:
        answer = self.client.compress(QUESTION, CHUNKS, budget={"tokens": 30})
        kept = [chunk for chunk in answer.chunks if chunk.kept]
        self.assertIn("fleming", [chunk.id for chunk in kept])
        assert answer.usage is not None
        self.assertLessEqual(answer.usage.tokens_out, 30)
        self.assertEqual([chunk.index for chunk in answer.chunks], [0, 1, 2])
        self.assertEqual({citation.chunk for citation in answer.citations}, {chunk.id for chunk in kept})
        texts = {chunk.id: CHUNKS[chunk.index].text for chunk in kept}
        for citation in answer.citations:
            source = texts[citation.chunk][citation.source.start : citation.source.end]
            self.assertEqual(source, answer.context[citation.output.start : citation.output.end])
            self.assertEqual(source, citation.text)
            self.assertIsNotNone(citation.score)
        self.assertTrue(answer.related)
        self.assertGreater(answer.relevance or 0.0, 0.0)
        self.assertEqual((answer.usage.tokenizer, answer.warnings), ("o200k_base", ()))
        self.assertEqual(answer.chunks[1].metadata, CHUNKS[1].metadata)
        self.assertEqual(answer.chunks[2].id, "2")
        assert answer.answerable is not None
        known = (answer, answer.rc, answer.question, answer.usage, answer.answerable, *answer.chunks, *answer.citations)
        self.assertTrue(all(not one.extra for one in known), "a field of the response is not in the types")

    def test_whether_the_chunks_answer_the_question(self) -> None:
        for question, chunk, expected in [(QUESTION, "fleming", True), ("What colour is the bicycle?", None, False)]:
            found = self.client.compress(question, CHUNKS).answerable
            assert found is not None and found.source is not None and found.least is not None
            self.assertEqual((found.answerable, found.probability >= found.least), (expected, expected), question)
            if chunk is not None:
                self.assertEqual(found.chunk, chunk)
                self.assertIn("Fleming", CHUNKS[1].text[found.source.start : found.source.end])
        strict, lenient = (self.client.compress(QUESTION, CHUNKS, missed_max=share).answerable for share in (0.5, 0.01))
        assert strict is not None and strict.least is not None and lenient is not None and lenient.least is not None
        self.assertGreater(strict.least, lenient.least)

    def test_a_budget_of_coverage_keeps_more_if_it_promises_more(self) -> None:
        less, more = (self.client.compress(QUESTION, CHUNKS, budget={"coverage": share}).usage for share in (0.5, 0.99))
        assert less is not None and more is not None
        self.assertLess(less.tokens_out, more.tokens_out)

    def test_a_follow_up_question_is_read_with_the_turns_before_it(self) -> None:
        people = [
            "Marta Oyelaran was born in 1948 in Calabar and ran the sediment laboratory.",
            "Ingrid Hallqvist was born in 1961 in Umeå and leads the ice group.",
        ]
        for turn, best in [("Who ran the sediment laboratory?", 0), ("Who leads the ice group?", 1)]:
            messages = [{"role": "user", "content": turn}]
            answer = self.client.compress("When was she born?", people, messages=messages)
            self.assertEqual(max(answer.chunks, key=lambda chunk: chunk.score or 0).index, best, turn)
            self.assertEqual(answer.question.turns_read, 1)

    def test_options_are_those_of_the_http_api(self) -> None:
        answer = self.client.compress(
            QUESTION,
            ["The weather was fine.", {"id": "b", "text": "Fleming discovered penicillin."}],
            budget={"ratio": 0.9},
            granularity="chunk",
            keep=["b"],
            order="relevance",
            format="xml",
            tokenizer="cl100k_base",
            offsets="byte",
            explain=True,
            deadline_ms=5000,
            on_error="best_effort",
        )
        self.assertTrue(answer.context.startswith('<document index="1" id="b"'))
        self.assertEqual(len(answer.explain["chunks"]), 2)
        self.assertIsNone(answer.degraded)
        assert answer.usage is not None
        self.assertEqual(answer.usage.tokenizer, "cl100k_base")
        self.assertEqual([chunk.unread for chunk in answer.chunks], [False, False])

    def test_attribute(self) -> None:
        compressed = self.client.compress(QUESTION, CHUNKS, budget={"ratio": 0.99})
        for named in list[dict[str, Any]]([{"chunks": CHUNKS}, {"compress_id": compressed.id}]):
            found = self.client.attribute(ANSWER, **named, format="markers")
            self.assertEqual([part.verdict == "supported" for part in found.parts], [True, False])
            self.assertEqual(found.parts[0].sources[0].chunk, "fleming")
            self.assertIn("green", [lack.text for lack in found.parts[1].unsupported])
            self.assertIn("[", found.formatted["text"])
        spans = self.client.attribute(ANSWER, CHUNKS, spans=[(0, 17)])
        self.assertEqual([part.text for part in spans.parts], ["Alexander Fleming"])

    def test_verdicts_and_what_the_chunks_say_instead(self) -> None:
        found = self.client.attribute(ANSWER, CHUNKS)
        self.assertEqual([part.verdict for part in found.parts], ["supported", "contradicted"])
        supports = [part.support or 0.0 for part in found.parts]
        self.assertGreater(supports[0], supports[1])
        (conflict,) = found.parts[1].conflicts
        self.assertEqual((conflict.text, conflict.reason, conflict.chunk), ("330 metres", "number", "2"))
        self.assertEqual((conflict.source.text, CHUNKS[2].text[conflict.source.start : conflict.source.end]), ("324 metres", "324 metres"))
        known = (found, *found.parts, conflict, *found.parts[0].sources)
        self.assertTrue(all(not one.extra for one in known), "a field of the response is not in the types")

    def test_quotations(self) -> None:
        quoted = [
            "Fleming discovered penicillin in 1928",
            "Alexander Fleming discovered penicillin by accident in 1928, in London",
            "a mouldy cheese from Bristol",
        ]
        found = self.client.attribute(". ".join(f"It says “{text}”" for text in quoted), CHUNKS)
        self.assertEqual([quote.text for quote in found.quotes], quoted)
        exact, altered, fabricated = found.quotes
        self.assertEqual([quote.verdict for quote in found.quotes], ["exact", "altered", "fabricated"])
        (passage,) = exact.passages
        self.assertEqual((passage.chunk, passage.index, passage.text), ("fleming", 1, quoted[0]))
        self.assertEqual(CHUNKS[1].text[passage.start : passage.end], quoted[0])
        self.assertEqual([word.text for word in altered.altered], ["by", "accident"])
        self.assertEqual((fabricated.passages, fabricated.has_ellipsis), ((), False))
        known = (*found.quotes, passage, *altered.altered)
        self.assertTrue(all(not one.extra for one in known), "a field of the response is not in the types")

    def test_registered_chunks(self) -> None:
        ids = ["a/b ü?#", "tides", "%2F"]
        chunks = [Chunk(f"The moon causes tides, says {at}.", id=id, metadata={"n": at}) for at, id in enumerate(ids)]
        changes = self.client.register_chunks([*chunks, {"id": "blank", "text": " "}], wait=True)
        self.assertEqual([one.status for one in changes.chunks], ["created"] * 3 + ["failed"])
        assert changes.chunks[3].error is not None and changes.warming is not None
        self.assertEqual((changes.chunks[3].error.code, changes.warming.warm), ("field_empty", 3))
        self.assertEqual([self.client.get_chunk(id).text for id in ids], [chunk.text for chunk in chunks])
        page = self.client.list_chunks(limit=2)
        rest = self.client.list_chunks(limit=2, after=page.next)
        self.assertEqual(sorted(one.id for one in (*page.chunks, *rest.chunks)), sorted(ids))
        self.assertIsNone(rest.next)
        found = self.client.search("What causes tides?", limit=1, rank="rc")
        self.assertIn(found.results[0].id, ids)
        answer = self.client.compress("What causes tides?", chunk_ids=ids)
        self.assertEqual([chunk.id for chunk in answer.chunks], ids)
        self.assertEqual(self.client.progress().registered, 3)
        self.client.register_chunks([Chunk("def f(): pass", id="f", kind="code")])
        self.assertEqual(self.client.get_chunk("f").kind, "code")
        self.client.delete_chunks(["f"])
        gone = self.client.delete_chunks([*ids, "never there"])
        self.assertEqual([one.status for one in gone.chunks], ["deleted"] * 3 + ["unknown"])
        with self.assertRaises(NotFoundError) as raised:
            self.client.get_chunk("tides")
        self.assertEqual(raised.exception.code, "id_unknown")

    def test_rerank(self) -> None:
        texts = [chunk.text for chunk in CHUNKS]
        answer = self.client.rerank(QUESTION, texts, top_n=2, relevant_spans={"mode": "enabled"}, return_documents=True)
        self.assertEqual([result.index for result in answer.results], [1, 0])
        assert answer.results[0].relevant_spans
        span = answer.results[0].relevant_spans[0]
        self.assertEqual(texts[1][span.start : span.end], "Alexander Fleming discovered penicillin in 1928, in London.")
        self.assertEqual(answer.results[0].document, {"text": texts[1]})
        assert answer.answerable is not None
        self.assertEqual((answer.related, answer.answerable.answerable), (True, True))
        answer = self.client.rerank("What colour is the bicycle?", texts)
        assert answer.answerable is not None
        self.assertEqual((answer.related, answer.answerable.answerable), (False, False))
        self.assertLess(answer.answerable.probability, 0.5)

    def test_models(self) -> None:
        (model,) = self.client.models()
        self.assertTrue(model.fingerprint)

    def test_invalid_requests_raise_errors_with_code_and_param(self) -> None:
        rows: list[tuple[str, str | None, int, Callable[[], object]]] = [
            ("field_empty", "query", 422, lambda: self.client.compress(" ", ["x"])),
            ("field_empty", "chunks", 422, lambda: self.client.compress("x", [])),
            ("budget_impossible", "budget", 422, lambda: self.client.compress("a b c", ["a b c"], budget={"tokens": 1})),
            ("out_of_range", "budget.coverage", 422, lambda: self.client.compress("x", ["a"], budget={"coverage": 0.3})),
            ("unknown_field", None, 400, lambda: self.client.compress("x", ["a"], extra_body={"nonsense": 1})),
            ("wrong_type", "chunks[1].text", 400, lambda: self.client.compress("x", ["a", {"text": 7}])),
            ("id_unknown", "compress_id", 404, lambda: self.client.attribute("x", compress_id="cmp_no")),
        ]
        for code, param, status, ask in rows:
            with self.subTest(code), self.assertRaises((RequestInvalidError, NotFoundError)) as raised:
                ask()
            self.assertEqual((raised.exception.code, raised.exception.status), (code, status))
            if param is not None:
                self.assertEqual((raised.exception.param or "")[: len(param)], param)

    def test_threads_can_share_a_client(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: self.client.rerank(QUESTION, [chunk.text for chunk in CHUNKS]), range(24)))
        self.assertEqual({answer.results[0].index for answer in answers}, {1})


class Asynchronous(unittest.TestCase):
    def test_it_gives_the_same_results_as_the_blocking_client(self) -> None:
        async def ask() -> None:
            async with AsyncClient(daemon.url) as client:
                with Client(daemon.url) as blocking:
                    compressed = await client.compress(QUESTION, CHUNKS)
                    self.assertEqual(compressed.context, blocking.compress(QUESTION, CHUNKS).context)
                    answer = ANSWER
                    attributed = await client.attribute(answer, CHUNKS)
                    self.assertEqual(attributed.parts, blocking.attribute(answer, CHUNKS).parts)
                reranked = await client.rerank(QUESTION, [chunk.text for chunk in CHUNKS])
                self.assertEqual((reranked.results[0].index, reranked.related), (1, True))
                changes = await client.register_chunks([Chunk("The moon causes tides.", id="moon")], wait=True)
                self.assertEqual(changes.chunks[0].status, "created")
                self.assertEqual((await client.get_chunk("moon")).text, "The moon causes tides.")
                self.assertEqual((await client.search("moon")).results[0].id, "moon")
                self.assertEqual([one.id for one in (await client.list_chunks()).chunks], ["moon"])
                self.assertEqual((await client.progress()).registered, 1)
                self.assertEqual((await client.delete_chunks(["moon"])).chunks[0].status, "deleted")
                self.assertTrue((await client.models())[0].id)
                with self.assertRaises(RequestInvalidError):
                    await client.compress("", CHUNKS)

        asyncio.run(ask())

    def test_it_runs_on_trio(self) -> None:
        async def ask() -> None:
            async with AsyncClient(daemon.url) as client:
                self.assertTrue((await client.compress(QUESTION, CHUNKS)).context)
                parts = (await client.attribute(ANSWER, CHUNKS)).parts
                self.assertEqual([part.verdict for part in parts], ["supported", "contradicted"])

        anyio.run(ask, backend="trio")

    def test_many_requests_at_once(self) -> None:
        async def ask() -> set[int]:
            async with AsyncClient(daemon.url) as client:
                calls = [client.rerank(QUESTION, [chunk.text for chunk in CHUNKS]) for _ in range(40)]
                return {answer.results[0].index for answer in await asyncio.gather(*calls)}

        self.assertEqual(asyncio.run(ask()), {1})

    def test_a_cancelled_request_leaves_the_client_usable(self) -> None:
        async def ask() -> None:
            async with AsyncClient(daemon.url) as client:
                with anyio.move_on_after(0) as scope:
                    await client.models()
                self.assertTrue(scope.cancelled_caught)
                self.assertTrue(await client.models())

        asyncio.run(ask())


class Busy(unittest.TestCase):
    """Daemons that accept fewer requests than the clients send."""

    def test_all_requests_beyond_the_capacity_are_answered_in_the_end(self) -> None:
        """One request works and 64 wait, so the others are refused at first. The clients obey `Retry-After`, and all are answered."""
        small = Daemon(THRESHER__ADMISSION__CONCURRENCY_MAX="1")
        self.addCleanup(small.stop)
        refused: list[httpx.Response] = []

        def count(response: httpx.Response) -> None:
            if response.status_code == 429:
                refused.append(response)

        with httpx.Client(event_hooks={"response": [count]}) as http:
            client = Client(small.url, http_client=http, timeout_s=600.0)

            def ask(number: int) -> str:
                chunks = [f"Sentence {n} of request {number} says that the tower is {n} metres high." for n in range(2)]
                return client.compress("How high is the tower?", chunks, deadline_ms=120_000).context

            with ThreadPoolExecutor(90) as threads:
                answers = list(threads.map(ask, range(90)))
        self.assertTrue(all(answers))
        self.assertTrue(refused, "the daemon refused no request, so this tested nothing")
        for response in refused:
            self.assertIn(int(response.headers["retry-after"]), range(1, 61))


class Gone(unittest.TestCase):
    def test_a_daemon_that_stops_answering(self) -> None:
        """A stopped process keeps its port open and sends nothing."""
        stopped = Daemon()
        self.addCleanup(stopped.stop)
        client = Client(stopped.url)
        self.addCleanup(client.close)
        client.models()
        stopped.pause()
        try:
            began = time.monotonic()
            with self.assertRaises(TimedOutError):
                client.models(timeout_s=0.3)
            self.assertLess(time.monotonic() - began, WAIT_S)
        finally:
            stopped.resume()
        self.assertTrue(client.models())

    def test_a_daemon_that_is_restarted(self) -> None:
        with Client(daemon.url) as client:
            self.assertTrue(dataclasses.is_dataclass(client.models()[0]))
        first = Daemon()
        port = first.url.rsplit(":", 1)[1]
        with Client(first.url, retries=Retries(count_max=50, wait_s_min=0.1, wait_s_max=0.2)) as client:
            client.models()
            first.stop()
            # The client's open connection is dead now, and for a moment nothing listens on the port.
            second = Daemon(THRESHER__HTTP__LISTEN=f"127.0.0.1:{port}")
            self.addCleanup(second.stop)
            self.assertTrue(client.models())


if __name__ == "__main__":
    unittest.main()
