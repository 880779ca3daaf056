import assert from "node:assert/strict";
import test from "node:test";
import { healthSentences } from "../src/lib/health";
import { parseMetrics } from "../src/lib/prometheus";
import { answerableVerdict, bestScore, chunkVerdict, conflictLine, keptOf, otherVerdicts, partVerdict, placeOf, quoteVerdict } from "../src/lib/verdict";

test("a chunk's verdict says why it was kept or left out", () => {
  const chunk = (score, kept, more = {}) => ({ id: "0", index: 0, kept, score, text: "", ...more });
  const check = (outcome, expect, more = {}) => {
    const answer = { chunks: [chunk(0.4, true), outcome], related: true, degraded: null, ...more };
    assert.match(chunkVerdict(answer, outcome, outcome.kept ? [{ start: 0, end: 5 }] : [], "ten letters"), expect);
  };
  check(chunk(0.4, true), /^45 % of the text is kept\. No chunk has a higher score\.$/);
  check(chunk(0.1, true), /Its score is 25 % of the best/);
  check(chunk(0.004, false), /^Left out: its score is 1 % of the best \(0\.0040 of 0\.40\)\.$/);
  check(chunk(0.3, false), /although its score is 75 % of the best/);
  check(chunk(null, false, { empty: true }), /no text/);
  check(chunk(null, true), /unchanged/, { degraded: { code: "overloaded", message: "" } });
  assert.equal(bestScore([chunk(null, false), chunk(0.2, true)]), 0.2);
});

test("a piece that an earlier chunk has, too, belongs to that chunk", () => {
  const piece = (chunk, marker, start, score) => ({ chunk, marker, source: { start, end: start + 5 }, output: { start: 0, end: 5 }, text: "", score });
  const chunks = [{ id: "a", kept: true }, { id: "b", kept: false }, { id: "c", kept: true }];
  const citations = [piece("a", 1, 0, 0.4), piece("b", 1, 3, null), { ...piece("c", 2, 0, 0.2), page: 3 }, piece("c", 1, 9, null)];
  assert.deepEqual([...keptOf({ chunks, citations })], [
    ["a", { marker: 1, ranges: [{ start: 0, end: 5, score: 0.4 }], place: "" }],
    ["c", { marker: 2, ranges: [{ start: 0, end: 5, score: 0.2 }], place: "page 3" }],
  ]);
});

test("a place names what is known", () => {
  assert.equal(placeOf({ page: 12, line: 120, heading: ["Leave", "Carry-over"] }), "page 12, line 120, Leave › Carry-over");
  assert.equal(placeOf({ line: 4 }), "line 4");
  assert.equal(placeOf({}), "");
});

test("a part's verdict counts its citations", () => {
  const part = (verdict, cited = 0, independent = cited) => ({ verdict, sources_independent: independent, sources: Array.from({ length: cited }, () => ({ cited: true })) });
  assert.equal(partVerdict(part("supported", 1)), "Supported.");
  assert.equal(partVerdict(part("supported", 2, 1)), "Supported by 2 chunks.");
  assert.equal(partVerdict(part("supported", 3, 2)), "Supported by 3 chunks, 2 independent sources.");
  assert.equal(partVerdict(part("partly", 2, 1)), "Supported in part by 2 chunks.");
  assert.match(partVerdict(part("contradicted")), /^Contradicted/);
  assert.match(partVerdict(part("not_found")), /^Not found/);
  assert.match(partVerdict(part("no_claim")), /no claim/);
  assert.equal(otherVerdicts([part("supported"), part("not_found"), part("partly"), part("not_found")]), ", 1 in part, 2 not found");
  assert.equal(otherVerdicts([part("supported")]), "");
});

test("a conflict says what the chunk says instead", () => {
  const part = { text: "It opened in 1913." };
  const line = (text, reason, source) => conflictLine({ text, reason, source: { text: source } }, part, "Bridge");
  assert.equal(line("1913", "number", "1931"), "“1913”: the chunk says “1931” (Bridge; another number).");
  assert.equal(line(part.text, "negation", "never"), "The sentence: the chunk says “never” (Bridge; one of the two denies it).");
  // A newer daemon may know more reasons.
  assert.match(line("1913", "tense", "opens"), /tense/);
});

test("a quotation that is not exact says why", () => {
  const check = (verdict, passages, altered, expect) => {
    const quote = { verdict, passages: passages.map((index) => ({ index })), altered: altered.map((text) => ({ text })) };
    assert.equal(quoteVerdict(quote, (index) => `C${index}`), expect);
  };
  check("exact", [0], [], "Exact: C0 says it word for word.");
  check("stitched", [0, 0, 2], [], "Stitched together: it consists of 3 passages (C0, C2).");
  check("altered", [1], ["by", "accident"], "Altered: C1 does not have “by”, “accident” there.");
  check("altered", [1], [], "Altered: it is not word for word what C1 says.");
  check("misattributed", [1], [], "Misattributed: it stands in C1, not in the chunk that the answer names.");
  check("fabricated", [], [], "Fabricated: no chunk says it.");
});

test("a probability between the even chance and the limit says perhaps", () => {
  const check = (probability, least, expect) => assert.equal(answerableVerdict({ probability, answerable: probability >= least }), expect);
  check(0.92, 0.2, "Probably answered by the chunks: 92 %.");
  check(0.03, 0.2, "Probably not answered by the chunks: an answer has a probability of 3 %.");
  check(0.3, 0.2, "Perhaps answered by the chunks: 30 %.");
  check(0.6, 0.8, "Perhaps answered by the chunks: 60 %.");
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
