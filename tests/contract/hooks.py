"""What schemathesis cannot know of the daemon."""

from __future__ import annotations

import schemathesis

DEADLINE_MS = 5_000


@schemathesis.serializer("text/event-stream")
def events(_context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """A deadline of a millisecond passes, which is a 504 and right; JSON Schema takes 1.0 for a whole number, the daemon wants it written as one."""
    if isinstance(case.body, dict):
        case.body = whole(case.body)
        deadline = case.body.get("deadline_ms")
        if type(deadline) is int and 0 <= deadline < DEADLINE_MS:
            case.body["deadline_ms"] = DEADLINE_MS


def whole(value):
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return value
