/**
 * Types of requests and answers: those of the daemon's OpenAPI document (`schema.ts`), under the names of this client. Fields have the names of
 * the HTTP API, which `docs/api.md`, `docs/attribution.md` and `docs/registry.md` of the project describe.
 *
 * Ranges are half-open: `start` is inside, `end` is not. Offsets into text count the unit that the request set with `offsets`. The daemon's
 * default is code points; pass `"utf16"` for offsets that `string.slice` takes.
 */

import type { components } from "./schema.js";

type Schemas = components["schemas"];
/** A request is not changed, so that constant lists can be passed. */
type Request<T> = T extends readonly (infer E)[] ? readonly Request<E>[] : T extends object ? { [K in keyof T]: Request<T[K]> } : T;
/** `T` with exactly one of the fields `K`. */
type OneOf<T, K extends keyof T> = Omit<T, K> & { [One in K]: { [F in One]-?: NonNullable<T[F]> } & { [F in Exclude<K, One>]?: never } }[K];

export type AnswerFormat = Schemas["AttributeFormat"];
export type AttributeGranularity = Schemas["AttributeGranularity"];
export type Format = Schemas["Format"];
export type Granularity = Schemas["Granularity"];
export type Kind = Schemas["Kind"];
export type KvPolicy = Schemas["KvPolicy"];
export type Offsets = Schemas["OffsetUnit"];
export type Omissions = Schemas["Omissions"];
export type OnError = Schemas["OnError"];
export type Order = Schemas["Order"];
export type QuoteVerdict = Schemas["QuoteVerdict"];
export type Rank = Schemas["Rank"];
export type Tokenizer = Schemas["TokenizerName"];
export type Verdict = Schemas["Verdict"];

export type Budget = Schemas["Budget"];
export type Chunk = { [K in keyof Schemas["ChunkObject"]]: Exclude<Schemas["ChunkObject"][K], null> };
export type ChunkInput = string | Chunk;
export type KvOptions = Schemas["Kv"];
export type Message = Request<Schemas["HistoryMessage"]>;

type Compress = Request<Schemas["CompressBody"]>;
/** A compression: the question, the chunks (`chunks`, or `chunk_ids` of registered ones), and options whose defaults are the daemon's. */
export type CompressRequest = OneOf<Compress, "chunks" | "chunk_ids">;
/** The chunks of a compression: sent with it, or registered before. */
export type CompressSource = OneOf<Pick<Compress, "chunks" | "chunk_ids">, "chunks" | "chunk_ids">;
type Attribute = Request<Schemas["AttributeBody"]>;
type Sources = "chunks" | "chunk_ids" | "compress_id";
/** An attribution of a whole answer. */
export type AttributeRequest = OneOf<Attribute, Sources>;
/** The chunks that an answer may have come from: sent with it, registered, or those of an earlier compression. */
export type AttributeSource = OneOf<Pick<Attribute, Sources>, Sources>;
export type RegisterRequest = Request<Schemas["RegisterBody"]>;
/** Which registered chunks are listed. */
export interface ListRequest {
  limit?: number;
  /** `next` of the page before. */
  after?: string;
}
export type SearchRequest = Request<Schemas["SearchBody"]>;
export type RerankRequest = Request<Schemas["RerankBody"]>;

export type Answerable = Schemas["Answerable"];
export type Attribution = Schemas["AttributeAnswer"];
export type Change = Schemas["Change"];
export type Changes = Schemas["Changes"];
export type ChunkPage = Schemas["Page"];
export type Citation = Schemas["Citation"];
export type CompressedChunk = Schemas["ChunkOutcome"];
export type Compression = Schemas["CompressAnswer"];
export type CompressionWarning = Schemas["Warning"];
export type Conflict = Schemas["Conflict"];
export type ErrorInfo = Schemas["ErrorBody"];
export type Explanation = Schemas["Explanation"];
export type KvHandle = Schemas["KvHandle"];
export type Model = Schemas["Model"];
export type Part = Schemas["Part"];
export type Progress = Schemas["Progress"];
export type Question = Schemas["Question"];
export type Quote = Schemas["Quote"];
export type Range = Schemas["Range"];
export type Rc = Schemas["CompressRc"];
export type RegisteredChunk = Schemas["RegisteredChunk"];
export type RerankResult = Schemas["RerankResult"];
/** Answer of `rerank`, best document first. */
export type Reranking = Schemas["Reranked"] & {
  /** Whether at least one document concerns the question; null where this is not measured. */
  related: boolean | null;
  /** Whether the documents answer the question; null where this is not measured. */
  answerable: Pick<Answerable, "probability" | "answerable"> | null;
};
export type SearchResult = Schemas["SearchResult"];
export type SearchResults = Schemas["SearchAnswer"];
export type Source = Schemas["Source"];
export type TextRange = Schemas["Passage"];
export type Unsupported = Schemas["Unsupported"];
export type Usage = Schemas["CompressUsage"];
