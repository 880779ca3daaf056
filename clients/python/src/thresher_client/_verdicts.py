"""What the attributors of the adapters have in common: the request, and the attribution as plain data.

This module knows no framework. An attributor passes an answer and the texts that its language model has read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from . import _calls
from ._async.client import AsyncClient
from ._calls import Call
from ._passages import Passage
from ._sync.client import Client
from .errors import ThresherError
from .types import Attribution

OnMissing = Literal["raise", "none"]

logger = logging.getLogger("thresher_client")


class Attributing:
    """Attributes answers. With `on_error="none"`, an answer that cannot be attributed has None in place of an attribution."""

    def __init__(self, on_error: OnMissing, sources_max: int | None, deadline_ms: int | None) -> None:
        if on_error not in ("raise", "none"):
            raise ValueError(f'on_error is {on_error!r}; it must be "raise" or "none"')
        self._on_error = on_error
        self._sources_max = sources_max
        self._deadline_ms = deadline_ms

    def attribute(self, client: Client, answer: str, passages: Sequence[Passage]) -> dict[str, Any] | None:
        """Returns the attribution of `answer`, as `plain` writes it. The `index` of a source is its position in `passages`."""
        if not answer.strip() or not passages:
            return plain(None)
        call = self._call(answer, passages)
        try:
            attribution = client._call(call, None)
        except ThresherError as error:
            self._raise_or_log(error)
            return None
        return plain(attribution)

    async def aattribute(self, client: AsyncClient, answer: str, passages: Sequence[Passage]) -> dict[str, Any] | None:
        """The asynchronous version of `attribute`."""
        if not answer.strip() or not passages:
            return plain(None)
        call = self._call(answer, passages)
        try:
            attribution = await client._call(call, None)
        except ThresherError as error:
            self._raise_or_log(error)
            return None
        return plain(attribution)

    def _call(self, answer: str, passages: Sequence[Passage]) -> Call[Attribution]:
        return _calls.attribute(
            answer,
            [_calls.fields(text=passage.text, title=passage.title) for passage in passages],
            sources_max=self._sources_max,
            offsets="codepoint",
            deadline_ms=self._deadline_ms,
        )

    def _raise_or_log(self, error: ThresherError) -> None:
        if self._on_error == "raise":
            raise error
        logger.warning("the answer is not attributed, because the daemon failed: %s", error.code)


def plain(attribution: Attribution | None) -> dict[str, Any]:
    """Returns an attribution as data that can be saved as JSON: `parts` and `quotes` with the fields of `Part` and `Quote`.

    None stands for an answer without text or without documents, which has no parts.
    """
    if attribution is None:
        return {"parts": [], "quotes": []}
    return {
        "parts": [_without_extra(asdict(part)) for part in attribution.parts],
        "quotes": [_without_extra(asdict(quote)) for quote in attribution.quotes],
    }


def _without_extra(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_extra(inner) for name, inner in value.items() if name != "extra"}
    if isinstance(value, (list, tuple)):
        return [_without_extra(inner) for inner in value]
    return value
