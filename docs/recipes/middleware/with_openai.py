"""Put Thresher between OpenAI's client and its API: chunks are compressed, and the answer cites them."""

import os

import openai

URL = os.environ.get("THRESHER_URL", "http://127.0.0.1:8080")
chunks = [
    {"id": "history", "text": "Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat."},
    {"id": "harbour", "text": "The harbour has room for forty boats. Fish is sold there on Fridays."},
]

client = openai.OpenAI(base_url=f"{URL}/v1")
messages = [{"role": "user", "content": "When was the lighthouse at Cape Orrin completed?"}]
raw = client.chat.completions.with_raw_response.create(
    model=os.environ.get("LLM_MODEL", "gpt-5"), messages=messages, extra_body={"thresher": {"chunks": chunks}}
)
for name in ["x-thresher", "x-thresher-tokens-before", "x-thresher-tokens-after"]:
    print(f"{name}: {raw.headers.get(name)}")

message = raw.parse().choices[0].message
print(message.content)
for annotation in message.annotations or []:
    cited = annotation.url_citation
    print(cited.url, message.content[cited.start_index : cited.end_index])
