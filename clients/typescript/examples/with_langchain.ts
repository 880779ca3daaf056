// Compress the documents that a LangChain.js retriever returns.
import { ThresherCompressor, ThresherRetriever } from "thresher-client/langchain";
import { retriever as base } from "./stand_ins.js";

const compressor = new ThresherCompressor({ budget: { ratio: 0.5 }, onError: "originals" });
const retriever = new ThresherRetriever({ compressor, retriever: base });

for (const document of await retriever.invoke("When was the lighthouse at Cape Orrin completed?")) {
  const { spans, related } = document.metadata.thresher;
  console.log(document.id, document.pageContent, spans[0].end, related);
}
