/** A server that gives scripted answers, one after the other; the last one is repeated. */

import { type IncomingHttpHeaders, type Server, createServer } from "node:http";
import type { AddressInfo } from "node:net";

/** A scripted answer. */
export interface Answer {
  status?: number;
  headers?: Record<string, string>;
  body?: unknown;
  /** Closes the connection in place of an answer. */
  hangUp?: boolean;
  /** Sends nothing at all. */
  never?: boolean;
}

export class Scripted {
  readonly requests: { path: string; headers: IncomingHttpHeaders; at: number; body: string }[] = [];

  private constructor(
    readonly url: string,
    private readonly server: Server,
  ) {}

  static async start(...answers: Answer[]): Promise<Scripted> {
    const server = createServer(async (request, response) => {
      const answer = answers[Math.min(scripted.requests.length, answers.length - 1)]!;
      const received = { path: request.url ?? "", headers: request.headers, at: performance.now(), body: "" };
      scripted.requests.push(received);
      if (answer.hangUp) return void request.socket.destroy();
      if (answer.never) return;
      response.writeHead(answer.status ?? 200, { "content-type": "application/json", ...answer.headers });
      response.flushHeaders();
      for await (const piece of request) received.body += piece;
      response.end(typeof answer.body === "string" ? answer.body : JSON.stringify(answer.body ?? {}));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const scripted = new Scripted(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, server);
    return scripted;
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

/** An error as the daemon writes it. */
export function failure(status: number, code: string, headers: Record<string, string> = {}, param: string | null = null): Answer {
  return { status, headers, body: { error: { code, message: "no", param } } };
}
