/** The client of Thresher. Adapters are separate modules: `thresher-client/ai-sdk` and `thresher-client/langchain`. */

export { Client } from "./client.js";
export type { AnyErrorCode, ClientErrorCode, ErrorCode } from "./codes.js";
export {
  AnswerInvalidError,
  ApiError,
  AuthenticationError,
  ConnectionFailedError,
  DeadlineExceededError,
  NotFoundError,
  OverloadedError,
  RequestInvalidError,
  ServerError,
  ThresherError,
  TimedOutError,
  UnavailableError,
} from "./errors.js";
export type { Retries } from "./retry.js";
export type { CallOptions, ClientOptions } from "./transport.js";
export type * from "./types.js";
