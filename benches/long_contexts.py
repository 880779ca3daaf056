"""Measures exports of long contexts with SmolLM2-135M-Instruct: are they what transformers computes, how long does the daemon take,
and how much memory does it need?

    python3 benches/needles.py --tokens 4000 --count 1 > needles.jsonl
    python benches/long_contexts.py --gguf FILE --url http://127.0.0.1:8080 --pid PID needles.jsonl

The daemon at --url is the process --pid. It serves the export of the same GGUF file (docs/kv-export.md) and must not have read the chunks
before. With `blocks.codec = "f32"` its keys and values are not rounded. The first row of each file is measured. Needs Linux, the packages
of tests/kv_export/requirements.txt, gguf and accelerate.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "clients/python/src"))

from thresher_client import Client  # noqa: E402
from thresher_client.transformers import KvExport, attention, fingerprint  # noqa: E402


def timed(work):
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def peak_mb(pid):
    """The highest resident memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def read_by_transformers(model, export):
    """A cache with the same tokens: each window is read by itself, at the positions that it has in the export."""
    cache = DynamicCache()
    for window in export.windows.unique_consecutive():
        of_window = export.windows == window
        ids, positions = export.token_ids[of_window][None].long(), export.positions[of_window][None].long()
        read = model(ids, position_ids=positions, use_cache=True, logits_to_keep=1).past_key_values
        for at, layer in enumerate(read.layers):
            cache.update(layer.keys, layer.values, at)
    return cache


def measure(row, model, question, client, pid, weights):
    options = {"granularity": "chunk", "budget": {"ratio": 1}, "deadline_ms": 120_000, "timeout_s": 300}
    # Without `recompute`, keys and values are those that transformers computes for the same windows.
    chunks, heads = {"recompute": 0}, {"policy": "heads", "ratio": 0.25, "recompute": 0}
    whole, cold = timed(lambda: client.compress(row["query"], row["chunks"], kv=chunks, **options))
    evicted, warm = timed(lambda: client.compress(row["query"], row["chunks"], kv=heads, **options))
    exports = [KvExport.load(client.kv(found.kv.handle, fingerprint=weights)) for found in (whole, evicted)]
    tokens = exports[0].next_position
    print(f"{tokens} tokens of {len(row['chunks'])} chunks: read in {cold:.1f} s ({tokens / cold:.0f} tokens/s), "
          f"keys chosen for the question in {warm:.2f} s, peak memory of the daemon {peak_mb(pid):.0f} MB")  # fmt: skip
    reference, reading = timed(lambda: read_by_transformers(model, exports[0]))
    expected = model(question, past_key_values=reference).logits[0]
    logits, of_export = timed(lambda: model(question, past_key_values=exports[0].cache(model, weights)).logits[0])
    difference = ((logits - expected).abs().max() / expected.abs().max()).item()
    same = (logits.argmax(-1) == expected.argmax(-1)).sum()
    print(f"  logits of {len(expected)} tokens: differ by at most {difference:.1e} of the largest, {same} most likely tokens are the same")
    with attention(model):
        logits, of_heads = timed(lambda: model(question, past_key_values=exports[1].cache(model, weights)).logits[0])
    kl = torch.nn.functional.kl_div(logits.log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="none").sum(-1)
    print(f"  a quarter of the keys: KL to all keys {kl.mean():.3f} nats on the question's tokens, {kl[-1]:.3f} on the answer's first")
    prompt = torch.cat([exports[0].token_ids[None].long(), question], 1)
    _, whole_prompt = timed(lambda: model(prompt, logits_to_keep=1))
    print(f"  first token by transformers: {of_export:.2f} s from all keys, {of_heads:.2f} s from a quarter, {whole_prompt:.1f} s by "
          f"reading the text as one prompt, {reading:.1f} s by reading each window", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.gguf.parent, gguf_file=options.gguf.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.gguf.parent, gguf_file=options.gguf.name)
    weights = fingerprint(options.gguf)
    with torch.no_grad(), Client(options.url) as client:
        for file in options.files:
            row = json.loads(file.read_text().splitlines()[0])
            text = f"\nQuestion: {row['query']}\nAnswer:"
            question = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
            measure(row, model, question, client, options.pid, weights)


if __name__ == "__main__":
    main()
