"""Compares one set of kept tokens for all heads and layers with a set for each head, and with dropping text.

    python benches/kv_tokens.py measure hotpot.jsonl xquad.jsonl --gguf FILE --out rows.jsonl [--rows 40]
    python benches/kv_tokens.py report rows.jsonl

A server with paged keys and values holds the same tokens for all heads. A small model encodes a context, then reads the question
over all keys, which gives the scores, and over the keys that each arm keeps, at their positions. `one set` combines RC over the
heads: their mean, the mean of each head's shares, the maximum, or the number of heads that keep the token in `RC per head`, the
daemon's eviction. SnapKV and TOVA average their scores over all heads. `text` keeps the sentences with the largest mean or maximum
of the mean RC, or those that a daemon keeps, under the titles of their passages, and encodes them anew; `keys of this text` keeps
the keys of these tokens. With `question before`, the question has the keys that it had with all keys in sight; with `new positions`, keys are moved together.

Each arm is scored on the first true answer: the Kullback-Leibler divergence of the next-token distributions from those with all
keys, how often the best token is the same, and the negative log-likelihood, means over the answer's tokens. `report` chooses the
form of `one set` and of `text` on every other row of each set, and prints the other half with paired 95 % bootstrap intervals.
Seconds are of the processor. `measure` runs in one thread and skips rows that the file has. Files and needs are as of kvpress_ruler.py.
"""

import argparse
import json
import random
import re
import time
from itertools import accumulate, pairwise, product
from pathlib import Path
from statistics import fmean

import torch
from kv_handover import moved
from kvpress_ruler import RCPress, rc_of_keys
from reader import Reader, compress, drawn, in_turns, interval, lines
from torch.nn.functional import avg_pool1d, pad, scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

RATIOS, TOKENS_MAX = (2, 4, 8), 900
TAIL = "\n\nQuestion: {}\nAnswer:"
ONE_SET = [f"one set, {how}" for how in ("mean", "shares", "max", "votes", "mean, 16 first", "mean of 9", "mean of 25")]
TEXT = {"text, mean": torch.mean, "text, max": torch.amax}
BEFORE = {"RC per head, question before": "RC per head", "one set, question before": "one set, mean of 9"}
ARMS = ["RC per layer", "RC per head", "SnapKV, one set", "TOVA, one set", "one set, new positions", *BEFORE]


class Model(Reader):
    """A model that reads tokens over keys and values of a context, of which each arm sees some."""

    def __init__(self, gguf):
        super().__init__(gguf)
        torch.set_num_threads(1)
        ALL_ATTENTION_FUNCTIONS.register("seen", self.attend)
        self.model.set_attn_implementation("seen")

    def attend(self, module, query, key, value, _mask, scaling, **_more):
        self.recorded.append((query[0], key[0], value[0]))
        mask, (arms, heads, count, _) = None, query.shape
        if self.past is not None:
            past = self.past[module.layer_idx]
            key, value = (torch.cat([one.expand(arms, -1, -1, -1), own], 2) for one, own in zip(past, (key, value)))
            mask = torch.ones(arms, key.shape[1], count, key.shape[2], dtype=torch.bool).tril(key.shape[2] - count)
            if self.seen is not None:
                mask[..., :-count] = self.seen[:, module.layer_idx, :, None]
            mask = mask.repeat_interleave(heads // key.shape[1], 1)
        output = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2), None

    def over(self, ids, start=0, past=None, seen=None, keep=1):
        """Log-probabilities behind the last `keep` tokens, `[arm, token, vocabulary]`. `seen` is `[arm, layer, kv_head, key]`."""
        began, self.past, self.seen, self.recorded = time.process_time(), past, seen, []
        rows, positions = self.tensor([ids]), torch.arange(start, start + len(ids))[None]
        rows = rows if seen is None else rows.expand(len(seen), -1)
        hidden = self.model.model(input_ids=rows, position_ids=positions, use_cache=False).last_hidden_state
        log_p = self.model.lm_head(hidden[:, -keep:]).log_softmax(-1)
        self.seconds = time.process_time() - began
        return log_p

    def encode(self, ids):
        """Keys and values of each layer, `[kv_head, token, dim]`."""
        self.over(ids)
        return [(key, value) for _, key, value in self.recorded]


def pieces_of(model, row):
    """Titles and sentences of needed and other passages, in their order, `[passage, token ids]`: at most `TOKENS_MAX` tokens."""
    passages, chosen, size = [], [], len(model.prefix)
    for chunk in row["chunks"]:
        sentences = [" " + one for one in re.split(r"(?<=[.!?])\s+|\n+", chunk["text"]) if one.strip()]
        passages.append([model.ids(text) for text in (f"\n\n{chunk.get('title') or 'Passage'}:", *sentences)])
    places = random.Random(row["id"]).sample(range(len(passages)), len(passages))
    for place in sorted(places, key=lambda place: row["chunks"][place]["id"] not in row["gold"]):
        if size + (own := sum(map(len, passages[place]))) <= TOKENS_MAX:
            chosen, size = [*chosen, place], size + own
    return [(place, ids) for place in sorted(chosen) for ids in passages[place]]


