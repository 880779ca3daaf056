/**
 * Adapters for the Vercel AI SDK: a language model middleware that adds compressed context to prompts and citations to answers, and a reranking
 * model. Positions are those of JavaScript strings.
 */

import type { LanguageModelMiddleware, RerankingModel } from "ai";

import { Client } from "./client.js";
import { ThresherError } from "./errors.js";
import { type AnswerableMetadata, type DocumentOptions, answerableMetadata, present } from "./passages.js";
import type { ClientOptions } from "./transport.js";
import type { AttributeSource, Chunk, ChunkInput, Compression, Message, Part, Usage } from "./types.js";

type Params = Parameters<NonNullable<LanguageModelMiddleware["transformParams"]>>[0]["params"];
type Prompt = Params["prompt"];
type Generated = Awaited<ReturnType<NonNullable<LanguageModelMiddleware["wrapGenerate"]>>>;
type Streamed = Awaited<ReturnType<NonNullable<LanguageModelMiddleware["wrapStream"]>>>;
type Content = Generated["content"][number];
type Source = Extract<Content, { type: "source" }>;
type Citation = NonNullable<Extract<Content, { type: "text" }>["citations"]>[number];
type StreamPart = Streamed["stream"] extends ReadableStream<infer P> ? P : never;
type ProviderMetadata = NonNullable<Generated["providerMetadata"]>;
type Reranker = Extract<RerankingModel, { specificationVersion: "v4" }>;

/** The most messages before the question that are sent with it. The daemon reads the newest of them. */
const MESSAGES_MAX = 20;
/** The most fields of documents that the daemon reads. */
const RANK_FIELDS_MAX = 64;

/** Options of `thresherMiddleware`. */
export interface ThresherMiddlewareOptions
  extends Pick<DocumentOptions, "budget" | "granularity" | "order" | "tokenizer" | "deadlineMs" | "client" | "connection"> {
  /** Finds the chunks for a question. `providerOptions.thresher.chunks` of a call takes precedence. */
  retrieve?: (question: string, options: { signal: AbortSignal | undefined }) => PromiseLike<readonly ChunkInput[]> | readonly ChunkInput[];
  /** Whether nothing is kept if no chunk is related to the question. Default: true. */
  relatedOnly?: boolean;
  /** The share of answerable questions that `answerable` may miss. */
  missedMax?: number;
  /** Whether answers get citations and verdicts. Default: true. */
  attribute?: boolean;
  /** What happens if the chunks cannot be compressed: `raise` (default), or `originals`, which puts them into the prompt whole. */
  onError?: "raise" | "originals";
  /** The text that is put before the question; it gets the context. Default: the context and a blank line. */
  template?: (context: string) => string;
}

/** What the middleware found out: `providerMetadata.thresher` of a result. `thresherMetadata` reads it. */
export interface ThresherResult {
  /** The id of the compression. */
  id: string | null;
  /** The context that was put into the prompt. */
  context: string;
  /** Whether any chunk concerns the question; null where this is not measured. */
  related: boolean | null;
  /** Whether the chunks answer the question; null where this is not measured. */
  answerable: AnswerableMetadata | null;
  usage: Usage | null;
  /** The parts of the answer, with their verdicts and sources. Ranges are those of the text block that a part stands in. */
  parts: Part[];
  /** The code of the error because of which the chunks are whole, or because of which parts are missing. */
  degraded?: string;
}

/** The result of the middleware in the `providerMetadata` of an answer; undefined if there were no chunks. */
export function thresherMetadata(metadata: Readonly<Record<string, unknown>> | undefined): ThresherResult | undefined {
  return metadata?.["thresher"] as ThresherResult | undefined;
}

/**
 * A middleware for `wrapLanguageModel`. It puts the part of the chunks that the question needs before the last message of the user. Sentences
 * of the answer get citations, and `providerMetadata.thresher` says whether the chunks support them.
 */
export function thresherMiddleware(options: ThresherMiddlewareOptions = {}): LanguageModelMiddleware {
  const client = options.client ?? new Client(options.connection);
  const contexts = new WeakMap<Params, Context>();
  const contextOf = (params: Params) => {
    // Structured output is not prose, so its text has no sentences to cite.
    const isAttributed = options.attribute !== false && params.responseFormat?.type !== "json";
    return isAttributed ? contexts.get(params) : undefined;
  };
  return {
    specificationVersion: "v4",
    async transformParams({ params }) {
      const { chunks: given, rest } = withoutChunks(params);
      const question = lastQuestion(rest.prompt);
      if (question === null) return rest;
      const chunks = given ?? (await options.retrieve?.(question.text, { signal: params.abortSignal })) ?? [];
      if (chunks.length === 0) return rest;
      const context = await Context.of(client, options, question, chunks, params.abortSignal);
      const { context: text } = context.result;
      const transformed = text === "" ? { ...rest } : { ...rest, prompt: question.after((options.template ?? paragraph)(text)) };
      contexts.set(transformed, context);
      return transformed;
    },
    async wrapGenerate({ doGenerate, params }) {
      const result = await doGenerate();
      const context = contextOf(params);
      if (context === undefined) return { ...result, ...metadata(contexts.get(params), result.providerMetadata) };
      const content: Content[] = [];
      for (const part of result.content) {
        if (part.type !== "text") content.push(part);
        else {
          const [citations, sources] = context.citations(await context.attribute(part.text));
          content.push({ ...part, citations: [...(part.citations ?? []), ...citations] }, ...sources);
        }
      }
      return { ...result, content, ...metadata(context, result.providerMetadata) };
    },
    async wrapStream({ doStream, params }) {
      const result = await doStream();
      const context = contexts.get(params);
      if (context === undefined) return result;
      return { ...result, stream: citing(result.stream, context, contextOf(params) !== undefined) };
    },
  };
}

