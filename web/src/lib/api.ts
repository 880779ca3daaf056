// The daemon's HTTP API: its types (docs/api.md, docs/attribution.md, docs/kv-export.md) and the calls of this page.
import { apiKey, keyRefused } from "./access";
import { createSseParser } from "./sse";

/** A half-open range. In this page the unit is UTF-16 code units, as in JavaScript's strings. */
export interface Range {
  start: number;
  end: number;
}

export const KINDS = ["auto", "prose", "markdown", "code", "json", "table", "log", "chat", "html", "pdf", "mail", "subtitles"] as const;
export type Kind = (typeof KINDS)[number];

export interface Chunk {
  id?: string;
  title?: string;
  text: string;
  kind?: Kind;
  metadata?: unknown;
}

export type Budget = { auto: true } | { ratio: number } | { tokens: number } | { coverage: number };

export interface CompressRequest {
  query: string;
  chunks: (Chunk | string)[];
  budget?: Budget;
  granularity?: string;
  order?: string;
  format?: string;
  omissions?: string;
  tokenizer?: string;
  offsets?: "utf16";
  explain?: boolean;
  include?: "kv"[];
  kv?: { policy: "chunks" | "heads"; ratio?: number };
}

export interface KeptSpan extends Range {
  score: number | null;
  output: Range;
}

export interface ChunkOutcome {
  id: string;
  index: number;
  title?: string;
  kept: boolean;
  empty?: boolean;
  kind?: Exclude<Kind, "auto">;
  score: number | null;
  text: string;
  spans: KeptSpan[];
}

export interface Citation {
  marker: number;
  chunk: string;
  source: Range;
  output: Range;
  text: string;
}

export interface Warning {
  code: string;
  message: string;
  chunk?: string;
}

/** RC per token. `query` holds the tokens of the question; each chunk has one entry per token of the question in its own `query`. */
export interface Explanation {
  query: Range[];
  chunks: { id: string; tokens: (Range & { rc: number })[]; query: { rc: number; source: Range | null }[] }[];
}

export type CacheSource = "memory" | "disk" | "shared" | "joined" | "read";

export interface KvHandle {
  handle: string;
  expires_s: number;
  policy: string;
  tokens: number;
  room_tokens: number;
  share: number;
  bytes: number;
  fingerprint: string;
}

/** Whether the chunks answer the question. `chunk` is the id of the chunk that comes closest, and `source` where in it. */
export interface Answerable {
  probability: number;
  answerable: boolean;
  least: number;
  chunk: string;
  source: Range;
}

export interface CompressAnswer {
  id: string | null;
  context: string;
  chunks: ChunkOutcome[];
  citations: Citation[];
  usage: { tokens_in: number; tokens_out: number; ratio: number } | null;
  rc: { estimator: string; reach: number | null; related: boolean | null; reason?: string; model: string | null };
  answerable: Answerable | null;
  degraded: ErrorBody | null;
  blocks: Record<CacheSource, number> | null;
  timing_ms: Record<string, number>;
  warnings?: Warning[];
  explain?: Explanation;
  kv?: KvHandle;
}

export interface AttributeSource {
  chunk: string;
  index: number;
  score: number;
  cited: boolean;
  tied?: boolean;
  sentence: Range & { text: string };
  run: Range & { text: string };
}

export type Verdict = "supported" | "partly" | "contradicted" | "not_found" | "no_claim";

/** Words of an answer, and in `source` what a chunk says instead. */
export interface Conflict extends Range {
  text: string;
  reason: string;
  chunk: string;
  index: number;
  source: Range & { text: string };
}

export interface Part extends Range {
  text: string;
  /** Null if the part makes no claim; so is `support`. */
  verdict: Verdict;
  /** A probability, except with a decoder. */
  support: number | null;
  unsupported: (Range & { text: string; reason: string })[];
  conflicts?: Conflict[];
  sources: AttributeSource[];
}

/** A quotation of an answer. */
export interface Quote extends Range {
  text: string;
  verdict: "exact" | "stitched" | "altered" | "misattributed" | "fabricated";
  has_ellipsis: boolean;
  passages: (Range & { text: string; chunk: string; index: number })[];
  altered: (Range & { text: string })[];
}

export interface AttributeRequest {
  answer?: string;
  chunks?: (Chunk | string)[];
  compress_id?: string;
  sources_max?: number;
  offsets?: "utf16";
}

export interface AttributeAnswer {
  parts: Part[];
  quotes: Quote[];
  timing_ms: Record<string, number>;
}

export interface Model {
  id: string;
  fingerprint: string;
  window_tokens_max: number;
  heads: number;
  head_dim: number;
  estimator: string;
  device: string;
  exports_kv: boolean;
}

interface ErrorBody {
  code: string;
  message: string;
  param?: string | null;
}

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

export function compress(body: CompressRequest, signal: AbortSignal): Promise<CompressAnswer> {
  return post("v1/compress", { ...body, offsets: "utf16" }, signal);
}

export function attribute(body: AttributeRequest, signal: AbortSignal): Promise<AttributeAnswer> {
  return post("v1/attribute", { ...body, offsets: "utf16" }, signal);
}

/**
 * Attributes the part of an answer that has arrived so far. `onPart` gets each part as soon as the daemon sends it.
 *
 * Browsers can stream the body of a request over HTTP/2 only, and the daemon speaks HTTP/1.1 without TLS. The body therefore holds the
 * answer so far, without an end marker, and the page sends a longer one when more has arrived; the chunks are cached.
 */
export async function attributeStream(
  request: AttributeRequest,
  answer: string,
  signal: AbortSignal,
  onPart: (part: Part) => void,
): Promise<{ parts: number; ended: boolean }> {
  const events = [{ ...request, offsets: "utf16" }, { delta: answer }];
  const body = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("");
  const response = await send("v1/attribute/stream", {
    method: "POST",
    headers: { "content-type": "text/event-stream" },
    body,
    signal,
  });
  const parser = createSseParser();
  const decoder = new TextDecoder();
  const reader = response.body?.getReader();
  let done: { parts: number; ended: boolean } | undefined;
  for (;;) {
    const { value, done: closed } = reader ? await read(reader) : { value: undefined, done: true };
    if (closed) break;
    for (const event of parser.push(decoder.decode(value, { stream: true }))) {
      const data = JSON.parse(event.data);
      if (event.type === "part") onPart(data);
      if (event.type === "done") done = data;
      if (event.type === "error") throw failureOf(data, 200, null);
    }
  }
  if (!done) throw new Failure("The daemon closed the stream before it was complete.", "stream_broken");
  return done;
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
  const error = (body as { error?: Partial<ErrorBody> } | null)?.error;
  const message = error?.message ?? `The daemon answered with HTTP status ${status}.`;
  return new Failure(message, error?.code ?? `http_${status}`, status, error?.param ?? null, secondsOf(retryAfter));
}

async function json<T>(response: Response): Promise<T> {
  const text = await response.text().catch(unreachable);
  const value = parsed(text);
  if (value === undefined) throw new Failure("The answer is not JSON. A proxy may stand between this page and the daemon.", "answer_invalid");
  return value as T;
}

function read(reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>) {
  return reader.read().catch(unreachable);
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
