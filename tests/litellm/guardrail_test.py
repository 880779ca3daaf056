"""LiteLLM, unchanged, against the running daemon: its compression guardrail, and the middleware as the address of a model.

`make test` puts the package into PYTHONPATH. Its versions differ from those of `tests/sdk`.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import threading
import unittest

# Without this, LiteLLM fetches a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402
from daemon import Daemon  # noqa: E402
from litellm.proxy.guardrails.guardrail_hooks.headroom.headroom import HeadroomGuardrail  # noqa: E402

FILLER = " ".join(f"Harbour note {at}: the ferry left at {at % 12 + 1} and the sea was calm." for at in range(40))
FACT = "Cape Orrin Light, the lighthouse at Cape Orrin, was built in 1874."
DOCUMENT = f"{FILLER} {FACT} {FILLER}"
QUESTION = "When was the lighthouse at Cape Orrin built?"


class Upstream(http.server.ThreadingHTTPServer):
    """A server of a language model that keeps the bodies of its requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.bodies = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        message = {"role": "assistant", "content": "In 1874."}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "a", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice], "usage": usage}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def setUpModule():
    global daemon, upstream
    upstream = Upstream()
    unittest.addModuleCleanup(upstream.server_close)
    unittest.addModuleCleanup(upstream.shutdown)
    daemon = Daemon(
        THRESHER__MIDDLEWARE__UPSTREAMS=f'[{{ url = "http://127.0.0.1:{upstream.server_port}", compress = "always" }}]',
        THRESHER__MIDDLEWARE__TOOLS='["search"]',
        THRESHER__MIDDLEWARE__PROMPT_TOKENS_MIN="0",
        THRESHER__MIDDLEWARE__DEADLINE_MS="120000",
    )
    unittest.addModuleCleanup(daemon.stop)


class Guardrail(unittest.TestCase):
    def guardrail(self, **more):
        return HeadroomGuardrail(guardrail_name="thresher", api_base=f"{daemon.url}/headroom", api_key="k", event_hook="pre_call", default_on=True, **more)

    def conversation(self):
        call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        return [
            {"role": "system", "content": "Answer."},
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": DOCUMENT},
            {"role": "assistant", "content": "In 1874."},
            {"role": "user", "content": "Thanks. And where is that?"},
        ]

    def apply(self, guardrail, messages):
        request = {"model": "gpt-5", "messages": messages, "metadata": {}}
        return asyncio.run(guardrail.apply_guardrail({"structured_messages": messages}, request, "request")), request

    def test_the_guardrail_compresses_and_retrieves_the_original(self):
        guardrail, messages = self.guardrail(), self.conversation()
        answer, request = self.apply(guardrail, messages)
        after = answer["structured_messages"]
        self.assertEqual([*after[:3], *after[4:]], [*messages[:3], *messages[4:]])
        shorter, mark = after[3]["content"].rsplit("\n", 1)
        self.assertIn(FACT, shorter)
        self.assertLess(len(shorter), len(DOCUMENT) / 2)
        self.assertEqual([tool["function"]["name"] for tool in answer["tools"]], ["headroom_retrieve"])
        (logged,) = request["metadata"]["standard_logging_guardrail_information"]
        self.assertEqual(logged["guardrail_status"], "success")
        savings = logged["guardrail_response"]
        self.assertEqual(savings["tokens_saved"], savings["tokens_before"] - savings["tokens_after"])
        self.assertGreater(savings["tokens_saved"], 500)
        self.assertRegex(mark, r"^\[shortened: left out [0-9]+ of [0-9]+ characters; hash=[0-9a-f]{24}\]$")
        name = mark.rsplit("hash=", 1)[1].removesuffix("]")
        self.assertEqual(asyncio.run(guardrail._call_retrieve(name)), DOCUMENT)
        self.assertEqual(asyncio.run(guardrail._call_retrieve(name, "the ferry")), DOCUMENT)
        self.assertIn("not found", asyncio.run(guardrail._call_retrieve("0" * 24)))

    def test_without_retrieval_the_guardrail_adds_no_tool(self):
        answer, _ = self.apply(self.guardrail(ccr_retrieval=False), self.conversation())
        self.assertLess(len(answer["structured_messages"][3]["content"]), len(DOCUMENT) / 2)
        self.assertNotIn("tools", answer)

    def test_short_texts_are_unchanged(self):
        messages = self.conversation()
        messages[3]["content"] = FACT
        answer, _ = self.apply(self.guardrail(), messages)
        self.assertEqual(answer["structured_messages"], messages)

    def test_the_guardrail_withholds_the_newest_question_and_result(self):
        """While the model works on a question, the guardrail sends neither the question nor the results of the newest calls. No setting changes
        this: docs/gateways.md names the middleware instead."""
        messages = self.conversation()[:4]
        answer, _ = self.apply(self.guardrail(), messages)
        self.assertEqual(answer["structured_messages"], messages)
        # The result of an earlier call of the same question is sent without the question, and comes back whole.
        call = {"id": "c2", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c2", "content": DOCUMENT}]
        answer, _ = self.apply(self.guardrail(), messages)
        self.assertEqual(answer["structured_messages"], messages)

    def test_the_middleware_as_address_of_a_model_compresses_the_newest_result(self):
        messages = self.conversation()[:4]
        answer = litellm.completion(model="openai/gpt-5", api_base=f"{daemon.url}/v1", api_key="k", messages=messages)
        self.assertEqual(answer.choices[0].message.content, "In 1874.")
        sent = upstream.bodies[-1]["messages"]
        self.assertEqual([message["role"] for message in sent], [message["role"] for message in messages])
        self.assertEqual([message["content"] for message in sent[:2]], ["Answer.", QUESTION])
        self.assertIn(FACT, sent[3]["content"])
        self.assertLess(len(sent[3]["content"]), len(DOCUMENT) / 2)
        # The next turn begins with the same bytes, so that the provider's cache keeps hitting.
        messages += self.conversation()[4:]
        litellm.completion(model="openai/gpt-5", api_base=f"{daemon.url}/v1", api_key="k", messages=messages)
        self.assertEqual(upstream.bodies[-1]["messages"][:4], sent)

    def test_the_guardrail_fails_open_without_a_daemon(self):
        guardrail = HeadroomGuardrail(
            guardrail_name="thresher", api_base="http://127.0.0.1:1", event_hook="pre_call", default_on=True, unreachable_fallback="fail_open"
        )
        messages = self.conversation()
        answer, _ = self.apply(guardrail, messages)
        self.assertEqual(answer["structured_messages"], messages)


if __name__ == "__main__":
    unittest.main()
