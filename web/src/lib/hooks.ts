// Hooks that views share.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { apiKey } from "./access";
import { Failure } from "./api";
import { useStore } from "./store";

/** The answer to the newest request for which there is one. */
export interface Latest<T> {
  value: T | undefined;
  /** The key of the request that `value` answers. If it is not the current key, `value` is old. */
  valueKey: string | null;
  /** Why the newest request has no answer. */
  failure: Failure | null;
  pending: boolean;
  retry: () => void;
}

/**
 * Sends a request whenever `key`, which identifies it, changes; none while `key` is null. Requests start at least `intervalMs` apart. A
 * request that starts aborts the one before it, so an older answer never replaces a newer one.
 */
export function useLatest<T>(key: string | null, send: (signal: AbortSignal) => Promise<T>, intervalMs = 0): Latest<T> {
  const [state, setState] = useState<Omit<Latest<T>, "retry">>({ value: undefined, valueKey: null, failure: null, pending: false });
  const [attempt, setAttempt] = useState(0);
  const accessKey = useStore(apiKey);
  const running = useRef<AbortController | null>(null);
  const startedAt = useRef(-Infinity);
  const newest = useRef(send);
  newest.current = send;

  useEffect(() => {
    if (key === null) {
      running.current?.abort();
      setState((old) => ({ ...old, failure: null, pending: false }));
      return;
    }
    setState((old) => ({ ...old, pending: true }));
    const start = async () => {
      // Aborted only now: while a slider moves, answers keep coming although the next request is already planned.
      running.current?.abort();
      const controller = new AbortController();
      running.current = controller;
      startedAt.current = performance.now();
      try {
        const value = await newest.current(controller.signal);
        if (!controller.signal.aborted) setState({ value, valueKey: key, failure: null, pending: false });
      } catch (error) {
        if (!controller.signal.aborted) setState((old) => ({ ...old, failure: Failure.of(error), pending: false }));
      }
    };
    const timer = setTimeout(start, Math.max(0, startedAt.current + intervalMs - performance.now()));
    return () => clearTimeout(timer);
  }, [key, attempt, accessKey]);

  useEffect(() => () => running.current?.abort(), []);
  return { ...state, retry: useCallback(() => setAttempt((count) => count + 1), []) };
}

/** `value`, but only after it has not changed for `ms`. */
export function useDebounced<T>(value: T, ms: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(() => value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** The view in the address (`#/compress`), without its prefix. */
export function useRoute(): string {
  const read = () => location.hash.replace(/^#\/?/, "");
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const update = () => setRoute(read());
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}
