"""The official clients of OpenAI and Anthropic, unchanged, through the running daemon to a scripted upstream.

`make test` sets THRESHER_TEST_SDK to the directory of the clients.
"""

import http.server
import json
import os
import sys
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDK = os.path.abspath(os.environ.get("THRESHER_TEST_SDK", ROOT / "models/.cache/sdk"))
sys.path.insert(0, SDK)
sys.path.insert(0, str(Path(__file__).resolve().parent))

import anthropic  # noqa: E402
import openai  # noqa: E402
from daemon import Daemon  # noqa: E402

QUESTION = "When was the lighthouse at Cape Orrin built?"
ANSWER = "The lighthouse at Cape Orrin was built in 1874. I hope that helps you."
FILLER = " ".join(f"Harbour note {at}: the ferry left at {at % 12 + 1} and the sea was calm." for at in range(40))
FACT = "Cape Orrin Light, the lighthouse at Cape Orrin, was built in 1874."
DOCUMENT = f"{FILLER} {FACT} {FILLER}"
# Far longer than a busy machine needs, for what must happen in the end.
WAIT_S = 60
PRICES = {"write": 1.25, "read": 0.1, "input": 1.0}


class Upstream(http.server.ThreadingHTTPServer):
    """Answers every request with the function `answer`, which tests set. `requests` holds path, headers and body of each request; `gone` is set
    when a client disconnects before the end of a response."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.requests, self.answer, self.gone = [], None, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Some tests disconnect, which is not an error."""


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, body))
        try:
            self.server.answer(self, json.loads(body))
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone.set()

    def send(self, status, body, kind="application/json", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self, events, pause=0.0):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            time.sleep(pause)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


def setUpModule():
    global daemon, upstream
    upstream = Upstream()
    unittest.addModuleCleanup(upstream.server_close)
    unittest.addModuleCleanup(upstream.shutdown)
    here = [{"url": upstream.url, "models": ["gpt-*", "claude-*"]}, {"url": "http://127.0.0.1:1", "models": ["gone"]}]
    table = ", ".join("{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in one.items()) + "}" for one in here)
    daemon = Daemon(
        THRESHER__MIDDLEWARE__UPSTREAMS=f"[{table}]",
        THRESHER__MIDDLEWARE__TOOLS='["search"]',
        THRESHER__MIDDLEWARE__PROMPT_TOKENS_MIN="0",
        THRESHER__MIDDLEWARE__DEADLINE_MS="120000",
        THRESHER__ORIGINALS__DIR="",
    )
    unittest.addModuleCleanup(daemon.stop)


ON = {"x-thresher-compress": "true"}


def event(data, name=None):
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


# ---- responses of the APIs ----


def chat_answer(**more):
    message = {"role": "assistant", "content": ANSWER, "refusal": None, **more}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18, "an_unknown_field": 1e2}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice], "usage": usage}


def chat_events():
    def chunk(delta, finish=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5", "choices": [choice]})

    words = ANSWER.split(" ")
    texts = [word + (" " if at + 1 < len(words) else "") for at, word in enumerate(words)]
    return [chunk({"role": "assistant", "content": ""}), *(chunk({"content": text}) for text in texts), chunk({}, "stop"), b"data: [DONE]\n\n"]


def message_answer(text=ANSWER):
    usage = {"input_tokens": 9, "output_tokens": 9}
    content = [{"type": "text", "text": text, "citations": None}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}


def message_events():
    start = {**message_answer(), "content": [], "stop_reason": None}
    deltas = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ANSWER[at : at + 7]}} for at in range(0, len(ANSWER), 7)]
    data = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    return [event(one, one["type"]) for one in data]


def response_answer(status="completed", output=True):
    part = {"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "gpt-5", "output": [item] if output else [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None, "instructions": None,
        "metadata": {}, "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip


def response_events():
    (item,) = response_answer()["output"]
    (part,) = item["content"]
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    data = [
        {"type": "response.created", "response": response_answer("in_progress", output=False)},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress", "content": []}},
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **at, "delta": ANSWER[at_:at_ + 9], "logprobs": []} for at_ in range(0, len(ANSWER), 9)),
        {"type": "response.output_text.done", **at, "text": ANSWER, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response_answer()},
    ]
    return [event({**one, "sequence_number": at_}, one["type"]) for at_, one in enumerate(data)]


