"""Decides when a request is retried. The policy is a generator that does no I/O, so that both clients can run it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar, Union

import httpx

from .errors import (
    ApiError,
    ConnectionFailedError,
    OverloadedError,
    ThresherError,
    TimedOutError,
    UnavailableError,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Retries:
    """Limits of retries after status 429, status 503 and lost connections. No wait begins that would exceed `timeout_s`."""

    count_max: int = 3
    """Retries after failures without a `Retry-After` header. 0 turns off all retries, also those with the header."""
    wait_s_min: float = 0.1
    """Seconds before the first retry, doubled for each further one. Half of each wait is random, so that clients do not retry at
    the same time.
    """
    wait_s_max: float = 5.0
    """Longest wait in seconds. A `Retry-After` header can ask for a longer one."""
    retry_after_count_max: int | None = None
    """Retries after answers with a `Retry-After` header, in addition to `count_max` others; None (default) for as many as
    `timeout_s` allows. There can be many of them, because the header only estimates when the daemon will have finished its
    current work, and other refused clients retry at the same time.
    """

    def __post_init__(self) -> None:
        if self.count_max < 0 or (self.retry_after_count_max or 0) < 0 or not 0 <= self.wait_s_min <= self.wait_s_max:
            raise ValueError(f"{self}: counts must be at least 0, and 0 <= wait_s_min <= wait_s_max")

    def wait_s(self, retry: int, retry_after_s: float | None) -> float:
        """Returns the seconds to wait before retry number `retry` (from 1).

        `retry_after_s` is the value of `Retry-After` in seconds, if there was one; the wait is never shorter.
        """
        doubled = min(self.wait_s_max, self.wait_s_min * 2.0 ** min(retry - 1, 60))
        if retry_after_s is None:
            return random.uniform(0.5, 1.0) * doubled
        return retry_after_s + random.uniform(0.0, 0.5) * doubled


@dataclass(frozen=True)
class Send:
    """A step: send the request, within `timeout_s` seconds, and pass its result or the exception to the generator."""

    timeout_s: float


@dataclass(frozen=True)
class Wait:
    """A step: wait this many seconds, and pass None to the generator."""

    seconds: float


Step = Union[Send, Wait]
Outcome = Union[T, Exception, None]
"""The outcome of a step: the result or the exception of a `Send`, None for a `Wait`."""


def attempts(
    retries: Retries, timeout_s: float, clock: Callable[[], float] = time.monotonic
) -> Generator[Step, Outcome[T], T]:
    """Yields the next step; returns the result of the attempt that succeeded, or raises the error of the last one.

    Use it only for requests that can be repeated safely. Every call can: it reads, or it stores what is already stored. A stream
    can, until the first text of its answer has been sent.
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s}; it must be greater than 0")
    deadline = clock() + timeout_s
    failures = 0
    retry_after_failures = 0
    previous: ThresherError | None = None
    while True:
        outcome = yield Send(max(deadline - clock(), 0.001))
        if not isinstance(outcome, Exception):
            assert outcome is not None, "a Send has a result or an exception"
            return outcome
        error = _to_thresher_error(outcome, timeout_s)
        if previous is not None and isinstance(error, TimedOutError):
            # The last attempt had only the time that was left: the error before it says more about the cause.
            raise TimedOutError(error.code, f"{error.message}; the attempt before failed with {previous}", error.request) from previous
        previous = error
        retry_after_s = error.retry_after_s if isinstance(error, ApiError) else None
        if retry_after_s is None:
            failures += 1
        else:
            retry_after_failures += 1
        can_retry = retries.count_max > 0 and _is_retryable(outcome, error)
        has_all = retries.retry_after_count_max is not None and retry_after_failures > retries.retry_after_count_max
        if not can_retry or failures > retries.count_max or has_all:
            raise error from _cause(outcome, error)
        wait_s = retries.wait_s(failures + retry_after_failures, retry_after_s)
        # No time would be left after the wait, and this error says more about the cause than a timeout would.
        if clock() + wait_s >= deadline:
            raise error from _cause(outcome, error)
        yield Wait(wait_s)


def _is_retryable(raised: Exception, error: ThresherError) -> bool:
    # Timeouts are not retried: that would double the work of a daemon that is overloaded.
    lost_connection = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)
    return isinstance(error, (OverloadedError, UnavailableError)) or isinstance(raised, lost_connection)


def _to_thresher_error(raised: Exception, timeout_s: float) -> ThresherError:
    match raised:
        case ThresherError():
            return raised
        case httpx.ConnectTimeout():
            return ConnectionFailedError("connection_failed", "could not connect in time", _request(raised))
        case httpx.TimeoutException():
            return TimedOutError("timed_out", f"no answer within {timeout_s:g} s", _request(raised))
        case httpx.HTTPError():
            return ConnectionFailedError("connection_failed", str(raised) or type(raised).__name__, _request(raised))
        case _:
            raise raised


def _cause(raised: Exception, error: ThresherError) -> Exception | None:
    return None if raised is error else raised


def _request(raised: httpx.HTTPError) -> httpx.Request | None:
    try:
        return raised.request
    except RuntimeError:
        return None
