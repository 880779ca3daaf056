/** Errors of this package: errors that the daemon returned, failed connections, timeouts and unusable answers. */

import type { AnyErrorCode } from "./codes.js";

/** Base class of all errors of this package. */
export class ThresherError extends Error {
  /** A stable code, for programs. */
  readonly code: AnyErrorCode;

  constructor(code: AnyErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** The client could not connect to the daemon, or the connection broke before the answer was complete. */
export class ConnectionFailedError extends ThresherError {}

/** The call took longer than `timeoutMs`, including all retries and the waits between them. */
export class TimedOutError extends ThresherError {}

/** The client cannot read the answer: another server sent it, or a version of the daemon that this client does not know. */
export class AnswerInvalidError extends ThresherError {}

/** What an error of the daemon has besides its code and its message. */
export interface ApiErrorFields {
  /** The HTTP status. */
  status: number;
  /** The path of the wrong field in the request, such as `chunks[3].text`; null if no single field is at fault. */
  param: string | null;
  /** The value of the header `x-request-id` of the response, which also stands in the daemon's log; null if there is none. */
  requestId: string | null;
  /** Seconds after which to retry, from the header `Retry-After`; null if there is none. */
  retryAfterS: number | null;
}

/** The daemon answered with an error. `code` is the daemon's, or `http_NNN` if the response is not the daemon's. */
export class ApiError extends ThresherError implements ApiErrorFields {
  readonly status: number;
  readonly param: string | null;
  readonly requestId: string | null;
  readonly retryAfterS: number | null;

  constructor(code: AnyErrorCode, message: string, fields: ApiErrorFields) {
    super(code, message);
    this.status = fields.status;
    this.param = fields.param;
    this.requestId = fields.requestId;
    this.retryAfterS = fields.retryAfterS;
  }
}

/** The daemon refused the request, and would refuse it again: status 400, 413, 415, 422, or another 4xx. */
export class RequestInvalidError extends ApiError {}

/** The API key is missing or was refused, or the daemon does not allow the request: status 401 or 403. */
export class AuthenticationError extends ApiError {}

/** The path, chunk, compression (`compress_id`) or export of keys and values does not exist: status 404. */
export class NotFoundError extends ApiError {}

/** Too many requests are waiting, or the key's rate limit is exceeded: status 429. */
export class OverloadedError extends ApiError {}

/** The daemon is not ready, is shutting down, or cannot reach a server that it needs: status 503. */
export class UnavailableError extends ApiError {}

/** The daemon did not finish the request within `deadline_ms`: status 504. */
export class DeadlineExceededError extends ApiError {}

/** The daemon failed: status 500, or another 5xx. */
export class ServerError extends ApiError {}

const BY_STATUS: Readonly<Record<number, typeof ApiError>> = {
  401: AuthenticationError,
  403: AuthenticationError,
  404: NotFoundError,
  429: OverloadedError,
  503: UnavailableError,
  504: DeadlineExceededError,
};

/** The most characters of a foreign response that an error message quotes. */
const QUOTED_MAX = 200;

/** The error that a response with this status, these headers and this body reports. */
export function apiError(status: number, headers: Headers, body: string): ApiError {
  const other = status >= 500 ? ServerError : status >= 400 ? RequestInvalidError : ApiError;
  const Kind = BY_STATUS[status] ?? other;
  const fields = {
    status,
    param: null,
    requestId: headers.get("x-request-id"),
    retryAfterS: retryAfterS(headers.get("retry-after")),
  };
  const error = parsed(body);
  if (error !== null && typeof error.code === "string") {
    const param = typeof error.param === "string" ? error.param : null;
    const message = String(error.message ?? "");
    return new Kind(error.code, param === null ? message : `${message} (at ${param})`, { ...fields, param });
  }
  return new Kind(`http_${status}`, body.slice(0, QUOTED_MAX).trim() || `the answer has the status ${status}`, fields);
}

/** The object `error` of a JSON body; null if there is none. */
function parsed(body: string): { code?: unknown; message?: unknown; param?: unknown } | null {
  try {
    const json: unknown = JSON.parse(body);
    const error = typeof json === "object" && json !== null && "error" in json ? json.error : null;
    return typeof error === "object" ? error : null;
  } catch {
    return null;
  }
}

/** The seconds that a `Retry-After` header asks for, which is a number of seconds or a date; null if there is none that can be read. */
export function retryAfterS(header: string | null): number | null {
  if (header === null || header.trim() === "") return null;
  const seconds = Number(header);
  if (Number.isFinite(seconds)) return Math.max(seconds, 0);
  const date = Date.parse(header);
  return Number.isNaN(date) ? null : Math.max((date - Date.now()) / 1000, 0);
}
