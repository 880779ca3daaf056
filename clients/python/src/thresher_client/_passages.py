"""What the three frameworks' adapters share: options, the call for some passages, and what becomes of each of them.

Knows no framework. An adapter turns its documents into passages and outcomes into copies of its documents.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Union
from weakref import finalize

from . import _calls
from ._calls import Call
from ._client import AsyncClient, Client
from .errors import ThresherError
from .types import Compression, Granularity, Order, Reranking, Tokenizer

Mode = Literal["compress", "rerank"]
OnFailure = Literal["raise", "originals"]

logger = logging.getLogger("thresher_client")


@dataclass(frozen=True)
class Passage:
    """A document as the daemon sees it."""

    text: str
    title: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What becomes of the document at `index`: its text, and what stands in its metadata under `thresher`."""

    index: int
    text: str
    score: float | None
    about: dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What an adapter is asked for. `compress` keeps the parts that are worth sending; `rerank` orders whole documents."""

    mode: Mode = "compress"
    budget: Mapping[str, Any] | None = None
    granularity: Granularity | None = None
    order: Order | None = None
    tokenizer: Tokenizer | None = None
    top_n: int | None = None
    keep_empty: bool = False
    on_error: OnFailure = "raise"
    deadline_ms: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("compress", "rerank"):
            raise ValueError(f'mode is "compress" or "rerank", not {self.mode!r}')
        if self.on_error not in ("raise", "originals"):
            raise ValueError(f'on_error is "raise" or "originals", not {self.on_error!r}')
        if self.top_n is not None and self.top_n < 1:
            raise ValueError(f"top_n is {self.top_n}: at least 1, or None for all")
        if self.mode == "rerank":
            for name in ("budget", "granularity", "order", "tokenizer", "deadline_ms"):
                if getattr(self, name) is not None:
                    raise ValueError(f'{name} says nothing to mode "rerank", which orders whole documents')

    @classmethod
    def of(cls, adapter: object) -> Options:
        """Those of an adapter, which has them under the same names."""
        return cls(**{field.name: getattr(adapter, field.name) for field in fields(cls)})

    def select(self, client: Client, query: str, passages: Sequence[Passage]) -> list[Outcome]:
        """What becomes of the passages."""
        if not passages:
            return []
        call = self._call(query, passages)
        try:
            return self._outcomes(client._call(call, None), passages)
        except ThresherError as error:
            return self._failed(error, passages)

    async def aselect(self, client: AsyncClient, query: str, passages: Sequence[Passage]) -> list[Outcome]:
        """The same."""
        if not passages:
            return []
        call = self._call(query, passages)
        try:
            return self._outcomes(await client._call(call, None), passages)
        except ThresherError as error:
            return self._failed(error, passages)

    def _call(self, query: str, passages: Sequence[Passage]) -> Call[Any]:
        # Neither ids nor metadata are sent: they come back by place, untouched, whatever is in them.
        if self.mode == "rerank":
            documents = [_calls.fields(title=one.title, text=one.text) for one in passages]
            return _calls.rerank(query, documents, top_n=self.top_n, rank_fields=("title", "text"))
        chunks = [_calls.fields(text=one.text, title=one.title) for one in passages]
        return _calls.compress(
            query,
            chunks,
            budget=self.budget,
            granularity=self.granularity,
            order=self.order,
            # The framework writes the prompt: what stands around the texts is not paid for here.
            format="plain",
            tokenizer=self.tokenizer,
            offsets="codepoint",
            deadline_ms=self.deadline_ms,
        )

    def _outcomes(self, answer: Union[Compression, Reranking], passages: Sequence[Passage]) -> list[Outcome]:
        if isinstance(answer, Reranking):
            return [
                Outcome(
                    result.index,
                    passages[result.index].text,
                    result.relevance_score,
                    {"mode": "rerank", "id": answer.id, "index": result.index, "score": result.relevance_score},
                )
                for result in answer.results
            ]
        markers = iter(range(1, len(answer.chunks) + 1))
        outcomes = []
        for chunk in answer.chunks:
            about = {
                "mode": "compress",
                "id": answer.id,
                "index": chunk.index,
                "kept": chunk.kept,
                "marker": next(markers) if chunk.kept else None,
                "score": chunk.score,
                "spans": [{"start": span.start, "end": span.end, "score": span.score} for span in chunk.spans],
            }
            if answer.degraded is not None:
                about["degraded"] = answer.degraded.code
            outcomes.append(Outcome(chunk.index, chunk.text, chunk.score, about))
        return self._best([one for one in outcomes if self.keep_empty or one.about["kept"]])

    def _best(self, outcomes: list[Outcome]) -> list[Outcome]:
        """The `top_n` best, in the order in which they stand."""
        if self.top_n is None or len(outcomes) <= self.top_n:
            return outcomes
        by_score = sorted(outcomes, key=lambda one: (one.about["kept"], one.score or 0.0), reverse=True)
        best = {one.index for one in by_score[: self.top_n]}
        return [one for one in outcomes if one.index in best]

    def _failed(self, error: ThresherError, passages: Sequence[Passage]) -> list[Outcome]:
        if self.on_error == "raise":
            raise error
        logger.warning("documents are passed on as they are: %s", error.code)
        about = {"mode": self.mode, "degraded": error.code}
        originals = [
            Outcome(index, passage.text, None, {**about, "index": index}) for index, passage in enumerate(passages)
        ]
        return originals[: self.top_n]


def title_of(metadata: Mapping[str, Any], key: str | None) -> str | None:
    """The title, where the metadata has one that is a text."""
    title = metadata.get(key) if key else None
    return title if isinstance(title, str) and title.strip() else None


class Clients:
    """Those that an adapter was given, or makes when it first needs them."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        timeout_s: float,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._given = (client, async_client)

    @cached_property
    def blocking(self) -> Client:
        """For threads."""
        if self._given[0] is not None:
            return self._given[0]
        client = Client(self._base_url, api_key=self._api_key, timeout_s=self._timeout_s)
        # Frameworks do not say when they are done with an adapter.
        finalize(self, client.close)
        return client

    @cached_property
    def asynchronous(self) -> AsyncClient:
        """For event loops, of which frameworks often start a new one for each call: a connection kept from an earlier one is dead."""
        return self._given[1] or AsyncClient(
            self._base_url, api_key=self._api_key, timeout_s=self._timeout_s, keep_connections=False
        )
