"""Measures what exported keys and values save: time to the first token in transformers, and bytes.

    python benches/kv_export.py --thresher target/release/thresher [--runs 20]

Two models: `models/facts`, and a randomly initialised Llama with the shape of SmolLM-135M (only its times are
meaningful). A daemon with one worker reads the chunks once and keeps a quarter of them for a question. Then, in turns
within each run, `transformers` on one thread computes the first token after

- exported keys and values, followed by the question (fetching, reading the file and building the cache included),
- the kept text and the question, both read by transformers,
- all of the text and the question, both read by transformers.

Needs the packages of tests/kv_export/requirements.txt, and THRESHER_RUNTIME_LIB.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "clients/python/src"), str(ROOT / "tests"), str(ROOT / "models/train")]

import daemon as daemons  # noqa: E402
import world  # noqa: E402
from thresher_client import Client  # noqa: E402
from thresher_client.transformers import KvExport, attention, fingerprint  # noqa: E402

SMOLLM_135M = dict(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
    max_position_embeddings=2048, rope_theta=10000.0, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
)


def random_llama(folder: Path) -> None:
    """Writes a model folder with random weights and the tokenizer of `models/facts`."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SMOLLM_135M)).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((ROOT / "models/facts/tokenizer.json").read_bytes())


def first_token(model, ids, cache=None):
    """Returns the most likely token after the tokens of `cache` and `ids`."""
    with torch.no_grad():
        return model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].argmax().item()


def measure(name: str, folder: Path, binary: str, runs: int, chunks: int) -> None:
    row = next(world.rows("eval", 1, 3, chunks))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = tokenizer(row["query"], add_special_tokens=False, return_tensors="pt").input_ids
    with tempfile.TemporaryDirectory() as exported:
        subprocess.run([binary, "export", folder, "--out", exported], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        served = daemons.Daemon(THRESHER__MODEL__DIR=exported, THRESHER__BLOCKS__CODEC="f16", THRESHER__MODEL__WORKERS="1")
        try:
            with Client(served.url) as client:
                compare(name, client, (row, model, tokenizer, question), fingerprint(folder), runs)
        finally:
            served.stop()


def compare(name, client, inputs, model_fingerprint, runs):
    row, model, tokenizer, question = inputs

    def compress(kept, **kv):
        return client.compress(
            row["query"], row["chunks"], budget={"ratio": kept}, granularity="chunk", kv={"recompute": 0, **kv}, deadline_ms=120000
        )

    everything = compress(1.0)
    chunks_export, heads_export = compress(0.25), compress(0.25, policy="heads", ratio=0.25)
    texts = {c["id"]: c["text"] for c in row["chunks"]}

    def encode(chunk_ids):
        text = " ".join(texts[chunk_id] for chunk_id in chunk_ids)
        return torch.cat([tokenizer(text, return_tensors="pt").input_ids, question], 1)

    kept = [chunk.id for chunk in chunks_export.chunks if chunk.kept]
    ids = {"kept text": encode(kept), "all text": encode(texts)}

    def first_token_after_export(handle):
        export = KvExport.load(client.kv(handle, fingerprint=model_fingerprint))
        cache = export.cache(model, model_fingerprint)
        positions = torch.arange(export.next_position, export.next_position + question.shape[1])[None]
        with torch.no_grad(), attention(model):
            return model(question, past_key_values=cache, position_ids=positions, logits_to_keep=1).logits[0, -1].argmax().item()

    variants = {
        "KV export, chunks": lambda: first_token_after_export(chunks_export.kv.handle),
        "KV export, heads": lambda: first_token_after_export(heads_export.kv.handle),
        "kept text": lambda: first_token(model, ids["kept text"]),
        "all text": lambda: first_token(model, ids["all text"]),
        "compress, chunks": lambda: compress(0.25),
        "compress, heads": lambda: compress(0.25, policy="heads", ratio=0.25),
    }
    times = {variant: [] for variant in variants}
    for run in range(runs + 2):
        for variant, run_variant in variants.items():
            started = time.perf_counter()
            run_variant()
            if run >= 2:
                times[variant].append((time.perf_counter() - started) * 1e3)
    print(f"\n{name}: {everything.kv.tokens} tokens of chunks, {chunks_export.kv.tokens} kept, question of {question.shape[1]} tokens")
    base = statistics.median(times["KV export, chunks"])
    for variant, variant_times in times.items():
        low, middle, high = statistics.quantiles(variant_times, n=4)
        print(f"  {variant:22} {middle:9.1f} ms [{low:.1f}, {high:.1f}]   {middle / base:6.2f} x")
    print(f"  bytes of keys and values in 16 bits: all chunks {everything.kv.bytes:,}, kept chunks {chunks_export.kv.bytes:,}, a quarter of their keys {heads_export.kv.bytes:,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--thresher", default="target/release/thresher")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    os.environ["THRESHER_TEST_BINARY"] = daemons.BINARY = str((ROOT / options.thresher).resolve())
    torch.set_num_threads(1)
    measure("models/facts", ROOT / "models/facts", daemons.BINARY, options.runs, chunks=20)
    with tempfile.TemporaryDirectory() as folder:
        random_llama(Path(folder))
        measure("random Llama of 135 M parameters", Path(folder), daemons.BINARY, options.runs, chunks=40)


if __name__ == "__main__":
    main()
