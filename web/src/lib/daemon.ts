// Which listener of the daemon served this page, and which models it has loaded.
import { useEffect } from "preact/hooks";
import { apiKey, keyRefused } from "./access";
import { Failure, type Model, models } from "./api";
import { createStore, useStore } from "./store";

export type Daemon =
  | { state: "asking" }
  /** The public listener. `models` is empty until a model is loaded or a key is given. */
  | { state: "api"; models: Model[]; failure: Failure | null }
  /** The admin listener, which has no API. */
  | { state: "admin" };

const RETRY_MS = 3000;

const daemon = createStore<Daemon>({ state: "asking" });

export function useDaemon(): Daemon {
  return useStore(daemon);
}

/** Asks for the models now, again after each new key, and again until the daemon has loaded them. */
export function useDaemonUpdates(): void {
  const key = useStore(apiKey);
  useEffect(() => {
    const controller = new AbortController();
    let timer = 0;
    const ask = async () => {
      try {
        daemon.set({ state: "api", models: await models(controller.signal), failure: null });
        // Without a key this succeeds only if the daemon needs none.
        keyRefused.set(null);
      } catch (error) {
        if (controller.signal.aborted) return;
        const failure = Failure.of(error);
        if (failure.code === "not_found") return daemon.set({ state: "admin" });
        daemon.set({ state: "api", models: [], failure });
        if (failure.status !== 401 && failure.status !== 403) timer = window.setTimeout(ask, RETRY_MS);
      }
    };
    void ask();
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key]);
}

/** The likely address of the other listener, on the host of this page. The port is the default of config/thresher.toml. */
export function otherListener(port: number): string {
  const name = /^(localhost|127\.[\d.]+|\[::1\])$/.test(location.hostname) ? location.hostname : "127.0.0.1";
  return `http://${name}:${port}/`;
}