def kept_text(pieces, first, scores, count, best):
    """Which tokens are of the best sentences and of their titles: at most `count` tokens."""
    spans = [slice(*span) for span in pairwise(accumulate((len(ids) for _, ids in pieces), initial=first))]
    titles = {passage: span for (passage, _), span in reversed([*zip(pieces, spans)])}
    sentences = [(titles[passage], span) for (passage, _), span in zip(pieces, spans) if span != titles[passage]]
    kept = torch.arange(len(scores)) < first
    for title, span in sorted(sentences, key=lambda pair: best(scores[pair[1]]).item(), reverse=True):
        more = kept.clone()
        more[title] = more[span] = True
        kept = more if more.sum() <= count else kept
    return kept


def best_tokens(count, scores, first=4, width=1):
    """The first tokens and the best others, by the mean over `width` neighbours: `count` tokens."""
    scores = avg_pool1d(scores[None], width, stride=1, padding=width // 2)[0]
    scores[:first] = torch.inf
    return torch.zeros(len(scores), dtype=torch.bool).scatter_(0, scores.topk(count).indices, True)


def scores_of(past, recorded, count):
    """Scores of the keys for the first `count` tokens read: RC `[layer, kv_head, key]`, SnapKV's and TOVA's `[key]`."""
    found = []
    for (keys, _), (query, own_keys, _) in zip(past, recorded):
        query, groups = query[:, :count], len(query) // len(keys)
        logits, own = (query @ one.repeat_interleave(groups, 0).mT for one in (keys, own_keys[:, :count]))
        seen = own.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        weights = (torch.cat([logits, seen], -1) / query.shape[-1] ** 0.5).softmax(-1)[..., :-count]
        found.append((rc_of_keys(logits, own, len(keys)), weights.mean((0, 1)), weights[:, -1].mean(0)))
    rc, snap, tova = map(torch.stack, zip(*found))
    return rc, snap.mean(0), tova.mean(0)


def of_row(model, row, url):
    pieces, first = pieces_of(model, row), len(model.prefix)
    asked_for = {**row, "chunks": [row["chunks"][place] for place in dict(pieces)]}
    ids = model.prefix + [token for _, own in pieces for token in own]
    question, answer = model.ids(TAIL.format(row["query"].strip())), model.ids(" " + row["answers"][0])
    read, length, asked, keep, arms = question + answer[:-1], len(ids), len(question), len(answer), {}
    past, seconds = model.encode(ids), {"all text": model.seconds}
    truth = model.over(read, length, past, keep=keep)[0]
    seconds["question and answer"] = model.seconds
    own_keys = [(key[:, : asked - 1], value[:, : asked - 1]) for _, key, value in model.recorded]
    longer = [tuple(torch.cat(both, 1) for both in zip(*layers)) for layers in zip(past, own_keys)]
    rc, snap, tova = scores_of(past, model.recorded, asked)
    means, shares = rc.mean((0, 1)), (rc / rc.sum(-1, keepdim=True)).mean((0, 1))

    def score(name, log_p, tokens):
        own = log_p[torch.arange(keep), model.tensor(answer)]
        kl, same = (truth.exp() * (truth - log_p)).sum(-1), truth.argmax(-1) == log_p.argmax(-1)
        arms[name] = {"kl": kl.mean().item(), "top": same.double().mean().item(), "nll": -own.mean().item(), "tokens": tokens}

    score("all keys", truth, length)
    score("no text", model.over(model.prefix + read, keep=keep)[0], 0)
    for ratio in RATIOS:
        count, texts = length // ratio, {}
        by_head = RCPress(1 - (count + asked + 0.5) / (length + asked), asked).kept(rc)[..., :length]
        masks = {"RC per layer": torch.stack([best_tokens(count, own) for own in rc.mean(1)])[:, None], "RC per head": by_head}
        masks |= {"SnapKV, one set": best_tokens(count, snap, width=5), "TOVA, one set": best_tokens(count, tova)}
        votes = by_head.sum((0, 1)) + means / means.max() / 2
        forms = (means,), (shares,), (rc.amax((0, 1)),), (votes,), (means, 16), (means, 4, 9), (means, 4, 25)
        masks |= {name: best_tokens(count, *form) for name, form in zip(ONE_SET, forms)}
        for name, best in TEXT.items():
            mask = kept_text(pieces, first, means, count - 4, best)
            masks[f"keys of this {name}"] = mask | (torch.arange(length) < 4)
            texts[name] = [token for token, is_kept in zip(ids, mask.tolist()) if is_kept]
        kept = compress(url, asked_for, budget={"ratio": 1 / ratio}, deadline_ms=50_000)
        texts["text, daemon"] = model.prefix + model.ids(kept["context"])
        for name, text in texts.items():
            anew, seconds[f"{name} {ratio}"] = model.encode(text), model.seconds
            score(f"{name} {ratio}", model.over(read, len(text), anew, keep=keep)[0], len(text))
        mask = masks["one set, mean of 9"]
        by = torch.arange(count)[:, None] - mask.nonzero()
        turned = [(moved(model, keys[:, mask], by, layer), values[:, mask]) for layer, (keys, values) in enumerate(past)]
        score(f"one set, new positions {ratio}", model.over(read, count, turned, keep=keep)[0], count)
        masks = {name: mask.expand(rc.shape) for name, mask in masks.items()}
        for name, log_p in zip(masks, model.over(read, length, past, torch.stack([*masks.values()]), keep)):
            score(f"{name} {ratio}", log_p, masks[name].double().sum(-1).mean().item())
        seen = pad(torch.stack([masks[name] for name in BEFORE.values()]), (0, asked - 1), value=True)
        for name, log_p in zip(BEFORE, model.over(read[asked - 1 :], length + asked - 1, longer, seen, keep)):
            score(f"{name} {ratio}", log_p, count)
    return {"set": row["set"], "id": row["id"], "tokens": length, "answer_tokens": keep, "seconds": seconds, "arms": arms}


def measure(options):
    model, done = Model(options.gguf), {(row["set"], row["id"]) for row in (lines(options.out) if options.out.exists() else [])}
    rows = in_turns([{**row, "set": file.stem} for file in options.files for row in drawn(file, options.rows, seed=13)])
    with options.out.open("a", buffering=1) as out:
        for row in rows:
            if (row["set"], row["id"]) not in done:
                out.write(json.dumps(of_row(model, row, options.url)) + "\n")


def report(options):
    rows, generator = [row for file in options.files for row in lines(file)], random.Random(1)
    names = dict.fromkeys(row["set"] for row in rows)
    halves = [{name: [row for row in rows if row["set"] == name][half::2] for name in names} for half in (0, 1)]

    def values(own, arm, what, ratio):
        return [row["arms"].get(f"{arm} {ratio}", row["arms"].get(arm))[what] for row in own]

    def chosen(arms):
        """Prints the divergence of these arms. Returns the one with the smallest over all ratios."""
        means = {arm: [fmean(values(sum(halves[0].values(), []), arm, "kl", ratio)) for ratio in RATIOS] for arm in arms}
        print(*(f"{arm:32}" + "".join(f"{value:7.3f}" for value in own) for arm, own in means.items()), sep="\n")
        return min(means, key=lambda arm: sum(means[arm]))

    print(f"{len(rows)} rows of {fmean(row['tokens'] for row in rows):.0f} tokens; KL on the half to choose at 2x, 4x, 8x:")
    one_set, text = chosen(ONE_SET), chosen([*TEXT, "text, daemon"])
    print(f"chosen: {one_set}; {text}")
    reported = {"half to report": sum(halves[1].values(), []), "both halves": rows}
    for (name, own), ratio in product(reported.items(), RATIOS):
        print(f"\n{f'{name}, {len(own)} rows, {ratio}x':32} tokens" + "".join(f"{what:>7} {'minus text':24}" for what in ("KL", "top-1", "NLL")))
        for arm in ["all keys", "no text", "text, daemon", *TEXT, *(f"keys of this {name}" for name in TEXT), one_set, *ARMS]:
            print(f"{arm:32} {fmean(values(own, arm, 'tokens', ratio)):6.0f}", end="")
            for what in ("kl", "top", "nll"):
                ours = values(own, arm, what, ratio)
                differences = [one - other for one, other in zip(ours, values(own, text, what, ratio))]
                low, high = interval(differences, generator)
                print(f" {fmean(ours):6.3f} {fmean(differences):+.3f} [{low:+.3f}, {high:+.3f}]", end="")
            print()
    print("\nmean seconds of all rows, and their share of those for all text")
    seconds = {name: fmean(row["seconds"][name] for row in rows) for name in rows[0]["seconds"]}
    for name, own in seconds.items():
        print(f"{name:32} {own:6.2f} {own / seconds['all text']:6.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=("measure", "report"))
    parser.add_argument("files", type=Path, nargs="+", help="passages with questions to measure, or measured rows to report")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of a daemon")
    parser.add_argument("--out", type=Path, help="measured rows")
    parser.add_argument("--rows", type=int, default=40, help="of each set")
    options = parser.parse_args()
    {"measure": measure, "report": report}[options.work](options)


if __name__ == "__main__":
    main()
