/** Adapters for LangChain.js: a document compressor, and a retriever that applies one. */

import type { CallbackManagerForRetrieverRun, Callbacks } from "@langchain/core/callbacks/manager";
import { Document, type DocumentInterface } from "@langchain/core/documents";
import { BaseDocumentCompressor } from "@langchain/core/retrievers/document_compressors";
import { BaseRetriever, type BaseRetrieverInput, type BaseRetrieverInterface } from "@langchain/core/retrievers";

import { type DocumentOptions, Selector } from "./passages.js";

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
    const passages = documents.map(({ pageContent, metadata }) => {
      const title: unknown = this.titleKey === null ? undefined : metadata?.[this.titleKey];
      return typeof title === "string" && title.trim() !== "" ? { text: pageContent, title } : { text: pageContent };
    });
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
