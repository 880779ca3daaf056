// Put compressed context into prompts of the AI SDK, and get citations and verdicts with the answer.
import { generateText, wrapLanguageModel } from "ai";
import { thresherMetadata, thresherMiddleware } from "thresher-client/ai-sdk";
import { base, search } from "./stand_ins.js";

const model = wrapLanguageModel({
  model: base, // such as openai("gpt-5-mini")
  middleware: thresherMiddleware({
    retrieve: (question) => search(question), // your retriever: strings, or objects with id, title, text and metadata.url
    budget: { coverage: 0.95 },
    onError: "originals",
  }),
});

const { text, sources, providerMetadata } = await generateText({
  model,
  prompt: "When was the lighthouse at Cape Orrin completed?",
});
const found = thresherMetadata(providerMetadata);
console.log(text, sources.map(({ id }) => id));
console.log(found?.related, found?.answerable?.answerable, found?.parts.map(({ verdict }) => verdict));
