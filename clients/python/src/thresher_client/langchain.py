"""Adapters for LangChain: a document compressor, and a runnable that attributes answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

try:
    from langchain_core.callbacks import Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.runnables import RunnableConfig, RunnableSerializable
    from pydantic import ConfigDict, SecretStr
except ImportError as error:
    raise ImportError("the LangChain adapter needs: pip install 'thresher-client[langchain]'") from error

from ._async.client import AsyncClient
from ._passages import Clients, Mode, OnFailure, Options, Outcome, Passage, title_of
from ._sync.client import Client
from ._verdicts import Attributing, OnMissing
from .types import Granularity, Order, Tokenizer

__all__ = ["ThresherAttributor", "ThresherCompressor"]


class ThresherCompressor(BaseDocumentCompressor):
    """Keeps the parts of documents that are worth sending to the LLM, or orders whole documents with `mode="rerank"`.

    Returns copies with the ids and metadata of the originals. `metadata["thresher"]` says what was kept, and
    `metadata["relevance_score"]` is the score. Documents of which nothing was kept are left out unless `keep_empty` is set. With
    `on_error="originals"`, the documents come back unchanged, marked `degraded`, if the daemon fails. The README of the package
    lists all options.
    """

    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout_s: float = 60.0
    client: Client | None = None
    async_client: AsyncClient | None = None

    mode: Mode = "compress"
    budget: Mapping[str, Any] | None = None
    granularity: Granularity | None = None
    order: Order | None = None
    tokenizer: Tokenizer | None = None
    top_n: int | None = None
    keep_empty: bool = False
    on_error: OnFailure = "raise"
    deadline_ms: int | None = None
    title_key: str | None = "title"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def model_post_init(self, context: Any, /) -> None:
        """Checks the options, so that a wrong one fails here and not at the first question."""
        Options.from_adapter(self)

    @cached_property
    def _clients(self) -> Clients:
        api_key = None if self.api_key is None else self.api_key.get_secret_value()
        return Clients(self.base_url, api_key, self.timeout_s, self.client, self.async_client)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Compresses or reranks `documents` for the question `query`. Returns copies."""
        outcomes = Options.from_adapter(self).select(self._clients.blocking, query, self._passages(documents))
        return [_copy(documents[outcome.index], outcome) for outcome in outcomes]

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The asynchronous version of `compress_documents`."""
        outcomes = await Options.from_adapter(self).aselect(self._clients.asynchronous, query, self._passages(documents))
        return [_copy(documents[outcome.index], outcome) for outcome in outcomes]

    def _passages(self, documents: Sequence[Document]) -> list[Passage]:
        return [Passage(document.page_content, title_of(document.metadata, self.title_key)) for document in documents]


def _copy(document: Document, outcome: Outcome) -> Document:
    metadata: Mapping[str, Any] = {**deepcopy(document.metadata), "thresher": outcome.metadata}
    if outcome.score is not None:
        # The field in which LangChain's own rerankers store the score.
        metadata = {**metadata, "relevance_score": outcome.score}
    return document.model_copy(update={"page_content": outcome.text, "metadata": metadata})


class ThresherAttributor(RunnableSerializable[dict[str, Any], dict[str, Any]]):
    """Attributes answers to the documents that the language model has read. Put it behind a chain: `chain | ThresherAttributor()`.

    Takes a dict with the answer in `answer_key` and the documents in `documents_key`, as `create_retrieval_chain` returns it. Returns
    the dict with `attribution`: `parts` of the answer, each with its `verdict`, `support`, `conflicts` and `sources`, whose `index` is
    the position of a document; and `quotes`. With `on_error="none"`, `attribution` is None if the daemon fails.
    """

    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout_s: float = 60.0
    client: Client | None = None
    async_client: AsyncClient | None = None

    answer_key: str = "answer"
    documents_key: str = "context"
    sources_max: int | None = None
    on_error: OnMissing = "raise"
    deadline_ms: int | None = None
    title_key: str | None = "title"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @cached_property
    def _clients(self) -> Clients:
        api_key = None if self.api_key is None else self.api_key.get_secret_value()
        return Clients(self.base_url, api_key, self.timeout_s, self.client, self.async_client)

    @cached_property
    def _attributing(self) -> Attributing:
        return Attributing(self.on_error, self.sources_max, self.deadline_ms)

    def invoke(self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """Returns `input` with the attribution of its answer."""
        return self._call_with_config(self._attribute, input, config)

    async def ainvoke(self, input: dict[str, Any], config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """The asynchronous version of `invoke`."""
        return await self._acall_with_config(self._aattribute, input, config)

    def _attribute(self, input: dict[str, Any]) -> dict[str, Any]:
        attribution = self._attributing.attribute(self._clients.blocking, *self._read(input))
        return {**input, "attribution": attribution}

    async def _aattribute(self, input: dict[str, Any]) -> dict[str, Any]:
        attribution = await self._attributing.aattribute(self._clients.asynchronous, *self._read(input))
        return {**input, "attribution": attribution}

    def _read(self, input: dict[str, Any]) -> tuple[str, list[Passage]]:
        answer = input[self.answer_key]
        # A chat model's answer is a message.
        text = answer if isinstance(answer, str) else str(getattr(answer, "text", answer))
        documents: Sequence[Document] = input[self.documents_key]
        return text, [Passage(one.page_content, title_of(one.metadata, self.title_key)) for one in documents]
