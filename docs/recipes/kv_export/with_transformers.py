"""Load the cached keys and values of the chunks into a language model, which then does not read the chunks."""

import json
from pathlib import Path

from thresher_client import Client
from thresher_client.transformers import KvExport, fingerprint, generate
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = "models/facts"  # the Hugging Face folder from which `thresher export` made the daemon's model
REQUEST = json.loads(Path("docs/examples/facts.json").read_text())

model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
question = tokenizer(REQUEST["query"], add_special_tokens=False).input_ids

with Client() as client:  # THRESHER_URL, or http://127.0.0.1:8080
    found = client.compress(REQUEST["query"], REQUEST["chunks"], budget=REQUEST["budget"], include=["kv"])
    export = KvExport.load(client.kv(found.kv.handle, fingerprint=fingerprint(FOLDER)))

print(export.chunk_ids, export.next_position)
print(tokenizer.decode(generate(model, export, question, max_new_tokens=8, do_sample=False)))
