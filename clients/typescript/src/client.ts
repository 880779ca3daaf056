/** The client of the daemon: one method for each endpoint. */

import { AnswerInvalidError } from "./errors.js";
import { type Call, type CallOptions, type ClientOptions, Transport } from "./transport.js";
import type {
  Attribution,
  AttributeRequest,
  Changes,
  ChunkPage,
  CompressRequest,
  Compression,
  ListRequest,
  Model,
  Progress,
  RegisterRequest,
  RegisteredChunk,
  RerankRequest,
  Reranking,
  SearchRequest,
  SearchResults,
} from "./types.js";

/**
 * A client of the daemon. It keeps no state, so that all of a program can share one.
 *
 * Every method throws an `ApiError` if the daemon refuses the request or fails, another `ThresherError` if the daemon cannot be reached or does
 * not answer in time, and the reason of `signal` if that aborts the call.
 */
export class Client {
  private readonly transport: Transport;

  constructor(options: ClientOptions = {}) {
    this.transport = new Transport(options);
  }

  /** The address of the daemon, without a slash at its end. */
  get baseUrl(): string {
    return this.transport.baseUrl;
  }

  /** Compresses chunks to the part that is worth sending to the language model, with citations. */
  compress(request: CompressRequest, options: CallOptions = {}): Promise<Compression> {
    return this.json({ method: "POST", path: "/v1/compress", body: request }, options);
  }

  /**
   * Fetches exported keys and values, as the bytes of a safetensors file. `handle` is `kv.handle` of a compression. With `fingerprint`, the
   * daemon refuses if its model has other weights.
   */
  kv(handle: string, options: CallOptions & { fingerprint?: string } = {}): Promise<Uint8Array> {
    const params = strings({ fingerprint: options.fingerprint });
    const call: Call = { method: "GET", path: `/v1/kv/${segment(handle, "handle")}`, params };
    return this.transport.call(call, async (response) => new Uint8Array(await response.arrayBuffer()), options);
  }

  /** Finds the chunk that each part of an answer came from, and says whether the chunks support the part. */
  attribute(request: AttributeRequest, options: CallOptions = {}): Promise<Attribution> {
    return this.json({ method: "POST", path: "/v1/attribute", body: request }, options);
  }

  /** Registers chunks, so that requests can name them by their ids. Registering the same chunk again changes nothing. */
  registerChunks(request: RegisterRequest, options: CallOptions = {}): Promise<Changes> {
    return this.json({ method: "POST", path: "/v1/chunks", body: request }, options);
  }

  /** Deletes registered chunks. An id that is not registered has the status `unknown`; it is not an error. */
  deleteChunks(chunkIds: readonly (string | number)[], options: CallOptions = {}): Promise<Changes> {
    return this.json({ method: "POST", path: "/v1/chunks/delete", body: { ids: chunkIds } }, options);
  }

  /** Returns a registered chunk. Throws a `NotFoundError` if it is not registered. */
  getChunk(chunkId: string, options: CallOptions = {}): Promise<RegisteredChunk> {
    return this.json({ method: "GET", path: `/v1/chunks/${segment(chunkId, "chunkId")}` }, options);
  }

  /** Returns a page of registered chunks, in the order of their ids. */
  listChunks(request: ListRequest = {}, options: CallOptions = {}): Promise<ChunkPage> {
    const { limit, after } = request;
    const params = strings({ limit: limit?.toString(), after });
    return this.json({ method: "GET", path: "/v1/chunks", params }, options);
  }

  /** Returns how many chunks are registered, and how many of them the model has read. */
  progress(options: CallOptions = {}): Promise<Progress> {
    return this.json({ method: "GET", path: "/v1/registry" }, options);
  }

  /** Finds registered chunks by words (BM25) and metadata, and orders them by relevance (RC). */
  search(request: SearchRequest, options: CallOptions = {}): Promise<SearchResults> {
    return this.json({ method: "POST", path: "/v1/search", body: request }, options);
  }

  /** Orders whole documents by relevance, best first. */
  rerank(request: RerankRequest, options: CallOptions = {}): Promise<Reranking> {
    const call: Call = { method: "POST", path: "/v2/rerank", body: request };
    const read = async (response: Response): Promise<Reranking> => {
      const answer = await parsed<Omit<Reranking, "related" | "answerable">>(response);
      return { ...answer, ...rerankHeaders(response.headers) };
    };
    return this.transport.call(call, read, options);
  }

  /** Returns the models that are loaded, the one that scores first. */
  async models(options: CallOptions = {}): Promise<Model[]> {
    const answer = await this.json<{ data: Model[] }>({ method: "GET", path: "/v1/models", params: { upstreams: "false" } }, options);
    return answer.data;
  }

  private json<T>(call: Call, options: CallOptions): Promise<T> {
    return this.transport.call(call, (response) => parsed<T>(response), options);
  }
}

async function parsed<T>(response: Response): Promise<T> {
  const text = await response.text();
  try {
    return JSON.parse(text) as T;
  } catch (error) {
    throw new AnswerInvalidError("answer_invalid", "the answer is not JSON", { cause: error });
  }
}

/** The body of a reranking has Cohere's format, so the daemon's own results come in headers. */
function rerankHeaders(headers: Headers): Pick<Reranking, "related" | "answerable"> {
  const related = headers.get("x-thresher-related");
  // Such as `false;p=0.031`.
  const answerable = headers.get("x-thresher-answerable")?.match(/^(true|false);p=([01](?:\.\d+)?)$/);
  return {
    related: related === null ? null : related === "true",
    answerable: answerable ? { answerable: answerable[1] === "true", probability: Number(answerable[2]) } : null,
  };
}

/** The parameters that have a value. */
function strings(values: Record<string, string | undefined>): Record<string, string> {
  return Object.fromEntries(Object.entries(values).filter((entry): entry is [string, string] => entry[1] !== undefined));
}

/** A value as a segment of a path. */
function segment(value: string, name: string): string {
  if (value === "") throw new TypeError(`${name} is empty`);
  return encodeURIComponent(value);
}
