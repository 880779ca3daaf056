// The daemon's HTTP API: its types, which are those of the TypeScript client, and the calls of this page. Offsets count UTF-16 code units, as
// JavaScript's strings do.
import type {
  AttributeRequest,
  Attribution,
  ChunkInput,
  Compression,
  CompressRequest as AnyCompressRequest,
  ErrorInfo,
  Model,
} from "../../../clients/typescript/src/types.js";
import type { components } from "../../../clients/typescript/src/schema.js";
import { apiKey, keyRefused } from "./access";

export { KINDS } from "../../../clients/typescript/src/schema.js";
export type {
  Answerable,
  AttributeSource,
  Budget,
  Chunk,
  Citation,
  CompressedChunk,
  CompressionWarning,
  Compression as CompressAnswer,
  Conflict,
  Explanation,
  Kind,
  KvHandle,
  Model,
  Part,
  Quote,
  Range,
  Source,
  Verdict,
} from "../../../clients/typescript/src/types.js";

export type Savings = components["schemas"]["Savings"];

/** This page sends the chunks with every request. */
export type CompressRequest = AnyCompressRequest & { chunks: readonly ChunkInput[] };

/** Why a call has no answer: the daemon refused it (`status` is set), or the daemon cannot be reached (`status` is null). */
export class Failure extends Error {
  constructor(
    message: string,
    readonly code: string,
    readonly status: number | null = null,
    readonly param: string | null = null,
    readonly retryAfterS: number | null = null,
  ) {
    super(message);
  }

  static of(error: unknown): Failure {
    return error instanceof Failure ? error : new Failure(String(error), "page_failed");
  }
}

export function compress(body: CompressRequest, signal: AbortSignal): Promise<Compression> {
  return post("v1/compress", { ...body, offsets: "utf16" }, signal);
}

export function attribute(body: AttributeRequest, signal: AbortSignal): Promise<Attribution> {
  return post("v1/attribute", { ...body, offsets: "utf16" }, signal);
}

export async function models(signal: AbortSignal): Promise<Model[]> {
  const answer = await json<{ thresher: Model[] }>(await send("v1/models?upstreams=false", { signal }));
  return answer.thresher;
}

export async function kvFile(handle: string, signal: AbortSignal): Promise<ArrayBuffer> {
  const response = await send(`v1/kv/${encodeURIComponent(handle)}`, { signal });
  return response.arrayBuffer().catch(unreachable);
}

/** The text of an admin path, such as `metrics`. It needs no key. */
export async function adminText(path: string, signal: AbortSignal): Promise<{ status: number; text: string }> {
  const response = await fetch(path, { signal, cache: "no-store" }).catch(unreachable);
  return { status: response.status, text: await response.text().catch(unreachable) };
}

async function post<T>(path: string, body: unknown, signal: AbortSignal): Promise<T> {
  const init = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal };
  return json(await send(path, init));
}

// Paths are relative, so that the page also works behind a proxy that adds a prefix.
async function send(path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = apiKey.get();
  if (key) headers.set("authorization", `Bearer ${key}`);
  const response = await fetch(path, { ...init, headers, cache: "no-store" }).catch(unreachable);
  if (response.ok) return response;
  const text = await response.text().catch(() => "");
  const failure = failureOf(parsed(text), response.status, response.headers.get("retry-after"));
  // An answer to a key that has been replaced in the meantime says nothing about the new key.
  if (response.status === 401 && apiKey.get() === key) keyRefused.set(failure.code);
  throw failure;
}

/** The seconds of a `Retry-After` header; null if it has none, or a date. */
function secondsOf(retryAfter: string | null): number | null {
  const seconds = retryAfter ? Number(retryAfter) : NaN;
  return Number.isFinite(seconds) ? seconds : null;
}

function failureOf(body: unknown, status: number, retryAfter: string | null): Failure {
  const error = (body as { error?: Partial<ErrorInfo> } | null)?.error;
  const message = error?.message ?? `The daemon answered with HTTP status ${status}.`;
  return new Failure(message, error?.code ?? `http_${status}`, status, error?.param ?? null, secondsOf(retryAfter));
}

async function json<T>(response: Response): Promise<T> {
  const text = await response.text().catch(unreachable);
  const value = parsed(text);
  if (value === undefined) throw new Failure("The answer is not JSON. A proxy may stand between this page and the daemon.", "answer_invalid");
  return value as T;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function unreachable(error: unknown): never {
  // The caller aborted the request, and knows it.
  if (error instanceof DOMException && error.name === "AbortError") throw error;
  throw new Failure("The daemon cannot be reached. It may have stopped, or the network is down.", "unreachable");
}
