import assert from "node:assert/strict";
import test from "node:test";
import { healthSentences } from "../src/lib/health";
import { parseMetrics } from "../src/lib/prometheus";
import { bestScore, chunkVerdict, partVerdict } from "../src/lib/verdict";

test("a chunk's verdict says why it was kept or left out", () => {
  const chunk = (score, kept, more = {}) => ({ id: "0", index: 0, kept, score, text: "", spans: kept ? [{ start: 0, end: 5, score, output: { start: 0, end: 5 } }] : [], ...more });
  const check = (outcome, expect, more = {}) => {
    const answer = { chunks: [chunk(0.4, true), outcome], rc: { related: true }, degraded: null, ...more };
    assert.match(chunkVerdict(answer, outcome, "ten letters"), expect);
  };
  check(chunk(0.4, true), /^45 % of the text is kept\. No chunk has a higher score\.$/);
  check(chunk(0.1, true), /Its score is 25 % of the best/);
  check(chunk(0.004, false), /^Left out: its score is 1 % of the best \(0\.0040 of 0\.40\)\.$/);
  check(chunk(0.3, false), /although its score is 75 % of the best/);
  check(chunk(0, false), /nothing is related/, { rc: { related: false } });
  check(chunk(null, false, { empty: true }), /no text/);
  check(chunk(null, true), /unchanged/, { degraded: { code: "overloaded", message: "" } });
  assert.equal(bestScore([chunk(null, false), chunk(0.2, true)]), 0.2);
});

test("a part's verdict counts its citations", () => {
  const part = (supported, support, cited) => ({ supported, support, sources: Array.from({ length: cited }, () => ({ cited: true })) });
  assert.equal(partVerdict(part(true, 0.7, 1)), "Supported.");
  assert.equal(partVerdict(part(true, 0.7, 2)), "Supported by 2 chunks.");
  assert.equal(partVerdict(part(false, 0.1, 0)), "Not supported.");
  assert.match(partVerdict(part(false, null, 0)), /no word/);
});

test("health names what is wrong, and what is new", () => {
  const check = (before, after, ready, expect) => {
    const history = [before, after].map((text, index) => ({ at: index, metrics: parseMetrics(text) }));
    assert.deepEqual(healthSentences(history, ready).map(({ level, text }) => `${level}: ${text}`), expect);
  };
  const model = 'model_info{model="m",device="cpu"} 1\n';
  check(model, model, "ok", ["good: The daemon is ready. m runs on cpu."]);
  check("", "", "loading the model", ["bad: The daemon is not ready: loading the model."]);
  check("", "", "draining", ["warn: The daemon is shutting down and finishes the requests in progress."]);
  check("", 'kv_failing{tier="disk"} 1', "ok", ["bad: Blocks cannot be written to disk. They are cached in memory only."]);
  // What was refused before the page was opened is over.
  check('requests_total{code="overloaded"} 5', 'requests_total{code="overloaded"} 5', "ok", ["good: The daemon is ready."]);
  check('requests_total{code="overloaded"} 5', 'requests_total{code="overloaded"} 6\nrequests_waiting 2', "ok", [
    "warn: 1 request was refused or late in the last minutes, because the daemon is too busy.",
    "warn: 2 requests wait in the queue.",
    "good: The daemon is ready.",
  ]);
  check("", "shared_breaker_open 0.5", "ok", ["warn: The shared tier fails: 50 % of its servers get no requests.", "good: The daemon is ready."]);
});
