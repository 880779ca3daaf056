"""Measures how well a daemon ranks chunks for questions in other scripts than the Latin one: the questions of tests/scripts.

    python3 benches/scripts.py --url http://127.0.0.1:8080

For each language: the share of questions whose needed chunks are ranked first (R@gold), the share of answers that are kept at a quarter of the tokens,
and the share of questions that are taken as related. Needs clients/python (pip install clients/python).
"""

import argparse
import json
from pathlib import Path

from thresher_client import Client

SCRIPTS = Path(__file__).resolve().parent.parent / "tests/scripts"


def measure(client, file):
    group = json.loads(file.read_text(encoding="utf-8"))
    chunks = [{**chunk, "id": str(index)} for index, chunk in enumerate(group["chunks"])]
    first, kept, related = [], [], []
    for question in group["questions"]:
        answer = client.compress(question["query"], chunks, budget={"ratio": 0.25})
        gold = question["gold"]
        ranked = sorted(answer.chunks, key=lambda chunk: -(chunk.score or 0))
        best = {int(chunk.id) for chunk in ranked[: len(gold)]}
        first.append(len(best & set(gold)) / len(gold))
        kept.append(question["answer"] in answer.context)
        related.append(bool(answer.rc.related))
    share = lambda values: sum(values) / len(values)  # noqa: E731
    print(f"{file.stem:6} {len(first):3} questions: R@gold {share(first):.3f}   answers kept {share(kept):.3f}   related {share(related):.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    options = parser.parse_args()
    with Client(options.url) as client:
        for file in sorted(SCRIPTS.glob("*.jsonl")):
            measure(client, file)


if __name__ == "__main__":
    main()
