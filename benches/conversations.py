"""Measures how well a daemon ranks chunks for questions in conversations and about them: those of tests/conversations.

    python3 benches/conversations.py --url http://127.0.0.1:8080

Each follow-up question is asked in three ways: alone; with the turns before it in `messages`; and with these turns written into `query`,
which is what one would do without `messages`. Each question about a meeting is asked over its turns as they are, and over turns whose ids
do not say which turns are neighbours. R@gold is the share of the n needed chunks that are among the n best. "kept" is the share of
questions of which the context at a quarter of the tokens has the answer. Needs clients/python (pip install clients/python).
"""

import argparse
import json
from pathlib import Path

from thresher_client import Client

FOLDER = Path(__file__).resolve().parent.parent / "tests/conversations"
NEEDS_TURNS = {"pronoun", "ellipsis"}


def alone(question):
    return {"query": question["query"]}


def in_messages(question):
    return {"query": question["query"], "messages": question["history"]}


def in_query(question):
    turns = [turn["content"] for turn in question["history"]]
    return {"query": "\n".join([*turns, question["query"]])}


def recall(chunks, question):
    ranked = sorted(chunks, key=lambda chunk: -chunk.score)
    gold = set(question["gold"])
    return len(gold & {chunk.index for chunk in ranked[: len(gold)]}) / len(gold)


def measure(client, group, question, ask):
    answer = client.compress(chunks=group["chunks"], budget={"ratio": 0.25}, **ask(question))
    return recall(answer.chunks, question), question["answer"].lower() in answer.context.lower()


def without_numbers(chunks):
    return [{**chunk, "id": f"{chunk['id']}-"} for chunk in chunks]


def groups(name):
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def follow_ups(client):
    asked_about = groups("followups.jsonl")
    for name, ask in [("alone", alone), ("messages", in_messages), ("in query", in_query)]:
        for label, needs in [("follow-up", True), ("complete", False)]:
            asked = [(g, q) for g in asked_about for q in g["questions"] if (q["type"] in NEEDS_TURNS) == needs]
            found = [measure(client, group, question, ask) for group, question in asked]
            gold, kept = (sum(values) / len(found) for values in zip(*found, strict=True))
            print(f"{name:9} {label:9} {len(found):3} questions: R@gold {gold:.3f}   kept {kept:.3f}", flush=True)


def meetings(client):
    for name, written in [("neighbours", list), ("turns alone", without_numbers)]:
        found = []
        for meeting in groups("meetings.jsonl"):
            chunks = written(meeting["chunks"])
            for question in meeting["questions"]:
                found.append(recall(client.compress(question["query"], chunks).chunks, question))
        print(f"meetings, {name:11} {len(found):3} questions: R@gold {sum(found) / len(found):.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    options = parser.parse_args()
    with Client(options.url) as client:
        follow_ups(client)
        meetings(client)


if __name__ == "__main__":
    main()
