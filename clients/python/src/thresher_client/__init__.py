"""Python client of Thresher, blocking (`Client`) and asynchronous (`AsyncClient`).

Adapters are separate modules: `thresher_client.langchain`, `.llama_index`, `.haystack` and `.transformers`.
"""

from ._async.client import AsyncClient
from ._retry import Retries
from ._sync.client import Client
from .errors import (
    AnswerInvalidError,
    ApiError,
    AuthenticationError,
    ConnectionFailedError,
    DeadlineExceededError,
    ErrorCode,
    KvExportError,
    NotFoundError,
    OverloadedError,
    RequestInvalidError,
    ServerError,
    ThresherError,
    TimedOutError,
    UnavailableError,
)
from .types import (
    Answerable,
    Attribution,
    Budget,
    Chunk,
    ChunkInput,
    Compression,
    Conflict,
    KvHandle,
    Part,
    Quote,
    Reranking,
    SearchResults,
)

__all__ = [
    "AnswerInvalidError",
    "Answerable",
    "ApiError",
    "AsyncClient",
    "Attribution",
    "AuthenticationError",
    "Budget",
    "Chunk",
    "ChunkInput",
    "Client",
    "Compression",
    "Conflict",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "ErrorCode",
    "KvExportError",
    "KvHandle",
    "NotFoundError",
    "OverloadedError",
    "Part",
    "Quote",
    "RequestInvalidError",
    "Reranking",
    "Retries",
    "SearchResults",
    "ServerError",
    "ThresherError",
    "TimedOutError",
    "UnavailableError",
]
