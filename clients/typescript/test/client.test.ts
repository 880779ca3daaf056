/** Every method of the client, against a daemon with the default model. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { AuthenticationError, Client, type CompressRequest, NotFoundError, RequestInvalidError } from "thresher-client";

import { BUDGET, BUDGET_NUMBERED, FLEMING, QUESTION, SENTENCE, TEXTS } from "./corpus.js";
import { Daemon } from "./daemon.js";

const client = new Client();

test("compress keeps the sentence that answers the question, and cites it", async () => {
  const found = await client.compress({ query: QUESTION, chunks: TEXTS, budget: BUDGET, format: "plain", offsets: "utf16" });
  assert.equal(found.context, SENTENCE);
  const [citation] = found.citations;
  assert.equal(citation?.text, SENTENCE);
  assert.ok(citation.score! > 0);
  // Before the sentence stands an emoji: in UTF-16, it has two units.
  assert.equal(TEXTS[FLEMING].slice(citation!.source.start, citation!.source.end), SENTENCE);
  assert.equal(found.chunks.filter(({ kept }) => kept)[0]?.index, FLEMING);
  assert.equal(found.related, true);
  assert.ok(found.relevance! > 0);
  assert.ok(found.answerable!.probability > 0 && found.answerable!.probability <= 1);
  assert.equal(typeof found.answerable!.answerable, "boolean");
  assert.ok(found.usage!.tokens_out <= 17);
  assert.equal(found.usage!.tokenizer, "o200k_base");
  assert.equal(found.degraded, null);
});

test("compress takes chunks with ids, conversations and all four budgets", async () => {
  const chunks = TEXTS.map((text, index) => ({ id: `d${index}`, text, title: `Title ${index}`, metadata: { index } }));
  for (const budget of [{ tokens: 60 }, { ratio: 0.5 }, { coverage: 0.9, tokens: 60 }, { coverage: 0.9 }]) {
    const found = await client.compress({ query: QUESTION, chunks, budget, keep: ["d2"] });
    assert.ok(found.chunks[2]!.kept, JSON.stringify(budget));
    assert.deepEqual(found.chunks.map(({ metadata }) => metadata), chunks.map(({ metadata }) => metadata));
  }
  const messages = [{ role: "user", content: "Tell me of penicillin." }, { role: "assistant", content: [{ type: "text", text: "It is a drug." }] }];
  const found = await client.compress({ query: "Who discovered it?", chunks, messages, on_error: "best_effort" });
  assert.equal(found.question.turns_read, 2);
});

test("an unrelated question is a warning", async () => {
  const found = await client.compress({ query: "How do I configure a printer?", chunks: TEXTS, related_only: true });
  assert.equal(found.related, false);
  assert.equal(found.context, "");
  assert.deepEqual(found.warnings?.map(({ code }) => code), ["unrelated"]);
});

test("attribute has verdicts, conflicts and quotations", async () => {
  const { id } = await client.compress({ query: QUESTION, chunks: TEXTS, budget: BUDGET_NUMBERED });
  const answer = 'Alexander Fleming discovered penicillin in 1928. Fleming discovered penicillin in 1938. He "discovered penicillin in 1928".';
  const { parts, quotes } = await client.attribute({ answer, compress_id: id! });
  assert.deepEqual(parts.slice(0, 2).map(({ verdict }) => verdict), ["supported", "contradicted"]);
  assert.equal(parts[0]!.sources[0]!.index, FLEMING);
  assert.ok(parts[0]!.sources[0]!.cited);
  assert.equal(parts[1]!.conflicts![0]!.text, "1938");
  assert.equal(parts[1]!.conflicts![0]!.source.text, "1928");
  assert.deepEqual(quotes.map(({ verdict }) => verdict), ["exact"]);
});

test("attribute formats citations, and takes spans", async () => {
  const answer = "Fleming discovered penicillin in 1928.";
  const { formatted } = await client.attribute({ answer, chunks: TEXTS, format: "markers" });
  assert.match(JSON.stringify(formatted), /\[\d\]/);
  const { parts } = await client.attribute({ answer, chunks: TEXTS, granularity: "span", spans: [{ start: 0, end: 7 }] });
  assert.deepEqual(parts.map(({ text }) => text), ["Fleming"]);
});

test("chunks are registered, listed, searched, compressed and deleted", async () => {
  const chunks = TEXTS.map((text, index) => ({ id: `ts/${index}`, text, metadata: { year: 1900 + index } }));
  const changes = await client.registerChunks({ chunks, wait: true });
  assert.deepEqual(changes.chunks.map(({ status }) => status), ["created", "created", "created", "created"]);
  assert.equal(changes.warming!.warm, 4);
  assert.deepEqual(await client.getChunk("ts/1"), { id: "ts/1", text: TEXTS[1], metadata: { year: 1901 } });
  const page = await client.listChunks({ limit: 1 });
  assert.deepEqual(page.chunks.map(({ id }) => id), ["ts/0"]);
  assert.equal((await client.listChunks({ after: page.next! })).chunks[0]!.id, "ts/1");
  assert.equal((await client.progress()).registered, 4);
  const { results } = await client.search({ query: QUESTION, limit: 2 });
  assert.equal(results[0]!.id, `ts/${FLEMING}`);
  const found = await client.compress({ query: QUESTION, chunk_ids: chunks.map(({ id }) => id), budget: BUDGET_NUMBERED });
  assert.match(found.context, /Fleming/);
  const deleted = await client.deleteChunks([...chunks.map(({ id }) => id), "other"]);
  assert.deepEqual(deleted.chunks.map(({ status }) => status), ["deleted", "deleted", "deleted", "deleted", "unknown"]);
  await assert.rejects(client.getChunk("ts/1"), (error: NotFoundError) => error instanceof NotFoundError && error.code === "id_unknown");
});

test("rerank orders documents, and says whether they answer the question", async () => {
  const reranking = await client.rerank({ query: QUESTION, documents: TEXTS, top_n: 2, return_documents: true, relevant_spans: { mode: "enabled" } });
  assert.equal(reranking.results.length, 2);
  const [best] = reranking.results;
  assert.equal(best!.index, FLEMING);
  assert.equal(best!.document!["text"], TEXTS[FLEMING]);
  const { start, end } = best!.relevant_spans![0]!;
  // These ranges are in code points.
  assert.equal([...TEXTS[FLEMING]].slice(start, end).join(""), SENTENCE);
  assert.equal(reranking.related, true);
  assert.ok(reranking.answerable!.probability > 0);
});

test("models are listed", async () => {
  const [model] = await client.models();
  assert.equal(model!.estimator.length > 0 && model!.fingerprint.length > 0, true);
});

test("errors of the daemon are typed and name the wrong field", async () => {
  const long: CompressRequest = { query: QUESTION, chunks: TEXTS, budget: { tokens: 0 } };
  await assert.rejects(client.compress(long), (error: RequestInvalidError) => {
    assert.ok(error instanceof RequestInvalidError);
    assert.deepEqual([error.status, error.code, error.param], [422, "out_of_range", "budget.tokens"]);
    return true;
  });
  await assert.rejects(client.attribute({ answer: "a", compress_id: "nowhere" }), { name: "NotFoundError", code: "id_unknown" });
  await assert.rejects(client.kv("nowhere"), { name: "NotFoundError", code: "id_unknown" });
});

test("a daemon with keys is used with one", async () => {
  const folder = mkdtempSync(join(tmpdir(), "thresher-"));
  const key = `thr_${"a".repeat(43)}`;
  const sha256 = createHash("sha256").update(key).digest("hex");
  const file = join(folder, "keys.toml");
  writeFileSync(file, `[[key]]\nname = "test"\ntenant = "t"\nsha256 = "${sha256}"\n`, { mode: 0o600 });
  const daemon = await Daemon.start({ THRESHER__ACCESS__KEYS_FILE: file });
  try {
    await assert.rejects(new Client({ baseUrl: daemon.url }).models(), AuthenticationError);
    const keyed = new Client({ baseUrl: `${daemon.url}/`, apiKey: key });
    assert.equal((await keyed.models()).length, 1);
  } finally {
    await daemon.stop();
    rmSync(folder, { recursive: true });
  }
});

/** The compiler refuses these calls; the function is never run. */
export function requestsThatDoNotCompile(): void {
  // @ts-expect-error: chunks and chunk_ids exclude each other
  void client.compress({ query: "q", chunks: ["a"], chunk_ids: ["a"] });
  // @ts-expect-error: a compression needs chunks
  void client.compress({ query: "q" });
  // @ts-expect-error: no such field
  void client.compress({ query: "q", chunks: ["a"], top_n: 1 });
  // @ts-expect-error: the field of another rerank API
  void client.rerank({ query: "q", texts: ["a"] });
  // @ts-expect-error: no such budget
  void client.compress({ query: "q", chunks: ["a"], budget: { share: 0.5 } });
}
