"""Measures which parts of code, tables, logs and other texts a daemon keeps: the questions of tests/kinds.

    python3 benches/kinds.py --url http://127.0.0.1:8080 [--ratio 0.25]

For each kind of text: the share of questions of which every needed part is kept, the share of needed parts that are kept, and the share
of tokens that is kept. Needs clients/python (pip install clients/python).
"""

import argparse
import json
from pathlib import Path

from thresher_client import Client

KINDS = Path(__file__).resolve().parent.parent / "tests/kinds"


def needed_ranges(part, text):
    """The ranges of code points of a needed part, line by line, without the blanks around each line."""
    if "text" in part:
        start = text.index(part["text"])
        end = start + len(part["text"])
    else:
        first, last = part["lines"]
        lines = text.split("\n")
        start = sum(len(line) + 1 for line in lines[: first - 1])
        end = start + len("\n".join(lines[first - 1 : last]))
    at = start
    for line in text[start:end].split("\n"):
        bare = line.strip()
        if bare:
            begin = at + line.index(bare)
            yield begin, begin + len(bare)
        at += len(line) + 1


def is_kept(part, chunks, kept):
    spans = kept[part["chunk"]]
    inside = lambda start, end: any(a <= start and end <= b for a, b in spans)  # noqa: E731
    return all(inside(start, end) for start, end in needed_ranges(part, chunks[part["chunk"]]["text"]))


def joined(spans, text):
    """The spans with those joined that only blanks divide."""
    found = []
    for start, end in sorted(spans):
        if found and not text[found[-1][1] : start].strip():
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def measure(client, file, budget):
    questions, parts, tokens = [], [], []
    for line in file.read_text(encoding="utf-8").splitlines():
        group = json.loads(line)
        chunks = [{**chunk, "id": str(index)} for index, chunk in enumerate(group["chunks"])]
        for question in group["questions"]:
            answer = client.compress(question["query"], chunks, budget=budget, offsets="codepoint")
            spans = {int(chunk.id): [(span.start, span.end) for span in chunk.spans] for chunk in answer.chunks}
            kept = [joined(spans.get(index, []), chunk["text"]) for index, chunk in enumerate(chunks)]
            found = [is_kept(part, chunks, kept) for part in question["needed"]]
            questions.append(all(found))
            parts += found
            tokens.append(answer.usage.tokens_out / answer.usage.tokens_in)
    share = lambda values: sum(values) / len(values)  # noqa: E731
    print(f"{file.stem:10} {len(questions):3} questions: all parts {share(questions):.3f}   parts {share(parts):.3f}   tokens {share(tokens):.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--ratio", type=float, default=0.25, help="the share of tokens to keep; 0 lets the daemon decide (auto)")
    options = parser.parse_args()
    with Client(options.url) as client:
        for file in sorted(KINDS.glob("*.jsonl")):
            measure(client, file, {"ratio": options.ratio} if options.ratio else None)


if __name__ == "__main__":
    main()
