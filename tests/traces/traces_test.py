"""Traces of the running daemon, as a collector of OpenTelemetry gets them: rotel, unchanged, which exports them to this test in turn.

`make test` puts the packages into PYTHONPATH.
"""

from __future__ import annotations

import gzip
import http.server
import json
import re
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import opentelemetry.util.genai
import rotel
from daemon import Daemon, eventually, unused_port
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, openai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes

FILLER = " ".join(f"Harbour note {at}: the ferry left at {at % 12 + 1} and the sea was calm." for at in range(40))
FACT = "Cape Orrin Light, the lighthouse at Cape Orrin, was built in 1874."
DOCUMENT = f"{FILLER} {FACT} {FILLER}"
QUESTION = "When was the lighthouse at Cape Orrin built?"
ANSWER = "The lighthouse was built in 1874."
# Words of the texts above that no span may have.
WORDS = ["Harbour", "Orrin", "lighthouse", "ferry"]
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Receiver(http.server.ThreadingHTTPServer):
    """Takes what the collector exports."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Receiving)
        self.spans, self.resources, self.lock = [], [], threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def of_trace(self, trace):
        with self.lock:
            return [span for span in self.spans if span.trace_id.hex() == trace]


class Receiving(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            with self.server.lock:
                self.server.resources.append(attributes(resource.resource))
                self.server.spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Upstream(http.server.ThreadingHTTPServer):
    """A server of language models. `headers` has those of its requests; the model of a request says how it answers."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.headers = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        if body["model"] == "busy":
            return self.send(429, {"error": {"message": "later"}})
        if body["model"] == "slow":
            return self.endless()
        if self.path == "/v1/embeddings":
            return self.send(200, {"object": "list", "model": "e-1", "data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}})
        if self.path == "/v1/messages":
            usage = {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
            content = [{"type": "text", "text": ANSWER}]
            message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x-1", "content": content}
            return self.send(200, {**message, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage})
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 5}}
        head = {"id": "chatcmpl-1", "created": 1, "model": "gpt-x-1"}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
            return self.send(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        head["object"] = "chat.completion.chunk"
        chunks = [
            {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ANSWER}, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**head, "choices": [], "usage": usage},
        ]
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return self.send(200, events.encode(), "text/event-stream")

    def endless(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b": still here\n\n")
                time.sleep(0.02)
        except OSError:
            self.close_connection = True

    def send(self, status, body, kind="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Collector:
    """The collector, which exports what it gets to the receiver."""

    def __init__(self, receiver):
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"http://127.0.0.1:{free_port()}"
        arguments = {
            "otlp-http-endpoint": self.url.removeprefix("http://"),
            "otlp-grpc-endpoint": f"127.0.0.1:{free_port()}",
            "exporter": "otlp",
            "otlp-exporter-protocol": "http",
            "otlp-exporter-endpoint": f"http://127.0.0.1:{receiver.server_port}",
            "batch-timeout": "200ms",
            "pid-file": f"{self.folder.name}/pid",
            "log-file": f"{self.folder.name}/log",
        }
        program = Path(rotel.__file__).parent / "rotel-agent"
        flags = [part for name, value in arguments.items() for part in (f"--{name}", value)]
        self.process = subprocess.Popen([program, "start", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually("the collector answers", self.answers)

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the collector ended with {self.process.returncode}")
        try:
            empty = urllib.request.Request(f"{self.url}/v1/traces", b"", {"content-type": "application/x-protobuf"})
            urllib.request.urlopen(empty, timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def free_port():
    """A port that was free a moment ago, for a program that cannot choose one itself."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        return server.server_port


def value(of):
    kind = of.WhichOneof("value")
    return [value(one) for one in of.array_value.values] if kind == "array_value" else getattr(of, kind)


def attributes(of):
    return {attribute.key: value(attribute.value) for attribute in of.attributes}


def names_of(*modules):
    return {name for module in modules for name in vars(module).values() if isinstance(name, str)}


def setUpModule():
    global daemon, quiet, upstream, receiver, names
    upstream, receiver = Upstream(), Receiver()
    for server in (upstream, receiver):
        unittest.addModuleCleanup(server.server_close)
        unittest.addModuleCleanup(server.shutdown)
    collector = Collector(receiver)
    unittest.addModuleCleanup(collector.stop)
    here = f'{{ url = "http://127.0.0.1:{upstream.server_port}" }}'
    gone = f'{{ url = "http://127.0.0.1:{unused_port()}", models = ["gone"] }}'
    settings = {
        "THRESHER__MIDDLEWARE__UPSTREAMS": f"[{gone}, {here}]",
        "THRESHER__MIDDLEWARE__TOOLS": '["search"]',
        "THRESHER__MIDDLEWARE__PROMPT_TOKENS_MIN": "0",
        "THRESHER__MIDDLEWARE__DEADLINE_MS": "120000",
        "THRESHER__ADMISSION__DEADLINE_MS_DEFAULT": "120000",
    }
    # How often the daemon exports spans.
    exported = {"THRESHER__TELEMETRY__OTLP_ENDPOINT": f"{collector.url}/v1/traces", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    daemon = Daemon(**settings, **exported)
    unittest.addModuleCleanup(daemon.stop)
    quiet = Daemon(**settings)
    unittest.addModuleCleanup(quiet.stop)
    # Names that the conventions got after they moved to a repository of their own are in the sources of their utilities only.
    sources = Path(opentelemetry.util.genai.__path__[0]).glob("*.py")
    names = set(re.findall(r'"(gen_ai\.[a-z_.]+)"', " ".join(source.read_text() for source in sources)))
    names |= names_of(gen_ai_attributes, openai_attributes, error_attributes, http_attributes, server_attributes)


class Traces(unittest.TestCase):
    count = 0

    def send(self, path, body, to=None, **headers):
        """Sends a request. Returns the status of the answer."""
        sent = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        request = urllib.request.Request((to or daemon).url + path, json.dumps(body).encode(), sent)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            error.read()
            return error.code

    def traced(self, path, body, status=200, **headers):
        """Sends a request in a trace of its own, and waits for the span of the request and the spans inside. Returns them by name."""
        Traces.count += 1
        trace = f"{Traces.count:032x}"
        self.assertEqual(self.send(path, body, traceparent=f"00-{trace}-{PARENT}-01", **headers), status)
        return self.spans(trace)

    def spans(self, trace):
        def is_there():
            return any(span.kind == Span.SPAN_KIND_SERVER for span in receiver.of_trace(trace))

        # The span of the request ends last, so the others are in the same export or in an earlier one.
        eventually(f"spans of {trace}", is_there)
        spans = receiver.of_trace(trace)
        for span in spans:
            found = attributes(span)
            unknown = [name for name in found if name not in names and not name.startswith("thresher.")]
            self.assertEqual(unknown, [], span.name)
            for word in WORDS:
                self.assertNotIn(word, str(span), span.name)
        return {span.name: span for span in spans}

    def conversation(self, **more):
        call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": DOCUMENT},
        ]
        return {"model": "gpt-x", "messages": messages, **more}

    def check_chat(self, spans, path):
        server, chat = spans[f"POST {path}"], spans["chat"]
        self.assertEqual(server.parent_span_id.hex(), PARENT)
        self.assertEqual(server.kind, Span.SPAN_KIND_SERVER)
        self.assertEqual(chat.kind, Span.SPAN_KIND_CLIENT)
        self.assertEqual(chat.parent_span_id, server.span_id)
        self.assertLessEqual(chat.end_time_unix_nano, server.end_time_unix_nano)
        # The upstream's own spans are children of the call.
        sent = upstream.headers[-1]
        self.assertEqual(sent["traceparent"], f"00-{chat.trace_id.hex()}-{chat.span_id.hex()}-01")
        return attributes(server), attributes(chat), sent

    def test_a_call_of_a_model_continues_the_trace_of_its_caller(self):
        body = self.conversation(max_tokens=50, temperature=0.5)
        spans = self.traced("/v1/chat/completions", body, x_thresher_compress="true", x_request_id="mine", tracestate="a=1, b=2")
        server, chat, sent = self.check_chat(spans, "/v1/chat/completions")
        self.assertEqual(sent["tracestate"], "a=1,b=2")
        self.assertEqual((server["http.route"], server["http.response.status_code"]), ("/v1/chat/completions", 200))
        self.assertEqual((server["thresher.code"], server["thresher.request_id"]), ("ok", "mine"))
        expect = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-x",
            "gen_ai.request.max_tokens": 50,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.response.id": "chatcmpl-1",
            "gen_ai.response.model": "gpt-x-1",
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": 9,
            "gen_ai.usage.output_tokens": 4,
            "gen_ai.usage.cache_read.input_tokens": 5,
            "openai.api.type": "chat_completions",
            "server.address": "127.0.0.1",
            "server.port": upstream.server_port,
            "http.request.method": "POST",
            "http.response.status_code": 200,
        }
        self.assertEqual(chat, expect)
        # The answer was attributed, too.
        self.assertEqual(spans["attribute"].parent_span_id, spans["POST /v1/chat/completions"].span_id)
        retrieval = spans["retrieval"]
        self.assertEqual(retrieval.parent_span_id, spans["POST /v1/chat/completions"].span_id)
        found = attributes(retrieval)
        self.assertEqual(found["thresher.operation"], "compress")
        self.assertLess(found["thresher.tokens_after"], found["thresher.tokens_before"] / 2)
        self.assertTrue(any("service.version" in found and found["service.name"] == "thresher" for found in receiver.resources))

    def test_the_usage_of_a_stream_is_recorded(self):
        body = self.conversation(stream=True, stream_options={"include_usage": True})
        # With citations the events are read and changed; without, they pass as they arrive.
        for compress in ("true", "false"):
            spans = self.traced("/v1/chat/completions", body, x_thresher_compress=compress)
            _, chat, _ = self.check_chat(spans, "/v1/chat/completions")
            self.assertIs(chat["gen_ai.request.stream"], True)
            self.assertGreater(chat["gen_ai.response.time_to_first_chunk"], 0)
            self.assertEqual((chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]), (9, 4))
            self.assertEqual(chat["gen_ai.response.finish_reasons"], ["stop"])
            self.assertNotIn("error.type", chat)

    def test_tokens_of_the_cache_count_as_input(self):
        body = {"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": QUESTION}]}
        chat = attributes(self.traced("/v1/messages", body)["chat"])
        self.assertEqual(chat["gen_ai.provider.name"], "anthropic")
        self.assertEqual(chat["gen_ai.usage.input_tokens"], 129)
        self.assertEqual(chat["gen_ai.usage.cache_read.input_tokens"], 100)
        self.assertEqual(chat["gen_ai.usage.cache_write.input_tokens"], 20)
        self.assertNotIn("openai.api.type", chat)

    def test_other_paths_are_passed_on_inside_a_span(self):
        call = attributes(self.traced("/v1/embeddings", {"model": "e", "input": [FACT]})["embeddings"])
        self.assertEqual((call["gen_ai.operation.name"], call["gen_ai.usage.input_tokens"]), ("embeddings", 7))
        call = attributes(self.traced("/v1/moderations", {"model": "e", "input": FACT})["POST"])
        self.assertNotIn("gen_ai.operation.name", call)
        self.assertEqual(call["server.port"], upstream.server_port)

    def test_errors_have_a_type(self):
        busy = self.traced("/v1/chat/completions", self.conversation(model="busy"), status=429)["chat"]
        self.assertEqual(attributes(busy)["error.type"], "429")
        self.assertEqual(busy.status.code, Status.STATUS_CODE_ERROR)
        spans = self.traced("/v1/chat/completions", self.conversation(model="gone"), status=502)
        self.assertEqual(attributes(spans["chat gone"])["error.type"], "upstream_failed")
        server = spans["POST /v1/chat/completions"]
        self.assertEqual((attributes(server)["error.type"], server.status.code), ("upstream_failed", Status.STATUS_CODE_ERROR))
        # A mistake of the caller is an error of the retrieval, and not of the server.
        spans = self.traced("/v1/compress", {"query": QUESTION, "chunk_ids": ["missing"]}, status=422)
        self.assertEqual(attributes(spans["retrieval registry"])["error.type"], "chunk_unknown")
        server = spans["POST /v1/compress"]
        self.assertEqual((attributes(server)["thresher.code"], server.status.code), ("chunk_unknown", Status.STATUS_CODE_UNSET))

    def test_retrievals_are_spans(self):
        chunk, other = {"id": "a", "text": FACT}, {"id": "b", "text": FILLER}
        self.assertEqual(self.send("/v1/chunks", {"chunks": [chunk, other], "wait": True}), 200)
        cases = [
            ("compress", "retrieval", "/v1/compress", {"query": QUESTION, "chunks": [chunk, other]}, None),
            ("compress", "retrieval registry", "/v1/compress", {"query": QUESTION, "chunk_ids": ["a", "b"]}, None),
            ("rerank", "retrieval", "/v1/rerank", {"query": QUESTION, "documents": [FACT, FILLER], "top_n": 1}, 1),
            ("search", "retrieval registry", "/v1/search", {"query": QUESTION, "limit": 3}, 3),
            ("attribute", "attribute", "/v1/attribute", {"answer": FACT, "chunks": [chunk, other]}, None),
        ]
        for operation, name, path, body, top_k in cases:
            with self.subTest(operation, name=name):
                spans = self.traced(path, body)
                retrieval, server = spans[name], spans[f"POST {path}"]
                self.assertEqual(retrieval.parent_span_id, server.span_id)
                self.assertEqual(retrieval.kind, Span.SPAN_KIND_INTERNAL)
                found = attributes(retrieval)
                self.assertEqual(found["gen_ai.operation.name"], name.split()[0])
                self.assertEqual(found["gen_ai.provider.name"], "thresher")
                self.assertEqual(found["thresher.operation"], operation)
                self.assertEqual(found.get("gen_ai.data_source.id"), "registry" if "registry" in name else None)
                self.assertEqual(found.get("gen_ai.retrieval.top_k"), top_k)
                self.assertIn("gen_ai.request.model", found)
                # The stages of the pipeline are inside.
                self.assertTrue([span for span in spans.values() if span.parent_span_id == retrieval.span_id])

    def test_a_trace_that_is_not_recorded_stays_so(self):
        trace = "1" * 32
        sent = self.send("/v1/chat/completions", self.conversation(), traceparent=f"00-{trace}-{PARENT}-00", tracestate="a=1")
        self.assertEqual(sent, 200)
        version, found, parent, flags = upstream.headers[-1]["traceparent"].split("-")
        self.assertEqual((version, found, flags), ("00", trace, "00"))
        self.assertNotEqual(parent, PARENT)
        self.assertEqual(upstream.headers[-1]["tracestate"], "a=1")
        # Spans that began later have arrived.
        self.traced("/v1/chat/completions", self.conversation())
        self.assertEqual(receiver.of_trace(trace), [])

    def test_malformed_headers_begin_a_new_trace(self):
        for malformed in ("00-1-2-03", f"ff-{TRACE}-{PARENT}-01", f"00-{TRACE.upper()}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", "x" * 1_000):
            sent = self.send("/v1/chat/completions", self.conversation(), traceparent=malformed, tracestate="a=1")
            self.assertEqual(sent, 200, malformed)
            headers = upstream.headers[-1]
            self.assertRegex(headers["traceparent"], "^00-[0-9a-f]{32}-[0-9a-f]{16}-01$")
            self.assertNotIn(TRACE, headers["traceparent"].lower())
            self.assertNotIn("tracestate", headers)
            server = self.spans(headers["traceparent"].split("-")[1])["POST /v1/chat/completions"]
            self.assertEqual(server.parent_span_id, b"")

    def test_a_tracestate_that_is_too_long_is_shortened(self):
        members = [f"k{at}={'x' * 60}" for at in range(20)]
        self.traced("/v1/chat/completions", self.conversation(), tracestate=",".join(members))
        self.assertEqual(upstream.headers[-1]["tracestate"], ",".join(members[:8]))
        members = [f"k{at}=1" for at in range(40)]
        self.traced("/v1/chat/completions", self.conversation(), tracestate=",".join(members))
        self.assertEqual(upstream.headers[-1]["tracestate"], ",".join(members[:32]))
        self.traced("/v1/chat/completions", self.conversation(), tracestate="not a list")
        self.assertNotIn("tracestate", upstream.headers[-1])

    def test_without_export_the_headers_pass_unchanged(self):
        for parent in (f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00", "00-1-2-03"):
            sent = self.send("/v1/chat/completions", self.conversation(), to=quiet, traceparent=parent, tracestate="a=1, b=2")
            self.assertEqual(sent, 200)
            self.assertEqual(upstream.headers[-1]["traceparent"], parent)
            self.assertEqual(upstream.headers[-1]["tracestate"], "a=1, b=2")
        self.assertEqual(self.send("/v1/chat/completions", self.conversation(), to=quiet), 200)
        self.assertNotIn("traceparent", upstream.headers[-1])

    def test_a_client_that_disconnects_ends_the_spans(self):
        trace = "2" * 32
        request = urllib.request.Request(
            daemon.url + "/v1/chat/completions",
            json.dumps(self.conversation(stream=True, model="slow")).encode(),
            {"content-type": "application/json", "traceparent": f"00-{trace}-{PARENT}-01"},
        )
        answer = urllib.request.urlopen(request, timeout=120)
        answer.read(1)
        answer.close()
        chat = attributes(self.spans(trace)["chat"])
        self.assertEqual((chat["error.type"], chat["http.response.status_code"]), ("client_gone", 200))


if __name__ == "__main__":
    unittest.main()
