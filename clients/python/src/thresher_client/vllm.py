"""Adapter for vLLM: loads exported keys and values into its cache, so that it prefills only the question.

The application needs `request`, which works without vLLM. vLLM itself loads `ThresherConnector`:

    --kv-transfer-config '{"kv_connector": "ThresherConnector", "kv_connector_module_path": "thresher_client.vllm",
      "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"url": "http://127.0.0.1:8080"}}'

`docs/kv-export.md` of the project describes the settings and the limits.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._kv_file import hash_token_ids
from ._kv_sources import PARAMETERS
from .errors import KvExportError

if TYPE_CHECKING:
    from ._vllm_connector import ThresherConnector
    from .transformers import KvExport
    from .types import KvHandle

__all__ = ["ThresherConnector", "request"]


def request(
    export: KvHandle | KvExport,
    question_ids: Iterable[int] | None = None,
    *,
    handle: str | None = None,
    file: str | None = None,
    cache_salt: str | None = None,
) -> dict[str, Any]:
    """Returns the fields of a request to vLLM that make it load an export: `cache_salt`, `kv_transfer_params`, and with
    `question_ids`, for `/v1/completions`, `prompt`.

    The prompt is the export's tokens and then those of the question. Tokenize the question without special tokens.

    For `/v1/chat/completions`, leave `question_ids` out, and begin the user's message with `export.text`. What the chat template puts
    in front of that must be `kv.before` of the compression. If `export.text` is None, a prompt of text has other tokens than the export.

    Args:
        export: `kv` of a compression whose response contains the token ids, or the loaded export.
        question_ids: token ids of the text that the model reads after the chunks.
        handle: with a loaded export, the handle that it was fetched by.
        file: instead of a handle, the name of the export's file, relative to the `dir` of vLLM's configuration.
        cache_salt: requests with the same salt share vLLM's prefix cache. It must not be guessable by other users, because
            everybody who knows it can read with keys and values of this export. Default: the handle; for a file, a new random salt,
            with which nothing is shared.
    """
    if not hasattr(export, "policy"):
        raise TypeError(f"export is of type {type(export).__name__}; pass kv of a compression (found.kv), or a KvExport")
    if export.policy == "heads":
        raise KvExportError(
            "policy_unsupported", 'vLLM cannot load an export with policy "heads": request one with {"policy": "chunks"}'
        )
    handle = handle or (None if file else getattr(export, "handle", None))
    if (handle is None) == (file is None):
        raise ValueError("pass the handle of the export or the name of its file, and not both")
    token_ids = _token_ids(export)
    prompt = {}
    if question_ids is None and getattr(export, "text", None) is None:
        raise ValueError("a prompt of text has other tokens than this export (kv.text is None): pass question_ids, for /v1/completions")
    if question_ids is not None:
        question = [int(one) for one in question_ids]
        if not question:
            raise ValueError("the question is empty; it must have at least one token")
        prompt = {"prompt": token_ids + question}
    source = {"handle": handle} if handle else {"file": file}
    return {
        **prompt,
        "cache_salt": cache_salt or handle or secrets.token_hex(16),
        "kv_transfer_params": {
            PARAMETERS: {**source, "tokens": len(token_ids), "token_ids_sha256": hash_token_ids(token_ids)}
        },
    }


def _token_ids(export: Any) -> list[int]:
    # An older client has the ids of the response among the fields that it does not know.
    found = getattr(export, "token_ids", None)
    if found is None:
        found = getattr(export, "extra", {}).get("token_ids")
    if found is None:
        raise ValueError("kv has no token_ids: pass the export, KvExport.load(client.kv(kv.handle)), and handle=kv.handle")
    return [int(one) for one in (found.tolist() if hasattr(found, "tolist") else found)]


def __getattr__(name: str) -> Any:
    """Imports the connector when vLLM asks for it, so that applications can use `request` without vLLM."""
    if name == "ThresherConnector":
        from ._vllm_connector import ThresherConnector

        return ThresherConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
