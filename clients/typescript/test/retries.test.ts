/** Retries, time limits, cancellation and errors, against a server with scripted answers. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  AnswerInvalidError,
  ApiError,
  AuthenticationError,
  Client,
  type ClientOptions,
  ConnectionFailedError,
  DeadlineExceededError,
  NotFoundError,
  OverloadedError,
  RequestInvalidError,
  ServerError,
  ThresherError,
  TimedOutError,
  UnavailableError,
} from "thresher-client";

import { type Answer, Scripted, failure } from "./scripted.js";

const GOOD: Answer = { body: { data: [{ id: "m" }] } };
const BUSY = failure(429, "overloaded");
const SOON = { countMax: 3, waitMsMin: 10, waitMsMax: 50 };

type Rejection = { is: abstract new (...args: never[]) => Error; code?: string };

/** Asserts the number of requests and the outcome of `models()`. Returns the requests and the error, if one is expected. */
async function check(answers: Answer[], times: number, rejection?: Rejection, options: ClientOptions = {}) {
  const server = await Scripted.start(...answers);
  try {
    const client = new Client({ baseUrl: server.url, retries: SOON, ...options });
    const asked = client.models().then(
      ([model]) => ({ model, error: undefined }),
      (error: unknown) => ({ model: undefined, error }),
    );
    const { model, error } = await asked;
    if (rejection === undefined) assert.equal(model?.id, "m", String(error));
    else {
      assert.ok(error instanceof rejection.is, String(error));
      if (rejection.code !== undefined) assert.equal((error as ThresherError).code, rejection.code);
    }
    assert.equal(server.requests.length, times);
    return { error, requests: server.requests };
  } finally {
    await server.stop();
  }
}

test("refusals and lost connections are repeated", async () => {
  await check([BUSY, failure(503, "draining"), GOOD], 3);
  await check([{ hangUp: true }, GOOD], 2);
});

test("repetitions are bounded", async () => {
  await check([BUSY], 4, { is: OverloadedError, code: "overloaded" });
  await check([failure(503, "not_ready")], 4, { is: UnavailableError });
  await check([{ hangUp: true }], 4, { is: ConnectionFailedError, code: "connection_failed" });
  await check([BUSY], 1, { is: OverloadedError }, { retries: { countMax: 0 } });
});

test("invalid requests and failures are not repeated", async () => {
  for (const [status, is] of [
    [400, RequestInvalidError],
    [401, AuthenticationError],
    [403, AuthenticationError],
    [404, NotFoundError],
    [422, RequestInvalidError],
    [500, ServerError],
    [502, ServerError],
    [504, DeadlineExceededError],
    [507, ServerError],
  ] as const) {
    await check([failure(status, "some_code"), GOOD], 1, { is, code: "some_code" });
  }
});

test("Retry-After is obeyed, as often as the time of the call allows", async () => {
  const after = failure(429, "overloaded", { "retry-after": "1" });
  const { requests } = await check([after, GOOD], 2);
  assert.ok(requests[1]!.at - requests[0]!.at >= 999);
  // 0 seconds each: more refusals than countMax.
  const now = failure(503, "not_ready", { "retry-after": "0" });
  await check([...Array<Answer>(30).fill(now), GOOD], 31);
  // An HTTP date in the past is no wait.
  await check([failure(429, "overloaded", { "retry-after": new Date(0).toUTCString() }), GOOD], 2);
});

test("no wait begins that would exceed the time of the call", async () => {
  const began = performance.now();
  const after = failure(429, "overloaded", { "retry-after": "3600" });
  const { error } = await check([after, GOOD], 1, { is: OverloadedError }, { timeoutMs: 60_000 });
  assert.ok(performance.now() - began < 30_000);
  assert.equal((error as ApiError).retryAfterS, 3600);
});

test("a call that takes too long is ended and not repeated", async () => {
  await check([{ never: true }], 1, { is: TimedOutError, code: "timed_out" }, { timeoutMs: 200 });
  const { error } = await check([BUSY, { never: true }], 2, { is: TimedOutError }, { timeoutMs: 1_000 });
  assert.match(String(error), /the attempt before failed: no/);
});

test("an error has code, message, param, status and request id", async () => {
  const answer = failure(422, "too_long", { "x-request-id": "r-1" }, "chunks[3].text");
  const { error } = await check([answer], 1, { is: RequestInvalidError });
  const { code, message, param, status, requestId, name, retryAfterS } = error as ApiError;
  assert.deepEqual({ code, message, param, status, requestId, name, retryAfterS }, {
    code: "too_long",
    message: "no (at chunks[3].text)",
    param: "chunks[3].text",
    status: 422,
    requestId: "r-1",
    name: "RequestInvalidError",
    retryAfterS: null,
  });
});

test("answers of other servers are errors", async () => {
  await check([{ body: "<html>" }], 1, { is: AnswerInvalidError, code: "answer_invalid" });
  const { error } = await check([{ status: 400, body: "<html>no" }], 1, { is: RequestInvalidError, code: "http_400" });
  assert.equal((error as Error).message, "<html>no");
  await check([{ status: 301, headers: { location: "http://127.0.0.1:1/" } }], 1, { is: ApiError, code: "http_301" });
});

test("a signal aborts a call and its waits, with the reason of the signal", async () => {
  const server = await Scripted.start({ never: true });
  try {
    const aborting = new AbortController();
    const call = new Client({ baseUrl: server.url }).models({ signal: aborting.signal });
    setTimeout(() => aborting.abort(new Error("enough")), 50);
    await assert.rejects(call, { message: "enough" });
  } finally {
    await server.stop();
  }
  const waiting = await Scripted.start(failure(429, "overloaded", { "retry-after": "30" }));
  try {
    const call = new Client({ baseUrl: waiting.url }).models({ signal: AbortSignal.timeout(300) });
    await assert.rejects(call, { name: "TimeoutError" });
  } finally {
    await waiting.stop();
  }
  await assert.rejects(new Client({ baseUrl: server.url }).models({ signal: AbortSignal.abort() }), { name: "AbortError" });
});

test("the key is sent as a bearer token, and may end with a line break", async () => {
  const { requests } = await check([GOOD], 1, undefined, { apiKey: "thr_abc\n" });
  assert.equal(requests[0]!.headers.authorization, "Bearer thr_abc");
});

test("unusable options are refused", () => {
  for (const options of [{ baseUrl: "localhost:8080" }, { apiKey: "a\nb" }] satisfies ClientOptions[]) {
    assert.throws(() => new Client(options), TypeError);
  }
  for (const options of [{ timeoutMs: 0 }, { timeoutMs: Number.NaN }, { retries: { countMax: -1 } }] satisfies ClientOptions[]) {
    assert.throws(() => new Client(options), RangeError);
  }
});
