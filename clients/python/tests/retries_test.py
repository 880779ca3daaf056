"""Retries, deadlines and errors, against a server with scripted responses. Both clients run the same rows."""

from __future__ import annotations

import asyncio
import pickle
import time
import unittest
from typing import Any
from unittest import mock

import httpx
from daemon import eventually, unused_port
from scripted_server import Answer, ScriptedServer
from thresher_client import (
    AnswerInvalidError,
    ApiError,
    AsyncClient,
    AuthenticationError,
    Client,
    ConnectionFailedError,
    DeadlineExceededError,
    NotFoundError,
    OverloadedError,
    RequestInvalidError,
    Retries,
    ServerError,
    ThresherError,
    TimedOutError,
    UnavailableError,
)

MODEL = {
    "id": "m",
    "object": "model",
    "fingerprint": "f",
    "window_tokens_max": 512,
    "heads": 1,
    "head_dim": 8,
    "estimator": "rc",
    "device": "cpu",
    "exports_kv": False,
}
MODELS = {"object": "list", "data": [], "thresher": [{**MODEL, "of_tomorrow": [1]}], "of_tomorrow": True}
GOOD = Answer(body=MODELS)
SOON = Retries(count_max=3, wait_s_min=0.01, wait_s_max=0.05)
# A response that no test waits for, and a time in which even a busy machine notices that a deadline has passed.
NEVER_S = 600.0
WAIT_S = 60.0


def error(status: int, code: str, message: str = "no", param: str | None = None, **headers: str) -> Answer:
    body = {"error": {"code": code, "message": message, "param": param}}
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


BUSY = error(429, "overloaded")


class BothClients(unittest.TestCase):
    """Each row runs with the blocking client and with the asynchronous one."""

    def check(self, *answers: Answer, times: int, raises: type[ThresherError] | None = None, **options: Any) -> Any:
        """Asserts the number of requests and the result. Returns the exception that was raised last, if one is expected."""

        async def asynchronous(url: str) -> Any:
            async with AsyncClient(url, retries=retries) as client:
                return await client.models(**options)

        def blocking(url: str) -> Any:
            with Client(url, retries=retries) as client:
                return client.models(**options)

        retries = options.pop("retries", SOON)
        raised: ThresherError | None = None
        for ask in (blocking, lambda url: asyncio.run(asynchronous(url))):
            with self.subTest(ask), ScriptedServer(*answers) as server:
                if raises is None:
                    self.assertEqual(ask(server.url)[0].id, "m")
                else:
                    with self.assertRaises(raises) as caught:
                        ask(server.url)
                    raised = caught.exception
                # A client that gives up is sometimes faster than the server.
                eventually(f"the server has {times} requests", lambda: len(server.requests) >= times)
                self.assertEqual(len(server.requests), times)
                self.requests = server.requests
        return raised