class Case(unittest.TestCase):
    def setUp(self):
        upstream.requests.clear()
        upstream.gone.clear()

    def answers(self, body, status=200, **headers):
        upstream.answer = lambda handler, _: handler.send(status, body, **headers)

    def streams(self, events, pause=0.0):
        upstream.answer = lambda handler, _: handler.stream(events, pause)

    def sent(self, at=-1):
        return json.loads(upstream.requests[at][2])

    def assert_shorter(self, text, of=DOCUMENT):
        self.assertIn(FACT, text)
        self.assertLess(len(text), len(of) / 2)


class OpenAI(Case):
    def client(self, kind=openai.OpenAI, **more):
        return kind(api_key="k", base_url=daemon.url + "/v1", max_retries=0, default_headers=ON, **more)

    def messages(self):
        return [
            {"role": "system", "content": f"Answer from the context. {FILLER}"},
            {"role": "user", "content": f"<context>\n{FILLER}\n\n{FACT}\n\n{FILLER}\n</context>\n{QUESTION}"},
        ]

    def test_a_chat_is_compressed_and_cited(self):
        self.answers(chat_answer(), x_request_id="r1")
        messages = self.messages()
        raw = self.client().chat.completions.with_raw_response.create(model="gpt-5", messages=messages, seed=7, extra_body={"unknown": 1.50})
        answer = raw.parse()
        (annotation,) = answer.choices[0].message.annotations
        cited = annotation.url_citation
        self.assertEqual(ANSWER[cited.start_index : cited.end_index], "The lighthouse at Cape Orrin was built in 1874.")
        self.assertEqual(raw.headers["x-upstream-request-id"], "r1")
        self.assertTrue(raw.headers["x-request-id"].startswith("req"), raw.headers)
        self.assertEqual(raw.headers["x-thresher"], "compressed")
        before, after = (int(raw.headers[f"x-thresher-tokens-{when}"]) for when in ["before", "after"])
        self.assertLess(after, before / 2)
        path, headers, body = upstream.requests[-1]
        self.assertEqual((path, headers["authorization"]), ("/v1/chat/completions", "Bearer k"))
        self.assertEqual([name for name in headers if name.startswith("x-thresher")], ["x-thresher-hops"])
        sent = self.sent()
        self.assertEqual(sent["messages"][0], messages[0], "the system prompt stays")
        self.assertEqual((sent["seed"], sent["unknown"]), (7, 1.5))
        self.assertTrue(sent["messages"][1]["content"].endswith(f"</context>\n{QUESTION}"))
        self.assert_shorter(sent["messages"][1]["content"])

    def test_a_request_is_compressed_only_on_request(self):
        self.answers(chat_answer())
        client = openai.OpenAI(api_key="k", base_url=daemon.url + "/v1", max_retries=0)
        messages = [*self.messages(), {"role": "user", "content": "This message is new."}]
        raw = client.chat.completions.with_raw_response.create(model="gpt-5", messages=messages)
        self.assertEqual(raw.headers["x-thresher"], "uncompressed")
        self.assertEqual(self.sent()["messages"], messages)
        self.assertIsNone(raw.parse().choices[0].message.annotations)

    def test_results_of_configured_tools_are_compressed(self):
        self.answers(chat_answer())
        call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        other = {"id": "call_2", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        hits = json.dumps({"hits": [{"url": "https://tides.example/1", "text": DOCUMENT}]})
        messages = [
            {"role": "user", "content": [{"type": "text", "text": QUESTION}, image]},
            {"role": "assistant", "content": None, "tool_calls": [call, other]},
            {"role": "tool", "tool_call_id": "call_1", "content": hits},
            {"role": "tool", "tool_call_id": "call_2", "content": DOCUMENT},
        ]
        answer = self.client().chat.completions.create(model="gpt-5", messages=messages)
        sent = self.sent()["messages"]
        self.assertEqual(sent[:2] + sent[3:], messages[:2] + messages[3:], "only results of configured tools change")
        (hit,) = json.loads(sent[2]["content"])["hits"]
        self.assertEqual(hit["url"], "https://tides.example/1")
        self.assert_shorter(hit["text"])
        (annotation,) = answer.choices[0].message.annotations
        self.assertEqual(annotation.url_citation.url, "https://tides.example/1")

    def test_a_streamed_chat_has_a_citation(self):
        events = chat_events()
        self.streams(events, pause=0.01)
        stream = self.client().chat.completions.create(model="gpt-5", messages=self.messages(), stream=True)
        chunks = list(stream)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER)
        cited = [chunk.choices[0].delta.annotations for chunk in chunks if getattr(chunk.choices[0].delta, "annotations", None)]
        self.assertEqual((len(cited), len(chunks)), (1, len(events)), "one event more, without [DONE]")
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_the_stream_helper_reads_the_citation(self):
        self.streams(chat_events())
        with self.client().chat.completions.stream(model="gpt-5", messages=self.messages()) as stream:
            message = stream.get_final_completion().choices[0].message
        self.assertEqual((message.content, len(message.annotations)), (ANSWER, 1))

    def test_async(self):
        import asyncio

        async def ask():
            self.streams(chat_events())
            async with self.client(openai.AsyncOpenAI) as client:
                stream = await client.chat.completions.create(model="gpt-5", messages=self.messages(), stream=True)
                return [chunk async for chunk in stream]

        self.assertEqual(len(asyncio.run(ask())), len(chat_events()))

    def test_a_stream_is_passed_on_byte_for_byte_while_it_arrives(self):
        import httpx

        seen, parts = threading.Event(), [b": hello\r\n\r\n", *chat_events()]

        def answer(handler, _):
            handler.send_response(200)
            handler.send_header("content-type", "text/event-stream")
            handler.send_header("connection", "close")
            handler.end_headers()
            for part in parts:
                handler.wfile.write(part)
                handler.wfile.flush()
                self.assertTrue(seen.wait(WAIT_S), "the client does not get a part before the next one is sent")
                seen.clear()
            handler.close_connection = True

        upstream.answer = answer
        body = {"model": "gpt-5", "messages": self.messages(), "stream": True}
        for compress in ["false", "true"]:
            got = b""
            headers = {"x-thresher-compress": compress}
            with httpx.stream("POST", daemon.url + "/v1/chat/completions", json=body, headers=headers, timeout=300) as response:
                for data in response.iter_raw():
                    got += data
                    seen.set()
            cited = [part for part in got.split(b"\n\n") if b"annotations" in part]
            self.assertEqual(len(cited), int(compress == "true"))
            for part in cited:
                got = got.replace(part + b"\n\n", b"")
            self.assertEqual(got, b"".join(parts))

    def test_a_disconnect_of_the_client_reaches_the_upstream(self):
        self.streams(chat_events() * 2000, pause=0.005)
        stream = self.client().chat.completions.create(model="gpt-5", messages=self.messages(), stream=True)
        next(iter(stream))
        stream.close()
        self.assertTrue(upstream.gone.wait(WAIT_S))

    def test_a_response_that_the_upstream_breaks_off_is_an_error(self):
        def answer(handler, _):
            handler.send_response(200)
            handler.send_header("content-type", "text/event-stream")
            handler.send_header("transfer-encoding", "chunked")
            handler.end_headers()
            first = chat_events()[0] + b"data: {cut"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(first), first))
            handler.wfile.flush()
            handler.close_connection = True
            handler.connection.shutdown(2)

        upstream.answer = answer
        import httpx

        with self.assertRaises((openai.APIConnectionError, openai.APIError, httpx.RemoteProtocolError)):
            for _ in self.client().chat.completions.create(model="gpt-5", messages=self.messages(), stream=True):
                pass

    def test_a_malformed_stream_is_passed_on(self):
        import httpx

        broken = [b"data: {not json\n\n", b"\xff\xfe\n\n", b"data: [1,2]\n\n", b"no end"]
        self.streams(broken)
        body = {"model": "gpt-5", "messages": self.messages(), "stream": True}
        response = httpx.post(daemon.url + "/v1/chat/completions", json=body, headers=ON, timeout=300)
        self.assertEqual(response.content, b"".join(broken))

    def test_errors_of_the_upstream_are_passed_on(self):
        error = {"error": {"message": "slow down", "type": "rate_limit", "param": None, "code": "rate_limited"}}
        self.answers(error, status=429, retry_after="7")
        with self.assertRaises(openai.RateLimitError) as raised:
            self.client().chat.completions.create(model="gpt-5", messages=self.messages())
        self.assertEqual(raised.exception.body, error["error"])
        self.assertEqual(raised.exception.response.headers["retry-after"], "7")
        self.answers(b"<html>bad gateway</html>", status=502, kind="text/html")
        with self.assertRaises(openai.InternalServerError) as raised:
            self.client().chat.completions.create(model="gpt-5", messages=self.messages())
        self.assertEqual(raised.exception.response.text, "<html>bad gateway</html>")

    def test_mistakes(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            self.client().chat.completions.create(model="nobody", messages=self.messages())
        self.assertEqual(raised.exception.code, "model_unknown")
        with self.assertRaises(openai.InternalServerError) as raised:
            self.client().chat.completions.create(model="gone", messages=self.messages())
        self.assertEqual((raised.exception.status_code, raised.exception.code), (502, "upstream_failed"))
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client().chat.completions.create(model="gpt-5", messages=self.messages(), extra_body={"thresher": {"chunk": []}})
        self.assertEqual((raised.exception.code, raised.exception.param), ("unknown_field", "thresher.chunk"))
        self.assertEqual(upstream.requests, [])

    def test_an_unrelated_question_adds_no_sentence(self):
        chunks = [DOCUMENT, "The harbour office opens at nine. Ask for Ms. Lee."]
        self.answers(chat_answer())
        for question in ["What is the capital of Peru?", "Write a haiku about autumn.", "Thanks!"]:
            messages = [{"role": "user", "content": question}]
            for related_only in [True, False]:
                asked = {"chunks": chunks, "budget": {"tokens": 300}, "related_only": related_only}
                body = {"model": "gpt-5", "messages": messages, "extra_body": {"thresher": asked}}
                raw = self.client().chat.completions.with_raw_response.create(**body)
                self.assertEqual(raw.headers["x-thresher-related"], "false", question)
                # Unless the request asks for related text only, the chunks are sent unchanged.
                expect = messages if related_only else [self.sent()["messages"][0], *messages]
                self.assertEqual(self.sent()["messages"], expect)
                self.assertEqual("Harbour note 39" in json.dumps(self.sent()), not related_only)

    def test_embeddings_are_made_by_the_upstream(self):
        vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
        self.answers({"object": "list", "data": [vector], "model": "gpt-e", "usage": {"prompt_tokens": 1, "total_tokens": 1}})
        made = self.client().embeddings.create(model="gpt-e", input="The tide", encoding_format="float")
        self.assertEqual(made.data[0].embedding, [0.5])
        path, headers, _ = upstream.requests[-1]
        self.assertEqual((path, headers["authorization"], self.sent()["input"]), ("/v1/embeddings", "Bearer k", "The tide"))
        with self.assertRaises(openai.NotFoundError):
            self.client().embeddings.create(model="nobody", input="The tide")

    def test_chunks_beside_the_conversation_are_put_into_the_context(self):
        self.answers(chat_answer())
        chunks = [{"id": "light", "text": DOCUMENT, "metadata": {"url": "https://x.y/light"}}, {"id": "b", "text": FILLER}]
        first = [{"role": "user", "content": QUESTION}]
        body = {"model": "gpt-5", "messages": first}
        answer = self.client().chat.completions.create(**body, extra_body={"thresher": {"chunks": chunks}})
        context, question = self.sent()["messages"]
        self.assertEqual(question, first[0])
        self.assertNotIn("thresher", self.sent())
        self.assert_shorter(context["content"])
        (annotation,) = answer.choices[0].message.annotations
        self.assertEqual(annotation.url_citation.url, "https://x.y/light")
        again = [*first, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "And who paid?"}]
        self.client().chat.completions.create(model="gpt-5", messages=again)
        self.assertEqual(self.sent()["messages"], again, "chunks belong to one request only")

    def test_a_response_is_compressed_and_cited(self):
        self.answers(response_answer())
        call = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c1", "output": DOCUMENT}
        answer = self.client().responses.create(model="gpt-5", input=[{"role": "user", "content": QUESTION}, call, result])
        self.assert_shorter(self.sent()["input"][2]["output"])
        (annotation,) = answer.output[0].content[0].annotations
        self.assertEqual((annotation.type, annotation.file_id), ("file_citation", "c1"))

    def test_a_streamed_response_has_a_citation(self):
        self.streams(response_events())
        chunks = [{"text": DOCUMENT, "metadata": {"url": "https://x.y"}}]
        kinds, numbers = [], []
        with self.client().responses.stream(model="gpt-5", input=QUESTION, extra_body={"thresher": {"chunks": chunks}}) as stream:
            for one in stream:
                kinds.append(one.type)
                numbers.append(one.sequence_number)
            final = stream.get_final_response()
        self.assertEqual(kinds.count("response.output_text.annotation.added"), 1)
        self.assertEqual(sorted(set(numbers)), list(range(len(response_events()) + 1)))
        (annotation,) = final.output[0].content[0].annotations
        self.assertEqual(annotation.url, "https://x.y")
        context, question = self.sent()["input"]
        self.assertEqual(question, {"role": "user", "content": QUESTION})
        self.assert_shorter(context["content"])


