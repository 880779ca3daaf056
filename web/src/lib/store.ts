// Stores: values outside of components that several views share, some of which survive a reload in sessionStorage.
import { useEffect, useState } from "preact/hooks";

/** The most UTF-16 code units of one stored value. A larger one is used, but not stored. */
export const STORED_LENGTH_MAX = 2_000_000;

export interface Store<T> {
  get(): T;
  set(value: T): void;
  subscribe(listener: () => void): () => void;
}

export function createStore<T>(initial: T): Store<T> {
  let value = initial;
  const listeners = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listener of [...listeners]) listener();
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
  };
}

/** A store whose value is kept in sessionStorage under `name`. `overflow` is true while the value is too large to be kept. */
export function createSessionStore<T>(name: string, initial: T): Store<T> & { overflow: Store<boolean> } {
  const key = `thresher.${name}`;
  const store = createStore(read(key, initial));
  const overflow = createStore(false);
  let timer = 0;
  const write = () => {
    timer = 0;
    overflow.set(!tryWrite(key, store.get()));
  };
  store.subscribe(() => {
    // One write for a burst of key presses: a large value takes milliseconds to serialize.
    if (timer === 0) timer = window.setTimeout(write, 200);
  });
  addEventListener("pagehide", () => {
    if (timer !== 0) write();
  });
  return { ...store, overflow };
}

export function useStore<T>(store: Store<T>): T {
  const [value, setValue] = useState(store.get());
  useEffect(() => {
    const update = () => setValue(() => store.get());
    // The value may have changed between the render and this effect.
    update();
    return store.subscribe(update);
  }, [store]);
  return value;
}

function read<T>(key: string, initial: T): T {
  try {
    const text = sessionStorage.getItem(key);
    return text === null ? initial : { ...initial, ...JSON.parse(text) };
  } catch {
    // Storage is blocked, or holds what another program wrote.
    return initial;
  }
}

function tryWrite(key: string, value: unknown): boolean {
  try {
    const text = JSON.stringify(value);
    if (text.length > STORED_LENGTH_MAX) {
      sessionStorage.removeItem(key);
      return false;
    }
    sessionStorage.setItem(key, text);
    return true;
  } catch {
    return false;
  }
}
