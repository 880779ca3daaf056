"""Measures what a model loses when it answers from keys and values of chunks that were read one by one.

    python benches/kv_handover.py choose --url http://127.0.0.1:8080 --out chosen.jsonl hotpot.jsonl nq20.jsonl
    python benches/kv_handover.py measure chosen.jsonl --gguf FILE --out measured.jsonl
    python benches/kv_handover.py report measured.jsonl

`choose` asks a daemon which chunks of each row to keep. `measure` lets a model answer: from all text, from the text of the kept
chunks, from their keys and values as an export hands them over, and from the same after a share of their tokens was computed
anew with the other chunks in sight. The tokens to compute anew are chosen by RC of the question, by how far their values in
layers 1 to 3 are from those of a prompt (as CacheBlend does, arXiv 2405.16444), at random, or from the beginning of each chunk.

A row is `{"id", "query", "answers", "chunks": [{"title", "text"}]}`. `measure` uses a GPU if there is one, and needs torch,
transformers 5, gguf and accelerate. It computes in single precision.
"""

import argparse
import json
import random
from pathlib import Path

from reader import TAIL, add_measure, add_report, compress, drawn, interval, mean_scores

SHARES = (0.05, 0.15, 0.30)
CHOICES = ("rc", "deviation", "random", "first")
WINDOW = 512


def choose(options):
    """Writes rows with `kept`, the places of the chunks that Thresher keeps at the budget."""
    with options.out.open("w") as out:
        for file in options.files:
            for row in drawn(file, options.rows, seed=7):
                found = compress(options.url, row, budget={"ratio": options.ratio}, granularity="chunk")
                kept = [chunk["index"] for chunk in found["chunks"] if chunk["kept"]]
                if kept:
                    out.write(json.dumps({**row, "set": file.stem, "kept": kept}) + "\n")


