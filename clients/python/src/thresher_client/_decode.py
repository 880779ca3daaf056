"""JSON to answers. Fields that are not known are kept in `extra`, so that a newer daemon's answers are still read."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class DecodeError(Exception):
    """A value is not of the type that stands in the answer's dataclass."""


def decode(kind: type[T], value: object, path: str = "answer") -> T:
    """`value` as a `kind`: a dataclass whose fields are dataclasses, tuples, mappings, unions with None, or plain."""
    found: T = _decode(kind, value, path)
    return found


def _decode(kind: Any, value: Any, path: str) -> Any:
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (inner,) = (arg for arg in get_args(kind) if arg is not type(None))
        return _decode(inner, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        inner = get_args(kind)[0]
        return tuple(_decode(inner, item, f"{path}[{at}]") for at, item in enumerate(value))
    if origin is Mapping or origin is dict:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        inner = get_args(kind)[1]
        return {key: _decode(inner, item, f"{path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, path)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(path, kind.__name__, value)
    return value


def _decode_dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(path, "an object", value)
    hints = _hints(kind)
    known: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name == "extra":
            continue
        if field.name in value:
            known[field.name] = _decode(hints[field.name], value[field.name], f"{path}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{path} has no field {field.name!r}")
    if "extra" in hints:
        known["extra"] = {name: item for name, item in value.items() if name not in hints}
    return kind(**known)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _wrong(path: str, wanted: str, value: object) -> DecodeError:
    # Not the value itself: it may be text that must not land in a log.
    return DecodeError(f"{path} is not {wanted}: it is a {type(value).__name__}")
