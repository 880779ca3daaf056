"""Adapters for Haystack: a component that compresses documents, and one that attributes replies."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, Optional, Union

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret, deserialize_secrets_inplace
except ImportError as error:
    raise ImportError("the Haystack adapter needs: pip install 'thresher-client[haystack]'") from error

from ._passages import Clients, Mode, OnFailure, Options, Outcome, Passage, title_of
from ._verdicts import Attributing, OnMissing
from .types import Budget, Granularity, Order, Tokenizer

__all__ = ["ThresherAttributor", "ThresherCompressor"]


@component
class ThresherCompressor:
    """Keeps the parts of documents that are worth sending to the LLM, or orders whole documents with `mode="rerank"`.

    Returns copies with the ids and meta of the originals. `meta["thresher"]` says what was kept. Documents of which nothing was
    kept are left out unless `keep_empty` is set. With `on_error="originals"`, the documents come back unchanged, marked
    `degraded`, if the daemon fails. The README of the package lists all options.
    """

    def __init__(
        self,
        base_url: Optional[str] = None,
        api_key: Optional[Secret] = Secret.from_env_var("THRESHER_API_KEY", strict=False),
        *,
        mode: Mode = "compress",
        budget: Optional[Budget] = None,
        granularity: Optional[Granularity] = None,
        order: Optional[Order] = None,
        tokenizer: Optional[Tokenizer] = None,
        top_n: Optional[int] = None,
        keep_empty: bool = False,
        on_error: OnFailure = "raise",
        deadline_ms: Optional[int] = None,
        title_key: Optional[str] = "title",
        timeout_s: float = 60.0,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.mode = mode
        self.budget = budget
        self.granularity = granularity
        self.order = order
        self.tokenizer = tokenizer
        self.top_n = top_n
        self.keep_empty = keep_empty
        self.on_error = on_error
        self.deadline_ms = deadline_ms
        self.title_key = title_key
        self.timeout_s = timeout_s
        Options.from_adapter(self)
        self._clients: Optional[Clients] = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the component as a dict, for saved pipelines.

        Raises a `ValueError` if the key was passed as a token, because it must not be saved.
        """
        return default_to_dict(
            self,
            base_url=self.base_url,
            api_key=None if self.api_key is None else self.api_key.to_dict(),
            mode=self.mode,
            budget=self.budget,
            granularity=self.granularity,
            order=self.order,
            tokenizer=self.tokenizer,
            top_n=self.top_n,
            keep_empty=self.keep_empty,
            on_error=self.on_error,
            deadline_ms=self.deadline_ms,
            title_key=self.title_key,
            timeout_s=self.timeout_s,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ThresherCompressor:
        """Creates the component from a dict that `to_dict` returned."""
        deserialize_secrets_inplace(data["init_parameters"], keys=["api_key"])
        loaded: ThresherCompressor = default_from_dict(cls, data)
        return loaded

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_n: Optional[int] = None) -> dict[str, list[Document]]:
        """Compresses or reranks `documents` for the question `query`. Returns copies.

        `top_n` replaces the component's `top_n` for this run.
        """
        outcomes = self._options(top_n).select(self._get_clients().blocking, query, self._passages(documents))
        return {"documents": [_copy(documents[outcome.index], outcome) for outcome in outcomes]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_n: Optional[int] = None
    ) -> dict[str, list[Document]]:
        """The asynchronous version of `run`."""
        outcomes = await self._options(top_n).aselect(self._get_clients().asynchronous, query, self._passages(documents))
        return {"documents": [_copy(documents[outcome.index], outcome) for outcome in outcomes]}

    def _options(self, top_n: Optional[int]) -> Options:
        options = Options.from_adapter(self)
        return options if top_n is None else replace(options, top_n=top_n)

    def _get_clients(self) -> Clients:
        # Created at the first run: a pipeline may be loaded where its secrets are not available.
        if self._clients is None:
            api_key = None if self.api_key is None else self.api_key.resolve_value()
            self._clients = Clients(self.base_url, api_key, self.timeout_s)
        return self._clients

    def _passages(self, documents: list[Document]) -> list[Passage]:
        return _passages(documents, self.title_key)


@component
class ThresherAttributor:
    """Attributes the replies of a generator to the documents that it has read.

    Each of `attributions` has `parts` of the reply, each with its `verdict`, `support`, `conflicts` and `sources`, whose `index` is the
    position of a document; and `quotes`. With `on_error="none"`, an attribution is None if the daemon fails.
    """

    def __init__(
        self,
        base_url: Optional[str] = None,
        api_key: Optional[Secret] = Secret.from_env_var("THRESHER_API_KEY", strict=False),
        *,
        sources_max: Optional[int] = None,
        on_error: OnMissing = "raise",
        deadline_ms: Optional[int] = None,
        title_key: Optional[str] = "title",
        timeout_s: float = 60.0,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.sources_max = sources_max
        self.on_error = on_error
        self.deadline_ms = deadline_ms
        self.title_key = title_key
        self.timeout_s = timeout_s
        self._attributing = Attributing(on_error, sources_max, deadline_ms)
        self._clients: Optional[Clients] = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the component as a dict, for saved pipelines.

        Raises a `ValueError` if the key was passed as a token, because it must not be saved.
        """
        return default_to_dict(
            self,
            base_url=self.base_url,
            api_key=None if self.api_key is None else self.api_key.to_dict(),
            sources_max=self.sources_max,
            on_error=self.on_error,
            deadline_ms=self.deadline_ms,
            title_key=self.title_key,
            timeout_s=self.timeout_s,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ThresherAttributor:
        """Creates the component from a dict that `to_dict` returned."""
        deserialize_secrets_inplace(data["init_parameters"], keys=["api_key"])
        loaded: ThresherAttributor = default_from_dict(cls, data)
        return loaded

    @component.output_types(attributions=list[Optional[dict[str, Any]]])
    def run(
        self, replies: Union[list[str], list[ChatMessage]], documents: list[Document]
    ) -> dict[str, list[Optional[dict[str, Any]]]]:
        """Returns the attribution of each reply, in their order."""
        client, passages = self._get_clients().blocking, _passages(documents, self.title_key)
        return {"attributions": [self._attributing.attribute(client, _text(reply), passages) for reply in replies]}

    @component.output_types(attributions=list[Optional[dict[str, Any]]])
    async def run_async(
        self, replies: Union[list[str], list[ChatMessage]], documents: list[Document]
    ) -> dict[str, list[Optional[dict[str, Any]]]]:
        """The asynchronous version of `run`."""
        client, passages = self._get_clients().asynchronous, _passages(documents, self.title_key)
        return {"attributions": [await self._attributing.aattribute(client, _text(reply), passages) for reply in replies]}

    def _get_clients(self) -> Clients:
        # Created at the first run: a pipeline may be loaded where its secrets are not available.
        if self._clients is None:
            api_key = None if self.api_key is None else self.api_key.resolve_value()
            self._clients = Clients(self.base_url, api_key, self.timeout_s)
        return self._clients


def _text(reply: Union[str, ChatMessage]) -> str:
    return reply if isinstance(reply, str) else reply.text or ""


def _passages(documents: list[Document], title_key: Optional[str]) -> list[Passage]:
    return [Passage(document.content or "", title_of(document.meta, title_key)) for document in documents]


def _copy(document: Document, outcome: Outcome) -> Document:
    meta = {**deepcopy(document.meta), "thresher": outcome.metadata}
    score = document.score if outcome.score is None else outcome.score
    # A document without text (an image) still has none in the copy.
    content = None if document.content is None else outcome.text
    return replace(document, content=content, meta=meta, score=score)
