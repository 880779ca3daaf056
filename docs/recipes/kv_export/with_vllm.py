"""Answer a question with vLLM from the cached keys and values of the best of twenty passages, and look up its sources.

vLLM serves the folder from which `thresher export` made the daemon's decoder (`model.kv_dir`), with `ThresherConnector`.
docs/kv-export.md has the commands.
"""

import json
import os
from pathlib import Path

import httpx
from thresher_client import Client
from thresher_client.vllm import request

PASSAGES = json.loads(Path(__file__).with_name("passages.json").read_text())
QUESTION = PASSAGES["query"]
# The chat template of SmolLM2, in front of the passages and behind them.
BEFORE = "<|im_start|>system\nAnswer from the passages.<|im_end|>\n<|im_start|>user\n"
AFTER = "\n\n" + QUESTION + "<|im_end|>\n<|im_start|>assistant\n"

vllm = httpx.Client(base_url=os.environ.get("VLLM_URL", "http://127.0.0.1:8000"), timeout=120)

with Client() as client, vllm:  # THRESHER_URL, or http://127.0.0.1:8080
    question_ids = vllm.post("/tokenize", json={"prompt": AFTER, "add_special_tokens": False}).raise_for_status().json()["tokens"]
    # The first request reads the passages, which takes some seconds. Later requests find them in the daemon's cache.
    kv = {"before": BEFORE, "prompt": AFTER}
    found = client.compress(QUESTION, PASSAGES["chunks"], budget={"ratio": 0.3}, granularity="chunk", kv=kv, deadline_ms=60_000)
    kept = [chunk.id for chunk in found.chunks if chunk.kept]
    print(f"{len(kept)} of {len(PASSAGES['chunks'])} passages, {found.kv.tokens} tokens, {found.kv.recomputed} computed again: {', '.join(kept)}")

    body = {**request(found.kv, question_ids), "max_tokens": 60, "temperature": 0}
    completion = vllm.post("/v1/completions", json=body).raise_for_status().json()
    answer = completion["choices"][0]["text"]
    print(answer.strip())

    attribution = client.attribute(answer, compress_id=found.id, deadline_ms=60_000)

for part in attribution.parts:
    for source in part.sources[:1]:
        print(f"{'cited' if source.cited else 'not cited'}, support {part.support:.2f}: [{source.chunk}] {source.sentence.text}")
        print(f"no passage says: {', '.join(word.text for word in part.unsupported) or '-'}")