/** A reranking model for `rerank` of the AI SDK. */
export function thresherReranker(options: { client?: Client; connection?: ClientOptions } = {}): Reranker {
  const client = options.client ?? new Client(options.connection);
  return {
    specificationVersion: "v4",
    provider: "thresher",
    modelId: "thresher",
    async doRerank({ documents, query, topN, abortSignal }) {
      // Objects are ranked by their fields, of which a request can name so many.
      const keys = documents.type === "object" ? new Set(documents.values.flatMap(Object.keys)) : undefined;
      const names = keys && [...keys].slice(0, RANK_FIELDS_MAX);
      const request = { query, documents: documents.values, ...present({ top_n: topN, rank_fields: names }) };
      const { id, model, results, related, answerable } = await client.rerank(request, { signal: abortSignal });
      return {
        ranking: results.map(({ index, relevance_score }) => ({ index, relevanceScore: relevance_score })),
        providerMetadata: { thresher: { related, answerable } },
        response: { id, modelId: model },
      };
    },
  };
}

/** The last message of the user, its text, and the messages before it. */
interface Question {
  text: string;
  history: Message[];
  /** The prompt with `text` put before that message. */
  after: (text: string) => Prompt;
}

function lastQuestion(prompt: Prompt): Question | null {
  const index = prompt.findLastIndex(({ role }) => role === "user");
  const message = prompt[index];
  if (message?.role !== "user") return null;
  const text = textOf(message.content);
  if (text.trim() === "") return null;
  const turns = prompt.slice(0, index).flatMap((message): Message[] => {
    if (message.role !== "user" && message.role !== "assistant") return [];
    const content = textOf(message.content);
    return content.trim() === "" ? [] : [{ role: message.role, content }];
  });
  const after = (text: string): Prompt => prompt.with(index, { ...message, content: [{ type: "text", text }, ...message.content] });
  return { text, history: turns.slice(-MESSAGES_MAX), after };
}

function textOf(content: readonly { type: string; text?: unknown }[]): string {
  return content.flatMap((part) => (part.type === "text" && typeof part.text === "string" ? [part.text] : [])).join("\n");
}

function paragraph(context: string): string {
  return `${context}\n\n`;
}

/** The chunks that a call brings with it, and its parameters without them. */
function withoutChunks(params: Params): { chunks: readonly ChunkInput[] | undefined; rest: Params } {
  const { thresher, ...others } = params.providerOptions ?? {};
  if (thresher === undefined) return { chunks: undefined, rest: params };
  const { chunks } = thresher as { chunks?: readonly ChunkInput[] };
  return { chunks, rest: { ...params, providerOptions: others } };
}

/** The context of one call, and what is found out about its answer. */
class Context {
  private readonly cited = new Set<string>();
  private readonly stopped = new AbortController();
  private readonly signal: AbortSignal;

  private constructor(
    private readonly client: Client,
    private readonly chunks: readonly Chunk[],
    signal: AbortSignal | undefined,
    readonly result: ThresherResult,
  ) {
    this.signal = signal === undefined ? this.stopped.signal : AbortSignal.any([signal, this.stopped.signal]);
  }

  /** Ends the requests that are open. */
  stop(): void {
    this.stopped.abort();
  }

  static async of(
    client: Client,
    options: ThresherMiddlewareOptions,
    question: Question,
    given: readonly ChunkInput[],
    signal: AbortSignal | undefined,
  ): Promise<Context> {
    const chunks = given.map((chunk, index): Chunk => ({ id: String(index), ...(typeof chunk === "string" ? { text: chunk } : chunk) }));
    const { budget, granularity, order, tokenizer, deadlineMs, relatedOnly, missedMax } = options;
    const wanted = { budget, granularity, order, tokenizer, deadline_ms: deadlineMs, related_only: relatedOnly, missed_max: missedMax };
    // Metadata may hold anything and are not needed in the answer.
    const sent = chunks.map(({ metadata: _, ...chunk }) => chunk);
    const { text: query, history: messages } = question;
    try {
      const found = await client.compress({ query, messages, chunks: sent, ...present(wanted), offsets: "utf16" }, { signal });
      return new Context(client, chunks, signal, outcome(found));
    } catch (error) {
      if (!(error instanceof ThresherError) || options.onError !== "originals") throw error;
      const context = chunks.map(({ title, text }, index) => `[${index + 1}] ${title === undefined ? "" : `${title}\n`}${text}`).join("\n\n");
      const unknown = { id: null, related: null, answerable: null, usage: null, parts: [] };
      return new Context(client, chunks, signal, { ...unknown, context, degraded: error.code });
    }
  }

