"""What can go wrong, as types: what the daemon refused, what never reached it, what took too long."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Literal

import httpx

# The codes of the daemon's own errors, as `ErrorCode` in its OpenAPI document lists them; `tests/contract/openapi_test.py` compares the two.
ErrorCode = Literal[
    "answer_empty",
    "answer_failed",
    "answer_too_long",
    "body_broken",
    "body_timeout",
    "body_too_large",
    "budget_ambiguous",
    "budget_impossible",
    "budget_zero",
    "cancelled",
    "change_log_unavailable",
    "chunk_id_duplicate",
    "chunk_id_invalid",
    "chunk_not_found",
    "chunk_too_long",
    "chunk_too_many",
    "chunk_unknown",
    "chunks_ambiguous",
    "chunks_empty",
    "compress_id_unknown",
    "content_type_unsupported",
    "count_out_of_range",
    "deadline_exceeded",
    "deadline_out_of_range",
    "documents_ambiguous",
    "draining",
    "duplicate_field",
    "encoding_unsupported",
    "filter_field_unknown",
    "filter_invalid",
    "handles_absent",
    "header_invalid",
    "host_not_allowed",
    "include_too_many",
    "input_too_long",
    "internal",
    "invalid_json",
    "json_too_deep",
    "json_value_too_many",
    "keep_too_many",
    "keep_unknown",
    "key_missing",
    "key_revoked",
    "key_unknown",
    "kv_ambiguous",
    "kv_budget_too_small",
    "kv_too_large",
    "kv_too_long",
    "kv_unavailable",
    "kv_unknown",
    "length_mismatch",
    "logit_too_many",
    "messages_empty",
    "metadata_not_object",
    "metadata_too_deep",
    "metadata_too_long",
    "metadata_unreadable",
    "method_not_allowed",
    "middleware_off",
    "missing_field",
    "model_failed",
    "model_mismatch",
    "model_unknown",
    "name_too_long",
    "not_found",
    "not_ready",
    "original_unknown",
    "originals_failed",
    "origin_not_allowed",
    "overloaded",
    "part_too_many",
    "piece_too_many",
    "query_empty",
    "query_string_invalid",
    "query_too_long",
    "rank_field_duplicate",
    "rank_field_too_many",
    "rank_fields_empty",
    "rate_limited",
    "ratio_out_of_range",
    "receipt_failed",
    "registry_absent",
    "registry_full",
    "registry_read_failed",
    "registry_stopped",
    "registry_unusable",
    "registry_write_failed",
    "source_too_many",
    "span_empty",
    "span_inside_character",
    "span_out_of_range",
    "span_reversed",
    "span_too_many",
    "spans_overlap",
    "spans_unexpected",
    "stream_empty",
    "stream_event_invalid",
    "stream_option_invalid",
    "text_empty",
    "turn_too_many",
    "unknown_field",
    "unknown_value",
    "upstream_failed",
    "upstream_silent",
    "wrong_type",
]

# Of an answer that is not the daemon's (a proxy's page), so much is quoted.
_QUOTED_MAX = 200


class ThresherError(Exception):
    """Any error of this package that is not a wrong argument (those are ValueError and TypeError)."""

    code: str
    message: str

    def __init__(self, code: str, message: str, request: httpx.Request | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.request = request

    def __reduce__(self) -> Any:
        # Pools and task queues pickle what workers raise; by default that calls __init__ with the message alone.
        return _restored, (type(self), self.args, self.__dict__)


class ConnectionFailedError(ThresherError):
    """The daemon was not reached, or the connection broke before it had answered."""


class TimedOutError(ThresherError, TimeoutError):
    """`timeout_s` passed, all attempts and waits included."""


class AnswerInvalidError(ThresherError):
    """The answer is not what this client can read: another server, or a version that it does not know."""


class HandoverError(ThresherError):
    """Keys and values that cannot be taken over: `model_mismatch`, `fingerprint_unknown`, `handover_invalid`, ..."""


class ApiError(ThresherError):
    """The daemon answered with an error: its `code`, `message` and `param`, with the `status` and the `request`.

    `code` is an `ErrorCode`, or one that a newer daemon has added; `http_NNN` where the answer is not the daemon's.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        *,
        request: httpx.Request | None = None,
        response: httpx.Response | None = None,
    ) -> None:
        super().__init__(code, f"{message} (at {param})" if param else message, request)
        self.message = message
        self.status = status
        self.param = param
        self.response = response

    @property
    def retry_after_s(self) -> float | None:
        """How long the daemon asked to wait, where it did."""
        return None if self.response is None else retry_after_s(self.response)


class RequestInvalidError(ApiError):
    """400, 413, 415, 422 and the other 4xx: the request has to change."""


class AuthenticationError(ApiError):
    """401 and 403: whatever stands before the daemon wants another key."""


class NotFoundError(ApiError):
    """404: no such path, chunk, remembered compression, or keys and values."""


class OverloadedError(ApiError):
    """429: too many requests wait."""


class UnavailableError(ApiError):
    """503: not ready, or shutting down."""


class DeadlineExceededError(ApiError):
    """504: the daemon's own deadline (`deadline_ms`) passed."""


class ServerError(ApiError):
    """500 and the other 5xx."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    429: OverloadedError,
    503: UnavailableError,
    504: DeadlineExceededError,
}


def api_error(response: httpx.Response, body: object) -> ApiError:
    """The error that an answer holds; `body` is its JSON, if it is any."""
    status = response.status_code
    # Below 400: in a stream, whose status was sent before.
    of_range = ServerError if status >= 500 else RequestInvalidError if status >= 400 else ApiError
    kind = _BY_STATUS.get(status, of_range)
    error: Any = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        message, param = str(error.get("message", "")), error.get("param")
        param = param if isinstance(param, str) else None
        return kind(status, error["code"], message, param, request=response.request, response=response)
    message = response.text[:_QUOTED_MAX].strip() or response.reason_phrase
    return kind(status, f"http_{status}", message, request=response.request, response=response)


def _restored(kind: type[ThresherError], args: tuple[Any, ...], state: dict[str, Any]) -> ThresherError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def retry_after_s(response: httpx.Response) -> float | None:
    """`Retry-After`, which is a number of seconds or a date."""
    said = response.headers.get("retry-after")
    if said is None:
        return None
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - time()
        except (TypeError, ValueError):
            return None
    return seconds if 0 <= seconds < float("inf") else 0.0 if seconds < 0 else None
