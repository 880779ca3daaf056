// Reads Prometheus' text format 0.0.4, and computes what dashboards show: sums, rates and quantiles.

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

/** One reading of `/metrics`: the samples by name. */
export type Metrics = Map<string, Sample[]>;

/** Labels that a sample must have, with these values. */
export type Labels = Record<string, string>;

const NAME = /[a-zA-Z_:][a-zA-Z0-9_:]*/y;
const LABEL = /\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(,|(?=\}))/y;
const VALUE = /\s*([^\s]+)(?:\s+-?\d+)?\s*$/y;

/** Parses a whole exposition. Lines that are not samples are skipped, as scrapers of older versions do. */
export function parseMetrics(text: string): Metrics {
  const metrics: Metrics = new Map();
  for (const line of text.split("\n")) {
    const sample = line.startsWith("#") ? null : parseSample(line.trim());
    if (!sample) continue;
    const samples = metrics.get(sample.name);
    if (samples) samples.push(sample);
    else metrics.set(sample.name, [sample]);
  }
  return metrics;
}

function parseSample(line: string): Sample | null {
  const name = match(NAME, line, 0);
  if (!name) return null;
  const labels: Labels = {};
  let at = name[0].length;
  while (line[at] === " ") at++;
  if (line[at] === "{") {
    at++;
    for (let label = match(LABEL, line, at); label; label = match(LABEL, line, at)) {
      labels[label[1]!] = unescape(label[2]!);
      at += label[0].length;
    }
    while (line[at] === " ") at++;
    if (line[at] !== "}") return null;
    at++;
  }
  const value = match(VALUE, line, at);
  const number = value && toNumber(value[1]!);
  return number === null || number === undefined ? null : { name: name[0], labels, value: number };
}

function match(pattern: RegExp, text: string, at: number): RegExpExecArray | null {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function unescape(text: string): string {
  return text.replace(/\\(.)/g, (_, character) => (character === "n" ? "\n" : character));
}

function toNumber(text: string): number | null {
  if (/^\+?inf$/i.test(text)) return Infinity;
  if (/^-inf$/i.test(text)) return -Infinity;
  if (/^nan$/i.test(text)) return NaN;
  const value = Number(text);
  return Number.isNaN(value) ? null : value;
}

function samplesOf(metrics: Metrics, name: string, labels: Labels): Sample[] {
  const wanted = Object.entries(labels);
  return (metrics.get(name) ?? []).filter((sample) => wanted.every(([label, value]) => sample.labels[label] === value));
}

/** The sum of all samples with this name and these labels; null if there are none. */
export function sum(metrics: Metrics, name: string, labels: Labels = {}): number | null {
  const samples = samplesOf(metrics, name, labels);
  return samples.length === 0 ? null : samples.reduce((total, sample) => total + sample.value, 0);
}

/** The values of one label among the samples with this name, in the order of the exposition. */
export function labelValues(metrics: Metrics, name: string, label: string): string[] {
  return [...new Set((metrics.get(name) ?? []).map((sample) => sample.labels[label] ?? ""))];
}

/** How much counters grew from `before` to `after`. After a restart a counter begins again at zero, and all of it is growth. */
export function increase(before: Metrics, after: Metrics, name: string, labels: Labels = {}): number {
  const previous = new Map(samplesOf(before, name, labels).map((sample) => [identity(sample), sample.value]));
  return samplesOf(after, name, labels).reduce((total, sample) => {
    const earlier = previous.get(identity(sample)) ?? 0;
    return total + (sample.value >= earlier ? sample.value - earlier : sample.value);
  }, 0);
}

function identity(sample: Sample): string {
  return JSON.stringify(Object.entries(sample.labels).sort());
}

/** Cumulative buckets of a histogram: how many observations were at most `le`. */
export interface Bucket {
  le: number;
  count: number;
}

/** The observations of a histogram between two readings, summed over all samples with these labels. */
export function bucketIncrease(before: Metrics, after: Metrics, name: string, labels: Labels = {}): Bucket[] {
  const bounds = labelValues(after, `${name}_bucket`, "le").map((le) => ({ le, bound: toNumber(le) ?? NaN }));
  return bounds
    .sort((a, b) => a.bound - b.bound)
    .map(({ le, bound }) => ({ le: bound, count: increase(before, after, `${name}_bucket`, { ...labels, le }) }));
}

/**
 * The quantile `q` of a histogram, linear within a bucket, as `histogram_quantile` of Prometheus computes it. If it is in the last bucket,
 * the largest finite bound is returned; null if there are no observations.
 */
export function quantile(buckets: readonly Bucket[], q: number): number | null {
  const total = buckets.at(-1)?.count ?? 0;
  if (total <= 0) return null;
  const rank = q * total;
  const index = buckets.findIndex((bucket) => bucket.count >= rank);
  const bucket = buckets[index]!;
  const below = buckets[index - 1] ?? { le: 0, count: 0 };
  if (!Number.isFinite(bucket.le)) return below.le;
  const inside = bucket.count - below.count;
  return below.le + (bucket.le - below.le) * (inside > 0 ? (rank - below.count) / inside : 1);
}
