"""Answer a question with llama.cpp from the cached keys and values of the best of twenty passages.

`make decoder` fetches the GGUF file and exports it to models/smollm2-135m, from which the daemon has to export keys and values
(`model.kv_dir`). The package xllamacpp contains llama.cpp's server. The program `llama-server` of the same build takes these options:
`-m FILE -c 2048 -np 1 -fa on --slot-save-path slots/`.
"""

import json
import tempfile
from pathlib import Path

import httpx
import xllamacpp
from thresher_client import Client
from thresher_client.llama_cpp import write_slot

GGUF = Path("models/.cache/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
PASSAGES = json.loads(Path(__file__).with_name("passages.json").read_text())
QUESTION = PASSAGES["query"]
# The passages are in the cache already, in front of everything else, so only the template's text behind the user's text is needed.
TURN = "\n\n" + QUESTION + "<|im_end|>\n<|im_start|>assistant\n"

slots = tempfile.TemporaryDirectory()
options = xllamacpp.CommonParams()
options.model.path, options.slot_save_path, options.port, options.verbosity = str(GGUF), f"{slots.name}/", 0, 0
options.n_ctx, options.n_parallel = 2048, 1
options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
server = xllamacpp.Server(options)

with slots, Client() as client, httpx.Client(base_url=server.listening_address, timeout=120) as llama:  # THRESHER_URL, or port 8080
    # The first request reads the passages, which takes some seconds. Later requests find them in the daemon's cache.
    found = client.compress(
        QUESTION, PASSAGES["chunks"], budget={"ratio": 0.3}, granularity="chunk", kv={"prompt": TURN}, deadline_ms=60_000
    )
    ids = write_slot(client.kv(found.kv.handle), Path(slots.name, "passages.bin"), GGUF)
    restored = llama.post("/slots/0?action=restore", json={"filename": "passages.bin"}).raise_for_status().json()
    print(f"{restored['n_restored']} tokens restored")

    fields = {"content": TURN, "add_special": False, "parse_special": True}
    question_ids = llama.post("/tokenize", json=fields).raise_for_status().json()["tokens"]
    body = {"prompt": ids + question_ids, "id_slot": 0, "n_predict": 60, "temperature": 0}
    completion = llama.post("/completion", json=body).raise_for_status().json()
    print(f"{completion['timings']['prompt_n']} tokens read")
    print(completion["content"].strip())

    attribution = client.attribute(completion["content"], compress_id=found.id, deadline_ms=60_000)

for part in attribution.parts:
    for source in part.sources[:1]:
        print(f"{'cited' if source.cited else 'not cited'}, support {part.support:.2f}: [{source.chunk}] {source.sentence.text}")
        print(f"no passage says: {', '.join(word.text for word in part.unsupported) or '-'}")
