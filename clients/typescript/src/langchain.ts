/** Adapters for LangChain.js: a document compressor, a retriever that applies one, and a runnable that attributes answers. */

import type { CallbackManagerForRetrieverRun, Callbacks } from "@langchain/core/callbacks/manager";
import { Document, type DocumentInterface } from "@langchain/core/documents";
import { BaseDocumentCompressor } from "@langchain/core/retrievers/document_compressors";
import { BaseRetriever, type BaseRetrieverInput, type BaseRetrieverInterface } from "@langchain/core/retrievers";
import { Runnable, type RunnableConfig } from "@langchain/core/runnables";

import { Client } from "./client.js";
import { ThresherError } from "./errors.js";
import { type DocumentOptions, type Passage, Selector, present } from "./passages.js";
import type { ClientOptions } from "./transport.js";
import type { Attribution } from "./types.js";

export type { AnswerableMetadata, DocumentOptions, ThresherMetadata } from "./passages.js";

/** Options of a `ThresherCompressor`. */
export interface ThresherCompressorOptions extends DocumentOptions {
  /** The metadata field with the title, which improves scores; null for none. Default: `title`. */
  titleKey?: string | null;
}

/**
 * Keeps the parts of documents that are worth sending to the language model, or orders whole documents with the mode `rerank`.
 *
 * It returns copies with the ids and the metadata of the originals. `metadata.thresher` (`ThresherMetadata`) says what was kept, and whether the
 * documents concern and answer the question; `metadata.relevance_score` is the score. Documents of which nothing was kept are left out.
 */
export class ThresherCompressor extends BaseDocumentCompressor {
  private readonly selector: Selector;
  private readonly titleKey: string | null;

  constructor(options: ThresherCompressorOptions = {}) {
    super();
    const { titleKey = "title", ...shared } = options;
    this.selector = new Selector(shared);
    this.titleKey = titleKey;
  }

  override async compressDocuments(
    documents: DocumentInterface[],
    query: string,
    _callbacks?: Callbacks,
    options: { signal?: AbortSignal } = {},
  ): Promise<DocumentInterface[]> {
    const passages = documents.map((document) => passage(document, this.titleKey));
    const outcomes = await this.selector.select(query, passages, options);
    return outcomes.map(({ text, score, metadata: thresher }) => {
      const { id, metadata } = documents[thresher.index]!;
      return new Document({
        pageContent: text,
        metadata: { ...metadata, thresher, ...(score === null ? {} : { relevance_score: score }) },
        ...(id === undefined ? {} : { id }),
      });
    });
  }
}

/** Options of a `ThresherRetriever`. */
export interface ThresherRetrieverOptions extends BaseRetrieverInput {
  /** The retriever that finds documents. */
  retriever: BaseRetrieverInterface;
  /** The compressor that its documents go through. */
  compressor: ThresherCompressor;
}

/** A retriever that compresses what another retriever finds. */
export class ThresherRetriever extends BaseRetriever {
  static override lc_name(): string {
    return "ThresherRetriever";
  }

  lc_namespace = ["thresher", "retrievers"];
  private readonly retriever: BaseRetrieverInterface;
  private readonly compressor: ThresherCompressor;

  constructor(options: ThresherRetrieverOptions) {
    super(options);
    this.retriever = options.retriever;
    this.compressor = options.compressor;
  }

  override async _getRelevantDocuments(query: string, runManager?: CallbackManagerForRetrieverRun): Promise<DocumentInterface[]> {
    const documents = await this.retriever.invoke(query, runManager && { callbacks: runManager.getChild("base_retriever") });
    return this.compressor.compressDocuments(documents, query, runManager?.getChild("compressor"));
  }
}

/** Options of a `ThresherAttributor`. */
export interface ThresherAttributorOptions {
  /** The most sources of each part. */
  sourcesMax?: number;
  /** Milliseconds that the daemon may take. */
  deadlineMs?: number;
  /** What happens if the daemon fails: `raise` (default), or `none`, which returns null in place of an attribution. */
  onError?: "raise" | "none";
  /** The metadata field with the title; null for none. Default: `title`. */
  titleKey?: string | null;
  client?: Client;
  connection?: ClientOptions;
}

/** What a retrieval chain returns: an answer, as text or as a message, and the documents that the language model has read. */
export interface Answered {
  answer: string | { text: string };
  context: DocumentInterface[];
}

/** An answer with its attribution, which is null if the daemon failed and `onError` is `none`. */
export type Attributed<T extends Answered> = T & { attribution: Pick<Attribution, "parts" | "quotes"> | null };

/**
 * Attributes answers to the documents that the language model has read: `chain.pipe(new ThresherAttributor())`. It adds `attribution`, whose
 * `parts` have a verdict, conflicts and sources. The `index` of a source is the position of a document; positions are those of JavaScript strings.
 * An answer without text or without documents has no parts.
 */
export class ThresherAttributor<T extends Answered = Answered> extends Runnable<T, Attributed<T>> {
  static override lc_name(): string {
    return "ThresherAttributor";
  }

  lc_namespace = ["thresher", "attributors"];
  private readonly client: Client;

  constructor(private readonly options: ThresherAttributorOptions = {}) {
    super();
    this.client = options.client ?? new Client(options.connection);
  }

  override async invoke(input: T, config?: Partial<RunnableConfig>): Promise<Attributed<T>> {
    return this._callWithConfig(
      async (input: T, options?: Partial<RunnableConfig>) => ({ ...input, attribution: await this.attribute(input, options?.signal) }),
      input,
      config,
    );
  }

  private async attribute({ answer, context }: Answered, signal: AbortSignal | undefined): Promise<Attributed<Answered>["attribution"]> {
    const { sourcesMax, deadlineMs, onError, titleKey = "title" } = this.options;
    const text = typeof answer === "string" ? answer : answer.text;
    if (text.trim() === "" || context.length === 0) return { parts: [], quotes: [] };
    const chunks = context.map((document) => passage(document, titleKey));
    const options = present({ sources_max: sourcesMax, deadline_ms: deadlineMs });
    try {
      const { parts, quotes } = await this.client.attribute({ answer: text, chunks, offsets: "utf16", ...options }, { signal });
      return { parts, quotes };
    } catch (error) {
      if (error instanceof ThresherError && onError === "none") return null;
      throw error;
    }
  }
}

function passage({ pageContent, metadata }: DocumentInterface, titleKey: string | null): Passage {
  const title: unknown = titleKey === null ? undefined : metadata?.[titleKey];
  return typeof title === "string" && title.trim() !== "" ? { text: pageContent, title } : { text: pageContent };
}
