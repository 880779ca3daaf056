import assert from "node:assert/strict";
import test from "node:test";
import { changes, levels, withReading } from "../src/lib/history";
import { bucketIncrease, increase, labelValues, parseMetrics, quantile, sum } from "../src/lib/prometheus";

test("samples are parsed with labels, escapes and special values", () => {
  const check = (line, expect) => {
    const [sample] = [...parseMetrics(line).values()].flat();
    assert.deepEqual(sample && [sample.name, sample.labels, sample.value], expect, line);
  };
  check("up 1", ["up", {}, 1]);
  check("up 1 1395066363000", ["up", {}, 1]);
  check('a{x="1",y="2"} 3.5e-3', ["a", { x: "1", y: "2" }, 0.0035]);
  check('a{x="1",} 2', ["a", { x: "1" }, 2]);
  check('a { x = "1" , y = "2" } 2', ["a", { x: "1", y: "2" }, 2]);
  check('a{} 2', ["a", {}, 2]);
  check(String.raw`a{p="C:\\x\n\"q\"",b="}"} 1`, ["a", { p: 'C:\\x\n"q"', b: "}" }, 1]);
  check('a{p="{a=1,b} 7"} 2', ["a", { p: "{a=1,b} 7" }, 2]);
  check("a +Inf", ["a", {}, Infinity]);
  check("a -Inf", ["a", {}, -Infinity]);
  check("a NaN", ["a", {}, NaN]);
  check("ns:job_rate:5m 4", ["ns:job_rate:5m", {}, 4]);
  for (const line of ["# HELP a b", "# TYPE a counter", "", "a", 'a{x="1" 2', "a b", '{x="1"} 2']) check(line, undefined);
});

const BEFORE = parseMetrics(`
requests_total{code="ok",path="/a"} 10
requests_total{code="ok",path="/b"} 5
requests_total{code="late",path="/a"} 1
seconds_bucket{path="/a",le="0.1"} 1
seconds_bucket{path="/a",le="0.5"} 2
seconds_bucket{path="/a",le="+Inf"} 2`);
const AFTER = parseMetrics(`
requests_total{code="ok",path="/a"} 14
requests_total{code="ok",path="/b"} 2
requests_total{code="late",path="/a"} 1
requests_total{code="new",path="/a"} 3
seconds_bucket{path="/a",le="+Inf"} 12
seconds_bucket{path="/a",le="0.1"} 6
seconds_bucket{path="/a",le="0.5"} 11
seconds_bucket{path="/b",le="0.1"} 1
seconds_bucket{path="/b",le="0.5"} 1
seconds_bucket{path="/b",le="+Inf"} 2`);

test("samples are summed by labels", () => {
  assert.equal(sum(BEFORE, "requests_total"), 16);
  assert.equal(sum(BEFORE, "requests_total", { code: "ok" }), 15);
  assert.equal(sum(BEFORE, "requests_total", { code: "none" }), null);
  assert.equal(sum(BEFORE, "other"), null);
  assert.deepEqual(labelValues(BEFORE, "requests_total", "path"), ["/a", "/b"]);
});

test("counters grow, also from nothing and after a restart", () => {
  assert.equal(increase(BEFORE, AFTER, "requests_total", { path: "/a", code: "ok" }), 4);
  // The daemon restarted: all of the new value is growth.
  assert.equal(increase(BEFORE, AFTER, "requests_total", { path: "/b" }), 2);
  assert.equal(increase(BEFORE, AFTER, "requests_total", { code: "new" }), 3);
  assert.equal(increase(BEFORE, AFTER, "requests_total"), 9);
});

test("quantiles of a histogram are those of Prometheus", () => {
  const buckets = bucketIncrease(BEFORE, AFTER, "seconds", { path: "/a" });
  assert.deepEqual(buckets, [{ le: 0.1, count: 5 }, { le: 0.5, count: 9 }, { le: Infinity, count: 10 }]);
  assert.equal(quantile(buckets, 0.25), 0.05);
  assert.equal(quantile(buckets, 0.5), 0.1);
  assert.ok(Math.abs(quantile(buckets, 0.7) - 0.3) < 1e-12);
  // Beyond the last finite bound nothing is known but the bound.
  assert.equal(quantile(buckets, 0.99), 0.5);
  assert.equal(bucketIncrease(BEFORE, AFTER, "seconds").at(-1).count, 12);
  assert.equal(quantile([{ le: 1, count: 0 }, { le: Infinity, count: 0 }], 0.5), null);
  assert.equal(quantile([], 0.5), null);
});

const reading = (at, value) => ({ at, metrics: parseMetrics(`a_total ${value}`) });
const history = [reading(0, 0), reading(2000, 4), reading(4000, 8), reading(6000, 20)];

test("rates are differences over a window", () => {
  const rates = (window, readings = history) =>
    changes(readings, window, (before, after, seconds) => increase(before, after, "a_total") / seconds).map((point) => point.value);
  assert.deepEqual(rates(2000), [2, 2, 6]);
  assert.deepEqual(rates(4000), [2, 2, 4]);
  // The window is longer than the time between two readings, or shorter than it.
  assert.deepEqual(rates(1), [2, 2, 6]);
  // While the tab was hidden nothing was read, and a rate over that time would hide what happened.
  assert.deepEqual(rates(4000, [reading(0, 0), reading(100_000, 50), reading(102_000, 60)]), [null, 5]);
});

test("the history keeps ten minutes", () => {
  const kept = withReading([reading(0, 1), reading(500_000, 2)], reading(700_000, 3));
  assert.deepEqual(kept.map(({ at }) => at), [500_000, 700_000]);
  assert.deepEqual(levels(kept, (metrics) => sum(metrics, "a_total")), [{ at: 500_000, value: 2 }, { at: 700_000, value: 3 }]);
});
