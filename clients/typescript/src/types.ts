/**
 * Types of requests and answers. Fields have the names of the HTTP API, which `docs/api.md`, `docs/attribution.md` and `docs/registry.md` of
 * the project describe.
 *
 * Ranges are half-open: `start` is inside, `end` is not. Offsets into text count the unit that the request set with `offsets`. The daemon's
 * default is code points; pass `"utf16"` for offsets that `string.slice` takes.
 */

export type Granularity = "sentence" | "chunk" | "token";
export type AttributeGranularity = "sentence" | "token" | "span";
export type Kind = "auto" | "prose" | "markdown" | "code" | "json" | "table" | "log" | "chat" | "html" | "pdf" | "mail" | "subtitles";
export type Omissions = "auto" | "none" | "ellipsis" | "range";
export type Order = "input" | "relevance";
export type Format = "numbered" | "plain" | "xml";
export type Tokenizer = "model" | "o200k_base" | "cl100k_base";
export type Offsets = "codepoint" | "byte" | "utf16";
export type DeadlinePolicy = "fail" | "best_effort";
export type OnError = "fail" | "passthrough";
export type Rank = "rc" | "bm25";
export type KvPolicy = "chunks" | "heads";
export type AnswerFormat =
  | "native"
  | "anthropic_document"
  | "anthropic_search_result"
  | "openai_responses"
  | "openai_chat"
  | "markers"
  | "json";

/** What the chunks say of a part: they support it, some of it, the opposite, or do not speak of it. */
export type Verdict = "supported" | "partly" | "contradicted" | "not_found" | "no_claim";
/** Whether a quotation stands in a chunk. */
export type QuoteVerdict = "exact" | "stitched" | "altered" | "misattributed" | "fabricated";

/**
 * How much may be kept: at most `tokens`; at most the share `ratio` of what all chunks take; as little as holds all needed evidence with the
 * probability `coverage` (0.5 to 0.99); or as much as the scores support (`auto`).
 */
export type Budget = { tokens: number } | { ratio: number } | { coverage: number } | { auto: true };

/** A chunk of a request. Answers name it by `id`; a chunk without one gets its index in the request as its id. */
export interface Chunk {
  text: string;
  id?: string;
  title?: string;
  kind?: Kind;
  /** Any JSON; it is returned unchanged. */
  metadata?: unknown;
}

/** A chunk, or a string that is its text. */
export type ChunkInput = string | Chunk;

/** A message of a conversation. Other fields are ignored, so messages for a language model can be passed as they are. */
export interface Message {
  role: string;
  content?: string | readonly { text?: string | null }[] | null;
}

/** Options of an export of keys and values. All but `policy` are for the policy `heads`. */
export interface KvOptions {
  policy?: KvPolicy;
  mass?: number;
  ratio?: number;
  sinks?: number;
  recent?: number;
  prompt?: string;
}

/** The chunks of a compression: sent with it, or registered before. */
export type CompressSource =
  | { chunks: readonly ChunkInput[]; chunk_ids?: never }
  | { chunk_ids: readonly string[]; chunks?: never };

/** A compression: the question, the chunks, and options whose defaults are the daemon's. */
export type CompressRequest = CompressSource & {
  query: string;
  /** The conversation before the question, oldest message first. With it, "When was she born?" is about the person of the turns before. */
  messages?: readonly Message[];
  budget?: Budget;
  /** What is kept or dropped as a whole. */
  granularity?: Granularity;
  /** The ids of chunks to keep whole. */
  keep?: readonly string[];
  order?: Order;
  format?: Format;
  titles?: boolean;
  omissions?: Omissions;
  tokenizer?: Tokenizer;
  /** Whether nothing is kept if no chunk is related to the question. Default: true. */
  related_only?: boolean;
  /** The share of answerable questions that `answerable` may miss, 0.01 to 0.5. */
  missed_max?: number;
  offsets?: Offsets;
  explain?: boolean;
  /** Milliseconds that the daemon may take, including the time in its queue. */
  deadline_ms?: number;
  deadline_policy?: DeadlinePolicy;
  on_error?: OnError;
  include?: readonly "kv"[];
  kv?: KvOptions;
};

/** The chunks that an answer may have come from: sent with it, registered, or those of an earlier compression. */
export type AttributeSource =
  | { chunks: readonly ChunkInput[]; chunk_ids?: never; compress_id?: never }
  | { chunk_ids: readonly string[]; chunks?: never; compress_id?: never }
  | { compress_id: string; chunks?: never; chunk_ids?: never };

