"""Types of arguments and answers. Fields have the names of the HTTP API, from whose OpenAPI document most of these types are generated.

Ranges are half-open: `start` is inside, `end` is not. Offsets into text count the unit that the request set with `offsets`
(code points by default). Every answer has `extra`, which holds the fields that this version of the client does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from ._answers import *
from ._answers import Reranked
from ._chunk import Chunk as Chunk
from ._decode import Extensible as Extensible
from ._requests import *

ChunkInput: TypeAlias = Union[str, Chunk, Mapping[str, Any]]
"""A chunk as a `Chunk`, as a mapping with the same fields, or as a plain string: its text."""


@dataclass(frozen=True, kw_only=True)
class RerankingAnswerable(Extensible):
    """Says whether the documents of a reranking answer the question, as `Answerable` does of the chunks of a compression."""

    probability: float
    answerable: bool


@dataclass(frozen=True, kw_only=True)
class Reranking(Reranked):
    """Answer of `rerank`, best document first.

    `related` is true if at least one document concerns the question, and `answerable` says whether the documents answer it. Both
    come from headers of the response, and are None where they are not measured.
    """

    related: bool | None = None
    answerable: RerankingAnswerable | None = None
