/** Every method of the client, against a daemon with the default model. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

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

test("a streamed answer is attributed sentence by sentence, while it arrives", async () => {
  const sentences = [
    "Alexander Fleming discovered penicillin in 1928. ",
    "The tower is 324 metres high. ",
    "It is painted green every year by many people, they say.",
  ];
  let finish: () => void = () => {};
  const firstPart = new Promise<void>((resolve) => (finish = resolve));
  async function* deltas() {
    yield* sentences[0]!.match(/.{1,7}/g)!;
    yield "";
    yield sentences[1]!;
    yield sentences[2]!;
    // The answer ends only after its first part has come back.
    await firstPart;
    yield " It is red.";
  }
  const stream = client.attributeStream(deltas(), { chunks: TEXTS });
  const verdicts: [string, string][] = [];
  assert.equal(stream.ended, null);
  for await (const { text, verdict } of stream) {
    finish();
    verdicts.push([text.trim(), verdict]);
  }
  assert.equal(stream.ended, true);
  assert.deepEqual(verdicts.slice(0, 2), [
    [sentences[0]!.trim(), "supported"],
    [sentences[1]!.trim(), "supported"],
  ]);
  assert.equal(verdicts.length, 4);
  assert.notEqual(verdicts[2]![1], "supported");
  await assert.rejects(async () => {
    for await (const _ of stream) assert.fail();
  }, TypeError);
});

test("a stream waits for a slow caller longer than timeoutMs", async () => {
  const pause = () => new Promise((resolve) => setTimeout(resolve, 700));
  async function* deltas() {
    yield `${"The tower is 324 metres high. ".repeat(8)}`;
    await pause();
    yield "It was finished in 1889.";
  }
  let count = 0;
  for await (const _ of client.attributeStream(deltas(), { chunks: TEXTS }, { timeoutMs: 500 })) {
    if (count++ === 0) await pause();
  }
  assert.equal(count, 9);
});

test("a stream ends with the error of its deltas, with its signal, and when it is left early", async () => {
  const broken = (async function* () {
    yield "One sentence. ";
    throw new Error("the model failed");
  })();
  await assert.rejects(async () => {
    for await (const _ of client.attributeStream(broken, { chunks: TEXTS }));
  }, { message: "the model failed" });
  const endless = async function* () {
    for (;;) {
      yield "The tower is 324 metres high. It was finished in 1889, and it is still there for all to see, so come and see it. ";
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  };
  const aborting = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of client.attributeStream(endless(), { chunks: TEXTS }, { signal: aborting.signal })) aborting.abort(new Error("enough"));
  }, { message: "enough" });
  for await (const _ of client.attributeStream(endless(), { chunks: TEXTS })) break;
  await assert.rejects(async () => {
    for await (const _ of client.attributeStream(["a"], { chunks: [] }));
  }, RequestInvalidError);
});

test("a stream that is over keeps no program from ending", async () => {
  const program = `
    import { Client } from "thresher-client";
    async function* deltas() {
      yield "The tower is 324 metres high. It was finished in 1889, and it is still there for all to see, so come and see it. ";
      await new Promise((resolve) => setTimeout(resolve, 300));
      yield "It is red.";
    }
    const aborting = new AbortController();
    const stream = new Client().attributeStream(deltas(), { chunks: ["The tower is 324 metres high."] }, { signal: aborting.signal });
    try {
      for await (const _ of stream) aborting.abort(new Error("enough"));
    } catch (error) {
      console.log(error.message);
    }`;
  const began = performance.now();
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program]);
  assert.equal(stdout.trim(), "enough");
  // The client's own limit is a minute.
  assert.ok(performance.now() - began < 30_000);
});

test("chunks are registered, listed, searched, compressed and deleted", async () => {
  const chunks = TEXTS.map((text, index) => ({ id: `ts/${index}`, text, metadata: { year: 1900 + index } }));
  const changes = await client.registerChunks({ chunks, wait: true });
  assert.deepEqual(changes.chunks.map(({ status }) => status), ["created", "created", "created", "created"]);
  assert.equal(changes.warming!.warm, 4);
  assert.deepEqual(await client.getChunk("ts/1"), { id: "ts/1", text: TEXTS[1], metadata: { year: 1901 } });
  const page = await client.listChunks({ limit: 1, filter: { year: { gte: 1901 } } });
  assert.deepEqual(page.chunks.map(({ id }) => id), ["ts/1"]);
  assert.equal((await client.listChunks({ after: page.next! })).chunks[0]!.id, "ts/2");
  assert.equal((await client.progress()).registered, 4);
  const { results } = await client.search({ query: QUESTION, limit: 2, filter: { year: 1901 } });
  assert.deepEqual(results.map(({ id }) => id), ["ts/1"]);
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
    const texts: string[] = [];
    for await (const { text } of keyed.attributeStream(["The tower is 324 metres high."], { chunks: TEXTS })) texts.push(text);
    assert.deepEqual(texts, ["The tower is 324 metres high."]);
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
  // @ts-expect-error: a stream has no spans
  void client.attributeStream(["a"], { chunks: ["a"], granularity: "span" });
}
