"""Trains a small cross-encoder for `verdict.model` on the pairs of `claims.py`, from the default model's weights, on two cores.

    python models/train/cross.py --source models/.cache/all-MiniLM-L6-v2 --out FOLDER      # 20 minutes on one core
    thresher export FOLDER --out models/claims

`--rows FILE.jsonl` adds pairs of your own to the training (`{"claim", "chunks": [{"text"}], "label"}`, as `thresher eval` reads them), each
`--repeat` times. Needs torch, transformers and numpy.
"""

import argparse
import json
import pathlib
import random
import shutil
import time

import torch
from transformers import AutoTokenizer, BertForSequenceClassification

import claims

SUPPORTS = {"SUPPORTS", "supported", True}


def of_file(path):
    for line in open(path, encoding="utf-8"):
        row = json.loads(line)
        yield " ".join(chunk["text"] for chunk in row["chunks"]), row["claim"], row["label"] in SUPPORTS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="the folder of a BERT with config.json, model.safetensors and tokenizer.json")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=16_000, help="invented pairs, each seen once")
    parser.add_argument("--layers", type=int, default=6, help="the layers to keep, from the first")
    parser.add_argument("--rows", help="pairs of your own")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=8e-5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.source)
    labels = {0: "entailment", 1: "contradiction"}
    model = BertForSequenceClassification.from_pretrained(args.source, num_hidden_layers=args.layers, num_labels=2, id2label=labels, label2id={v: k for k, v in labels.items()})
    data = claims.pairs(args.pairs, args.seed)
    if args.rows:
        data += list(of_file(args.rows)) * args.repeat
    random.Random(args.seed).shuffle(data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.01)
    steps = len(data) // args.batch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (0.06 * steps)) * (1 - step / steps))
    model.train()
    started, recent = time.time(), []
    for step in range(steps):
        batch = data[step * args.batch:(step + 1) * args.batch]
        inputs = tokenizer([row[0] for row in batch], [row[1] for row in batch], padding=True, truncation="only_first", max_length=160, return_tensors="pt")
        loss = model(**inputs, labels=torch.tensor([0 if row[2] else 1 for row in batch])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        recent = (recent + [loss.item()])[-100:]
        if step % 25 == 24:
            print(f"step {step + 1} of {steps}  loss {sum(recent) / len(recent):.3f}  {time.time() - started:.0f} s", flush=True)
    model.save_pretrained(args.out)
    shutil.copy(pathlib.Path(args.source) / "tokenizer.json", args.out)


if __name__ == "__main__":
    main()
