// The readings of `/metrics` of the last minutes, and series of numbers over them.
import type { Metrics } from "./prometheus";

export interface Reading {
  /** Milliseconds since the epoch. */
  at: number;
  metrics: Metrics;
}

/** A point of a series. `value` is null where there is nothing to show. */
export interface Point {
  at: number;
  value: number | null;
}

export const HISTORY_MS = 600_000;

/** Readings that are further apart are not compared: the tab was hidden or the daemon could not be reached. */
const GAP_MS_MAX = 15_000;

/** The history with one more reading, without those that have become too old. */
export function withReading(history: readonly Reading[], reading: Reading): Reading[] {
  return [...history.filter((earlier) => earlier.at > reading.at - HISTORY_MS), reading];
}

/** One point per reading. */
export function levels(history: readonly Reading[], value: (metrics: Metrics) => number | null): Point[] {
  return history.map(({ at, metrics }) => ({ at, value: value(metrics) }));
}

/** One point per reading, of what changed since the reading about `windowMs` before it. */
export function changes(
  history: readonly Reading[],
  windowMs: number,
  value: (before: Metrics, after: Metrics, seconds: number) => number | null,
): Point[] {
  return history.slice(1).map((after, index) => {
    const before = earlier(history, index, after.at - windowMs);
    if (!before) return { at: after.at, value: null };
    return { at: after.at, value: value(before.metrics, after.metrics, (after.at - before.at) / 1000) };
  });
}

/** The oldest reading from `since` on that has no gap between it and the reading after `index`; null if there is none. */
function earlier(history: readonly Reading[], index: number, since: number): Reading | null {
  let found: Reading | null = null;
  for (let at = index; at >= 0; at--) {
    const reading = history[at]!;
    if (history[at + 1]!.at - reading.at > GAP_MS_MAX || (found && reading.at < since)) break;
    found = reading;
  }
  return found;
}
