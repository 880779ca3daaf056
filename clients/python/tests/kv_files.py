"""Makes small files of exported keys and values, as the daemon writes them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

FINGERPRINT = "f1" * 32
FREQUENCIES = (1.0, 0.1)
LAYERS, KV_HEADS, HEAD_DIM = 2, 4, 4


def element(kind: int, layer: int, head: int, token: int, dim: int) -> float:
    """The value of an element in all files: exact in every precision, and different for elements that could be confused."""
    return (kind * 64 + layer * 32 + head * 8 + dim) / 128 + (token % 2)


def plane(kind: int, layer: int, tokens: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Keys (`kind` 0) or values (`kind` 1) of a layer, `[kv_head, token, head_dim]`."""
    shape = (KV_HEADS, tokens, HEAD_DIM)
    values = [element(kind, layer, *index) for index in np.ndindex(shape)]
    return np.array(values, dtype=np.float32).reshape(shape)


def export_file(token_ids: Sequence[int], dtype: str = "F32", **metadata: str | None) -> bytes:
    """Returns the bytes of a file with these tokens. `metadata` replaces values of the metadata; None removes one."""
    tokens = len(token_ids)
    tensors: dict[str, tuple[str, list[int], bytes]] = {
        "token_ids": ("I32", [tokens], array("i", token_ids).tobytes()),
        "positions": ("I32", [tokens], array("i", range(tokens)).tobytes()),
    }
    for layer in range(LAYERS):
        for kind, name in enumerate(("key", "value")):
            floats = plane(kind, layer, tokens)
            if dtype == "BF16":
                data = (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes()
            else:
                data = floats.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()
            tensors[f"layers.{layer}.{name}"] = (dtype, [KV_HEADS, tokens, HEAD_DIM], data)
    values: dict[str, str | None] = {
        "format": "thresher-kv/1",
        "policy": "chunks",
        "model": "tiny",
        "fingerprint": FINGERPRINT,
        "chunk_ids": '["a"]',
        "layers": str(LAYERS),
        "kv_heads": str(KV_HEADS),
        "head_dim": str(HEAD_DIM),
        "next_position": str(tokens),
        "rotary_frequencies": json.dumps(FREQUENCIES),
        **metadata,
    }
    header: dict[str, Any] = {"__metadata__": {name: value for name, value in values.items() if value is not None}}
    body = b""
    for name, (kind_of, shape, data) in tensors.items():
        header[name] = {"dtype": kind_of, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body
