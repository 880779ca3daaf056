"""Compress chunks for the LLM with thresher-client, then find the chunks that its answer came from."""

from thresher_client import Client

CHUNKS = [
    {"id": "history", "text": "Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat."},
    {"id": "harbour", "text": "The harbour has room for forty boats. Fish is sold there on Fridays."},
]

with Client() as client:  # THRESHER_URL, or http://127.0.0.1:8080
    found = client.compress("When was the lighthouse at Cape Orrin completed?", CHUNKS, budget={"ratio": 0.5})
    attribution = client.attribute("The light was completed in 1874.", compress_id=found.id)

print(found.context)
for part in attribution.parts:
    print(part.verdict, [source.chunk for source in part.sources if source.cited], part.text)
