"""LangChain: a document compressor, for `ContextualCompressionRetriever` or on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

try:
    from langchain_core.callbacks import Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from pydantic import ConfigDict, SecretStr
except ImportError as error:
    raise ImportError("the LangChain adapter needs: pip install 'thresher-client[langchain]'") from error

from ._client import AsyncClient, Client
from ._passages import Clients, Mode, OnFailure, Options, Outcome, Passage, title_of
from .types import Granularity, Order, Tokenizer

__all__ = ["ThresherCompressor"]


class ThresherCompressor(BaseDocumentCompressor):
    """Keeps what of the documents is worth sending to the LLM, or with `mode="rerank"` orders whole documents.

    Documents are copied, with ids and metadata; `metadata["thresher"]` says what was kept, `metadata["relevance_score"]` the
    score. Those of which nothing was kept are left out, unless `keep_empty`. `on_error="originals"` passes documents on as they
    are when the daemon fails, marked `degraded`.
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
        """Says what is wrong with the options now, not at the first question."""
        Options.of(self)

    @cached_property
    def _clients(self) -> Clients:
        api_key = None if self.api_key is None else self.api_key.get_secret_value()
        return Clients(self.base_url, api_key, self.timeout_s, self.client, self.async_client)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """What of the documents says something about the question."""
        outcomes = Options.of(self).select(self._clients.blocking, query, self._passages(documents))
        return [_copy(documents[outcome.index], outcome) for outcome in outcomes]

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The same."""
        outcomes = await Options.of(self).aselect(self._clients.asynchronous, query, self._passages(documents))
        return [_copy(documents[outcome.index], outcome) for outcome in outcomes]

    def _passages(self, documents: Sequence[Document]) -> list[Passage]:
        return [Passage(one.page_content, title_of(one.metadata, self.title_key)) for one in documents]


def _copy(document: Document, outcome: Outcome) -> Document:
    metadata: Mapping[str, Any] = {**deepcopy(document.metadata), "thresher": outcome.about}
    if outcome.score is not None:
        # Where LangChain's own rerankers put it.
        metadata = {**metadata, "relevance_score": outcome.score}
    return document.model_copy(update={"page_content": outcome.text, "metadata": metadata})
