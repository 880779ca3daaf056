"""Exceptions of this package: errors that the daemon returned, failed connections, timeouts, and unusable answers."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import httpx

from ._answers import ErrorCode as ErrorCode

# Characters that an error message quotes of a body that the daemon did not write (a proxy's page).
_QUOTED_MAX = 200


class ThresherError(Exception):
    """Base class of the errors of this package. Wrong arguments raise `ValueError` or `TypeError` instead.

    `code` is a stable name of the error, `message` says what happened, and `request` is the HTTP request, if one was made.
    """

    code: str
    message: str

    def __init__(self, code: str, message: str, request: httpx.Request | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.request = request

    def __reduce__(self) -> Any:
        # Process pools and task queues pickle exceptions. By default, unpickling would call __init__ with the message alone.
        return _restored, (type(self), self.args, self.__dict__)


class ConnectionFailedError(ThresherError):
    """The client could not connect to the daemon, or the connection broke before the answer was complete."""


class TimedOutError(ThresherError, TimeoutError):
    """The call took longer than `timeout_s`, including all retries and the waits between them."""


class AnswerInvalidError(ThresherError):
    """The client cannot read the answer: another server sent it, or a version of the daemon that this client does not know."""


class KvExportError(ThresherError):
    """A model cannot load exported keys and values.

    `code` is `model_mismatch` (the model differs from the daemon's), `fingerprint_unknown` (the model's weights cannot be
    identified), `kv_export_invalid` (the file is damaged or has another format), `attention_missing` (the cache was used outside
    `attention(model)`) or `attention_fixed` (the model's attention cannot be replaced).
    """


class ApiError(ThresherError):
    """The daemon answered with an error.

    `status` is the HTTP status, `code` and `message` are the daemon's, and `param` is the path of the wrong field in the request,
    if one field is at fault. `response` is the HTTP response.

    `code` is an `ErrorCode`, or a code that a newer daemon added; it is `http_NNN` if the response is not the daemon's.
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
    def request_id(self) -> str | None:
        """The header `x-request-id` of the answer, by which the daemon's log names the request; None if there is no such header."""
        return None if self.response is None else self.response.headers.get("x-request-id")

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which to retry, from the `Retry-After` header; None if the answer has no such header."""
        return None if self.response is None else retry_after_s(self.response)


class RequestInvalidError(ApiError):
    """The daemon refused the request, and would refuse it again: status 400, 413, 415, 422, or another 4xx."""


class AuthenticationError(ApiError):
    """The API key is missing or was refused, or the daemon does not allow the request: status 401 or 403."""


class NotFoundError(ApiError):
    """The path, chunk, compression (`compress_id`) or export of keys and values does not exist: status 404."""


class OverloadedError(ApiError):
    """Too many requests are waiting, or the key's rate limit is exceeded: status 429."""


class UnavailableError(ApiError):
    """The daemon is not ready, is shutting down, or cannot reach a server that it needs: status 503."""


class DeadlineExceededError(ApiError):
    """The daemon did not finish the request within `deadline_ms`: status 504."""


class ServerError(ApiError):
    """The daemon failed: status 500, or another 5xx."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    429: OverloadedError,
    503: UnavailableError,
    504: DeadlineExceededError,
}


def api_error(response: httpx.Response, body: object) -> ApiError:
    """Returns the error that `response` reports. `body` is its parsed JSON, or None if it is not JSON."""
    status = response.status_code
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else RequestInvalidError)
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
    """Returns the value of `Retry-After` in seconds. The header is a number of seconds or a date."""
    header = response.headers.get("retry-after")
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time()
        except (TypeError, ValueError):
            return None
    return seconds if 0 <= seconds < float("inf") else 0.0 if seconds < 0 else None
