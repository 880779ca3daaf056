// Stand-ins for your language model and your retrievers.
import { Document } from "@langchain/core/documents";
import { BaseRetriever } from "@langchain/core/retrievers";
import { MockLanguageModelV4 } from "ai/test";

const TEXTS = {
  history: "Cape Orrin Light was completed in 1874. The keeper had two dogs and a boat.",
  harbour: "The harbour has room for forty boats. Fish is sold there on Fridays.",
};

export const base = new MockLanguageModelV4({
  doGenerate: {
    content: [{ type: "text", text: "The light was completed in 1874." }],
    finishReason: { unified: "stop", raw: "stop" },
    usage: {
      inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
      outputTokens: { total: 1, text: 1, reasoning: 0 },
    },
    warnings: [],
  },
});

export function search(_question: string) {
  return Object.entries(TEXTS).map(([id, text]) => ({ id, text }));
}

class All extends BaseRetriever {
  lc_namespace = ["example"];
  override async _getRelevantDocuments() {
    return Object.entries(TEXTS).map(([id, pageContent]) => new Document({ id, pageContent }));
  }
}

export const retriever = new All();
