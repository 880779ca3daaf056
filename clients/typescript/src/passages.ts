/** What the adapters have in common: options, the request, and the result for each document. This module knows no framework. */

import { Client } from "./client.js";
import { ThresherError } from "./errors.js";
import type { CallOptions, ClientOptions } from "./transport.js";
import type { Budget, Compression, Granularity, Order, Reranking, Tokenizer } from "./types.js";

/** Options of the document adapters. */
export interface DocumentOptions {
  /** `compress` (default) keeps the parts that are worth sending; `rerank` orders whole documents. */
  mode?: "compress" | "rerank";
  /** How much of all documents together may be kept. For `compress` only, as are the next four. Default: as much as the scores support. */
  budget?: Budget;
  granularity?: Granularity;
  order?: Order;
  tokenizer?: Tokenizer;
  /** Milliseconds that the daemon may take. */
  deadlineMs?: number;
  /** The most documents that are returned, the best ones. Default: all. */
  topN?: number;
  /** Whether documents of which nothing was kept are returned too, with an empty text. Default: false. */
  keepEmpty?: boolean;
  /** What happens if the daemon fails: `raise` (default), or `originals`, which returns the first `topN` documents unchanged. */
  onError?: "raise" | "originals";
  /** A client to use, in place of one that is made with `connection`. */
  client?: Client;
  /** Address, key and limits of the client. */
  connection?: ClientOptions;
}

/** The text and the title of a document, which is all that is sent to the daemon. */
export interface Passage {
  text: string;
  title?: string;
}

/** Whether all documents together answer the question, and with what probability. */
export interface AnswerableMetadata {
  answerable: boolean;
  probability: number;
}

/** What an adapter writes to the metadata of a document. Positions are those of JavaScript strings (UTF-16). */
export interface ThresherMetadata {
  mode: "compress" | "rerank";
  /** The position of the document among those that were passed. */
  index: number;
  /** The id of the compression, which `client.attribute({ answer, compress_id })` takes. */
  id?: string | null;
  kept?: boolean;
  /** The number of the document among those of which something was kept, from 1. */
  marker?: number | null;
  score?: number | null;
  /** The kept pieces in the original text. */
  spans?: { start: number; end: number; score: number | null }[];
  /** Whether any document concerns the question; null where this is not measured. */
  related?: boolean | null;
  answerable?: AnswerableMetadata | null;
  /** The code of the error because of which the document is unchanged. */
  degraded?: string;
}

/** The result for the document at `metadata.index`. */
export interface Outcome {
  text: string;
  score: number | null;
  metadata: ThresherMetadata;
}

/** Compresses or reranks passages. */
export class Selector {
  private readonly client: Client;

  constructor(private readonly options: DocumentOptions) {
    const { mode = "compress", topN, budget, granularity, order, tokenizer, deadlineMs } = options;
    if (!["compress", "rerank"].includes(mode)) throw new TypeError(`mode is ${JSON.stringify(mode)}; it must be "compress" or "rerank"`);
    if (topN !== undefined && !(Number.isInteger(topN) && topN >= 1)) throw new RangeError(`topN is ${topN}; it must be at least 1`);
    for (const [name, value] of Object.entries({ budget, granularity, order, tokenizer, deadlineMs })) {
      if (mode === "rerank" && value !== undefined) {
        throw new TypeError(`${name} cannot be used with the mode "rerank", which orders whole documents`);
      }
    }
    this.client = options.client ?? new Client(options.connection);
  }

  /** The outcomes of the passages that stay, in order. */
  async select(query: string, passages: readonly Passage[], call: CallOptions = {}): Promise<Outcome[]> {
    if (passages.length === 0) return [];
    try {
      if (this.options.mode === "rerank") return reranked(await this.rerank(query, passages, call), passages);
      return this.limited(compressed(await this.compress(query, passages, call)));
    } catch (error) {
      if (!(error instanceof ThresherError) || this.options.onError !== "originals") throw error;
      const { mode = "compress" } = this.options;
      const original = ({ text }: Passage, index: number): Outcome => ({
        text,
        score: null,
        metadata: { mode, index, degraded: error.code },
      });
      return passages.map(original).slice(0, this.options.topN);
    }
  }

  private compress(query: string, passages: readonly Passage[], call: CallOptions): Promise<Compression> {
    const { budget, granularity, order, tokenizer, deadlineMs } = this.options;
    const given = { budget, granularity, order, tokenizer, deadline_ms: deadlineMs };
    return this.client.compress(
      {
        query,
        chunks: passages.map(({ text, title }) => ({ text, ...present({ title }) })),
        ...present(given),
        // The framework writes the prompt, so titles and markers must not count towards the budget.
        format: "plain",
        offsets: "utf16",
      },
      call,
    );
  }

  private rerank(query: string, passages: readonly Passage[], call: CallOptions): Promise<Reranking> {
    const documents = passages.map(({ text, title }) => ({ text, ...present({ title }) }));
    return this.client.rerank({ query, documents, rank_fields: ["title", "text"], ...present({ top_n: this.options.topN }) }, call);
  }

  private limited(outcomes: Outcome[]): Outcome[] {
    const { keepEmpty = false, topN = outcomes.length } = this.options;
    const kept = outcomes.filter(({ metadata }) => keepEmpty || metadata.kept);
    const best = [...kept].sort((a, b) => Number(b.metadata.kept) - Number(a.metadata.kept) || (b.score ?? 0) - (a.score ?? 0)).slice(0, topN);
    return kept.filter((outcome) => best.includes(outcome));
  }
}

function compressed(answer: Compression): Outcome[] {
  let markers = 0;
  const { related } = answer;
  return answer.chunks.map(({ id, index, kept, score, text }) => {
    const marker = kept ? ++markers : null;
    // A piece that an earlier chunk has, too, is in the text of that chunk, and has its marker.
    const own = answer.citations.filter((citation) => citation.chunk === id && citation.marker === marker);
    return {
      text,
      score,
      metadata: {
        mode: "compress",
        index,
        id: answer.id,
        kept,
        marker,
        score,
        spans: own.map(({ source: { start, end }, score }) => ({ start, end, score })),
        related,
        answerable: answerableMetadata(answer.answerable),
        ...(answer.degraded === null ? {} : { degraded: answer.degraded.code }),
      },
    };
  });
}

function reranked(answer: Reranking, passages: readonly Passage[]): Outcome[] {
  const { id, related, answerable } = answer;
  return answer.results.map(({ index, relevance_score: score }) => ({
    text: passages[index]?.text ?? "",
    score,
    metadata: { mode: "rerank", index, id, score, related, answerable },
  }));
}

/** What metadata say of all documents together. */
export function answerableMetadata(found: AnswerableMetadata | null): AnswerableMetadata | null {
  return found && { answerable: found.answerable, probability: found.probability };
}

/** The fields that have a value. */
export function present<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}