/** An attribution of an answer that is still to come. */
export type AttributeStreamRequest = AttributeSource & {
  granularity?: Exclude<AttributeGranularity, "span">;
  /** The most sources of each part, at most 100. */
  sources_max?: number;
  offsets?: Offsets;
  deadline_ms?: number;
};

/** An attribution of a whole answer. */
export type AttributeRequest = AttributeSource & {
  answer: string;
  granularity?: AttributeGranularity;
  /** Ranges of the answer to attribute: ascending, without overlap, in the unit of `offsets`. */
  spans?: readonly { start: number; end: number }[];
  sources_max?: number;
  offsets?: Offsets;
  format?: AnswerFormat;
  /** Whether the answer includes a signed record of the attribution. */
  receipt?: boolean;
  deadline_ms?: number;
};

/** Chunks to register. */
export interface RegisterRequest {
  chunks: readonly ChunkInput[];
  /** Whether to answer only when the model has read the chunks. */
  wait?: boolean;
  deadline_ms?: number;
}

/** A filter of the metadata of chunks, such as `{"year": {"gte": 2020}}`. */
export type Filter = Readonly<Record<string, unknown>>;

/** Which registered chunks are listed. */
export interface ListRequest {
  limit?: number;
  /** `next` of the page before. */
  after?: string;
  filter?: Filter;
}

/** A search of registered chunks. */
export interface SearchRequest {
  query: string;
  limit?: number;
  /** The number of chunks that BM25 finds and the model ranks. */
  candidates?: number;
  filter?: Filter;
  rank?: Rank;
  deadline_ms?: number;
}

/** Documents to rank. */
export interface RerankRequest {
  query: string;
  documents: readonly (string | Readonly<Record<string, unknown>>)[];
  /** The most results; all if it is left out. */
  top_n?: number;
  /** The fields of documents that are read instead of `text`. */
  rank_fields?: readonly string[];
  return_documents?: boolean;
  /** Whether results name the relevant sentences of their documents. */
  relevant_spans?: { mode: "enabled" | "disabled"; threshold?: number; max_spans?: number };
}

export interface Range {
  start: number;
  end: number;
}

export interface TextRange extends Range {
  text: string;
}

/** An error inside a successful answer. */
export interface ErrorInfo {
  code: string;
  message: string;
  param: string | null;
}

/** A kept piece of a chunk: its range in the chunk, and in `output` its range in the context. */
export interface Span extends Range {
  score: number | null;
  output: Range;
}

/** What a compression kept of one chunk. Scores compare chunks of one request only. */
export interface CompressedChunk {
  id: string;
  index: number;
  kept: boolean;
  score: number | null;
  /** The text of the chunk in the context. */
  text: string;
  spans: Span[];
  title?: string;
  metadata?: unknown;
  /** True if the chunk has no text. */
  empty?: boolean;
  /** True if the deadline left no time to read it. */
  unread?: boolean;
  kind?: Kind;
  /** The language of the text as an ISO 639-3 code. */
  lang?: string;
}

/** The origin of one piece of the context. `marker` is the number of the chunk in the context, from 1. */
export interface Citation {
  marker: number;
  chunk: string;
  source: Range;
  output: Range;
  text: string;
}

/** Tokens of the context if everything were kept, and as it is. */
export interface Usage {
  tokens_in: number;
  tokens_out: number;
  ratio: number;
}

/** The model, and the statistic by which it scored. */
export interface Rc {
  estimator: string;
  model: string | null;
  fingerprint: string | null;
  /** The mean over the question's tokens of their highest logit. */
  reach: number | null;
  /** Whether at least one chunk concerns the question. If it is false, nothing is kept, and `reason` says why. */
  related: boolean | null;
  reason?: string;
  turns_read?: number;
  lang?: string;
}

/** Whether the chunks answer the question, and the passage that comes closest to an answer. */
export interface Answerable {
  probability: number;
  /** Whether the probability is at least `least`, the limit that `missed_max` sets. */
  answerable: boolean;
  least: number;
  chunk: string;
  source: Range;
}

/** Something to know about a compression, though it is not an error. */
export interface CompressionWarning {
  code: string;
  message: string;
  chunk?: string;
}

/** Names an export of keys and values, which `kv` fetches. */
export interface KvHandle {
  handle: string;
  expires_s: number;
  policy: KvPolicy;
  tokens: number;
  room_tokens: number;
  share: number;
  bytes: number;
  fingerprint: string;
}

