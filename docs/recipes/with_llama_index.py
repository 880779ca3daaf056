"""Compress the retrieved nodes in a LlamaIndex query engine."""

from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode

nodes = [
    TextNode(id_="history", text="Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat."),
    TextNode(id_="harbour", text="The harbour has room for forty boats. Fish is sold there on Fridays."),
]
index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=8))  # replace with your index
llm = MockLLM()  # replace with your LLM; this one returns its prompt

from thresher_client.llama_index import ThresherPostprocessor

thresher = ThresherPostprocessor(budget={"ratio": 0.5}, on_error="originals")
engine = index.as_query_engine(llm=llm, node_postprocessors=[thresher])

answer = engine.query("When was the lighthouse at Cape Orrin completed?")
for node in answer.source_nodes:
    print(node.node_id, node.text, node.metadata["thresher"]["spans"])