def moved(reader, keys, by, layer):
    angles = by * reader.frequencies[layer]
    cos, sin = (reader.torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    half = keys.shape[-1] // 2
    turned = reader.torch.cat([-keys[..., half:], keys[..., :half]], -1)
    return keys * cos + turned * sin


def handed_over(reader, chunks):
    """Keys and values of chunks as an export has them: each window is read behind the special tokens, and its keys are moved."""
    torch, first = reader.torch, len(reader.prefix)
    windows = [chunk[at : at + WINDOW - first] for chunk in chunks for at in range(0, len(chunk), WINDOW - first)]
    longest = max(map(len, windows))
    ids = reader.tensor([reader.prefix + window + [0] * (longest - len(window)) for window in windows])
    positions = torch.arange(ids.shape[1], device=reader.device)[None].expand(len(windows), -1)
    lengths = reader.tensor([first + len(window) for window in windows])[:, None]
    layers = reader.read(ids, positions, torch.where(positions < lengths, positions, -1))[1]
    joined = []
    for index, (keys, values) in enumerate(layers):
        parts, place = [(keys[:1, :, :first], values[:1, :, :first])], first
        for row, window in enumerate(windows):
            own = slice(first, first + len(window))
            parts.append((moved(reader, keys[row : row + 1, :, own], place - first, index), values[row : row + 1, :, own]))
            place += len(window)
        joined.append(tuple(torch.cat(column, 2) for column in zip(*parts)))
    return joined


def rc(reader, layers, question):
    """RC of each cached token for the question, over all heads and layers, `[token]`."""
    torch, cached = reader.torch, layers[0][0].shape[2]
    end = cached + len(question)
    reader.recorded = []
    positions = torch.arange(end, device=reader.device)[None]
    reader.read(reader.tensor([question]), positions[:, cached:], positions, layers)
    recorded, reader.recorded = reader.recorded, None
    seen = torch.ones(len(question), len(question), dtype=torch.bool, device=reader.device).tril()
    total = torch.zeros(cached, device=reader.device)
    for logits, is_sliding in zip(recorded, reader.is_sliding):
        if is_sliding:  # Tokens in front of the window would score by masked logits.
            continue
        logits = logits[0]
        heads, queries, _ = logits.shape
        squares = torch.zeros(heads, cached, device=reader.device)
        for query in range(queries):
            own = logits[:, query, cached:][:, seen[query]]
            excess = (logits[:, query, :cached, None] - own[:, None, :]).clamp(min=0).mean(-1)
            squares += excess.square()
        scores = (squares.view(reader.kv_heads, -1, cached).mean(1) / queries).sqrt()
        mean = scores.mean(-1, keepdim=True).clamp(min=1e-9)
        total += (scores / (mean if reader.is_normalised else mean.sqrt())).sum(0)
    return total


def deviation(handed, prompt):
    """How far the values of each token in layers 1 to 3 are from those of a prompt, `[token]`."""
    total = 0
    for (_, one), (_, other) in zip(handed[1:4], prompt[1:4]):
        total = total + (one - other).square().sum((0, 1, 3)) / other.square().sum((0, 1, 3)).mean()
    return total


def of_row(reader, row, seed):
    torch, generator = reader.torch, random.Random(seed)
    texts = [reader.ids(f"{chunk['title']}. {chunk['text']}" if chunk.get("title") else chunk["text"]) for chunk in row["chunks"]]
    kept = [texts[index] for index in row["kept"]]
    tokens = reader.prefix + sum(kept, [])
    question = reader.ids(TAIL.format(row["query"].strip()))
    answer = reader.ids(" " + row["answers"][0])
    every = reader.prompt(reader.prefix + sum(texts, []))
    prompt, handed = reader.prompt(tokens), handed_over(reader, kept)
    first, count = len(reader.prefix), len(tokens)

    def best(scores, number):
        return (scores[first:].topk(number).indices + first).sort().values

    starts = [first + sum(map(len, kept[:place])) for place in range(len(kept))]
    scores = {"rc": rc(reader, handed, question), "deviation": deviation(handed, prompt)}
    arms, caches = ["kept text", "handed over"], [prompt, handed]
    for share in SHARES:
        number = max(1, round(share * (count - first)))
        early = torch.full((count,), -float(count), device=reader.device)
        for start, chunk in zip(starts, kept):
            for place in range(len(chunk)):
                early[start + place] = -place
        scores["random"] = reader.tensor([generator.random() for _ in range(count)])
        rows = torch.stack([best(early if choice == "first" else scores[choice], number) for choice in CHOICES])
        stacked = [tuple(part.expand(len(CHOICES), -1, -1, -1) for part in layer) for layer in handed]
        every_place = torch.arange(count, device=reader.device)[None].expand(len(CHOICES), -1)
        _, renewed = reader.read(reader.tensor(tokens)[rows], rows, every_place, stacked, rows=rows)
        for index, choice in enumerate(CHOICES):
            arms.append(f"{choice} {share:.2f}")
            caches.append([tuple(part[index : index + 1] for part in layer) for layer in renewed])
    joined = [tuple(torch.cat([layers[index][kind] for layers in caches]) for kind in (0, 1)) for index in range(len(handed))]
    log_p = reader.likelihoods(joined, question, answer)
    of_all = reader.likelihoods(every, question, answer)
    result = {"all text": of_all[0]} | {arm: log_p[index] for index, arm in enumerate(arms)}
    places = torch.arange(len(answer), device=reader.device)
    truth = reader.tensor(answer)
    read = log_p[0]
    written = reader.answers([every] + caches, question)
    found = {}
    for text, (arm, own) in zip(written, result.items()):
        found[arm] = {
            "nll": -own[places, truth].sum().item(),
            "kl": (read.exp() * (read - own)).sum(-1).mean().item(),
            "kl_all": (of_all[0].exp() * (of_all[0] - own)).sum(-1).mean().item(),
            "answer": text,
        }
    is_kept = any(any(answer in row["chunks"][index]["text"] for index in row["kept"]) for answer in row["answers"])
    return {"set": row["set"], "id": row["id"], "tokens": reader.tensor([len(reader.prefix + sum(texts, [])), count]).tolist(),
            "chunks": len(kept), "answer_kept": is_kept, "answer_tokens": len(answer), "answers": row["answers"], "arms": found}


def print_set(name, own, generator):
    several = [row for row in own if row["chunks"] > 1]
    tokens = [sum(row["tokens"][place] for row in own) / len(own) for place in (0, 1)]
    print(f"\n{name}: {len(own)} rows, {len(several)} of several kept chunks; {tokens[0]:.0f} tokens, {tokens[1]:.0f} kept;"
          f" the answer is in the kept text of {sum(row['answer_kept'] for row in own) / len(own):.2f}")
    print(f"{'':16} {'NLL/answer':>10} {'minus kept text':>24} {'KL':>7} {'exact':>6} {'F1':>6} {'contained':>9}")
    for arm in own[0]["arms"]:
        loss = [row["arms"][arm]["nll"] - row["arms"]["kept text"]["nll"] for row in own]
        low, high = interval(loss, generator)
        mean = mean_scores(own, arm)
        nll, kl = (sum(row["arms"][arm][key] for row in own) / len(own) for key in ("nll", "kl"))
        print(f"{arm:16} {nll:10.3f} {sum(loss) / len(loss):+8.3f} [{low:+.3f}, {high:+.3f}] {kl:7.3f} {mean['exact']:6.3f} {mean['f1']:6.3f}"
              f" {mean['contained']:9.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("choose")
    one.add_argument("files", type=Path, nargs="+")
    one.add_argument("--url", default="http://127.0.0.1:8080")
    one.add_argument("--rows", type=int, default=150)
    one.add_argument("--ratio", type=float, default=0.3)
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(work=choose)
    add_measure(commands, lambda row: sum(len(chunk["text"]) for chunk in row["chunks"]), of_row)
    add_report(commands, print_set)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
