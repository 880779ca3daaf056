"""The official Python client of the Model Context Protocol against `thresher mcp`, and against `/mcp` of the daemon."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import jsonschema
from daemon import BINARY, ROOT, Daemon
from mcp import Client, MCPError, StdioServerParameters

CHUNKS = [
    {"id": "history", "title": "Cape Orrin Light", "text": "Cape Orrin Light was completed in 1874 after two years of work. It was painted white."},
    {"id": "data", "text": "Cape Orrin: 38 m, automated 1991. Point Hale: 22 m, never automated."},
]
QUESTION = {"query": "When was the lighthouse at Cape Orrin built?", "chunks": CHUNKS}
ANSWER = {"answer": "The lighthouse at Cape Orrin was built in 1874. It was automated in 1978.", "chunks": CHUNKS}
SECRET = "xyzzyplugh"
FILLER = " ".join(f"Harbour note {at}: the ferry left at {at % 12 + 1} and the sea was calm." for at in range(400))
ENVIRONMENT = {"THRESHER__BLOCKS__DIR": "", "THRESHER__REGISTRY__DIR": "", "THRESHER__ORIGINALS__DIR": ""}


def setUpModule():
    global daemon
    daemon = Daemon()
    unittest.addModuleCleanup(daemon.stop)


class Tools:
    """Tests of both transports."""

    NAMES = {"compress", "attribute"}

    def server(self):
        raise NotImplementedError

    def ask(self, talk):
        """Runs `talk` with a connected client and returns its result."""

        async def run():
            async with Client(self.server(), read_timeout_seconds=120) as client:
                return await talk(client)

        return asyncio.run(run())

    def call(self, name, arguments):
        return self.ask(lambda client: client.call_tool(name, arguments))

    def test_tools_describe_their_arguments_and_results(self):
        tools = {tool.name: tool for tool in self.ask(lambda client: client.list_tools()).tools}
        self.assertEqual(set(tools), self.NAMES)
        for tool in tools.values():
            with self.subTest(tool.name):
                self.assertTrue(tool.annotations.read_only_hint)
                self.assertTrue(tool.annotations.idempotent_hint)
                self.assertFalse(tool.annotations.open_world_hint)
                self.assertEqual(tool.input_schema["type"], "object")
                # Schemas are part of every request of a model.
                self.assertLessEqual(len(tool.input_schema["properties"]), 5)
                self.assertIsNone(tool.output_schema)
                # Providers of language models refuse these keywords at the top level.
                self.assertFalse({"oneOf", "anyOf", "allOf"} & set(tool.input_schema))
                jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        for name, arguments in [("compress", QUESTION), ("attribute", ANSWER)]:
            jsonschema.validate(arguments, tools[name].input_schema)
        sizes = {name: len(tool.model_dump_json(exclude_none=True)) for name, tool in tools.items()}
        self.assertLess(sizes["compress"] + sizes["attribute"], 3_600, "about 900 tokens")

    def test_compress_returns_the_context(self):
        result = self.call("compress", {**QUESTION, "tokens": 40})
        self.assertFalse(result.is_error, result)
        (content,) = result.content
        self.assertIn("[1] Cape Orrin Light was completed in 1874 after two years of work.", content.text)
        self.assertIsNone(result.structured_content)
        result = self.call("compress", {**QUESTION, "budget": {"tokens": 40}, "structured": True})
        self.assertEqual(result.structured_content["context"], content.text)
        self.assertLessEqual(result.structured_content["usage"]["tokens_out"], 40)

    def test_an_empty_context_says_why(self):
        asked = {"query": "Who invented the zip fastener?", "chunks": ["The tide is at noon. Gulls are loud."]}
        result = self.call("compress", {**asked, "related_only": True})
        self.assertFalse(result.is_error, result)
        self.assertIn("Nothing in these texts is related", result.content[0].text)
        # Nothing is emptied unless asked.
        self.assertIn("The tide is at noon.", self.call("compress", asked).content[0].text)

    def test_attribute_returns_the_support_of_each_part(self):
        result = self.call("attribute", {**ANSWER, "structured": True})
        self.assertFalse(result.is_error, result)
        (content,) = result.content
        self.assertIn("NOT JUDGED: The lighthouse at Cape Orrin was built in 1874.\n  from [history]: Cape Orrin Light was completed", content.text)
        self.assertIn("CONTRADICTED: It was automated in 1978.\n  but [data] says: 1991 (for: 1978)", content.text)
        self.assertIn("1978", [span["text"] for span in result.structured_content["parts"][1]["unsupported"]])

    def test_an_invalid_call_returns_an_error_that_a_model_can_correct(self):
        for name, arguments, code, param in [
            ("compress", {"query": "a", "chunks": ["b", {"text": 3}]}, "wrong_type", "chunks[1].text"),
            ("compress", {"query": " ", "chunks": ["b"]}, "field_empty", "query"),
            ("compress", {"query": "a", "chunks": ["b"], "more": 1}, "unknown_field", "more"),
            ("compress", {"query": "a", "chunks": ["b"], "budget": {"tokens": 1, "ratio": 0.5}}, "fields_conflict", "budget"),
            ("attribute", {"chunks": ["b"]}, "missing_field", "answer"),
            ("attribute", {}, "missing_field", "answer"),
        ]:
            with self.subTest(code):
                result = self.call(name, arguments)
                self.assertTrue(result.is_error)
                error = result.structured_content["error"]
                self.assertEqual((error["code"], error["param"]), (code, param))
                self.assertIn(error["message"], result.content[0].text)

    def test_an_unknown_tool_is_an_error(self):
        async def talk(client):
            with self.assertRaisesRegex(MCPError, "no tool"):
                await client.call_tool("summarise", {})

        self.ask(talk)

    def test_text_in_any_script_is_returned_unchanged(self):
        text = "Der Leuchtturm am Kap wurde 1874 gebaut. 灯台は1874年に完成した。 🗼 عام ١٨٧٤. e\u0301\u2028x"
        result = self.call("compress", {"query": "Leuchtturm Kap gebaut?", "chunks": [text], "budget": {"ratio": 1.0}, "format": "plain"})
        self.assertEqual(result.content[0].text, text)

    def test_a_large_request_is_answered(self):
        chunks = [f"{FILLER} {at}" for at in range(50)] + [CHUNKS[0]["text"]]
        self.assertGreater(len(json.dumps(chunks)), 1_000_000)
        # This tests the transport. A deadline of 1 ms keeps the model from reading so much text.
        answer = {"query": QUESTION["query"], "chunks": chunks, "deadline_ms": 1, "on_error": "passthrough", "structured": True}
        result = self.call("compress", answer)
        self.assertFalse(result.is_error, str(result)[:500])
        self.assertEqual(len(result.structured_content["chunks"]), 51)
        self.assertEqual(result.structured_content["degraded"]["code"], "deadline_exceeded")

    def test_a_cancelled_call_does_not_delay_later_calls(self):
        slow = {"query": QUESTION["query"], "chunks": [f"{FILLER} {at}" for at in range(60)], "deadline_ms": 60_000}

        async def talk(client):
            call = asyncio.create_task(client.call_tool("compress", slow))
            # When the server has answered later messages, it has received the call.
            for _ in range(3):
                await client.list_tools()
            call.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await call
            return await client.call_tool("compress", {**QUESTION, "deadline_ms": 60_000})

        # If the model went on reading for the cancelled call, this one would exceed its deadline.
        result = self.ask(talk)
        self.assertFalse(result.is_error, result)


class Stdio(Tools, unittest.TestCase):
    def server(self):
        return StdioServerParameters(command=BINARY, args=["mcp"], cwd=ROOT, env={**os.environ, **ENVIRONMENT})

    def test_it_accepts_no_ids_of_registered_chunks(self):
        (compress, _) = self.ask(lambda client: client.list_tools()).tools
        self.assertNotIn("chunk_ids", compress.input_schema["properties"])
        result = self.call("compress", {"query": "a", "chunk_ids": ["b"]})
        self.assertEqual(result.structured_content["error"]["code"], "unavailable")

    def test_it_ends_with_its_input_and_logs_no_text(self):
        run = subprocess.Popen(
            [BINARY, "mcp"], cwd=ROOT, env={**os.environ, **ENVIRONMENT, "THRESHER__TELEMETRY__LOG": "trace"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
        lines = [
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": SECRET, "arguments": {SECRET: SECRET}}},
            {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "compress", "arguments": {"query": SECRET, "chunks": [3]}}},
        ]
        run.stdin.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        run.stdin.flush()
        first = json.loads(run.stdout.readline())
        self.assertEqual(first["result"]["serverInfo"]["name"], "thresher")
        answers = sorted(json.loads(run.stdout.readline())["id"] for _ in range(2))
        self.assertEqual(answers, [2, 3])
        out, log = run.communicate(timeout=300)
        self.assertEqual((run.returncode, out), (0, b""), "standard output has more than the protocol")
        self.assertNotIn(SECRET.encode(), log, "the log has text of a request")

    def test_it_reports_a_missing_model_and_ends(self):
        environment = {**os.environ, **ENVIRONMENT, "THRESHER__MODEL__DIR": "/nonexistent"}
        run = subprocess.Popen(
            [BINARY, "mcp"], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with run.stdin:
            self.assertEqual(run.wait(timeout=300), 1)
        self.assertIn("/nonexistent", run.stderr.read())
        run.stdout.close()
        run.stderr.close()


class Http(Tools, unittest.TestCase):
    NAMES = {"compress", "attribute", "retrieve", "search"}

    def server(self):
        return f"{daemon.url}/mcp"

    def send(self, path, body):
        request = urllib.request.Request(f"{daemon.url}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def test_a_model_that_follows_a_mark_gets_the_original(self):
        original = f"{FILLER}\n{CHUNKS[0]['text']} 🗼 e\u0301\n{FILLER}"
        messages = [{"role": "user", "content": QUESTION["query"]}, {"role": "tool", "content": original}]
        text = self.send("/headroom/v1/compress", {"messages": messages})["messages"][1]["content"]
        self.assertLess(len(text), len(original) / 2)
        (name,) = re.findall(r"\[shortened: left out .* hash=([0-9a-f]{24})\]$", text)
        for copied in [name, f"hash={name}", f"hash={name}]"]:
            result = self.call("retrieve", {"hash": copied})
            self.assertFalse(result.is_error, result)
            self.assertEqual(result.content[0].text, original)
        about = self.call("retrieve", {"hash": name, "query": "When was Cape Orrin Light completed?"})
        self.assertIn("1874", about.content[0].text)
        self.assertLess(len(about.content[0].text), len(original) / 2)
        unknown = self.call("retrieve", {"hash": "0" * 24})
        self.assertTrue(unknown.is_error)
        self.assertEqual((unknown.structured_content["error"]["code"], unknown.structured_content["error"]["param"]), ("id_unknown", "hash"))

    def test_registered_chunks_are_found(self):
        self.send("/v1/chunks", {"chunks": [{**chunk, "id": f"mcp-{chunk['id']}"} for chunk in CHUNKS]})
        result = self.call("search", {"query": "When was Cape Orrin Light completed?", "limit": 1})
        self.assertFalse(result.is_error, result)
        self.assertEqual(result.content[0].text, f"[mcp-history] Cape Orrin Light\n{CHUNKS[0]['text']}")
        none = self.call("search", {"query": "xylophone"}).content[0].text
        # The chunks have vectors once they have been read.
        self.assertTrue(none.startswith(("None of the registered chunks seems to answer", "No registered chunk was found")), none)
        self.assertTrue(self.call("search", {"query": " "}).is_error)

    def test_an_answer_can_be_attributed_to_an_earlier_compression(self):
        async def talk(client):
            compressed = await client.call_tool("compress", {**QUESTION, "structured": True})
            name = compressed.structured_content["id"]
            return await client.call_tool("attribute", {"answer": ANSWER["answer"], "compress_id": name, "structured": True})

        result = self.ask(talk)
        self.assertFalse(result.is_error, result)
        self.assertEqual(result.structured_content["parts"][0]["verdict"], "unjudged")

    def post(self, **headers):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
        accept = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        return urllib.request.urlopen(urllib.request.Request(f"{daemon.url}/mcp", body, {**accept, **headers}))

    def test_pages_of_other_sites_may_not_call(self):
        for origin in ["http://evil.example", "https://evil.example:8080", "http://localhost.evil.example", "null", "no origin"]:
            with self.subTest(origin), self.assertRaises(urllib.error.HTTPError) as refused:
                self.post(origin=origin)
            self.assertEqual(refused.exception.code, 403, origin)
        for origin in ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:5173"]:
            with self.subTest(origin):
                self.assertEqual(self.post(origin=origin).status, 200)
        self.assertEqual(self.post().status, 200, "programs send no origin")

    def test_calls_are_counted(self):
        self.call("compress", QUESTION)
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{daemon.admin}/metrics").read().decode()
        self.assertRegex(metrics, r'mcp_calls_total\{[^}]*tool="compress"[^}]*\} \d')


class Recipes(unittest.TestCase):
    FOLDER = ROOT / "docs/recipes/mcp"

    def test_a_host_in_any_folder_can_start_the_server_with_the_settings_of_the_user(self):
        server = json.loads((self.FOLDER / "host.json").read_text())["mcpServers"]["thresher"]
        self.assertEqual(server["command"], "thresher")

        async def names(home):
            # The host's own folder and environment say nothing of where the settings are.
            environment = {name: value for name, value in os.environ.items() if name != "THRESHER_CONFIG"}
            parameters = StdioServerParameters(command=BINARY, args=server["args"], cwd=home, env={**environment, **ENVIRONMENT, "XDG_CONFIG_HOME": home})
            async with Client(parameters) as client:
                return [tool.name for tool in (await client.list_tools()).tools]

        with tempfile.TemporaryDirectory() as home:
            settings = pathlib.Path(home, "thresher/thresher.toml")
            settings.parent.mkdir()
            settings.write_text(f"root = {json.dumps(str(ROOT))}\n")
            self.assertEqual(asyncio.run(names(home)), ["compress", "attribute"])

    def test_a_client_can_call_the_daemon(self):
        run = subprocess.run(
            [sys.executable, self.FOLDER / "with_mcp.py"], env={**os.environ, "THRESHER_URL": daemon.url}, capture_output=True, text=True, timeout=60
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("[1] Cape Orrin Light was completed in 1874.", run.stdout)

    def test_the_docs_show_the_recipes(self):
        text = (ROOT / "docs/tools.md").read_text()
        shown = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        self.assertEqual([kind for kind, _ in shown], ["json", "python"])
        for kind, part in shown:
            self.assertIn(part, (self.FOLDER / {"json": "host.json", "python": "with_mcp.py"}[kind]).read_text())


if __name__ == "__main__":
    unittest.main()
