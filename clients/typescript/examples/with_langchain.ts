// Compress the documents that a LangChain.js retriever returns, and get verdicts on the answer.
import { ThresherAttributor, ThresherCompressor, ThresherRetriever } from "thresher-client/langchain";
import { retriever as base } from "./stand_ins.js";

const compressor = new ThresherCompressor({ budget: { ratio: 0.5 }, onError: "originals" });
const retriever = new ThresherRetriever({ compressor, retriever: base });

const documents = await retriever.invoke("When was the lighthouse at Cape Orrin completed?");
for (const document of documents) {
  const { spans, related } = document.metadata.thresher;
  console.log(document.id, document.pageContent, spans[0].end, related);
}

// Behind a chain that returns an object with `context` and `answer`: chain.pipe(new ThresherAttributor())
const answered = { context: documents, answer: "The light was completed in 1878." };
const { attribution } = await new ThresherAttributor().invoke(answered);
for (const { verdict, conflicts } of attribution?.parts ?? []) {
  console.log(verdict, conflicts?.[0]?.source.text);
}