/** Answer of `compress`. */
export interface Compression {
  /** The name of this compression, which `compress_id` of an attribution takes; null if the daemon does not remember it. */
  id: string | null;
  /** The text to send to the language model. */
  context: string;
  chunks: CompressedChunk[];
  citations: Citation[];
  usage: Usage | null;
  rc: Rc;
  /** Whether the chunks answer the question; null where this is not measured. */
  answerable: Answerable | null;
  /** The error because of which the chunks came back whole (`on_error: "passthrough"`); null otherwise. */
  degraded: ErrorInfo | null;
  /** The number of chunks by where their keys came from. */
  blocks: Record<string, number> | null;
  timing_ms: Record<string, number>;
  warnings?: CompressionWarning[];
  explain?: unknown;
  prefilter?: { from: number; to: number };
  kv?: KvHandle;
}

/** Words of a part that no chunk supports. */
export interface Unsupported extends TextRange {
  reason: string;
}

/** A chunk that a part of an answer may have come from. */
export interface Source {
  chunk: string;
  index: number;
  score: number;
  /** Whether to cite this chunk for the part. */
  cited: boolean;
  /** True if the chunk says the same as a source before it. */
  tied?: boolean;
  /** The sentence of the chunk that the part came from. */
  sentence: TextRange;
  /** The longest run of words that the sentence has in common with the part. */
  run: TextRange;
}

/** Words of a part, and in `source` the words that a chunk has instead. */
export interface Conflict extends TextRange {
  reason: string;
  chunk: string;
  index: number;
  source: TextRange;
}

/** A part of an answer, with the chunks that it may have come from, best first. */
export interface Part extends TextRange {
  verdict: Verdict;
  supported: boolean | null;
  /** The probability that the chunks support the part. */
  support: number | null;
  unsupported: Unsupported[];
  /** What the chunks say instead, if the verdict is `contradicted`. */
  conflicts?: Conflict[];
  sources: Source[];
}

/** A quotation of an answer: the text between its quotation marks. */
export interface Quote extends TextRange {
  verdict: QuoteVerdict;
  has_ellipsis: boolean;
  /** The passages that it came from; none if it is fabricated. */
  passages: (TextRange & { chunk: string; index: number })[];
  /** Its words that the passages do not have. */
  altered: TextRange[];
}

/** Answer of `attribute`. */
export interface Attribution {
  parts: Part[];
  quotes: Quote[];
  rc: { estimator: string; model: string; fingerprint: string };
  /** The attribution in the shape that `format` names. */
  formatted?: unknown;
  blocks: Record<string, number>;
  timing_ms: Record<string, number>;
  receipt?: unknown;
}

/** The outcome of registering or deleting one chunk. */
export interface Change {
  index: number;
  id: string | null;
  status: "created" | "updated" | "unchanged" | "deleted" | "unknown" | "failed";
  error?: ErrorInfo;
}

/** Numbers of chunks: registered, read by the model, waiting to be read, and those that the model could not read. */
export interface Progress {
  registered: number;
  warm: number;
  queued: number;
  failed: number;
}

/** Answer of `registerChunks` and `deleteChunks`, in the order of the request. */
export interface Changes {
  chunks: Change[];
  warming?: Progress;
}

export interface RegisteredChunk {
  id: string;
  text: string;
  title?: string;
  kind?: Kind;
  metadata?: unknown;
}

/** A page of registered chunks. `next` is null on the last page. */
export interface ChunkPage {
  chunks: RegisteredChunk[];
  next: string | null;
}

/** A registered chunk that a search found. */
export interface SearchResult extends RegisteredChunk {
  score: number;
  bm25: number;
}

/** Answer of `search`, best first. */
export interface SearchResults {
  results: SearchResult[];
  rank: Rank;
  candidates: number;
  timing_ms: Record<string, number>;
}

/** The relevance of one document, from 0 to 1. It compares the documents of one request only. */
export interface RerankResult {
  index: number;
  relevance_score: number;
  document?: Record<string, unknown>;
  /** The relevant sentences of the document, best first. Their ranges are in code points. */
  relevant_spans?: (Range & { score: number })[];
}

/** Answer of `rerank`, best document first. */
export interface Reranking {
  id: string;
  model: string;
  results: RerankResult[];
  usage: { prompt_tokens: number; total_tokens: number };
  /** Whether at least one document concerns the question; null where this is not measured. */
  related: boolean | null;
  /** Whether the documents answer the question; null where this is not measured. */
  answerable: Pick<Answerable, "probability" | "answerable"> | null;
}

/** A model that the daemon has loaded. */
export interface Model {
  id: string;
  fingerprint: string;
  window_tokens_max: number;
  estimator: string;
  device: string;
  exports_kv: boolean;
}
