"""Compress the retrieved documents in a Haystack pipeline."""

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

store = InMemoryDocumentStore()  # replace with your store
store.write_documents(
    [
        Document(id="history", content="Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat."),
        Document(id="harbour", content="The harbour has room for forty boats. Fish is sold there on Fridays."),
    ]
)
pipeline = Pipeline()
pipeline.add_component("retriever", InMemoryBM25Retriever(store))

from thresher_client.haystack import ThresherCompressor

pipeline.add_component("thresher", ThresherCompressor(budget={"ratio": 0.5}, on_error="originals"))
pipeline.connect("retriever.documents", "thresher.documents")

question = "When was the lighthouse at Cape Orrin completed?"
answer = pipeline.run({"retriever": {"query": question}, "thresher": {"query": question}})
for document in answer["thresher"]["documents"]:
    print(document.id, document.content, document.meta["thresher"]["spans"])
