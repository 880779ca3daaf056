/** The codes of errors. */

import type { components } from "./schema.js";

/** The codes of the daemon's own errors. */
export type ErrorCode = components["schemas"]["ErrorCode"];

/** The codes of failures between client and daemon. */
export type ClientErrorCode = "answer_invalid" | "connection_failed" | "timed_out";

/** A code that this version of the client knows, or one that a newer daemon added, or `http_NNN` if the response is not the daemon's. */
export type AnyErrorCode = ErrorCode | ClientErrorCode | (string & {});
