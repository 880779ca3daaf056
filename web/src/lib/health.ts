// Says in words how the daemon is doing.
import { percent, plural } from "./format";
import type { Reading } from "./history";
import { increase, sum } from "./prometheus";

/** A statement about the daemon, and how much it should worry an operator. */
export interface Sentence {
  text: string;
  level: "good" | "warn" | "bad";
}

/**
 * The health of the daemon in sentences, the most urgent first. `history` has at least one reading; failures count if they happened within it.
 * `ready` is the text of `/readyz`.
 */
export function healthSentences(history: readonly Reading[], ready: string): Sentence[] {
  const { metrics } = history.at(-1)!;
  const first = history[0]!.metrics;
  const sentences: Sentence[] = [];
  const say = (condition: boolean, level: Sentence["level"], text: string) => {
    if (condition) sentences.push({ level, text });
  };
  const grew = (name: string, labels?: Record<string, string>) => increase(first, metrics, name, labels);
  say(ready === "draining", "warn", "The daemon is shutting down and finishes the requests in progress.");
  say(ready !== "ok" && ready !== "draining", "bad", `The daemon is not ready: ${ready}.`);
  say((sum(metrics, "kv_failing") ?? 0) > 0, "bad", "Blocks cannot be written to disk. They are cached in memory only.");
  say(grew("originals_failures_total") > 0, "bad", "The store of originals cannot be read or written.");
  say(grew("keys_reloads_total", { outcome: "failed" }) > 0, "bad", "The changed keys file is invalid. The daemon uses the keys before the change.");
  say(grew("tls_reloads_total", { outcome: "failed" }) > 0, "bad", "The changed certificate is invalid. The daemon uses the one before.");
  const breaker = sum(metrics, "shared_breaker_open") ?? 0;
  say(breaker > 0, "warn", `The shared tier fails: ${percent(breaker)} of its servers get no requests.`);
  const overloaded = grew("requests_total", { code: "overloaded" }) + grew("requests_total", { code: "deadline_exceeded" });
  say(overloaded > 0, "warn", `${plural(overloaded, "request was", "requests were")} refused or late in the last minutes, because the daemon is too busy.`);
  const damaged = grew("kv_damaged_total");
  say(damaged > 0, "warn", `${plural(damaged, "cached block was", "cached blocks were")} damaged and read again.`);
  const waiting = sum(metrics, "requests_waiting") ?? 0;
  say(waiting > 0, "warn", `${plural(waiting, "request waits", "requests wait")} in the queue.`);
  const model = metrics.get("model_info")?.find((sample) => sample.value === 1)?.labels;
  const ofModel = model ? ` ${model.model} runs on ${model.device}.` : "";
  if (sentences.every((sentence) => sentence.level !== "bad") && ready === "ok") sentences.push({ level: "good", text: `The daemon is ready.${ofModel}` });
  return sentences;
}
