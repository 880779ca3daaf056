/** The adapters for LangChain.js, with its own retrievers. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ContextualCompressionRetriever } from "@langchain/classic/retrievers/contextual_compression";
import { Document } from "@langchain/core/documents";
import { BaseRetriever } from "@langchain/core/retrievers";
import { BaseDocumentCompressor } from "@langchain/core/retrievers/document_compressors";
import { AIMessage } from "@langchain/core/messages";
import { RunnableLambda } from "@langchain/core/runnables";
import { Client, ConnectionFailedError } from "thresher-client";
import { ThresherAttributor, ThresherCompressor, type ThresherMetadata, ThresherRetriever } from "thresher-client/langchain";

import { BUDGET, FLEMING, QUESTION, SENTENCE, TEXTS } from "./corpus.js";

const DOCUMENTS = TEXTS.map((pageContent, index) => {
  const metadata = { title: `Document ${index}`, nested: { index } };
  return new Document({ pageContent, id: `d${index}`, metadata });
});
// Nothing listens there.
const NOBODY = { baseUrl: "http://127.0.0.1:1", retries: { countMax: 0 } };

class All extends BaseRetriever {
  lc_namespace = ["test"];
  override async _getRelevantDocuments(): Promise<Document[]> {
    return DOCUMENTS;
  }
}

const thresherOf = (document: { metadata: Record<string, unknown> } | undefined) => document?.metadata["thresher"] as ThresherMetadata;

test("the compressor keeps what answers the question, and its metadata say so", async () => {
  const client = new Client();
  const compressor = new ThresherCompressor({ budget: BUDGET, client });
  assert.ok(BaseDocumentCompressor.isBaseDocumentCompressor(compressor));
  for (const retriever of [
    new ContextualCompressionRetriever({ baseCompressor: compressor, baseRetriever: new All() }),
    new ThresherRetriever({ compressor, retriever: new All() }),
  ]) {
    const [found, ...others] = await retriever.invoke(QUESTION);
    assert.deepEqual(others, []);
    assert.equal(found!.pageContent, SENTENCE);
    assert.equal(found!.id, "d1");
    assert.deepEqual(found!.metadata["nested"], { index: 1 });
    assert.ok((found!.metadata as Record<string, number>)["relevance_score"]! > 0);
    const { spans, related, answerable, kept, marker, index, id } = thresherOf(found);
    assert.equal(TEXTS[FLEMING].slice(spans![0]!.start, spans![0]!.end), SENTENCE);
    assert.deepEqual([related, kept, marker, index], [true, true, 1, FLEMING]);
    assert.ok(answerable!.probability > 0);
    const { parts } = await client.attribute({ answer: "Fleming discovered penicillin in 1938.", compress_id: id! });
    assert.equal(parts[0]!.verdict, "contradicted");
  }
  assert.equal(thresherOf(DOCUMENTS[FLEMING]), undefined, "the originals are unchanged");
});

test("documents of which nothing was kept are returned on request", async () => {
  const compressor = new ThresherCompressor({ budget: BUDGET, keepEmpty: true });
  const found = await compressor.compressDocuments(DOCUMENTS, QUESTION);
  assert.deepEqual(found.map(({ pageContent }) => pageContent === ""), [true, false, true, true]);
  const unrelated = await compressor.compressDocuments(DOCUMENTS, "How do I configure a printer?");
  assert.deepEqual(unrelated.map((document) => thresherOf(document).related), [false, false, false, false]);
});

test("topN keeps the best documents in their order", async () => {
  const compressor = new ThresherCompressor({ budget: { ratio: 0.9 }, topN: 2 });
  const found = await compressor.compressDocuments(DOCUMENTS, QUESTION);
  assert.equal(found.length, 2);
  assert.deepEqual(found.map(({ id }) => id), [...found.map(({ id }) => id)].sort());
  assert.ok(found.some(({ id }) => id === "d1"));
});

test("rerank orders whole documents", async () => {
  const compressor = new ThresherCompressor({ mode: "rerank", topN: 2 });
  const found = await compressor.compressDocuments(DOCUMENTS, QUESTION);
  assert.equal(found.length, 2);
  assert.deepEqual([found[0]!.id, found[0]!.pageContent], ["d1", TEXTS[FLEMING]]);
  const { mode, related, answerable } = thresherOf(found[0]);
  assert.deepEqual([mode, related], ["rerank", true]);
  assert.ok(answerable!.probability > 0);
});

test("a daemon that fails is an error, or leaves the documents unchanged", async () => {
  await assert.rejects(new ThresherCompressor({ connection: NOBODY }).compressDocuments(DOCUMENTS, QUESTION), ConnectionFailedError);
  const compressor = new ThresherCompressor({ connection: NOBODY, onError: "originals", topN: 3 });
  const found = await compressor.compressDocuments(DOCUMENTS, QUESTION);
  assert.deepEqual(found.map(({ pageContent }) => pageContent), TEXTS.slice(0, 3));
  assert.equal(thresherOf(found[0]).degraded, "connection_failed");
  assert.deepEqual(await compressor.compressDocuments([], QUESTION), []);
});

test("the attributor puts verdicts beside the answer of a chain", async () => {
  const text = "Alexander Fleming discovered penicillin in 1928. He discovered penicillin in 1938.";
  for (const answer of [text, new AIMessage(text)]) {
    const chain = RunnableLambda.from((input: string) => ({ input, answer, context: DOCUMENTS })).pipe(new ThresherAttributor({ sourcesMax: 1 }));
    const found = await chain.invoke(QUESTION);
    assert.equal(found.answer, answer);
    const [supported, contradicted] = found.attribution!.parts;
    assert.deepEqual([supported!.verdict, contradicted!.verdict], ["supported", "contradicted"]);
    assert.deepEqual(supported!.sources.map(({ index, cited }) => [index, cited]), [[FLEMING, true]]);
    // Before the sentence stands an emoji.
    const { start, end } = supported!.sources[0]!.sentence;
    assert.equal(TEXTS[FLEMING].slice(start, end), SENTENCE);
    assert.equal(contradicted!.conflicts![0]!.source.text, "1928");
  }
  const empty = { parts: [], quotes: [] };
  assert.deepEqual((await new ThresherAttributor().invoke({ answer: " ", context: DOCUMENTS })).attribution, empty);
  assert.deepEqual((await new ThresherAttributor().invoke({ answer: text, context: [] })).attribution, empty);
  const answered = { answer: text, context: DOCUMENTS };
  await assert.rejects(new ThresherAttributor({ connection: NOBODY }).invoke(answered), ConnectionFailedError);
  assert.equal((await new ThresherAttributor({ connection: NOBODY, onError: "none" }).invoke(answered)).attribution, null);
});

test("wrong options are refused when the compressor is made", () => {
  assert.throws(() => new ThresherCompressor({ topN: 0 }), RangeError);
  assert.throws(() => new ThresherCompressor({ mode: "rerank", budget: BUDGET }), TypeError);
  assert.throws(() => new ThresherCompressor({ mode: "other" as "rerank" }), TypeError);
});
