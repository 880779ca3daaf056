/** The adapters for the AI SDK, with its own functions and a model that returns a fixed answer. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { generateText, rerank, simulateReadableStream, streamText, wrapLanguageModel } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { Client, ConnectionFailedError } from "thresher-client";
import { type ThresherMiddlewareOptions, thresherMetadata, thresherMiddleware, thresherReranker } from "thresher-client/ai-sdk";

import { BUDGET_NUMBERED, FLEMING, QUESTION, SENTENCE, TEXTS } from "./corpus.js";

const CHUNKS = TEXTS.map((text, index) => {
  const metadata = index === 2 ? { metadata: { url: "https://example.org/tower" } } : {};
  return { id: `d${index}`, text, title: `Document ${index}`, ...metadata };
});
const ANSWER = "Alexander Fleming discovered penicillin in 1928. He discovered penicillin in 1938.";
const USAGE = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };
const FINISH = { unified: "stop", raw: "stop" } as const;
// Nothing listens there.
const NOBODY = { baseUrl: "http://127.0.0.1:1", retries: { countMax: 0 } };

/** A model with the middleware, and the model that it wraps, which records its calls and gives this answer. */
function models(answer: string, options: ThresherMiddlewareOptions) {
  const base = new MockLanguageModelV4({
    doGenerate: { content: [{ type: "text", text: answer }], finishReason: FINISH, usage: USAGE, warnings: [] },
    doStream: async () => ({
      stream: simulateReadableStream({
        chunks: [
          { type: "stream-start" as const, warnings: [] },
          { type: "text-start" as const, id: "1" },
          ...answer.match(/.{1,9}/gs)!.map((delta) => ({ type: "text-delta" as const, id: "1", delta })),
          { type: "text-end" as const, id: "1" },
          { type: "finish" as const, finishReason: FINISH, usage: USAGE },
        ],
      }),
    }),
  });
  return { base, model: wrapLanguageModel({ model: base, middleware: thresherMiddleware({ budget: BUDGET_NUMBERED, ...options }) }) };
}

const retrieve = (question: string) => {
  assert.equal(question, QUESTION);
  return CHUNKS;
};

test("the context is put before the question, and the answer gets citations and verdicts", async () => {
  const { base, model } = models(ANSWER, { retrieve });
  const messages = [
    { role: "user" as const, content: "Hello" },
    { role: "assistant" as const, content: "Hello. What is your question?" },
    { role: "user" as const, content: QUESTION },
  ];
  const result = await generateText({ model, messages });
  const prompt = base.doGenerateCalls[0]!.prompt;
  const [context, question] = prompt.at(-1)!.content as { type: string; text: string }[];
  assert.match(context!.text, /^\[1\] Document 1\n/);
  assert.ok(context!.text.includes(SENTENCE) && !context!.text.includes("Trains leave"));
  assert.equal(question!.text, QUESTION);
  assert.equal(prompt.length, 3);

  assert.equal(result.text, ANSWER);
  assert.deepEqual(result.sources.map(({ id, sourceType, title }) => [id, sourceType, title]), [["d1", "document", "Document 1"]]);
  const found = thresherMetadata(result.providerMetadata)!;
  assert.deepEqual(found.parts.map(({ verdict }) => verdict), ["supported", "contradicted"]);
  assert.equal(found.parts[1]!.conflicts![0]!.source.text, "1928");
  assert.equal(found.related, true);
  assert.ok(found.answerable!.probability > 0);
  assert.ok(found.usage!.tokens_out <= 20);
});

test("the middleware's own result has citations with the ranges of the answer", async () => {
  const { model } = models(ANSWER, { retrieve });
  const prompt = [{ role: "user" as const, content: [{ type: "text" as const, text: QUESTION }] }];
  const { content } = await (model as InstanceType<typeof MockLanguageModelV4>).doGenerate({ prompt });
  const [text] = content;
  assert.equal(text!.type, "text");
  const cited = (text as { citations: { startIndex: number; endIndex: number; citedText: string; source: { id: string } }[] }).citations;
  assert.equal(ANSWER.slice(cited[0]!.startIndex, cited[0]!.endIndex), "Alexander Fleming discovered penicillin in 1928.");
  assert.equal(cited[0]!.citedText, SENTENCE);
  assert.equal(cited[0]!.source.id, "d1");
});

