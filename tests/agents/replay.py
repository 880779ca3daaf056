"""Replays recorded sessions of agents through the daemon and measures what is left of the results of tools.

usage: replay.py [BINARY] [--peers FOLDER] [--session NAME] [--json FILE] [--show ID]

Each session is sent request by request to a stub upstream, as Chat Completions and as Messages; the stub records the body of each request and
answers with the turn of the model that was recorded. All results of tools may be compressed (`tools = ["*"]`, `compress = "always"`), without a
limit of time. The tables say by kind of result how many tokens (o200k_base) were sent, how many pieces that the agent's next step needs were kept,
and how many places mislead: a piece whose correction is missing, lines that became neighbours without a mark, a line that lost a part or its
indentation. A recorded session lists the needed pieces; they were written before anything was compressed.

The daemon needs THRESHER_RUNTIME_LIB. With --peers, the libraries of that folder compress the same conversations. What Headroom and distil-llm leave out, a model
can retrieve by a tool; Thresher can do so if the request has that tool, which these have not. The tables count what is sent, for both.
"""

from __future__ import annotations

import argparse
import dataclasses
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from measure import Row, judge, plain, table  # noqa: E402

ROWS = ROOT / "target/agents/rows.json"
TIMEOUT_S = 300
Json = dict[str, Any]


def load(name: str | None) -> list[Json]:
    sessions = [json.loads(path.read_text()) for path in sorted((HERE / "sessions").glob("*.json"))]
    for session in sessions:
        for result in results(session):
            for piece in [*result["needs"], *(piece for pair in result["together"] for piece in pair)]:
                assert plain(piece) in plain(result["text"]), f"{session['name']}: {result['call']}: the text does not have: {piece}"
    return [session for session in sessions if name in (None, session["name"])]


def results(session: Json) -> list[Json]:
    return [turn["result"] for turn in session["turns"] if "result" in turn]


# ---- the two APIs ----


class Chat:
    """Chat Completions. The client sends back the messages that it got, as the official clients do."""

    path = "/v1/chat/completions"

    def __init__(self, session: Json) -> None:
        self.tools = [{"type": "function", "function": tool} for tool in session["tools"]]
        self.messages: list[Json] = [{"role": "system", "content": session["system"]}]

    def add_user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def add_result(self, result: Json) -> None:
        self.messages.append({"role": "tool", "tool_call_id": result["call"], "content": result["text"]})

    def add_response(self, response: Json) -> None:
        self.messages.append(response["choices"][0]["message"])

    def request(self) -> Json:
        return {"model": "gpt-5", "messages": self.messages, "tools": self.tools}

    @staticmethod
    def response(turn: Json) -> Json:
        message: Json = {"role": "assistant", "content": turn["assistant"], "refusal": None}
        if turn["calls"]:
            message["tool_calls"] = [
                {"id": call["id"], "type": "function", "function": {"name": call["tool"], "arguments": json.dumps(call["arguments"])}} for call in turn["calls"]
            ]
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn["calls"] else "stop", "logprobs": None}
        return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice], "usage": usage}

    @staticmethod
    def sent(body: Json) -> dict[str, str]:
        return {message["tool_call_id"]: text_of(message["content"]) for message in body["messages"] if message["role"] == "tool"}


class Messages:
    """Anthropic's Messages. Results and what the user writes after them are blocks of one message."""

    path = "/v1/messages"

    def __init__(self, session: Json) -> None:
        self.session = session
        self.tools = [{"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in session["tools"]]
        self.messages: list[Json] = []

    def _add(self, block: Json) -> None:
        if not self.messages or self.messages[-1]["role"] != "user":
            self.messages.append({"role": "user", "content": []})
        self.messages[-1]["content"].append(block)

    def add_user(self, text: str) -> None:
        self._add({"type": "text", "text": text})

    def add_result(self, result: Json) -> None:
        self._add({"type": "tool_result", "tool_use_id": result["call"], "content": result["text"]})

    def add_response(self, response: Json) -> None:
        self.messages.append({"role": "assistant", "content": response["content"]})

    def request(self) -> Json:
        return {"model": "claude-x", "max_tokens": 1000, "system": self.session["system"], "messages": self.messages, "tools": self.tools}

    @staticmethod
    def response(turn: Json) -> Json:
        calls = [{"type": "tool_use", "id": call["id"], "name": call["tool"], "input": call["arguments"]} for call in turn["calls"]]
        content = [{"type": "text", "text": turn["assistant"]}, *calls]
        usage = {"input_tokens": 9, "output_tokens": 9}
        stop = "tool_use" if calls else "end_turn"
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}

    @staticmethod
    def sent(body: Json) -> dict[str, str]:
        blocks = [block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]]
        return {block["tool_use_id"]: text_of(block["content"]) for block in blocks if block["type"] == "tool_result"}


Dialect = Chat | Messages


