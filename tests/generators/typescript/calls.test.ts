/** Calls of a daemon, at THRESHER_URL, whose types are those that openapi-typescript generates. They compile with `strict`, and they work. */

import assert from "node:assert/strict";
import { test } from "node:test";

import createClient from "openapi-fetch";

import type { components, paths } from "./schema.js";

const client = createClient<paths>({ baseUrl: process.env["THRESHER_URL"]! });
const query = "Who discovered penicillin?";
const chunks = [
  "Penicillium is a genus of moulds. Some of them ripen cheese.",
  { id: "fleming", text: "Alexander Fleming discovered penicillin in 1928, in London. Trains leave from there to Bristol." },
  "The tower is 324 metres high. It was finished in 1889.",
];

test("compress", async () => {
  for (const budget of [{ tokens: 20 }, { ratio: 0.4 }, { coverage: 0.9 }, { auto: true } as const, null]) {
    const { data } = await client.POST("/v1/compress", { body: { query, chunks, budget, granularity: "sentence", offsets: "utf16" } });
    assert.ok(data !== undefined);
    const context: string = data.context;
    const related: boolean | null = data.rc.related;
    assert.match(context, /Fleming/);
    assert.equal(related, true);
    assert.ok(data.answerable!.probability > 0);
    assert.equal(data.chunks.find(({ kept, id }) => kept && id === "fleming")?.index, 1);
  }
});

test("compress a conversation", async () => {
  const { data } = await client.POST("/headroom/v1/compress", { body: { messages: [{ role: "user", content: "When is high water?" }] } });
  assert.ok(data !== undefined);
  assert.equal(data.tokens_saved, 0);
});

test("attribute", async () => {
  const answer = "Alexander Fleming discovered penicillin in 1938.";
  const { data } = await client.POST("/v1/attribute", { body: { answer, chunks, sources_max: 2 } });
  const part: components["schemas"]["Part"] = data!.parts[0]!;
  const verdict: "supported" | "partly" | "contradicted" | "not_found" | "no_claim" = part.verdict;
  assert.equal(verdict, "contradicted");
  assert.equal(part.conflicts?.[0]?.source.text, "1928");
  assert.equal(part.sources[0]?.chunk, "fleming");
});

test("rerank", async () => {
  const documents = chunks.map((chunk) => (typeof chunk === "string" ? chunk : { text: chunk.text }));
  const { data } = await client.POST("/v2/rerank", { body: { query, documents, top_n: 1 } });
  assert.ok(data !== undefined && "results" in data);
  assert.equal(data.results[0]?.index, 1);
  const voyage = await client.POST("/v1/rerank", { body: { query, documents, top_k: 1 } });
  assert.ok(voyage.data !== undefined && "data" in voyage.data);
  assert.equal(voyage.data.data[0]?.index, 1);
});

test("registered chunks", async () => {
  const chunk = { id: "openapi", text: "Tides are caused by the moon.", metadata: { lang: "en" } };
  const registered = await client.POST("/v1/chunks", { body: { chunks: [chunk], wait: true } });
  assert.equal(registered.data?.chunks[0]?.status, "created");
  const { data } = await client.POST("/v1/search", { body: { query: "What causes tides?", filter: { lang: "en" } } });
  assert.deepEqual(data?.results.map(({ id }) => id), ["openapi"]);
  const found = await client.GET("/v1/chunks/{id}", { params: { path: { id: "openapi" } } });
  assert.equal(found.data?.text, "Tides are caused by the moon.");
  const deleted = await client.DELETE("/v1/chunks/{id}", { params: { path: { id: "openapi" } } });
  assert.equal(deleted.data?.chunks[0]?.status, "deleted");
});

test("errors", async () => {
  const { error, response } = await client.POST("/v1/compress", { body: { query, chunks, budget: { tokens: 0 } } });
  assert.equal(response.status, 422);
  const code: components["schemas"]["ErrorCode"] = error!.error.code;
  assert.deepEqual([code, error!.error.param], ["out_of_range", "budget.tokens"]);
});

/** The compiler refuses these calls; the function is never run. */
export function callsThatDoNotCompile(): void {
  // @ts-expect-error: the question is missing
  void client.POST("/v1/compress", { body: { chunks } });
  // @ts-expect-error: two budgets
  void client.POST("/v1/compress", { body: { query, chunks, budget: { tokens: 5, ratio: 0.5 } } });
  // @ts-expect-error: no such granularity
  void client.POST("/v1/attribute", { body: { answer: "a", chunks, granularity: "letter" } });
}
