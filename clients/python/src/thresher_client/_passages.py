"""What the adapters for LangChain, LlamaIndex and Haystack have in common: options, the request, and the result for each
document.

This module knows no framework. An adapter converts its documents to passages, and outcomes to copies of its documents.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Union, cast
from weakref import finalize

from . import _calls
from ._async.client import AsyncClient
from ._calls import Call
from ._sync.client import Client
from .errors import ThresherError
from .types import Answerable, Budget, Compression, Granularity, Order, Reranking, RerankingAnswerable, Tokenizer

Mode = Literal["compress", "rerank"]
OnFailure = Literal["raise", "originals"]

logger = logging.getLogger("thresher_client")


@dataclass(frozen=True)
class Passage:
    """The text and title of a document: what is sent to the daemon."""

    text: str
    title: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The result for the document at `index` of the input: its new text, its score, and the value of its metadata field
    `thresher`.
    """

    index: int
    text: str
    score: float | None
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Options:
    """Options that all adapters have.

    - `mode`: `"compress"` keeps the parts worth sending; `"rerank"` orders whole documents
    - `budget`, `granularity`, `order`, `tokenizer`, `deadline_ms`: as in `Client.compress`; not for `"rerank"`
    - `top_n`: return only the best documents, at most this many; None for all
    - `keep_empty`: also return documents of which nothing was kept, with an empty text
    - `on_error`: `"raise"`, or `"originals"`, which returns the first `top_n` documents unchanged, marked `degraded`
    """

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
            raise ValueError(f'mode is {self.mode!r}; it must be "compress" or "rerank"')
        if self.on_error not in ("raise", "originals"):
            raise ValueError(f'on_error is {self.on_error!r}; it must be "raise" or "originals"')
        if self.top_n is not None and self.top_n < 1:
            raise ValueError(f"top_n is {self.top_n}; it must be at least 1, or None for all documents")
        if self.mode == "rerank":
            for name in ("budget", "granularity", "order", "tokenizer", "deadline_ms"):
                if getattr(self, name) is not None:
                    raise ValueError(f'{name} cannot be used with mode "rerank", which orders whole documents')

    @classmethod
    def from_adapter(cls, adapter: object) -> Options:
        """Returns the options of an adapter, which has attributes with the same names. Raises a `ValueError` for a wrong option."""
        return cls(**{field.name: getattr(adapter, field.name) for field in fields(cls)})

    def select(self, client: Client, query: str, passages: Sequence[Passage]) -> list[Outcome]:
        """Compresses or reranks the passages, and returns the outcomes of those that stay, in order."""
        if not passages:
            return []
        call = self._call(query, passages)
        try:
            return self._outcomes(client._call(call, None), passages)
        except ThresherError as error:
            return self._failed(error, passages)

    async def aselect(self, client: AsyncClient, query: str, passages: Sequence[Passage]) -> list[Outcome]:
        """The asynchronous version of `select`."""
        if not passages:
            return []
        call = self._call(query, passages)
        try:
            return self._outcomes(await client._call(call, None), passages)
        except ThresherError as error:
            return self._failed(error, passages)

    def _call(self, query: str, passages: Sequence[Passage]) -> Call[Any]:
        # Ids and metadata are not sent. Answers name documents by index, so both can contain anything.
        if self.mode == "rerank":
            documents = [_calls.fields(title=passage.title, text=passage.text) for passage in passages]
            return _calls.rerank(query, documents, top_n=self.top_n, rank_fields=("title", "text"))
        chunks = [_calls.fields(text=passage.text, title=passage.title) for passage in passages]
        return _calls.compress(
            query,
            chunks,
            budget=cast("Budget | None", self.budget),
            granularity=self.granularity,
            order=self.order,
            # The framework writes the prompt, so titles and markers must not count towards the budget.
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
                    {
                        "mode": "rerank",
                        "id": answer.id,
                        "index": result.index,
                        "score": result.relevance_score,
                        "related": answer.related,
                        "answerable": _answerable(answer.answerable),
                    },
                )
                for result in answer.results
            ]
        # A piece that an earlier chunk has, too, is in the text of that chunk, and has its marker.
        spans = defaultdict[tuple[str, int | None], list[dict[str, Any]]](list)
        for piece in answer.citations:
            span = {"start": piece.source.start, "end": piece.source.end, "score": piece.score}
            spans[piece.chunk, piece.marker].append(span)
        markers = iter(range(1, len(answer.chunks) + 1))
        outcomes = []
        for chunk in answer.chunks:
            marker = next(markers) if chunk.kept else None
            metadata = {
                "mode": "compress",
                "id": answer.id,
                "index": chunk.index,
                "kept": chunk.kept,
                "marker": marker,
                "score": chunk.score,
                "spans": spans[chunk.id, marker],
                "related": answer.related,
                "answerable": _answerable(answer.answerable),
            }
            if answer.degraded is not None:
                metadata["degraded"] = answer.degraded.code
            outcomes.append(Outcome(chunk.index, chunk.text, chunk.score, metadata))
        return self._limit([outcome for outcome in outcomes if self.keep_empty or outcome.metadata["kept"]])

    def _limit(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Returns the `top_n` best outcomes, in their present order."""
        if self.top_n is None or len(outcomes) <= self.top_n:
            return outcomes
        by_score = sorted(outcomes, key=lambda outcome: (outcome.metadata["kept"], outcome.score or 0.0), reverse=True)
        best = {outcome.index for outcome in by_score[: self.top_n]}
        return [outcome for outcome in outcomes if outcome.index in best]

    def _failed(self, error: ThresherError, passages: Sequence[Passage]) -> list[Outcome]:
        if self.on_error == "raise":
            raise error
        logger.warning("returning the original documents, because the daemon failed: %s", error.code)
        metadata = {"mode": self.mode, "degraded": error.code}
        originals = [
            Outcome(index, passage.text, None, {**metadata, "index": index}) for index, passage in enumerate(passages)
        ]
        return originals[: self.top_n]


def _answerable(found: Answerable | RerankingAnswerable | None) -> dict[str, Any] | None:
    """Returns what metadata say of all documents together. Frameworks save metadata, so it is plain data."""
    return None if found is None else {"answerable": found.answerable, "probability": found.probability}


def title_of(metadata: Mapping[str, Any], key: str | None) -> str | None:
    """Returns the metadata field `key` if it is a string that is not blank, otherwise None."""
    title = metadata.get(key) if key else None
    return title if isinstance(title, str) and title.strip() else None


class Clients:
    """The clients of an adapter: those that the caller passed, or new ones that are created at first use."""

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
        """The client for synchronous calls."""
        if self._given[0] is not None:
            return self._given[0]
        client = Client(self._base_url, api_key=self._api_key, timeout_s=self._timeout_s)
        # Frameworks do not tell an adapter when they no longer need it.
        finalize(self, client.close)
        return client

    @cached_property
    def asynchronous(self) -> AsyncClient:
        """The client for asynchronous calls.

        A client that is created here keeps no connections: frameworks often start a new event loop for each call, and a
        connection of an earlier loop is dead.
        """
        return self._given[1] or AsyncClient(
            self._base_url, api_key=self._api_key, timeout_s=self._timeout_s, keep_connections=False
        )