def text_of(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def steps(session: Json, dialect: Dialect) -> Iterator[Json]:
    """Adds the turns of the client to the dialect's messages, and stops at each turn of the model, where a request is sent."""
    for turn in session["turns"]:
        if "user" in turn:
            dialect.add_user(turn["user"])
        elif "result" in turn:
            dialect.add_result(turn["result"])
        else:
            yield turn


def raw_messages(body: str) -> list[str]:
    """The messages of a body, to the byte."""
    decoder, at = json.JSONDecoder(), body.index("{") + 1

    def skip(position: int, characters: str) -> int:
        while body[position] in characters:
            position += 1
        return position

    while True:
        name, at = decoder.raw_decode(body, skip(at, " \r\n\t,"))
        at = skip(at, " \r\n\t:")
        if name != "messages":
            _, at = decoder.raw_decode(body, at)
            continue
        found: list[str] = []
        at = skip(at + 1, " \r\n\t")
        while body[at] != "]":
            _, end = decoder.raw_decode(body, at)
            found.append(body[at:end])
            at = skip(end, " \r\n\t,")
        return found


# ---- Thresher ----


class Upstream(http.server.ThreadingHTTPServer):
    """Records the bodies, and answers with `answer`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.bodies: list[bytes] = []
        self.answer: Json = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        data = json.dumps(self.server.answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def post(url: str, body: Json) -> tuple[Json, dict[str, str]]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response), {name.lower(): value for name, value in response.headers.items()}


@dataclasses.dataclass
class Replay:
    """What the upstream got of one session in one dialect."""

    first: dict[str, str]  # the texts of results, by call, as they were first sent
    earlier: int  # messages that an earlier request had as well
    identical: int  # of these, the ones that are byte-identical
    reasons: list[str]


def compare_prefixes(bodies: list[str]) -> tuple[int, int]:
    """How many messages of a request were in the request before, and how many of them are the same to the byte."""
    earlier = identical = 0
    previous: list[str] = []
    for body in bodies:
        now = raw_messages(body)
        earlier += len(previous)
        identical += sum(a == b for a, b in zip(previous, now, strict=False))
        previous = now
    return earlier, identical


def replay(session: Json, dialect: Dialect, url: str, upstream: Upstream) -> Replay:
    upstream.bodies.clear()
    first: dict[str, str] = {}
    reasons = []
    for turn in steps(session, dialect):
        upstream.answer = dialect.response(turn)
        response, headers = post(url + dialect.path, dialect.request())
        reasons.append(f"{headers.get('x-thresher', '-')}/{headers.get('x-thresher-reason', '-')}")
        dialect.add_response(response)
        first = {**dialect.sent(json.loads(upstream.bodies[-1])), **first}
    earlier, identical = compare_prefixes([body.decode() for body in upstream.bodies])
    return Replay(first, earlier, identical, reasons)


class Tokens(dict[str, int]):
    """Tokens (o200k_base) of texts, as the daemon counts them."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def __missing__(self, text: str) -> int:
        if not text.strip():
            return 0
        answer, _ = post(self.url + "/v1/compress", {"query": "How many tokens?", "chunks": [text], "budget": {"ratio": 1}, "deadline_ms": 120000})
        self[text] = int(answer["usage"]["tokens_in"])
        return self[text]


def start_daemon(binary: str, upstream: Upstream) -> Any:
    os.environ["THRESHER_TEST_BINARY"] = str(Path(binary).resolve())
    from daemon import Daemon

    return Daemon(
        THRESHER__MIDDLEWARE__UPSTREAMS=f'[{{url = "http://127.0.0.1:{upstream.server_port}", models = ["gpt-*", "claude-*"], compress = "always"}}]',
        THRESHER__MIDDLEWARE__TOOLS='["*"]',
        THRESHER__MIDDLEWARE__DEADLINE_MS="60000",
        # The recorded system prompts are short. The prompt of a real agent is longer than this minimum from its first request on.
        THRESHER__MIDDLEWARE__PROMPT_TOKENS_MIN="0",
    )


# ---- peers ----


def conversations(session: Json) -> list[list[Json]]:
    """The messages of each request."""
    chat, found = Chat(session), []
    for turn in steps(session, chat):
        found.append(list(chat.messages))
        chat.add_response(Chat.response(turn))
    return found


# The peers of `peer_side.py`, and what the report calls them.
PEERS = {
    "headroom": "Headroom (default pipeline)", "headroom-densify": "Headroom (densify, its mode without loss)", "distil": "distil-llm (default)",
    "distil-verbatim": "distil-llm (verbatim)", "llmslim": "llmslim (0.7 of the tokens of results)",
}


def replay_peer(peer: str, sessions: list[Json], folder: str) -> list[Replay] | str:
    """What a peer would have sent, or why it did not work."""
    lists = [conversations(session) for session in sessions]
    home = ROOT / "target/agents/home"
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(HERE / "peer_side.py"), peer], input=json.dumps([messages for one in lists for messages in one]), capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(folder).resolve()), "HOME": str(home)}, timeout=TIMEOUT_S, check=False,
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    compressed = iter(json.loads(done.stdout))
    found = []
    for one in lists:
        first: dict[str, str] = {}
        bodies = []
        for _ in one:
            body = {"messages": next(compressed)}
            bodies.append(json.dumps(body))
            first = {**Chat.sent(body), **first}
        found.append(Replay(first, *compare_prefixes(bodies), []))
    return found


