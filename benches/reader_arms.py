"""Measures how well a small language model answers from the context that Thresher keeps, beside other contexts.

    python benches/reader_arms.py prepare --url http://127.0.0.1:8080 --out contexts.jsonl hotpot.jsonl nq20.jsonl
    python benches/reader_arms.py measure contexts.jsonl --gguf FILE --out measured.jsonl
    python benches/reader_arms.py report measured.jsonl

`prepare` asks a daemon for the contexts of each row: all chunks; Thresher at 1/2, 1/4, 1/8, `auto` and `coverage` 0.95; and for
each of these budgets but the last the best whole chunks at the same tokens and the best sentences by BM25 at the same
characters. `measure` lets the model answer from each. It reports the log-likelihood of the true answer, and exact match, F1 and
contained answers as SQuAD's script does, each beside all chunks, paired, with 95 % bootstrap intervals.

A row is `{"id", "query", "answers", "chunks": [{"title", "text"}]}`. For the needs of `measure` see reader.py.
"""

import argparse
import json
import math
import re
from collections import Counter
from pathlib import Path

from reader import TAIL, add_measure, add_report, compress, drawn, interval, mean_scores, scored

BUDGETS = {"1/2": {"ratio": 0.5}, "1/4": {"ratio": 0.25}, "1/8": {"ratio": 0.125}, "auto": {"auto": True}}


def words(text):
    return re.findall(r"\w+", text.lower())


def bm25(row, characters):
    """The best sentences by BM25 (k1 1.2, b 0.75) that together have at most that many characters, under the titles of their chunks."""
    sentences = [
        (place, sentence)
        for place, chunk in enumerate(row["chunks"])
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", chunk["text"])
        if words(sentence)
    ]
    counts = [Counter(words(f"{row['chunks'][place].get('title') or ''} {sentence}")) for place, sentence in sentences]
    mean = sum(map(Counter.total, counts)) / len(counts)
    rarity = {}
    for word in set(words(row["query"])):
        having = sum(word in count for count in counts)
        rarity[word] = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))

    def score(count):
        return sum(rarity[w] * count[w] * 2.2 / (count[w] + 1.2 * (0.25 + 0.75 * count.total() / mean)) for w in rarity)

    kept, used = set(), 0
    for index in sorted(range(len(sentences)), key=lambda index: -score(counts[index])):
        place, sentence = sentences[index]
        size = len(sentence) + 1 + (0 if any(sentences[other][0] == place for other in kept) else len(row["chunks"][place].get("title") or "") + 6)
        if used + size <= characters:
            kept.add(index)
            used += size
    return {place: [sentences[index][1] for index in sorted(kept) if sentences[index][0] == place] for place, _ in sentences}


def written(chunks, texts):
    """A context in the form of Thresher's: numbered chunks with their titles."""
    kept = [(chunk.get("title"), text) for chunk, text in zip(chunks, texts) if text]
    return "\n\n".join(f"[{number}] {title}\n{text}" if title else f"[{number}] {text}" for number, (title, text) in enumerate(kept, 1))


def prepare(options):
    with options.out.open("w") as out:
        for file in options.files:
            for row in drawn(file, options.rows, seed=11):
                contexts = {"all chunks": written(row["chunks"], [chunk["text"] for chunk in row["chunks"]])}
                for name, budget in BUDGETS.items():
                    found = compress(options.url, row, budget=budget)
                    contexts[f"Thresher {name}"] = found["context"]
                    tokens = found["usage"]["tokens_out"]
                    # Empty if no whole chunk fits.
                    whole = compress(options.url, row, budget={"tokens": tokens}, granularity="chunk")["context"] if tokens else ""
                    contexts[f"whole chunks {name}"] = whole
                    sentences = bm25(row, len(found["context"]))
                    contexts[f"BM25 {name}"] = written(row["chunks"], [" ".join(sentences.get(at, [])) for at in range(len(row["chunks"]))])
                contexts["Thresher coverage 0.95"] = compress(options.url, row, budget={"coverage": 0.95})["context"]
                contexts["no chunks"] = ""
                out.write(json.dumps({"set": file.stem, "id": row["id"], "query": row["query"], "answers": row["answers"], "contexts": contexts}) + "\n")


def of_row(reader, row, _index):
    question, answer = reader.ids(TAIL.format(row["query"].strip())), reader.ids(" " + row["answers"][0])
    arms, caches = {}, []
    for arm, context in row["contexts"].items():
        ids = reader.prefix + (reader.ids(context) if context else reader.ids("\n"))
        caches.append(reader.prompt(ids))
        log_p = reader.likelihoods(caches[-1], question, answer)[0]
        nll = -sum(log_p[place, token].item() for place, token in enumerate(answer))
        arms[arm] = {"nll": nll, "tokens": len(ids), "holds": any(one in context for one in row["answers"])}
    for arm, text in zip(arms.values(), reader.answers(caches, question)):
        arm["answer"] = text
    return {key: row[key] for key in ("set", "id", "answers")} | {"arms": arms}


def difference(own, one, other, value, generator):
    """The mean of `value` of one arm minus that of another, with its interval, in words."""
    differences = [value(row, one) - value(row, other) for row in own]
    low, high = interval(differences, generator)
    return f"{sum(differences) / len(own):+.3f} [{low:+.3f}, {high:+.3f}]"


def likelihood(row, arm):
    return -row["arms"][arm]["nll"]


def contained(row, arm):
    return scored(row["arms"][arm]["answer"], row["answers"])["contained"]


def print_set(name, own, generator):
    print(f"\n{name}: {len(own)} rows")
    print(f"{'':24} {'tokens':>6} {'holds':>5} {'log-likelihood':>14} {'minus all chunks':>25} {'exact':>6} {'F1':>6} {'contained':>9} {'minus all chunks':>25}")
    for arm in own[0]["arms"]:
        cells, mean = [row["arms"][arm] for row in own], mean_scores(own, arm)
        tokens, holds = (sum(cell[key] for cell in cells) / len(own) for key in ("tokens", "holds"))
        better = [difference(own, arm, "all chunks", value, generator) for value in (likelihood, contained)]
        print(f"{arm:24} {tokens:6.0f} {holds:5.2f} {sum(likelihood(row, arm) for row in own) / len(own):14.3f} {better[0]:>25}"
              f" {mean['exact']:6.3f} {mean['f1']:6.3f} {mean['contained']:9.3f} {better[1]:>25}")
    for budget in BUDGETS:
        for other in ("whole chunks", "BM25"):
            arms = f"Thresher {budget}", f"{other} {budget}"
            better = [difference(own, *arms, value, generator) for value in (likelihood, contained)]
            print(f"Thresher minus {other} at {budget}: log-likelihood {better[0]}, contained {better[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("prepare")
    one.add_argument("files", type=Path, nargs="+")
    one.add_argument("--url", default="http://127.0.0.1:8080")
    one.add_argument("--rows", type=int, default=100)
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(work=prepare)
    add_measure(commands, lambda row: len(row["contexts"]["all chunks"]), of_row)
    add_report(commands, print_set)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
