"""Measures whether a language model reads values from encoded results of tools as well as from the raw ones.

usage: likelihood.py BINARY --gguf FILE [--tokens N] [--json FILE]

The recorded sessions pass through the daemon with `mode = "lossless"`. For each needed piece of a result that was encoded, the value is its last word with a
digit. The model gets the result, raw and then as it was sent, and the piece up to the value; the table says how likely the value is then, in nats for each
token of it. Results of more than N tokens are left out. Needs THRESHER_RUNTIME_LIB, and the packages torch, transformers and gguf.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import torch
from replay import Chat, Upstream, load, replay, results, start_daemon
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

VALUE = re.compile(r"\S*\d\S*")
PIECES_MAX = 6  # The pieces of one result that are measured, so that no result has most of them.


def sent_texts(binary: str) -> list[tuple[str, dict[str, Any], str]]:
    """The results that the daemon encodes, with their sessions and their texts as they were sent."""
    os.environ["THRESHER__MIDDLEWARE__MODE"] = "lossless"
    upstream = Upstream()
    found = []
    daemon = start_daemon(binary, upstream)
    try:
        for session in load(None):
            first = replay(session, Chat(session), daemon.url, upstream).first
            found += [(session["name"], result, first[result["call"]]) for result in results(session) if first[result["call"]] != result["text"]]
    finally:
        daemon.stop()
    return found


def questions(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The beginnings of needed pieces, and the value that follows."""
    found = []
    for piece in result["needs"]:
        *_, last = [None, *VALUE.finditer(piece)]
        if last is not None and last.start() > 0:
            found.append((piece[: last.start()], last.group()))
    return found[:PIECES_MAX]


class Reader:
    def __init__(self, gguf: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        self.model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.inference_mode()
    def nats(self, text: str, asked: list[tuple[str, str]]) -> list[float]:
        """The mean log-likelihood of a token of each value. The text is read once."""
        cache = DynamicCache()
        head = self.ids(f"Result of the tool:\n{text}\n\nFrom this result, with all fields written out:\n")
        self.model(torch.tensor([head]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        found = []
        for before, value in asked:
            prefix = self.ids(before)
            whole = self.ids(before + value)
            shared = next((at for at, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b), len(prefix))
            logits = self.model(torch.tensor([whole]), past_key_values=cache, use_cache=True).logits[0].log_softmax(-1)
            cache.crop(len(head))
            target = torch.tensor(whole[shared:])
            found.append(float(logits[shared - 1 : -1].gather(1, target[:, None]).mean()) if shared else float("nan"))
        return found


def interval(rows: list[dict[str, Any]]) -> str:
    """The mean difference with its 95 % interval; results are drawn, since the values of one are alike."""
    by_result: dict[str, list[float]] = {}
    for row in rows:
        by_result.setdefault(row["call"], []).append(row["encoded"] - row["raw"])
    random.seed(0)
    groups = list(by_result.values())
    means = [fmean(value for group in random.choices(groups, k=len(groups)) for value in group) for _ in range(2_000)]
    cuts = quantiles(means, n=40)
    return f"{fmean(value for group in groups for value in group):+.3f} [{cuts[0]:+.3f}, {cuts[-1]:+.3f}] of {len(groups)} results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("binary")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    reader, rows, left_out = Reader(arguments.gguf), [], 0
    for name, result, sent in sent_texts(arguments.binary):
        asked = questions(result)
        if len(reader.ids(result["text"])) > arguments.tokens or not asked:
            left_out += 1
            continue
        raw, encoded = (reader.nats(text, asked) for text in (result["text"], sent))
        rows += [{"call": f"{name}/{result['call']}", "kind": result["kind"], "value": value, "raw": a, "encoded": b} for (_, value), a, b in zip(asked, raw, encoded, strict=True) if a == a]
    for kind in [*sorted({row["kind"] for row in rows}), "all"]:
        chosen = [row for row in rows if kind in ("all", row["kind"])]
        raw, encoded = ([row[side] for row in chosen] for side in ("raw", "encoded"))
        print(f"{kind:<22} {len(chosen):>3} values   raw {fmean(raw):>7.3f}   encoded {fmean(encoded):>7.3f}   difference {interval(chosen)}")
    print(f"{left_out} encoded results were left out: longer than {arguments.tokens} tokens, or without a value")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
