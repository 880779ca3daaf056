/** Requests that are sent with a key that all tenants share, as servers in Node.js read them: Express (body-parser, busboy) and fetch.
 *
 * The rows of tests/fixtures/shared_key.jsonl name the status of each request. tests/contract/shared_key_test.py does the same with parsers of
 * Python. */

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { type IncomingHttpHeaders, type IncomingMessage, createServer, request } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Readable } from "node:stream";
import { test } from "node:test";

import bodyParser from "body-parser";
import busboy from "busboy";

import { Daemon } from "./daemon.js";

interface Row {
  name: string;
  path: string;
  headers: string[];
  body: string;
  status: number;
}

type Received = { headers: IncomingHttpHeaders; body: Buffer };
type Fields = [string, unknown][];

const ROOT = process.env["THRESHER_TEST_ROOT"] ?? resolve("../..");
const ROWS: Row[] = readFileSync(join(ROOT, "tests/fixtures/shared_key.jsonl"), "utf8")
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line));

/** As Express reads bodies, with the parser of multer for forms. */
function readWithExpress({ headers, body }: Received): Promise<Fields> {
  return new Promise((done, failed) => {
    const incoming = Object.assign(Readable.from([body]), { headers }) as IncomingMessage & { body?: object };
    if (headers["content-type"]!.includes("json")) {
      bodyParser.json()(incoming, {} as never, (error?: unknown) => (error ? failed(error) : done(Object.entries(incoming.body ?? {}))));
      return;
    }
    const fields: Fields = [];
    const parser = busboy({ headers });
    parser.on("field", (name, value) => fields.push([name, value]));
    parser.on("file", (name, file) => {
      fields.push([name, file]);
      file.resume();
    });
    parser.on("close", () => done(fields));
    parser.on("error", failed);
    incoming.pipe(parser);
  });
}

/** As servers with the API of fetch read bodies. */
async function readWithFetch({ headers, body }: Received): Promise<Fields> {
  const type = headers["content-type"]!;
  const response = new Response(new Uint8Array(body), { headers: { "content-type": type } });
  return type.includes("json") ? Object.entries((await response.json()) as object) : [...(await response.formData()).entries()];
}

function send(url: string, row: Row): Promise<number> {
  const headers: Record<string, string | string[]> = { authorization: "Bearer caller" };
  for (const line of row.headers) {
    const [name, value] = line.split(/: (.*)/s) as [string, string];
    headers[name] = [...(headers[name] ?? []), value];
  }
  return new Promise((done, failed) => {
    const sending = request(url + row.path, { method: "POST", headers }, (response) => {
      response.resume().on("end", () => done(response.statusCode!));
    });
    sending.on("error", failed).end(row.body);
  });
}

test("every parser of Node.js reads the same model of a request with a shared key", async () => {
  const received: Received[] = [];
  const upstream = createServer(async (incoming, response) => {
    const pieces: Buffer[] = [];
    for await (const piece of incoming) pieces.push(piece as Buffer);
    received.push({ headers: incoming.headers, body: Buffer.concat(pieces) });
    response.setHeader("content-type", "application/json").end("{}");
  });
  await new Promise<void>((listening) => upstream.listen(0, "127.0.0.1", listening));
  const key = join(mkdtempSync(join(tmpdir(), "thresher-")), "key");
  writeFileSync(key, "sk-operator", { mode: 0o600 });
  const url = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const upstreams = `[{url = ${JSON.stringify(url)}, models = ["gpt-*"], key_file = ${JSON.stringify(key)}}]`;
  const daemon = await Daemon.start({ THRESHER__MIDDLEWARE__UPSTREAMS: upstreams });
  try {
    for (const row of ROWS) {
      received.length = 0;
      assert.equal(await send(daemon.url, row), row.status, row.name);
      assert.equal(received.length, Number(row.status === 200), row.name);
      for (const sent of received) {
        for (const read of [readWithExpress, readWithFetch]) {
          const models = (await read(sent)).filter(([name]) => /model/i.test(name)).map(([, value]) => value);
          assert.deepEqual(models, ["gpt-x"], `${row.name}, ${read.name}: ${sent.body}`);
        }
      }
    }
  } finally {
    await daemon.stop();
    upstream.close();
  }
});