class WhatIsRepeated(BothClients):
    def test_refusals_and_lost_connections_are_repeated(self) -> None:
        self.check(BUSY, error(503, "draining"), GOOD, times=3)
        self.check(Answer(hang_up=True), GOOD, times=2)

    def test_repetitions_are_bounded(self) -> None:
        raised = self.check(BUSY, times=4, raises=OverloadedError)
        self.assertEqual((raised.status, raised.code, raised.message), (429, "overloaded", "no"))
        self.check(error(503, "not_ready"), times=4, raises=UnavailableError)
        self.check(Answer(hang_up=True), times=4, raises=ConnectionFailedError)
        self.check(BUSY, times=1, raises=OverloadedError, retries=Retries(count_max=0))

    def test_invalid_requests_and_failures_are_not_repeated(self) -> None:
        for status, kind in [
            (400, RequestInvalidError),
            (401, AuthenticationError),
            (404, NotFoundError),
            (422, RequestInvalidError),
            (500, ServerError),
            (502, ServerError),
            (504, DeadlineExceededError),
            (507, ServerError),
        ]:
            with self.subTest(status):
                self.check(error(status, "some_code"), GOOD, times=1, raises=kind)

    def test_failed_connections_are_repeated(self) -> None:
        began = time.monotonic()
        with self.assertRaises(ConnectionFailedError) as caught:
            Client(f"http://127.0.0.1:{unused_port()}", retries=Retries(2, 0.1, 0.1)).models()
        self.assertGreaterEqual(time.monotonic() - began, 0.1, "two waits of at least 0.05 s")
        self.assertIsInstance(caught.exception.__cause__, httpx.ConnectError)
        assert caught.exception.request is not None
        self.assertEqual(caught.exception.request.url.path, "/v1/models")

    def test_retry_after_is_obeyed(self) -> None:
        self.check(error(429, "overloaded", Retry_After="1"), GOOD, times=2)
        first, second = self.requests
        self.assertGreaterEqual(second.at - first.at, 1.0)

    def test_refusals_with_retry_after_are_repeated_more_often(self) -> None:
        busy = error(429, "overloaded", Retry_After="0")
        self.check(*[busy] * 6, GOOD, times=7)
        # Refusals without Retry-After are counted separately.
        self.check(busy, BUSY, busy, BUSY, busy, BUSY, GOOD, times=7)
        self.check(busy, BUSY, busy, BUSY, busy, BUSY, BUSY, GOOD, times=7, raises=OverloadedError)
        retries = Retries(count_max=1, retry_after_count_max=4, wait_s_min=0.01, wait_s_max=0.01)
        self.check(busy, times=5, raises=OverloadedError, retries=retries)
        self.check(busy, times=1, raises=OverloadedError, retries=Retries(count_max=0))
        with self.assertRaises(ValueError):
            Retries(retry_after_count_max=-1)

    def test_refusals_with_retry_after_are_repeated_until_the_deadline(self) -> None:
        now = error(503, "not_ready", Retry_After="0")
        soon = Retries(wait_s_min=0.0, wait_s_max=0.0)
        self.check(*[now] * 60, GOOD, times=61, retries=soon)
        # The deadline ends the repetitions, and the error is that of the daemon.
        with ScriptedServer(error(429, "overloaded", Retry_After="0.2")) as server, Client(server.url, timeout_s=1.0) as client:
            with self.assertRaises((OverloadedError, TimedOutError)):
                client.models()
            self.assertIn(len(server.requests), range(2, 7))

    def test_waits_grow_to_a_limit_and_are_random(self) -> None:
        retries = Retries(count_max=9, wait_s_min=0.1, wait_s_max=1.0)
        for attempt, doubled in [(1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (1000, 1.0)]:
            waits = [retries.wait_s(attempt, None) for _ in range(200)]
            self.assertTrue(all(doubled / 2 <= wait <= doubled for wait in waits))
            self.assertGreater(len(set(waits)), 100)
        waits = [retries.wait_s(1, 3.0) for _ in range(200)]
        self.assertTrue(all(3.0 <= wait <= 3.05 for wait in waits))


class Deadline(BothClients):
    def took(self, *answers: Answer, **options: Any) -> float:
        began = time.monotonic()
        self.check(*answers, **options)
        return (time.monotonic() - began) / 2

    def test_an_answer_that_does_not_come(self) -> None:
        self.assertLess(self.took(Answer(wait_s=NEVER_S), times=1, raises=TimedOutError, timeout_s=1.0), WAIT_S)

    def test_an_answer_that_trickles(self) -> None:
        trickle = Answer(body=MODELS, trickle_s=0.1, headers={"Content-Length": "100000"})
        self.assertLess(self.took(trickle, times=1, raises=TimedOutError, timeout_s=1.0), WAIT_S)

    def test_a_timeout_is_a_TimeoutError(self) -> None:
        self.assertIsInstance(self.check(Answer(wait_s=NEVER_S), times=1, raises=TimedOutError, timeout_s=1.0), TimeoutError)

    def test_no_wait_is_longer_than_the_deadline(self) -> None:
        busy = error(429, "overloaded", Retry_After="1000")
        self.assertLess(self.took(busy, times=1, raises=OverloadedError, timeout_s=900.0), WAIT_S)

    def test_all_attempts_share_one_deadline(self) -> None:
        retries = Retries(count_max=1000, wait_s_min=0.1, wait_s_max=0.1)
        with ScriptedServer(BUSY) as server, Client(server.url, retries=retries, timeout_s=3.0) as client:
            began = time.monotonic()
            # It depends on the time of the last attempt which of the two is raised.
            with self.assertRaisesRegex((OverloadedError, TimedOutError), "overloaded"):
                client.models()
            self.assertLess(time.monotonic() - began, WAIT_S)
            # Waits are 0.05 s or longer.
            self.assertIn(len(server.requests), range(2, 62))

    def test_a_timeout_names_the_error_before_it(self) -> None:
        raised = self.check(BUSY, Answer(wait_s=NEVER_S), times=2, raises=TimedOutError, timeout_s=3.0)
        self.assertIn("overloaded", str(raised))
        self.assertIsInstance(raised.__cause__, OverloadedError)


class Errors(BothClients):
    def test_an_error_has_status_code_message_and_param(self) -> None:
        raised = self.check(error(422, "budget_impossible", "too little", "budget"), times=1, raises=RequestInvalidError)
        self.assertEqual(
            (raised.status, raised.code, raised.message, raised.param),
            (422, "budget_impossible", "too little", "budget"),
        )
        self.assertEqual(str(raised), "budget_impossible: too little (at budget)")
        self.assertEqual(raised.request.url.path, "/v1/models")
        self.assertIsNone(raised.request_id)

    def test_an_error_has_the_id_of_the_request(self) -> None:
        raised = self.check(error(500, "internal", x_request_id="req_1"), times=1, raises=ServerError)
        self.assertEqual(raised.request_id, "req_1")

    def test_an_error_survives_pickling(self) -> None:
        raised = self.check(error(429, "overloaded", Retry_After="60"), times=1, raises=OverloadedError, timeout_s=30.0)
        copy = pickle.loads(pickle.dumps(raised))
        self.assertEqual((type(copy), str(copy)), (OverloadedError, str(raised)))
        self.assertEqual((copy.status, copy.retry_after_s, copy.request.url), (429, 60.0, raised.request.url))

    def test_an_error_that_is_not_the_daemons_is_an_api_error(self) -> None:
        raised = self.check(Answer(502, b"<h1>Bad Gateway</h1>"), times=1, raises=ApiError)
        self.assertEqual((raised.code, raised.message), ("http_502", "<h1>Bad Gateway</h1>"))
        for body in (["x"], {"error": "x"}, {"error": {"code": 7}}, None):
            self.assertEqual(self.check(Answer(500, body), times=1, raises=ServerError).code, "http_500")

    def test_a_response_of_another_shape_is_an_error(self) -> None:
        bodies: list[Any] = [b"<html>", {**MODELS, "thresher": [{**MODEL, "id": 7}]}, {**MODELS, "thresher": {}}, {}, [], None]
        for body in bodies:
            with self.subTest(body):
                self.check(Answer(body=body), times=1, raises=AnswerInvalidError)

    def test_an_error_has_its_retry_after(self) -> None:
        for header, seconds in [("7", 7.0), ("nonsense", None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("nan", None)]:
            with self.subTest(header):
                raised = self.check(
                    error(503, "draining", Retry_After=header), times=1, raises=UnavailableError, retries=Retries(0)
                )
                self.assertEqual(raised.retry_after_s, seconds)


class Requests(unittest.TestCase):
    def test_url_and_key(self) -> None:
        with ScriptedServer(GOOD) as server:
            with Client(server.url + "/behind/a/proxy/", api_key="k") as client:
                client.models()
            with mock.patch.dict("os.environ", {"THRESHER_URL": server.url, "THRESHER_API_KEY": "e"}), Client() as client:
                client.models()
            with Client(server.url) as client:
                client.models()
        first, second, third = server.requests
        self.assertEqual((first.path, first.headers["Authorization"]), ("/behind/a/proxy/v1/models?upstreams=false", "Bearer k"))
        self.assertEqual((second.path, second.headers["Authorization"]), ("/v1/models?upstreams=false", "Bearer e"))
        self.assertNotIn("Authorization", third.headers)
        for wrong in ("ftp://x", "localhost:8080", "http://", " "):
            with self.subTest(wrong), self.assertRaises(ValueError):
                Client(wrong)

    def test_the_proxy_of_the_environment_is_ignored(self) -> None:
        proxy = f"http://127.0.0.1:{unused_port()}"
        with ScriptedServer(GOOD) as server, mock.patch.dict("os.environ", {"HTTP_PROXY": proxy, "ALL_PROXY": proxy}):
            with Client(server.url) as client:
                self.assertEqual(client.models()[0].id, "m")

    def test_the_callers_http_client_stays_open(self) -> None:
        with ScriptedServer(GOOD) as server, httpx.Client(headers={"X-Tenant": "t"}) as http:
            with Client(server.url, http_client=http) as client:
                client.models()
            self.assertFalse(http.is_closed)
            own = Client(server.url)
            own.close()
            with self.assertRaises(RuntimeError):
                own.models()

    def test_only_options_that_are_set_are_sent(self) -> None:
        answer = {"results": [], "rank": "of tomorrow", "candidates": 0, "timing_ms": {}}
        with ScriptedServer(Answer(body=answer)) as server, Client(server.url) as client:
            client.search("q")
            client.search("q", limit=3, extra_body={"of_tomorrow": 1})
        self.assertEqual([request.body for request in server.requests], [{"query": "q"}, {"query": "q", "limit": 3, "of_tomorrow": 1}])

    def test_values_that_are_not_json_are_refused_before_sending(self) -> None:
        with ScriptedServer(GOOD) as server, Client(server.url) as client:
            for error_type, chunks in [
                (ValueError, ["\ud800"]),
                (ValueError, [{"text": "x", "metadata": {"n": float("nan")}}]),
                (TypeError, [{"text": "x", "metadata": {"o": object()}}]),
                (TypeError, "one text"),
                (TypeError, [7]),
            ]:
                with self.subTest(chunks), self.assertRaises(error_type):
                    client.compress("q", chunks)  # type: ignore[arg-type]
            with self.assertRaisesRegex(TypeError, "'budgets'"):
                client.compress("q", ["c"], budgets={"tokens": 9})  # type: ignore[call-arg]
            self.assertEqual(server.requests, [])

    def test_unknown_fields_of_a_response_are_kept(self) -> None:
        with ScriptedServer(GOOD) as server, Client(server.url) as client:
            (model,) = client.models()
        self.assertEqual((model.id, model.device, model.extra), ("m", "cpu", {"of_tomorrow": [1]}))


if __name__ == "__main__":
    unittest.main()
