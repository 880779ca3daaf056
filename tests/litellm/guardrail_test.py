"""LiteLLM's compression guardrail, unchanged, against the running daemon.

`make test` puts the package into PYTHONPATH. Its versions differ from those of `tests/sdk`.
"""

from __future__ import annotations

import asyncio
import os
import unittest

# Without this, LiteLLM fetches a list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from daemon import Daemon  # noqa: E402
from litellm.proxy.guardrails.guardrail_hooks.headroom.headroom import HeadroomGuardrail  # noqa: E402

FILLER = " ".join(f"Harbour note {at}: the ferry left at {at % 12 + 1} and the sea was calm." for at in range(40))
FACT = "Cape Orrin Light, the lighthouse at Cape Orrin, was built in 1874."
DOCUMENT = f"{FILLER} {FACT} {FILLER}"
QUESTION = "When was the lighthouse at Cape Orrin built?"


def setUpModule():
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Guardrail(unittest.TestCase):
    def guardrail(self, **more):
        return HeadroomGuardrail(guardrail_name="thresher", api_base=daemon.url, api_key="k", event_hook="pre_call", default_on=True, **more)

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
        name = mark.removeprefix("[shortened: hash=").removesuffix("]")
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

    def test_the_guardrail_fails_open_without_a_daemon(self):
        guardrail = HeadroomGuardrail(
            guardrail_name="thresher", api_base="http://127.0.0.1:1", event_hook="pre_call", default_on=True, unreachable_fallback="fail_open"
        )
        messages = self.conversation()
        answer, _ = self.apply(guardrail, messages)
        self.assertEqual(answer["structured_messages"], messages)


if __name__ == "__main__":
    unittest.main()
