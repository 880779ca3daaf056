"""Use Thresher through Cohere's rerank client: only the base URL changes."""

import os

import cohere

URL = os.environ.get("THRESHER_URL", "http://127.0.0.1:8080")
DOCUMENTS = ["It is a genus of moulds.", "Fleming discovered penicillin in 1928.", "The tower is 324 metres high."]

client = cohere.ClientV2(api_key="none", base_url=URL)
answer = client.rerank(model="any", query="Who discovered penicillin?", documents=DOCUMENTS, top_n=2)

for result in answer.results:
    print(round(result.relevance_score, 3), DOCUMENTS[result.index])
