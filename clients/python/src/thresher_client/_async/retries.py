"""Runs the policy of retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

import anyio

from .._retry import Outcome, Send, Step, Wait, attempts
from .._settings import Settings

T = TypeVar("T")


async def run_with_retries(settings: Settings, timeout_s: float, attempt: Callable[[float], Awaitable[T]]) -> T:
    """Runs `attempt` with the seconds it has left, and retries it as `attempts` decides, within `timeout_s`."""
    steps: Generator[Step, Outcome[T], T] = attempts(settings.retries, timeout_s)
    sent: Outcome[T] = None
    try:
        while True:
            match steps.send(sent):
                case Wait(seconds):
                    await anyio.sleep(seconds)
                    sent = None
                case Send(left_s):
                    try:
                        sent = await attempt(left_s)
                    except Exception as error:
                        sent = error
    except StopIteration as done:
        result: T = done.value
        return result