class Anthropic(Case):
    def client(self, kind=anthropic.Anthropic):
        return kind(api_key="k", base_url=daemon.url, max_retries=0, default_headers=ON)

    def messages(self):
        document = {"type": "document", "title": "Log", "source": {"type": "text", "media_type": "text/plain", "data": DOCUMENT}}
        found = {"type": "search_result", "source": "https://s", "title": "S", "content": [{"type": "text", "text": FILLER}]}
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        return [{"role": "user", "content": [document, found, image, {"type": "text", "text": QUESTION}]}]

    def ask(self, **more):
        return {"model": "claude-x", "max_tokens": 99, "system": FILLER, "messages": self.messages(), **more}

    def assert_cited(self, message):
        self.assertEqual("".join(block.text for block in message.content), ANSWER)
        block, rest = message.content
        self.assertEqual((rest.text, rest.citations), ("I hope that helps you.", None))
        (citation,) = block.citations
        self.assertEqual((citation.type, citation.document_index, citation.document_title), ("char_location", 0, "Log"))
        self.assertEqual(DOCUMENT[citation.start_char_index : citation.end_char_index], citation.cited_text)
        self.assertEqual(citation.cited_text, FACT)

    def test_a_message_is_compressed_and_cited(self):
        self.answers(message_answer())
        message = self.client().messages.create(**self.ask())
        self.assert_cited(message)
        path, headers, _ = upstream.requests[-1]
        self.assertEqual((path, headers["authorization"]), ("/v1/messages", "Bearer k"))
        sent = self.sent()
        self.assertEqual(sent["system"], FILLER)
        document, found, image, text = sent["messages"][0]["content"]
        self.assert_shorter(document["source"]["data"])
        self.assertEqual([image, text], self.messages()[0]["content"][2:])
        self.assertLessEqual(len(found["content"][0]["text"]), len(FILLER))
        said = {"role": "assistant", "content": [block.model_dump() for block in message.content]}
        self.client().messages.create(**self.ask(messages=[*self.messages(), said, {"role": "user", "content": "Thanks."}]))
        self.assertEqual(self.sent()["messages"][1]["content"], [{"type": "text", "text": ANSWER}], "as the model wrote it")

    def test_a_streamed_message_has_a_citation(self):
        self.streams(message_events(), pause=0.01)
        with self.client().messages.stream(**self.ask()) as stream:
            self.assertEqual("".join(stream.text_stream), ANSWER)
            self.assert_cited(stream.get_final_message())

    def test_a_streamed_message_with_a_tool_call_is_valid(self):
        *events, delta, stop = message_events()
        tool = [
            {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "search", "input": {}}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"query": 1}'}},
            {"type": "content_block_stop", "index": 1},
        ]
        self.streams([*events, *(event(one, one["type"]) for one in tool), delta, stop])
        with self.client().messages.stream(**self.ask()) as stream:
            kinds = [one.type for one in stream]
            message = stream.get_final_message()
        self.assertEqual(kinds.count("content_block_start"), 3)
        *texts, call = message.content
        self.assertEqual((call.type, call.input), ("tool_use", {"query": 1}))
        self.assert_cited(message.model_copy(update={"content": texts}))

    def test_async(self):
        import asyncio

        async def ask():
            self.streams(message_events())
            async with self.client(anthropic.AsyncAnthropic) as client, client.messages.stream(**self.ask()) as stream:
                return await stream.get_final_message()

        self.assert_cited(asyncio.run(ask()))

    def test_requests_with_the_providers_own_citations_are_unchanged(self):
        self.answers(message_answer())
        messages = self.messages()
        messages[0]["content"][0]["citations"] = {"enabled": True}
        message = self.client().messages.create(**self.ask(messages=messages))
        self.assertEqual(self.sent()["messages"], messages)
        self.assertIsNone(message.content[0].citations)

    def test_mistakes(self):
        with self.assertRaises(anthropic.NotFoundError) as raised:
            self.client().messages.create(**self.ask(model="nobody"))
        self.assertEqual(raised.exception.body["error"]["type"], "not_found_error")
        self.answers({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, status=529)
        with self.assertRaises(anthropic.APIStatusError) as raised:
            self.client().messages.create(**self.ask())
        self.assertEqual((raised.exception.status_code, raised.exception.body["error"]["message"]), (529, "busy"))


class TokenCounts(Case):
    def test_tokens_are_counted_by_the_upstream_before_compression(self):
        self.answers({"input_tokens": 17})
        client = anthropic.Anthropic(api_key="k", base_url=daemon.url, max_retries=0, default_headers=ON)
        messages = [{"role": "user", "content": f"<context>{DOCUMENT}</context> {QUESTION}"}]
        self.assertEqual(client.messages.count_tokens(model="claude-x", messages=messages).input_tokens, 17)
        path, headers, _ = upstream.requests[-1]
        self.assertEqual((path, headers["authorization"]), ("/v1/messages/count_tokens", "Bearer k"))
        self.assertEqual(self.sent()["messages"], messages)


class Recipes(Case):
    def test_the_recipes_run_and_the_tutorial_shows_them(self):
        import re
        import subprocess

        says = {
            "with_openai.py": (chat_answer(), ["urn:thresher:chunk:history The lighthouse at Cape Orrin was"]),
            "with_anthropic.py": (message_answer(), ["['Cape Orrin Light was completed in 1874.']"]),
        }
        folder = ROOT / "docs/recipes/middleware"
        self.assertEqual(sorted(says), sorted(path.name for path in folder.glob("*.py")))
        shown = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/tutorial-proxy.md").read_text(), re.MULTILINE | re.DOTALL)
        environment = {**os.environ, "THRESHER_URL": daemon.url, "PYTHONPATH": SDK, "OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
        for name, (answer, words) in says.items():
            answer = json.loads(json.dumps(answer).replace("built in 1874", "completed in 1874"))
            self.answers(answer)
            run = subprocess.run([sys.executable, folder / name], env=environment, capture_output=True, text=True, timeout=300)
            self.assertEqual(run.returncode, 0, run.stderr)
            for words in words:
                self.assertIn(words, run.stdout)
            (_, _, sent) = upstream.requests[-1]
            self.assertIn(b"completed in 1874", sent)
            self.assertTrue([block for block in shown if block in (folder / name).read_text()], f"the tutorial shows {name}")


class Caches(Case):
    """Prompt caches of the provider keep hitting, and no conversation costs more than without the daemon."""

    def turns(self, **headers):
        """A conversation with a search in every turn. Returns the messages of each request as the upstream and as the client had them."""
        self.answers(message_answer())
        client = anthropic.Anthropic(api_key="k", base_url=daemon.url, max_retries=0, default_headers=headers)
        messages, sent, own = [], [], []
        tools = [{"name": "search", "input_schema": {"type": "object"}}]
        for turn in range(6):
            text = [{"type": "text", "text": f"{QUESTION} ({turn})", "cache_control": {"type": "ephemeral"}}]
            for message in messages:
                for block in message["content"] if isinstance(message["content"], list) else []:
                    block.pop("cache_control", None)
            messages.append({"role": "user", "content": text})
            use = {"type": "tool_use", "id": f"t{turn}", "name": "search", "input": {}}
            result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": f"Turn {turn}. {DOCUMENT}"}
            messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            client.messages.create(model="claude-x", max_tokens=9, messages=messages, tools=tools)
            sent.append(self.sent()["messages"])
            own.append(json.loads(json.dumps(messages)))
            messages.append({"role": "assistant", "content": ANSWER})
        return sent, own

    def bill(self, turns):
        """The cost in tokens at the price of input. The prefix that equals the last request is read from the cache."""
        plain = [[json.dumps({**m, "content": strip(m["content"])}) for m in turn] for turn in turns]
        total, last = 0.0, []
        for turn in plain:
            same = 0
            while same < min(len(last), len(turn)) and last[same] == turn[same]:
                same += 1
            total += PRICES["read"] * sum(map(len, turn[:same])) / 4
            total += PRICES["write"] * sum(map(len, turn[same:])) / 4
            last = turn
        return total

    def test_earlier_messages_stay_the_same_and_the_cost_is_lower(self):
        sent, own = self.turns(**ON)
        for before, after in zip(sent, sent[1:]):
            for old, new in zip(before, after):
                self.assertEqual(strip(old["content"]), strip(new["content"]))
        self.assertLess(self.bill(sent), self.bill(own) / 2)

    def test_earlier_turns_of_an_unknown_conversation_are_unchanged(self):
        self.answers(message_answer())
        use = {"type": "tool_use", "id": "old", "name": "search", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "old", "content": f"Elsewhere. {DOCUMENT}"}
        messages = [
            {"role": "user", "content": "Hello, middle."},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": ANSWER},
            {"role": "user", "content": "Thanks."},
        ]
        client = anthropic.Anthropic(api_key="k", base_url=daemon.url, default_headers=ON)
        client.messages.create(model="claude-x", max_tokens=9, messages=messages)
        self.assertEqual(self.sent()["messages"], messages)

    def test_changed_instructions_are_compressed_again(self):
        """Some programs retrieve in every turn and put the result into the system prompt."""
        self.answers(message_answer())
        client = anthropic.Anthropic(api_key="k", base_url=daemon.url, default_headers=ON)

        def ask(context, messages):
            client.messages.create(model="claude-x", max_tokens=9, system=f"Answer.\n<context>{context}</context>", messages=messages)
            return self.sent()["system"]

        first = [{"role": "user", "content": QUESTION}]
        second = [*first, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "When did ferry 7 leave?"}]
        sent = ask(DOCUMENT, first)
        self.assert_shorter(sent)
        self.assertEqual(ask(DOCUMENT, second), sent, "unchanged instructions are sent as before")
        other = ask(f"{DOCUMENT} More of it.", second)
        self.assertNotEqual(other, sent)
        self.assertLess(len(other), len(DOCUMENT) / 2)

    def test_compressed_turns_stay_compressed_in_later_requests_that_do_not_ask_for_it(self):
        sent, own = self.turns(**ON)
        client = anthropic.Anthropic(api_key="k", base_url=daemon.url)
        more = [*own[-1], {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "Thanks."}]
        client.messages.create(model="claude-x", max_tokens=9, messages=more)
        again = [strip(message["content"]) for message in self.sent()["messages"]]
        self.assertEqual(again[: len(sent[-1])], [strip(message["content"]) for message in sent[-1]])


def strip(content):
    """Content without cache_control marks, which move from turn to turn."""
    if isinstance(content, str):
        return content
    return [{name: value for name, value in block.items() if name != "cache_control"} for block in content]


if __name__ == "__main__":
    unittest.main()
