"""Measures how well a daemon ranks chunks for questions that follow earlier turns: the questions of tests/conversations.

    python3 benches/conversations.py --url http://127.0.0.1:8080

Each question is asked in three ways: alone; with the turns before it in `messages`; and with these turns written into `query`, which
is what one would do without `messages`. R@gold is the share of the n needed chunks that are among the n best. "kept" is the share of
questions of which the context at a quarter of the tokens has the answer. Needs clients/python (pip install clients/python).
"""

import argparse
import json
from pathlib import Path

from thresher_client import Client

FILE = Path(__file__).resolve().parent.parent / "tests/conversations/followups.jsonl"
NEEDS_TURNS = {"pronoun", "ellipsis"}


def alone(question):
    return {"query": question["query"]}


def in_messages(question):
    return {"query": question["query"], "messages": question["history"]}


def in_query(question):
    turns = [turn["content"] for turn in question["history"]]
    return {"query": "\n".join([*turns, question["query"]])}


def measure(client, group, question, ask):
    answer = client.compress(chunks=group["chunks"], budget={"ratio": 0.25}, **ask(question))
    ranked = sorted(answer.chunks, key=lambda chunk: -chunk.score)
    gold = set(question["gold"])
    best = {chunk.index for chunk in ranked[: len(gold)]}
    return len(gold & best) / len(gold), question["answer"].lower() in answer.context.lower()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    options = parser.parse_args()
    groups = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    with Client(options.url) as client:
        for name, ask in [("alone", alone), ("messages", in_messages), ("in query", in_query)]:
            for label, needs in [("follow-up", True), ("complete", False)]:
                asked = [(g, q) for g in groups for q in g["questions"] if (q["type"] in NEEDS_TURNS) == needs]
                found = [measure(client, group, question, ask) for group, question in asked]
                recall, kept = (sum(values) / len(found) for values in zip(*found, strict=True))
                print(f"{name:9} {label:9} {len(found):3} questions: R@gold {recall:.3f}   kept {kept:.3f}", flush=True)


if __name__ == "__main__":
    main()
