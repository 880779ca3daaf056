/** The protocol of `POST /v1/attribute/stream`: sends an answer piece by piece, and yields its parts as the daemon finishes them. */

import { AnswerInvalidError, ConnectionFailedError, apiError } from "./errors.js";
import { type CallOptions, type Transport, connectionError, timedOut } from "./transport.js";
import type { Part } from "./types.js";

/** The pieces of an answer, such as the text that a language model streams. */
export type Deltas = AsyncIterable<string> | Iterable<string>;

const PATH = "/v1/attribute/stream";

/**
 * The parts of a streamed answer, each as soon as its end is certain. Iterate over it once.
 *
 * The request and the answer are in flight at the same time. Node.js sends a body while it reads the answer; browsers do not.
 */
export class AttributionStream implements AsyncIterable<Part> {
  /** True if the answer was complete, false if it was cut off, null before its end. */
  ended: boolean | null = null;
  private started = false;

  constructor(
    private readonly transport: Transport,
    private readonly deltas: Deltas,
    private readonly request: unknown,
    private readonly options: CallOptions,
  ) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<Part, void, undefined> {
    if (this.started) throw new TypeError("a stream can be iterated over only once");
    this.started = true;
    const { signal } = this.options;
    const source = pieces(this.deltas);
    const connection = new AbortController();
    const abort = () => connection.abort(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    const watch = new Watch(this.transport.timeout(this.options), connection);
    const sender = new Sender(source, this.request, watch);
    try {
      const response = await this.transport.repeated(this.options, (opening) => this.open(sender, opening, connection.signal));
      sender.accept();
      for await (const [name, data] of events(response, watch)) {
        if (name === "part") {
          watch.pause();
          yield part(data);
          watch.resume();
        }
        if (name === "error") throw apiError(response.status, response.headers, data);
        if (name === "done") {
          this.ended = Boolean((JSON.parse(data) as { ended?: boolean }).ended ?? true);
          return;
        }
      }
      throw new ConnectionFailedError("connection_failed", "the stream ended without its last event");
    } catch (error) {
      if (sender.failure !== null) throw sender.failure.error;
      if (connection.signal.aborted) throw connection.signal.reason;
      throw error;
    } finally {
      watch.end();
      signal?.removeEventListener("abort", abort);
      connection.abort();
      // Not awaited: a generator that waits for its model returns only when the model answers.
      Promise.resolve(source.return?.()).catch(() => {});
    }
  }

  /** Sends the request once, and resolves when the daemon has accepted it. */
  private async open(sender: Sender, opening: AbortSignal, connection: AbortSignal): Promise<Response> {
    const refused = new AbortController();
    try {
      return await this.transport.open(PATH, sender.body(), AbortSignal.any([opening, connection, refused.signal]));
    } catch (error) {
      // The body of this attempt is still open.
      refused.abort();
      throw error;
    }
  }
}

/** Aborts the connection if the daemon neither takes nor sends anything for `timeoutMs`. */
class Watch {
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** How often the stream waits for the caller: for the next piece of the answer, and for the next call of the iterator. */
  private pauses = 0;
  private isOver = false;

  constructor(
    private readonly timeoutMs: number,
    private readonly connection: AbortController,
  ) {}

  /** Something was sent or received. */
  restart(): void {
    clearTimeout(this.timer);
    if (this.pauses === 0 && !this.isOver) this.timer = setTimeout(() => this.connection.abort(timedOut(this.timeoutMs)), this.timeoutMs);
  }

  /** The stream begins to wait for the caller, who may take long. */
  pause(): void {
    this.pauses += 1;
    clearTimeout(this.timer);
  }

  resume(): void {
    this.pauses -= 1;
    this.restart();
  }

  /** The stream is over. What the caller does after that starts no timer, which would keep the program from ending. */
  end(): void {
    this.isOver = true;
    clearTimeout(this.timer);
  }
}

/** Makes the body of the request: the request, and after the daemon has accepted it the pieces of the answer. */
class Sender {
  /** The error of the caller's deltas, if they failed. */
  failure: { error: unknown } | null = null;
  accept!: () => void;
  private readonly accepted = new Promise<void>((resolve) => {
    this.accept = resolve;
  });
  private attempt = 0;

  constructor(
    private readonly deltas: AsyncIterator<string> | Iterator<string>,
    private readonly request: unknown,
    private readonly watch: Watch,
  ) {}

  /** A body for one attempt. Nothing of the answer is taken until `accept` is called, and then only for the last attempt. */
  body(): ReadableStream<Uint8Array> {
    const encoder = new TextEncoder();
    const event = (data: string) => encoder.encode(`data: ${data}\n\n`);
    const attempt = ++this.attempt;
    let isFirst = true;
    return new ReadableStream({
      pull: async (controller) => {
        if (isFirst) {
          isFirst = false;
          controller.enqueue(event(JSON.stringify(this.request)));
          return;
        }
        await this.accepted;
        if (attempt !== this.attempt) return;
        try {
          const delta = await this.next();
          controller.enqueue(event(delta === null ? "[DONE]" : JSON.stringify({ delta })));
          if (delta === null) controller.close();
        } catch (error) {
          this.failure = { error };
          controller.error(error);
        }
      },
    });
  }

  /** The next piece of the answer that is not empty; null at its end. */
  private async next(): Promise<string | null> {
    this.watch.pause();
    try {
      for (;;) {
        const { done, value } = await this.deltas.next();
        if (done) return null;
        if (value !== "") return value;
      }
    } finally {
      this.watch.resume();
    }
  }
}

function pieces(deltas: Deltas): AsyncIterator<string> | Iterator<string> {
  if (typeof deltas === "string") throw new TypeError("deltas must be pieces of text, but it is a single string: pass [text]");
  return Symbol.asyncIterator in deltas ? deltas[Symbol.asyncIterator]() : deltas[Symbol.iterator]();
}

/** The events of a response: their names and their data. The daemon writes one line of data for each event. */
async function* events(response: Response, watch: Watch): AsyncGenerator<[name: string, data: string]> {
  if (response.body === null) throw new AnswerInvalidError("answer_invalid", "the answer has no body");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await read(reader);
    if (done) return;
    watch.restart();
    const blocks = (buffer + value).split("\n\n");
    buffer = blocks.pop() ?? "";
    for (const block of blocks) {
      const field = (name: string) => block.match(new RegExp(`^${name}: ?(.*)$`, "m"))?.[1];
      const data = field("data");
      if (data !== undefined) yield [field("event") ?? "message", data];
    }
  }
}

async function read(reader: ReadableStreamDefaultReader<string>): Promise<ReadableStreamReadResult<string>> {
  try {
    return await reader.read();
  } catch (error) {
    throw connectionError(error);
  }
}

function part(data: string): Part {
  try {
    return JSON.parse(data) as Part;
  } catch (error) {
    throw new AnswerInvalidError("answer_invalid", "a part of the answer is not JSON", { cause: error });
  }
}
