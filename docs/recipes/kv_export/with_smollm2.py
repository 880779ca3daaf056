"""Answer a question with SmolLM2 from the cached keys and values of the best of twenty passages, and look up its sources.

`make decoder` fetches the GGUF file and exports it to models/smollm2-135m, from which the daemon has to export keys and values
(`model.kv_dir`). transformers needs `gguf` and `accelerate` to load such a file.
"""

import json
from pathlib import Path

from thresher_client import Client
from thresher_client.transformers import KvExport, fingerprint, generate
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

GGUF = Path("models/.cache/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
PASSAGES = json.loads(Path(__file__).with_name("passages.json").read_text())
QUESTION = PASSAGES["query"]

model = AutoModelForCausalLM.from_pretrained(GGUF.parent, gguf_file=GGUF.name, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(GGUF.parent, gguf_file=GGUF.name)

# The passages are in the cache already, in front of everything else, so only the template's text behind the user's text is needed.
turn = tokenizer.apply_chat_template([{"role": "user", "content": "{question}"}], add_generation_prompt=True, tokenize=False)
after = "\n\n" + QUESTION + turn.split("{question}")[1]
question_ids = tokenizer(after, add_special_tokens=False).input_ids

with Client() as client:  # THRESHER_URL, or http://127.0.0.1:8080
    # The first request reads the passages, which takes some seconds. Later requests find them in the daemon's cache.
    found = client.compress(
        QUESTION, PASSAGES["chunks"], budget={"ratio": 0.3}, granularity="chunk", kv={"prompt": after}, deadline_ms=60_000
    )
    export = KvExport.load(client.kv(found.kv.handle, fingerprint=fingerprint(GGUF)))
    print(f"{len(export.chunk_ids)} of {len(PASSAGES['chunks'])} passages, {export.next_position} tokens: {', '.join(export.chunk_ids)}")

    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    answer_ids = generate(model, export, question_ids, max_new_tokens=60, do_sample=False, streamer=streamer)
    answer = tokenizer.decode(answer_ids, skip_special_tokens=True)

    attribution = client.attribute(answer, compress_id=found.id, deadline_ms=60_000)

for part in attribution.parts:
    for source in part.sources[:1]:
        print(f"{'cited' if source.cited else 'not cited'}, support {part.support:.2f}: [{source.chunk}] {source.sentence.text}")
        print(f"no passage says: {', '.join(word.text for word in part.unsupported) or '-'}")
