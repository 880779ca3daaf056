"""Put Thresher between Anthropic's client and its API: it compresses documents, and the answer cites them."""

import os

import anthropic

URL = os.environ.get("THRESHER_URL", "http://127.0.0.1:8080")
TEXT = "Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat. The harbour has room for forty boats."
document = {"type": "document", "title": "History", "source": {"type": "text", "media_type": "text/plain", "data": TEXT}}
question = {"type": "text", "text": "When was the lighthouse at Cape Orrin completed?"}

client = anthropic.Anthropic(base_url=URL)
messages = [{"role": "user", "content": [document, question]}]
budget = {"thresher": {"budget": {"ratio": 0.5}}}
raw = client.messages.with_raw_response.create(
    model=os.environ.get("LLM_MODEL", "claude-sonnet-5"), max_tokens=500, messages=messages, extra_body=budget
)
for name in ["x-thresher", "x-thresher-tokens-before", "x-thresher-tokens-after"]:
    print(f"{name}: {raw.headers.get(name)}")

for block in raw.parse().content:
    print(block.text, [citation.cited_text for citation in block.citations or []])
