"""Converts parsed JSON to the dataclasses of answers. Unknown fields go into `extra`, so that answers of newer daemons can be
read.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extensible:
    """Base class of answers. `extra` holds the fields of the daemon's answer that this version of the client does not know."""

    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)


class DecodeError(Exception):
    """A value does not have the type that the answer's dataclass declares, or a required field is missing."""


def decode(target: type[T], value: object, path: str = "answer") -> T:
    """Converts `value` to `target`: a dataclass whose fields are dataclasses, tuples, mappings, optional types or plain types.

    `path` is where `value` is in the answer, for error messages.
    """
    decoded: T = _decode(target, value, path)
    return decoded


def _decode(target: Any, value: Any, path: str) -> Any:
    if target is Any:
        return value
    origin = get_origin(target)
    if origin in (Union, types.UnionType):
        return None if value is None else _decode(get_args(target)[0], value, path)
    if origin is Literal:
        # Newer daemons may have further values.
        return _decode(str, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        inner = get_args(target)[0]
        return tuple(_decode(inner, item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is Mapping or origin is dict:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        inner = get_args(target)[1]
        return {key: _decode(inner, item, f"{path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(target):
        return _decode_dataclass(target, value, path)
    if target is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, target) or (target is int and isinstance(value, bool)):
        raise _wrong(path, target.__name__, value)
    return value


def _decode_dataclass(target: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(path, "an object", value)
    hints = _hints(target)
    known: dict[str, Any] = {}
    for field in dataclasses.fields(target):
        if field.name == "extra":
            continue
        if field.name in value:
            known[field.name] = _decode(hints[field.name], value[field.name], f"{path}.{field.name}")
        elif type(None) in get_args(hints[field.name]):
            known[field.name] = None
        elif field.default is dataclasses.MISSING:
            raise DecodeError(f"{path} has no field {field.name!r}")
    if "extra" in hints:
        known["extra"] = {name: item for name, item in value.items() if name not in hints}
    return target(**known)


@cache
def _hints(target: Any) -> dict[str, Any]:
    return get_type_hints(target)


def _wrong(path: str, expected: str, value: object) -> DecodeError:
    # The message does not contain the value: it may be text that must not get into a log.
    return DecodeError(f"{path} is a {type(value).__name__}, not {expected}")
