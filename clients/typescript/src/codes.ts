/** The codes of errors. */

/** The codes of the daemon's own errors, as `ErrorCode` in its OpenAPI document lists them; `tests/generators` compares the two. */
export type ErrorCode =
  | "answer_failed"
  | "body_broken"
  | "body_timeout"
  | "body_too_large"
  | "budget_impossible"
  | "cancelled"
  | "change_log_unavailable"
  | "chunk_unknown"
  | "content_type_unsupported"
  | "deadline_exceeded"
  | "draining"
  | "duplicate"
  | "duplicate_field"
  | "field_empty"
  | "fields_conflict"
  | "id_unknown"
  | "internal"
  | "invalid_json"
  | "invalid_value"
  | "key_missing"
  | "key_revoked"
  | "key_unknown"
  | "method_not_allowed"
  | "missing_field"
  | "model_failed"
  | "model_mismatch"
  | "model_unknown"
  | "not_found"
  | "not_ready"
  | "origin_not_allowed"
  | "out_of_range"
  | "overloaded"
  | "rate_limited"
  | "registry_full"
  | "storage_failed"
  | "storage_full"
  | "too_long"
  | "too_many"
  | "unavailable"
  | "unknown_field"
  | "unknown_value"
  | "upstream_failed"
  | "upstream_loop"
  | "upstream_silent"
  | "wrong_type";

/** The codes of failures between client and daemon. */
export type ClientErrorCode = "answer_invalid" | "connection_failed" | "timed_out";

/** A code that this version of the client knows, or one that a newer daemon added, or `http_NNN` if the response is not the daemon's. */
export type AnyErrorCode = ErrorCode | ClientErrorCode | (string & {});
