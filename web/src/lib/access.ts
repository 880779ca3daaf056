// The API key of this tab. It is kept in sessionStorage only, and never written anywhere else.
import { createStore } from "./store";

const NAME = "thresher.key";

/** The key, or an empty text. */
export const apiKey = createStore(read());

/** The code of the last 401, while no key has been given since. */
export const keyRefused = createStore<string | null>(null);

export function setApiKey(key: string): void {
  try {
    sessionStorage.setItem(NAME, key);
  } catch {
    // Without storage the key lasts until the page is closed or loaded again.
  }
  keyRefused.set(null);
  apiKey.set(key);
}

export function forgetApiKey(): void {
  try {
    sessionStorage.removeItem(NAME);
  } catch {
    // Nothing was stored.
  }
  apiKey.set("");
}

function read(): string {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}
