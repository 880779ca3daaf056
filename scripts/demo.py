"""Helper of the scripts that start a daemon: finds ports, waits until it is ready, sends a request without curl, and prints the response."""

import json
import os
import socket
import sys
import textwrap
import time
import urllib.error
import urllib.request

WIDTH = 100
# A proxy from the environment must not stand between two ports of this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ports():
    """Prints two free ports. Both sockets stay open until both are known, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    print(*(one.getsockname()[1] for one in held))


def wait(url, seconds_max, daemon):
    deadline = time.monotonic() + float(seconds_max)
    last = "no answer"
    while time.monotonic() < deadline:
        try:
            with DIRECT.open(url, timeout=2):
                return
        except urllib.error.HTTPError as error:
            last = "HTTP {}".format(error.code)
        except OSError as error:
            last = str(error)
        require_alive(int(daemon))
        time.sleep(0.05)
    sys.exit("error: the daemon was not ready within {} s ({})".format(seconds_max, last))


def require_alive(daemon):
    """Exits if the daemon has ended. The shell that started it reaps it at once, so its process is then gone."""
    try:
        os.kill(daemon, 0)
    except ProcessLookupError:
        sys.exit("error: the daemon ended before it was ready")


def send(url, path):
    with open(path, "rb") as file:
        request = urllib.request.Request(url, file.read(), {"content-type": "application/json"})
    try:
        with DIRECT.open(request, timeout=60) as answer:
            sys.stdout.write(answer.read().decode())
    except urllib.error.HTTPError as error:
        sys.exit("error: HTTP {}: {}".format(error.code, error.read().decode(errors="replace")))


def show(request_path, answer_path):
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    with open(answer_path, encoding="utf-8") as file:
        answer = json.load(file)
    titles = {chunk["id"]: chunk.get("title", "") for chunk in request["chunks"]}

    heading("question")
    print(textwrap.fill(request["query"], WIDTH))
    heading("context: compressed from {} chunks".format(len(titles)))
    for line in answer["context"].splitlines():
        print(textwrap.fill(line, WIDTH))
    heading("citations")
    for citation in answer["citations"]:
        source = citation["source"]
        span = "{}[{}..{}]".format(citation["chunk"], source["start"], source["end"])
        text = textwrap.shorten(citation["text"], WIDTH - 40, placeholder=" ...")
        print("  [{}] {:<22} {}".format(citation["marker"], span, text))
        print("      {}".format(titles[citation["chunk"]]))
    if answer.get("kv"):
        heading("exported keys and values")
        kv = answer["kv"]
        print("  {tokens} tokens, {share:.0%} of their keys and values ({policy}): {bytes:,} bytes".format(**kv))
        print("  GET /v1/kv/{handle} returns the file; it expires in {expires_s} s".format(**kv))
        print("  {room_tokens} tokens of the model's context are left for the question and the answer".format(**kv))
    heading("cost")
    usage, statistic = answer["usage"], answer["rc"]
    print("  tokens    {tokens_in} in, {tokens_out} out ({ratio:.0%}), counted with {tokenizer}".format(**usage))
    print("  scored by {estimator} on {model}".format(**statistic))
    for stage, spent in answer["timing_ms"].items():
        print("  {:<9} {:8.2f} ms".format(stage, spent))


def heading(words):
    print("\n{} {}".format(words, "-" * max(4, WIDTH - len(words) - 1)))


if __name__ == "__main__":
    {"ports": ports, "wait": wait, "send": send, "show": show}[sys.argv[1]](*sys.argv[2:])
