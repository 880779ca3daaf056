"""Compress the documents that a LangChain retriever returns."""

from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

store = InMemoryVectorStore(DeterministicFakeEmbedding(size=64))  # replace with your store
store.add_documents(
    [
        Document("Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat.", id="history"),
        Document("The harbour has room for forty boats. Fish is sold there on Fridays.", id="harbour"),
    ]
)

from thresher_client.langchain import ThresherCompressor

compressor = ThresherCompressor(budget={"ratio": 0.5}, on_error="originals")
retriever = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=store.as_retriever())

documents = retriever.invoke("When was the lighthouse at Cape Orrin completed?")
for document in documents:
    print(document.id, document.page_content, document.metadata["thresher"]["spans"])

from thresher_client.langchain import ThresherAttributor

# Behind a chain that returns a dict with "context" and "answer": chain | ThresherAttributor()
answered = {"context": documents, "answer": "The light was completed in 1878."}
for part in ThresherAttributor().invoke(answered)["attribution"]["parts"]:
    print(part["verdict"], part["conflicts"][0]["source"]["text"])