test("a streamed answer is passed on as it arrives, with the same verdicts and sources at its end", async () => {
  const { model } = models(ANSWER, { retrieve });
  const errors: unknown[] = [];
  const result = streamText({ model, prompt: QUESTION, onError: ({ error }) => void errors.push(error) });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  assert.deepEqual(errors, []);
  assert.equal(text, ANSWER);
  assert.deepEqual((await result.sources).map(({ id }) => id), ["d1"]);
  const found = thresherMetadata(await result.providerMetadata)!;
  assert.deepEqual(found.parts.map(({ verdict }) => verdict), ["supported", "contradicted"]);
  assert.deepEqual(found.parts.map(({ start, end }) => ANSWER.slice(start, end).trim()), found.parts.map((part) => part.text.trim()));
});

test("chunks of a call take precedence, and are not sent to the model", async () => {
  const { base, model } = models("The tower was finished in 1889.", { retrieve: () => assert.fail("not called") });
  const providerOptions = { thresher: { chunks: CHUNKS }, openai: { user: "u" } };
  const result = await generateText({ model, prompt: "When was the tower finished?", providerOptions });
  assert.deepEqual(base.doGenerateCalls[0]!.providerOptions, { openai: { user: "u" } });
  // The chunk has an address.
  assert.deepEqual(result.sources.map((source) => source.sourceType === "url" && source.url), ["https://example.org/tower"]);
});

test("unrelated chunks leave the prompt as it is", async () => {
  const { base, model } = models("I do not know.", { retrieve: () => TEXTS, relatedOnly: true });
  const result = await generateText({ model, prompt: "How do I configure a printer?" });
  assert.deepEqual(base.doGenerateCalls[0]!.prompt[0]!.content, [{ type: "text", text: "How do I configure a printer?" }]);
  const found = thresherMetadata(result.providerMetadata)!;
  assert.deepEqual([found.related, found.context, found.parts], [false, "", []]);
});

test("calls without chunks or without a question pass unchanged", async () => {
  const { base, model } = models("Hello.", {});
  const result = await generateText({ model, prompt: QUESTION });
  assert.deepEqual(base.doGenerateCalls[0]!.prompt[0]!.content, [{ type: "text", text: QUESTION }]);
  assert.equal(thresherMetadata(result.providerMetadata), undefined);
});

test("the template writes the context, and attribution can be turned off", async () => {
  const { base, model } = models(ANSWER, { retrieve, attribute: false, template: (context) => `<context>${context}</context>` });
  const result = await generateText({ model, prompt: QUESTION });
  const [context] = base.doGenerateCalls[0]!.prompt[0]!.content as { text: string }[];
  assert.match(context!.text, /^<context>\[1\] Document 1\n.*<\/context>$/s);
  assert.deepEqual([result.sources, thresherMetadata(result.providerMetadata)!.parts], [[], []]);
});

test("a daemon that cannot be reached is an error, or leaves the chunks whole", async () => {
  const raising = models(ANSWER, { retrieve, connection: NOBODY });
  await assert.rejects(generateText({ model: raising.model, prompt: QUESTION, maxRetries: 0 }), ConnectionFailedError);
  const { base, model } = models(ANSWER, { retrieve, connection: NOBODY, onError: "originals" });
  for (const found of [
    thresherMetadata((await generateText({ model, prompt: QUESTION })).providerMetadata)!,
    thresherMetadata(await streamText({ model, prompt: QUESTION }).providerMetadata)!,
  ]) {
    assert.deepEqual([found.degraded, found.parts], ["connection_failed", []]);
  }
  const [context] = base.doGenerateCalls[0]!.prompt[0]!.content as { text: string }[];
  for (const text of TEXTS) assert.ok(context!.text.includes(text));
});

test("an aborted call ends with the reason of its signal", async () => {
  const { model } = models(ANSWER, { retrieve });
  const abortSignal = AbortSignal.abort(new Error("enough"));
  await assert.rejects(generateText({ model, prompt: QUESTION, abortSignal, maxRetries: 0 }), { message: "enough" });
});

test("the reranking model orders texts and objects", async () => {
  const model = thresherReranker({ client: new Client() });
  const texts = await rerank({ model, query: QUESTION, documents: [...TEXTS], topN: 2 });
  assert.equal(texts.ranking.length, 2);
  assert.equal(texts.ranking[0]!.originalIndex, FLEMING);
  assert.equal(texts.rerankedDocuments[0], TEXTS[FLEMING]);
  const found = texts.providerMetadata!["thresher"] as { related: boolean; answerable: { probability: number } };
  assert.ok(found.related && found.answerable.probability > 0);
  const objects = await rerank({ model, query: QUESTION, documents: TEXTS.map((body, index) => ({ body, index })) });
  assert.equal(objects.ranking[0]!.originalIndex, FLEMING);
});
