import assert from "node:assert/strict";
import test from "node:test";
import { niceCeiling } from "../src/components/time-series";
import { bytes, milliseconds, percent, plural, score } from "../src/lib/format";
import { headsPerToken, readKvExport } from "../src/lib/kv-export";
import { parseSafetensors } from "../src/lib/safetensors";
import { snippet } from "../src/lib/snippets";

/** A safetensors file of I32 tensors. */
function safetensors(metadata, tensors) {
  const header = { __metadata__: metadata };
  let at = 0;
  for (const [name, values] of Object.entries(tensors)) header[name] = { dtype: "I32", shape: [values.length], data_offsets: [at, (at += 4 * values.length)] };
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  const data = Buffer.alloc(at);
  Object.values(tensors).flat().forEach((value, index) => data.writeInt32LE(value, 4 * index));
  return new Uint8Array(Buffer.concat([length, json, data])).buffer;
}

test("safetensors: tensors are read by name, also if they are not aligned", () => {
  const file = parseSafetensors(safetensors({ a: "b" }, { x: [1, -2], y: [2147483647] }));
  assert.deepEqual(file.metadata, { a: "b" });
  assert.deepEqual([...file.int32("x")], [1, -2]);
  assert.deepEqual([...file.int32("y")], [2147483647]);
  assert.throws(() => file.int32("z"), /no tensor z/);
});

test("safetensors: damaged files are refused", () => {
  const whole = safetensors({}, { x: [1, 2] });
  assert.throws(() => parseSafetensors(new ArrayBuffer(3)), /too short/);
  assert.throws(() => parseSafetensors(whole.slice(0, 20)), /no safetensors header/);
  assert.throws(() => parseSafetensors(whole.slice(0, -4)).int32("x"), /outside of the file/);
});

const METADATA = { format: "thresher-kv/1", policy: "heads", layers: "2", kv_heads: "2", chunk_ids: '["a"]' };
const TENSORS = {
  chunks: [-1, 0, 0],
  offsets: [-1, -1, 0, 2, 2, 5],
  "layers.0.counts": [1, 2],
  "layers.0.tokens": [0, 0, 2],
  "layers.1.counts": [0, 1],
  "layers.1.tokens": [2],
};

test("an export says which tokens each head keeps", () => {
  const kv = readKvExport(safetensors(METADATA, TENSORS));
  assert.deepEqual(kv.kept.map((layer) => layer.map((head) => [...head])), [[[0], [0, 2]], [[], [2]]]);
  assert.deepEqual([kv.tokens, kv.chunkIds], [3, ["a"]]);
  assert.deepEqual([...headsPerToken(kv)], [2, 0, 2]);
  assert.throws(() => readKvExport(safetensors({ ...METADATA, format: "thresher-kv/2" }, TENSORS)), /thresher-kv\/2/);
  assert.throws(() => readKvExport(safetensors({ ...METADATA, policy: "chunks" }, TENSORS)), /policy chunks/);
});

test("snippets quote any text", () => {
  const request = { query: "what's \"this\"?", chunks: ["it's\n$HOME `x` \\", { id: "b", text: "é" }], budget: { auto: true } };
  const input = { url: "http://127.0.0.1:8080", request, isKeyed: false };
  const [, json] = /--json '(.*)'\n$/s.exec(snippet("curl", input));
  assert.deepEqual(JSON.parse(json.replaceAll(`'\\''`, "'")), request);
  const python = snippet("Python", input);
  assert.match(python, /budget=\{"auto": True\},\n/);
  assert.match(python, /"what's \\"this\\"\?",\n/);
  const [, body] = /body: JSON\.stringify\((.*)\),\n\}\);\nconst answer/s.exec(snippet("TypeScript", input));
  assert.deepEqual(JSON.parse(body), { ...request, offsets: "utf16" });
});

test("snippets take the key from the environment and never contain it", () => {
  const input = { url: "http://h", request: { query: "q", chunks: ["c"] }, isKeyed: true };
  for (const language of ["curl", "Python", "TypeScript"]) assert.match(snippet(language, input), /THRESHER_API_KEY/);
});

test("numbers are written shortly", () => {
  assert.deepEqual([0, 0.004, 0.126, 1].map(percent), ["0 %", "<1 %", "13 %", "100 %"]);
  assert.deepEqual([0, 0.001, 0.5, 12.34, 340.2, 1500].map(milliseconds), ["0 ms", "<0.01 ms", "0.50 ms", "12.3 ms", "340 ms", "1.50 s"]);
  assert.deepEqual([0, 999, 1000, 1_234_567, 8e9].map(bytes), ["0 B", "999 B", "1 kB", "1.23 MB", "8 GB"]);
  assert.deepEqual([0, 0.321, 0.0024, 5.25].map(score), ["0", "0.32", "0.0024", "5.25"]);
  assert.deepEqual([plural(1, "chunk"), plural(1200, "chunk"), plural(2, "has", "have")], ["1 chunk", "1,200 chunks", "2 have"]);
  assert.deepEqual([0, 0.7, 1, 3, 5, 11, 240].map(niceCeiling), [1, 1, 1, 5, 5, 20, 500]);
});