  /** Where a part of the answer may have come from. */
  private get request(): AttributeSource & { offsets: "utf16" } {
    const { id } = this.result;
    const sent = this.chunks.map(({ metadata: _, ...chunk }) => chunk);
    return { ...(id === null ? { chunks: sent } : { compress_id: id }), offsets: "utf16" };
  }

  /** The parts of a whole text. An answer is worth more than its citations: if they fail, it is returned without them. */
  async attribute(answer: string): Promise<Part[]> {
    if (answer.trim() === "" || this.result.context === "") return [];
    return this.collected(async () => (await this.client.attribute({ ...this.request, answer }, { signal: this.signal })).parts);
  }

  private async collected(find: () => Promise<Part[]>): Promise<Part[]> {
    try {
      const parts = await find();
      this.result.parts.push(...parts);
      return parts;
    } catch (error) {
      if (!(error instanceof ThresherError)) throw error;
      this.result.degraded ??= error.code;
      return [];
    }
  }

  /** The citations of the parts, and the sources among them that have not been listed before. */
  citations(parts: readonly Part[]): [citations: Citation[], sources: Source[]] {
    const citations: Citation[] = [];
    const sources: Source[] = [];
    for (const { start, end, sources: found } of parts) {
      for (const { chunk, cited, sentence } of found) {
        if (!cited) continue;
        const source = this.source(chunk);
        citations.push({ source, startIndex: start, endIndex: end, citedText: sentence.text });
        if (!this.cited.has(chunk)) sources.push(source);
        this.cited.add(chunk);
      }
    }
    return [citations, sources];
  }

  /** A chunk as a source: a URL if its metadata have one, else a document. */
  private source(id: string): Source {
    const { title, metadata } = this.chunks.find((chunk) => chunk.id === id) ?? {};
    const url = typeof metadata === "object" && metadata !== null && "url" in metadata ? metadata.url : undefined;
    if (typeof url === "string") return { type: "source", sourceType: "url", id, url, ...present({ title }) };
    return { type: "source", sourceType: "document", id, mediaType: "text/plain", title: title ?? id };
  }
}

function outcome(found: Compression): ThresherResult {
  const { id, context, related, answerable, usage, degraded } = found;
  return {
    id,
    context,
    related,
    answerable: answerableMetadata(answerable),
    usage,
    parts: [],
    ...(degraded === null ? {} : { degraded: degraded.code }),
  };
}

/** The metadata of an answer, with the result of the middleware. */
function metadata(context: Context | undefined, before: ProviderMetadata | undefined): { providerMetadata?: ProviderMetadata } {
  if (context === undefined) return before === undefined ? {} : { providerMetadata: before };
  // The result is JSON; its types are interfaces, which TypeScript does not take for JSON objects.
  return { providerMetadata: { ...before, thresher: { ...context.result } as unknown as ProviderMetadata[string] } };
}

/** Adds citations to the ends of text blocks, and the result to the end of the stream. When the stream ends, in whatever way, so do its requests. */
function citing(source: ReadableStream<StreamPart>, context: Context, isAttributed: boolean): ReadableStream<StreamPart> {
  const reader = source.getReader();
  // The text of each open block.
  const open = new Map<string, string>();
  const end = async (id: string): Promise<Part[]> => {
    const text = open.get(id) ?? "";
    open.delete(id);
    return context.attribute(text);
  };
  const pass = async (part: StreamPart, controller: ReadableStreamDefaultController<StreamPart>) => {
    switch (part.type) {
      case "text-delta":
        if (isAttributed) open.set(part.id, (open.get(part.id) ?? "") + part.delta);
        controller.enqueue(part);
        break;
      case "text-end": {
        const [citations, sources] = context.citations(await end(part.id));
        controller.enqueue({ ...part, citations: [...(part.citations ?? []), ...citations] });
        for (const source of sources) controller.enqueue(source);
        break;
      }
      case "finish":
        for (const id of [...open.keys()]) await end(id);
        controller.enqueue({ ...part, ...metadata(context, part.providerMetadata) });
        break;
      default:
        controller.enqueue(part);
    }
  };
  const stream: UnderlyingDefaultSource<StreamPart> = {
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (!done) return await pass(value, controller);
      } catch (error) {
        context.stop();
        throw error;
      }
      context.stop();
      controller.close();
    },
    async cancel(reason) {
      context.stop();
      await reader.cancel(reason);
    },
  };
  // Nothing is read before it is asked for.
  return new ReadableStream(stream, { highWaterMark: 0 });
}
