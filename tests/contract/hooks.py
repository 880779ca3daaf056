"""Hooks for schemathesis: properties of the daemon that its OpenAPI document cannot express."""

from __future__ import annotations

import schemathesis

DEADLINE_MS = 5_000


@schemathesis.serializer("text/event-stream")
def events(_context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """Raises short deadlines, for which 504 would be right, and writes 1.0 as 1: JSON Schema accepts both as integers, the daemon only the latter.
    No number is beyond a double, which no JSON parser of Rust reads."""
    if isinstance(case.body, dict):
        case.body = whole(case.body)
        deadline = case.body.get("deadline_ms")
        if type(deadline) is int and 0 <= deadline < DEADLINE_MS:
            case.body["deadline_ms"] = DEADLINE_MS


def whole(value):
    """The value with floats that are integers replaced by integers, and numbers beyond a double by 0."""
    if isinstance(value, int) and abs(value) >= 1 << 1023:
        return 0
    if isinstance(value, float) and value.is_integer():
        return whole(int(value))
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return value
