"""When a request is sent again: the whole policy, as a generator that does no I/O, so that both clients share it."""

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
    """How often and how soon a request is sent again: after 429, 503 and lost connections, never past `timeout_s`."""

    count_max: int = 3
    """Attempts after the first; 0: none, whatever the daemon says."""
    wait_s_min: float = 0.1
    """Before the first of them; doubled for each further one. Half of it is chance, so that clients do not come in step."""
    wait_s_max: float = 5.0
    asked_count_max: int = 20
    """Attempts after answers that say when to come back (`Retry-After`), beside `count_max` others: the daemon estimates when it will
    have done what it has been sent, and others that it refused come back at the same time. `timeout_s` ends most calls earlier."""

    def __post_init__(self) -> None:
        if self.count_max < 0 or self.asked_count_max < 0 or not 0 <= self.wait_s_min <= self.wait_s_max:
            raise ValueError(f"retries out of range: {self}")

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """Before attempt number `attempt` (the first retry is 1); `asked_s` is what the daemon asked for, the least that is waited."""
        doubled = min(self.wait_s_max, self.wait_s_min * 2.0 ** min(attempt - 1, 60))
        chance = random.uniform(0.5, 1.0) * doubled
        return chance if asked_s is None else asked_s + random.uniform(0.0, 0.5) * doubled


@dataclass(frozen=True)
class Send:
    """To be done now, within `timeout_s`; the result is sent back, or the error that was raised."""

    timeout_s: float


@dataclass(frozen=True)
class Wait:
    """To be slept."""

    seconds: float


Step = Union[Send, Wait]
Sent = Union[T, Exception, None]
"""What is sent back for a step: the result, or what was raised; None for a wait."""


def attempts(
    retries: Retries, timeout_s: float, clock: Callable[[], float] = time.monotonic
) -> Generator[Step, Sent[T], T]:
    """Yields what to do next; returns the result of the attempt that succeeded, or raises what the last one raised.

    Only for what may arrive twice. Every call may: it reads, or puts things where they are already. A stream may until its
    answer has begun to be sent.
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is not over 0: {timeout_s}")
    until = clock() + timeout_s
    attempt = 0
    asked = 0
    before: ThresherError | None = None
    while True:
        sent = yield Send(max(until - clock(), 0.001))
        if not isinstance(sent, Exception):
            assert sent is not None, "an attempt has a result"
            return sent
        error = _of_this_package(sent, timeout_s)
        if before is not None and isinstance(error, TimedOutError):
            # The last attempt had what the others left it: they say more of what is wrong.
            raise TimedOutError(error.code, f"{error.message}; before that {before}", error.request) from before
        before = error
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        if asked_s is None:
            attempt += 1
        else:
            asked += 1
        may_repeat = retries.count_max > 0 and _may_repeat(sent, error)
        if not may_repeat or attempt > retries.count_max or asked > retries.asked_count_max:
            raise error from _cause(sent, error)
        wait_s = retries.wait_s(attempt + asked, asked_s)
        # There is no use in waiting for an attempt that has no time left: what went wrong says more than "too late".
        if clock() + wait_s >= until:
            raise error from _cause(sent, error)
        yield Wait(wait_s)


def _may_repeat(raised: Exception, error: ThresherError) -> bool:
    # Not after a time-out: that would double the work of a daemon that has too much of it.
    lost = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)
    return isinstance(error, (OverloadedError, UnavailableError)) or isinstance(raised, lost)


def _of_this_package(raised: Exception, timeout_s: float) -> ThresherError:
    match raised:
        case ThresherError():
            return raised
        case httpx.ConnectTimeout():
            return ConnectionFailedError("connection_failed", "no connection in time", _request(raised))
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
