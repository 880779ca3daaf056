"""Adapters for LlamaIndex: a node postprocessor, and an attributor of responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Optional

try:
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core import instrumentation
    from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.base.response.schema import Response
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
except ImportError as error:
    raise ImportError("the LlamaIndex adapter needs: pip install 'thresher-client[llama-index]'") from error

from ._async.client import AsyncClient
from ._passages import Clients, Mode, OnFailure, Options, Outcome, Passage, title_of
from ._sync.client import Client
from ._verdicts import Attributing, OnMissing
from .types import Granularity, Order, Tokenizer

__all__ = ["ThresherAttributor", "ThresherPostprocessor"]

# LlamaIndex exports this name, but its type information does not declare it.
_dispatcher = instrumentation.get_dispatcher(__name__)  # type: ignore[attr-defined]


class ThresherPostprocessor(BaseNodePostprocessor):
    """Keeps the parts of nodes that are worth sending to the LLM, or orders whole nodes with `mode="rerank"`.

    Returns copies with the ids, relationships and metadata of the originals. `metadata["thresher"]` says what was kept; it is not
    shown to LLMs and embedding models. Nodes of which nothing was kept are left out unless `keep_empty` is set. With
    `on_error="originals"`, the nodes come back unchanged, marked `degraded`, if the daemon fails. The README of the package lists
    all options.
    """

    base_url: Optional[str] = None
    timeout_s: float = 60.0
    mode: Mode = "compress"
    budget: Optional[Mapping[str, Any]] = None
    granularity: Optional[Granularity] = None
    order: Optional[Order] = None
    tokenizer: Optional[Tokenizer] = None
    top_n: Optional[int] = None
    keep_empty: bool = False
    on_error: OnFailure = "raise"
    deadline_ms: Optional[int] = None
    title_key: Optional[str] = Field(default="title", description="The metadata field with a node's title.")

    _clients: Clients = PrivateAttr()

    def __init__(
        self,
        *,
        api_key: str | None = None,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        Options.from_adapter(self)
        self._clients = Clients(self.base_url, api_key, self.timeout_s, client, async_client)

    @classmethod
    def class_name(cls) -> str:
        """Returns the name under which LlamaIndex serialises this class."""
        return "ThresherPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = self._start(nodes, query_bundle)
        return _finish(nodes, Options.from_adapter(self).select(self._clients.blocking, query, self._passages(nodes)))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = self._start(nodes, query_bundle)
        return _finish(nodes, await Options.from_adapter(self).aselect(self._clients.asynchronous, query, self._passages(nodes)))

    def _start(self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None) -> str:
        if query_bundle is None:
            raise ValueError("ThresherPostprocessor needs a question: pass query_str or query_bundle")
        top_n = self.top_n or len(nodes)
        _dispatcher.event(ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=top_n, model_name="thresher"))
        return query_bundle.query_str

    def _passages(self, nodes: Sequence[NodeWithScore]) -> list[Passage]:
        return _passages(nodes, self.title_key)


class ThresherAttributor:
    """Attributes the responses of query engines to their source nodes.

    `attribute` returns a copy of a response whose `metadata["thresher"]` has `parts` of the answer, each with its `verdict`, `support`,
    `conflicts` and `sources`, whose `index` is the position in `source_nodes`; and `quotes`. With `on_error="none"`,
    `metadata["thresher"]` is None if the daemon fails.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        sources_max: int | None = None,
        on_error: OnMissing = "raise",
        deadline_ms: int | None = None,
        title_key: str | None = "title",
    ) -> None:
        self._clients = Clients(base_url, api_key, timeout_s, client, async_client)
        self._attributing = Attributing(on_error, sources_max, deadline_ms)
        self._title_key = title_key

    def attribute(self, response: Response) -> Response:
        """Returns a copy of `response` with its attribution. A streamed response has to be read first: `get_response()`."""
        passages = _passages(response.source_nodes, self._title_key)
        return _attributed(response, self._attributing.attribute(self._clients.blocking, response.response or "", passages))

    async def aattribute(self, response: Response) -> Response:
        """The asynchronous version of `attribute`."""
        passages = _passages(response.source_nodes, self._title_key)
        attribution = await self._attributing.aattribute(self._clients.asynchronous, response.response or "", passages)
        return _attributed(response, attribution)


def _attributed(response: Response, attribution: dict[str, Any] | None) -> Response:
    metadata = {**(response.metadata or {}), "thresher": attribution}
    return Response(response=response.response, source_nodes=list(response.source_nodes), metadata=metadata)


def _passages(nodes: Sequence[NodeWithScore], title_key: str | None) -> list[Passage]:
    return [Passage(found.node.get_content(MetadataMode.NONE), title_of(found.node.metadata, title_key)) for found in nodes]


def _finish(nodes: Sequence[NodeWithScore], outcomes: Sequence[Outcome]) -> list[NodeWithScore]:
    copies = [_copy(nodes[outcome.index], outcome) for outcome in outcomes]
    _dispatcher.event(ReRankEndEvent(nodes=copies))
    return copies


def _copy(found: NodeWithScore, outcome: Outcome) -> NodeWithScore:
    node = found.node.model_copy()
    node.metadata = {**deepcopy(node.metadata), "thresher": outcome.metadata}
    node.relationships = dict(node.relationships)
    node.excluded_llm_metadata_keys = [*node.excluded_llm_metadata_keys, "thresher"]
    node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, "thresher"]
    if outcome.text != node.get_content(MetadataMode.NONE):
        node.set_content(outcome.text)
    return NodeWithScore(node=node, score=found.score if outcome.score is None else outcome.score)