# ---- the report ----


def rows_of(sessions: list[Json], replays: list[dict[str, str]], tokens: Tokens, binary: str | None = None) -> list[Row]:
    """The rows of all results. What `binary` has encoded is judged as it expands it, and a reference as the earlier result of which all was sent."""

    def expanded(text: str, sent: str) -> str:
        if binary is None or sent == text:
            return sent
        return subprocess.run([binary, "expand"], input=sent.encode(), stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S).stdout.decode()

    rows = []
    for session, replay in zip(sessions, replays, strict=True):
        whole: set[str] = set()
        for result in results(session):
            text, sent = result["text"], replay[result["call"]]
            is_reference = sent.startswith("[the same text as the result of ") and text in whole
            after = text if is_reference else expanded(text, sent)
            if after == text:
                whole.add(text)
            rows.append(judge(result, f"{session['name']}/{result['call']}", sent, after, tokens))
    return rows


def show(id: str, file: Path) -> None:
    """Prints a result before and after, by each program."""
    for name, rows in json.loads(file.read_text()).items():
        for row in rows:
            if row["id"] == id:
                print(f"==== {name}: {id} ({row['kind']}), {row['tokens']} tokens ====\n{row['before']}\n==== sent: {row['outcome']}, {row['sent']} tokens ====\n{row['after']}")
                print("==== lost ====", *row["lost"], "==== misleading ====", *row["misleading"], sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=str(ROOT / "target/debug/thresher"), help="the daemon (default: target/debug/thresher)")
    parser.add_argument("--peers", metavar="FOLDER", help="folder of the packages of requirements.txt, which compress the same conversations")
    parser.add_argument("--model-dir", help="directory of the exported model (default: the daemon's)")
    parser.add_argument("--session", metavar="NAME", help="replay this session only")
    parser.add_argument("--json", metavar="FILE", type=Path, default=ROWS, help="where all rows are written (default: target/agents/rows.json)")
    parser.add_argument("--show", metavar="ID", help="print a result of the last run before and after, such as ops-checkout/call_02; run nothing")
    arguments = parser.parse_args()
    if arguments.show:
        show(arguments.show, arguments.json)
        return
    sessions = load(arguments.session)
    if arguments.model_dir:
        os.environ["THRESHER__MODEL__DIR"] = arguments.model_dir
    upstream = Upstream()
    written = {}
    os.environ["THRESHER__MIDDLEWARE__MODE"] = "lossless"
    daemon = start_daemon(arguments.binary, upstream)
    try:
        replays = [replay(session, Chat(session), daemon.url, upstream) for session in sessions]
        written["lossless"] = rows_of(sessions, [one.first for one in replays], Tokens(daemon.url), arguments.binary)
        print(f"Thresher, mode = \"lossless\": {len(sessions)} sessions, {len(written['lossless'])} results\n\n{table(written['lossless'])}\n")
    finally:
        daemon.stop()
    del os.environ["THRESHER__MIDDLEWARE__MODE"]
    daemon = start_daemon(arguments.binary, upstream)
    try:
        tokens = Tokens(daemon.url)
        chat = [replay(session, Chat(session), daemon.url, upstream) for session in sessions]
        messages = [replay(session, Messages(session), daemon.url, upstream) for session in sessions]
        written["thresher"] = rows_of(sessions, [one.first for one in chat], tokens, arguments.binary)
        print(f"Thresher, by default: {len(sessions)} sessions, {len(written['thresher'])} results, Chat Completions\n\n{table(written['thresher'])}\n")
        same = sum(a.first[call] == b.first[call] for a, b in zip(chat, messages, strict=True) for call in a.first)
        print(f"Messages: the same text as Chat Completions in {same} of {len(written['thresher'])} results")
        for name, replays in (("Chat Completions", chat), ("Messages", messages)):
            print(f"{name}: {sum(one.identical for one in replays)} of {sum(one.earlier for one in replays)} messages of earlier turns are byte-identical in the next request")
        reasons = [reason for one in chat for reason in one.reasons]
        print("x-thresher / reason of Chat Completions: " + ", ".join(f"{reason} {reasons.count(reason)}" for reason in sorted(set(reasons))))
        for peer, name in PEERS.items() if arguments.peers else ():
            other = replay_peer(peer, sessions, arguments.peers)
            if isinstance(other, str):
                print(f"\n{name} did not work: {other}")
                continue
            written[peer] = rows_of(sessions, [one.first for one in other], tokens)
            print(f"\n{name}, without a model, each result as it is first sent\n\n{table(written[peer])}\n")
            print(f"{name}: {sum(one.identical for one in other)} of {sum(one.earlier for one in other)} messages of earlier turns are byte-identical in the next request")
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({name: [dataclasses.asdict(row) for row in rows] for name, rows in written.items()}, indent=1, ensure_ascii=False) + "\n")
    finally:
        daemon.stop()
        upstream.shutdown()


if __name__ == "__main__":
    main()
