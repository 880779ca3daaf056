/** Sends requests with `fetch`: address, key, time limit, cancellation and retries. */

import { ApiError, ConnectionFailedError, ThresherError, TimedOutError, apiError } from "./errors.js";
import { type Retries, RETRIES_DEFAULT, RetryState } from "./retry.js";

/** Options of a client. */
export interface ClientOptions {
  /** The address of the daemon. Default: the environment variable THRESHER_URL, or http://127.0.0.1:8080. */
  baseUrl?: string;
  /** The key that is sent as a bearer token. Default: the environment variable THRESHER_API_KEY, or none. */
  apiKey?: string;
  /** The limit in milliseconds for a whole call, including retries and the waits between them. Default: 60,000. */
  timeoutMs?: number;
  /** Limits of retries. */
  retries?: Partial<Retries>;
  /** A function in place of the global `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** Options of one call. */
export interface CallOptions {
  /** Aborts the call, which then rejects with the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** The limit in milliseconds for this call, in place of the client's. */
  timeoutMs?: number | undefined;
}

/** A request to the daemon. Every call can be repeated safely: it reads, or it stores what is already stored. */
export interface Call {
  method: "GET" | "POST";
  path: string;
  params?: Record<string, string>;
  body?: unknown;
}

const BASE_URL_DEFAULT = "http://127.0.0.1:8080";
const TIMEOUT_MS_DEFAULT = 60_000;
/** Timers take no longer times. */
const TIMEOUT_MS_MAX = 2 ** 31 - 1;

/** The address, the key and the limits of a client. */
export class Transport {
  readonly baseUrl: string;
  private readonly headers: Record<string, string>;
  private readonly timeoutMs: number;
  private readonly retries: Retries;
  private readonly fetch: typeof globalThis.fetch;

  constructor(options: ClientOptions) {
    this.baseUrl = checkedUrl(options.baseUrl || environment("THRESHER_URL") || BASE_URL_DEFAULT);
    const key = (options.apiKey || environment("THRESHER_API_KEY") || "").trim();
    if (!/^[\x20-\x7e]*$/.test(key)) throw new TypeError("apiKey must be one line of printable ASCII characters");
    this.headers = key === "" ? {} : { authorization: `Bearer ${key}` };
    this.timeoutMs = checkedTimeout(options.timeoutMs ?? TIMEOUT_MS_DEFAULT);
    this.retries = { ...RETRIES_DEFAULT, ...options.retries };
    const { countMax, waitMsMin, waitMsMax } = this.retries;
    if (!(countMax >= 0 && waitMsMin >= 0 && waitMsMin <= waitMsMax)) {
      throw new RangeError("retries: countMax must be at least 0, and 0 <= waitMsMin <= waitMsMax");
    }
    this.fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
  }

  /** The milliseconds that a call with these options may take. */
  timeout(options: CallOptions): number {
    return options.timeoutMs === undefined ? this.timeoutMs : checkedTimeout(options.timeoutMs);
  }

  /** Sends the request and reads the answer with `read`, retrying both within the time of the call. */
  async call<T>(call: Call, read: (response: Response) => Promise<T>, options: CallOptions): Promise<T> {
    const { method, path, params, body } = call;
    const query = new URLSearchParams(params).toString();
    const url = this.baseUrl + path + (query === "" ? "" : `?${query}`);
    const content = body === undefined ? undefined : JSON.stringify(body);
    const headers = content === undefined ? this.headers : { ...this.headers, "content-type": "application/json" };
    const init = { method, headers, ...(content === undefined ? {} : { body: content }) };
    return this.repeated(options, (signal) => this.attempt(url, init, signal, read));
  }

  /** Runs `attempt` until it succeeds, its error is final, or the time of the call is over. */
  async repeated<T>(options: CallOptions, attempt: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const timeoutMs = this.timeout(options);
    const deadline = Date.now() + timeoutMs;
    const state = new RetryState(this.retries);
    let previous: ThresherError | undefined;
    for (;;) {
      options.signal?.throwIfAborted();
      try {
        return await withTimeout(Math.max(deadline - Date.now(), 1), timeoutMs, options.signal, attempt);
      } catch (error) {
        if (!(error instanceof ThresherError)) throw error;
        if (error instanceof TimedOutError && previous !== undefined) {
          // The last attempt had only the time that was left: the error before it says more about the cause.
          throw new TimedOutError(error.code, `${error.message}; the attempt before failed: ${previous.message}`, { cause: previous });
        }
        previous = error;
        const waitMs = state.waitMs(error);
        // No time would be left after the wait, and this error says more about the cause than a timeout would.
        if (waitMs === null || Date.now() + waitMs >= deadline) throw error;
        await sleep(waitMs, options.signal);
      }
    }
  }

  private async attempt<T>(url: string, init: RequestInit, signal: AbortSignal, read: (response: Response) => Promise<T>): Promise<T> {
    try {
      const response = await this.fetch(url, { ...init, signal, redirect: "manual" });
      if (response.status < 200 || response.status > 299) {
        throw apiError(response.status, response.headers, await response.text());
      }
      return await read(response);
    } catch (error) {
      if (error instanceof ThresherError || signal.aborted) throw error;
      throw connectionError(error);
    }
  }
}

/** The error for a connection that could not be opened or that broke. */
export function connectionError(error: unknown): ConnectionFailedError {
  // The message of `fetch` is "fetch failed"; its cause says why.
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  const message = cause instanceof Error ? cause.message || cause.name : String(cause);
  return new ConnectionFailedError("connection_failed", message, { cause: error });
}

/** Runs `work` with a signal that aborts after `leftMs`, or when `outer` aborts. */
async function withTimeout<T>(
  leftMs: number,
  timeoutMs: number,
  outer: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const inner = new AbortController();
  const abort = () => inner.abort(outer?.reason);
  const timer = setTimeout(() => inner.abort(timedOut(timeoutMs)), leftMs);
  outer?.addEventListener("abort", abort, { once: true });
  try {
    return await work(inner.signal);
  } catch (error) {
    if (inner.signal.aborted && !(error instanceof ApiError)) throw inner.signal.reason;
    throw error;
  } finally {
    clearTimeout(timer);
    outer?.removeEventListener("abort", abort);
  }
}

/** The error for a call that took longer than `timeoutMs`. */
export function timedOut(timeoutMs: number): TimedOutError {
  return new TimedOutError("timed_out", `no answer within ${timeoutMs} ms`);
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", abort, { once: true });
  });
}

function checkedUrl(url: string): string {
  const parsed = URL.canParse(url) ? new URL(url) : null;
  if (parsed === null || !["http:", "https:"].includes(parsed.protocol)) {
    throw new TypeError(`baseUrl ${JSON.stringify(url)} must begin with http:// or https:// and a host, such as ${BASE_URL_DEFAULT}`);
  }
  return url.replace(/\/+$/, "");
}

function checkedTimeout(timeoutMs: number): number {
  if (!(timeoutMs > 0)) throw new RangeError(`timeoutMs is ${timeoutMs}; it must be greater than 0`);
  return Math.min(timeoutMs, TIMEOUT_MS_MAX);
}

/** An environment variable, where the runtime has such. */
function environment(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name];
}
