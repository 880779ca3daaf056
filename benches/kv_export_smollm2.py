"""Measures time to the first token and peak memory of a process that answers with SmolLM2-135M-Instruct.

    python benches/kv_export_smollm2.py --gguf FILE --url http://127.0.0.1:8080 [--runs 5]

The daemon at --url serves the export of the same GGUF file (`make decoder`, docs/kv-export.md). The passages are those of
docs/recipes/kv_export/passages.json, repeated up to the size. Each measurement runs in its own process, which is forked from one
that has loaded the model; variants take turns in each run. Memory is the highest resident memory of that process (`VmHWM`), so
this needs Linux.

Needs the packages of tests/kv_export/requirements.txt, gguf and accelerate.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "clients/python/src"))

from thresher_client import Client  # noqa: E402
from thresher_client.transformers import KvExport, attention, fingerprint  # noqa: E402

PASSAGES = json.loads((ROOT / "docs/recipes/kv_export/passages.json").read_text())
QUERY = PASSAGES["query"]
HEADS = {f"heads, ratio {ratio}": {"policy": "heads", "ratio": ratio, "recompute": 0} for ratio in (0.25, 0.125)}


def passages(tokenizer, tokens_min):
    """Passages with at least that many tokens together."""
    chunks, tokens = [], 0
    while tokens < tokens_min:
        chunk = PASSAGES["chunks"][len(chunks) % len(PASSAGES["chunks"])]
        chunks.append({**chunk, "id": f"{chunk['id']}-{len(chunks)}"})
        tokens += len(tokenizer(f"{chunk['title']}. {chunk['text']}").input_ids)
    return chunks


def in_a_process(work):
    """Runs `work` in a forked process. Returns wall time and processor time in seconds, and its peak memory in MB."""
    receiver, sender = os.pipe()
    if os.fork() == 0:
        Path("/proc/self/clear_refs").write_text("5")  # Sets VmHWM to the memory that is resident now.
        wall, processor = time.perf_counter(), time.process_time()
        with torch.no_grad():
            work()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        peak_kb = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        os.write(sender, json.dumps([wall, processor, peak_kb * 1024 / 1e6]).encode())
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as answer:
        result = json.loads(answer.read())
    os.wait()
    return result


def measure(model, tokenizer, url, weights, tokens, runs):
    question = tokenizer("\n\n" + QUERY, return_tensors="pt", add_special_tokens=False).input_ids
    chunks = passages(tokenizer, tokens)
    options = {"granularity": "chunk", "deadline_ms": 120_000, "timeout_s": 300}
    with Client(url) as client:
        found = {"all keys and values": client.compress(QUERY, chunks, budget={"ratio": 1}, kv={"recompute": 0}, **options)}
        kept = client.compress(QUERY, chunks, budget={"ratio": 0.25}, **options)
        for name, kv in HEADS.items():
            found[name] = client.compress(QUERY, chunks, budget={"ratio": 1}, kv=kv, **options)

    def read(ids):
        text = "".join(f"{chunk['title']}. {chunk['text']}" for chunk in chunks if chunk["id"] in ids)
        return torch.cat([tokenizer(text, return_tensors="pt").input_ids, question], 1)

    def of_export(handle):
        with Client(url) as client:
            export = KvExport.load(client.kv(handle, fingerprint=weights))
        with attention(model):
            model(question, past_key_values=export.cache(model, weights), logits_to_keep=1).logits.argmax()

    prompts = {"kept text (0.25)": read({one.id for one in kept.chunks if one.kept}), "all text": read({one["id"] for one in chunks})}
    variants = {name: lambda handle=one.kv.handle: of_export(handle) for name, one in found.items()}
    variants |= {name: lambda ids=ids: model(ids, logits_to_keep=1).logits.argmax() for name, ids in prompts.items()}
    results = {name: [] for name in variants}
    for _ in range(runs):
        for name, work in variants.items():
            results[name].append(in_a_process(work))
    print(f"\n{found['all keys and values'].kv.tokens} tokens of {len(chunks)} passages, question of {question.shape[1]} tokens, {runs} runs")
    for name, rows in results.items():
        wall, processor, peak = (statistics.median(column) for column in zip(*rows))
        size = f"{found[name].kv.bytes / 1e6:6.1f} MB fetched" if name in found else f"{prompts[name].shape[1]:5} tokens read"
        low, high = (bound(row[0] for row in rows) for bound in (min, max))
        print(f"  {name:22} {wall:7.2f} s [{low:.2f}, {high:.2f}] {processor:7.2f} s of processor time {peak:7.0f} MB peak {size}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1500, 3000])
    options = parser.parse_args()
    # A forked process cannot use the threads of its parent.
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.gguf.parent, gguf_file=options.gguf.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.gguf.parent, gguf_file=options.gguf.name)
    weights = fingerprint(options.gguf)
    print("without any work: {:.2f} s, {:.2f} s of processor time, {:.0f} MB peak".format(*in_a_process(lambda: None)), flush=True)
    for tokens in options.tokens:
        measure(model, tokenizer, options.url, weights, tokens, options.runs)


if __name__ == "__main__":
    main()
