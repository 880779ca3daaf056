"""Reads files of exported keys and values without torch, and computes the fingerprint of a model's weights.

`thresher_client.transformers` has its own reader, which copies all tensors into torch. This one checks the whole file and returns
views of its bytes, so that an engine converts only what it loads.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

from .errors import KvExportError

FORMAT = "thresher-kv/1"
"""The version of the file format that this module reads."""

# Size of an element in bytes.
_ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4}
_KEYS_AND_VALUES = ("F32", "F16", "BF16")
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class KvTensor:
    """A tensor of the file. `data` is a view of its bytes, little-endian and in row-major order."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, eq=False)
class KvFile:
    """An export with policy `"chunks"`, checked completely. Keys are rotated to their positions, 0 to `tokens` - 1.

    - `model`, `fingerprint`: the model's name in the daemon, and the fingerprint of its weights
    - `tokens`: number of tokens, special tokens at the beginning included
    - `token_ids`: id of each token, 32-bit integers
    - `token_ids_sha256`: `hash_token_ids` of them
    - `rotary_frequencies`: for each pair of a key's dimensions, the angle by which it rotates from one position to the next
    - `keys`, `values`: one tensor for each layer, `[kv_head, token, head_dim]`
    - `file_bytes`: size of the file
    """

    model: str
    fingerprint: str
    kv_heads: int
    head_dim: int
    tokens: int
    token_ids: array[int]
    token_ids_sha256: str
    rotary_frequencies: tuple[float, ...]
    keys: tuple[KvTensor, ...]
    values: tuple[KvTensor, ...]
    file_bytes: int

    @classmethod
    def parse(cls, data: bytes | bytearray) -> KvFile:
        """Reads an export from the bytes of its file, and keeps a view of them.

        Raises a `KvExportError` with code `kv_export_invalid` if the file is damaged or has another format, and with code
        `policy_unsupported` if it has policy `"heads"` or other rotary frequencies for layers with a sliding window.
        """
        try:
            return cls._parse(data)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _invalid(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _parse(cls, data: bytes | bytearray) -> KvFile:
        metadata, tensors = _split(memoryview(data))
        if metadata.get("format") != FORMAT:
            raise ValueError(f"its format is {metadata.get('format')!r}; this client reads {FORMAT!r}")
        if metadata["policy"] != "chunks":
            raise KvExportError(
                "policy_unsupported",
                f"the export has policy {metadata['policy']!r}, with which heads have different tokens; engines can only load "
                'exports with policy "chunks"',
            )
        if metadata.get("rotary_frequencies_local"):
            raise KvExportError(
                "policy_unsupported", "the export is of a model with a sliding window, which engines cannot load from an export"
            )
        layers, kv_heads, head_dim, tokens = (int(metadata[name]) for name in ("layers", "kv_heads", "head_dim", "next_position"))

        def tensor(name: str, dtypes: Sequence[str], *shape: int) -> KvTensor:
            found = tensors[name]
            if found.dtype not in dtypes or found.shape != shape:
                raise ValueError(f"tensor {name} is {found.dtype} {list(found.shape)}, not {' or '.join(dtypes)} {list(shape)}")
            return found

        shape = (kv_heads, tokens, head_dim)
        token_ids = _integers(tensor("token_ids", ["I32"], tokens))
        if _integers(tensor("positions", ["I32"], tokens)) != array("i", range(tokens)):
            raise ValueError(f"its positions are not 0 to {tokens - 1}")
        return cls(
            model=metadata["model"],
            fingerprint=metadata["fingerprint"],
            kv_heads=kv_heads,
            head_dim=head_dim,
            tokens=tokens,
            token_ids=token_ids,
            token_ids_sha256=hash_token_ids(token_ids),
            rotary_frequencies=tuple(float(one) for one in json.loads(metadata["rotary_frequencies"])),
            keys=tuple(tensor(f"layers.{layer}.key", _KEYS_AND_VALUES, *shape) for layer in range(layers)),
            values=tuple(tensor(f"layers.{layer}.value", _KEYS_AND_VALUES, *shape) for layer in range(layers)),
            file_bytes=len(data),
        )


def hash_token_ids(token_ids: Sequence[int]) -> str:
    """Returns the SHA-256 of token ids as 32-bit little-endian integers, as 64 hexadecimal digits."""
    integers = array("i", token_ids)
    if sys.byteorder == "big":
        integers.byteswap()
    return hashlib.sha256(integers.tobytes()).hexdigest()


def fingerprint(path: str | PathLike[str]) -> str:
    """Returns the fingerprint of a model's weights, as 64 hexadecimal digits. `path` is a Hugging Face folder or a GGUF file.

    It is the SHA-256 of the output of `sha256sum` over the checkpoint's files, ordered by name, or over the GGUF file. Raises a
    `FileNotFoundError` if there is no such file, or if the folder has no `.safetensors` checkpoint.
    """
    path = Path(path)
    files = [path] if path.is_file() else _checkpoint(path)
    # Size and modification time are only part of the cache key.
    stats = [(str(file), file.stat()) for file in files]
    return _fingerprint(tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats))


def _checkpoint(folder: Path) -> list[Path]:
    files = [folder / _SINGLE]
    if not files[0].is_file() and (folder / _INDEX).is_file():
        shards = set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        files = [folder / name for name in sorted(shards)]
    return files


@lru_cache(maxsize=64)
def _fingerprint(files: tuple[tuple[str, int, int], ...]) -> str:
    lines = []
    for file, *_ in files:
        digest = hashlib.sha256()
        with open(file, "rb") as opened:
            while piece := opened.read(1 << 20):
                digest.update(piece)
        lines.append(f"{digest.hexdigest()}  {Path(file).name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _split(data: memoryview) -> tuple[Mapping[str, Any], Mapping[str, KvTensor]]:
    """Returns the metadata and the tensors of a safetensors file: a length of 8 bytes, a header in JSON, and the tensors' bytes."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError("the file ends in its header")
    header = json.loads(bytes(data[8 : 8 + length]))
    body = data[8 + length :]
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, found in header.items():
        start, end = found["data_offsets"]
        shape = tuple(int(size) for size in found["shape"])
        if not 0 <= start <= end <= len(body):
            raise ValueError(f"the file ends in tensor {name}")
        if end - start != prod(shape) * _ELEMENT_BYTES[found["dtype"]]:
            raise ValueError(f"tensor {name} has {end - start} bytes, which is not the size of {found['dtype']} {list(shape)}")
        tensors[name] = KvTensor(found["dtype"], shape, body[start:end])
    return metadata, tensors


def _integers(tensor: KvTensor) -> array[int]:
    integers = array("i")
    integers.frombytes(tensor.data)
    if sys.byteorder == "big":
        integers.byteswap()
    return integers


def _invalid(message: str) -> KvExportError:
    return KvExportError("kv_export_invalid", f"cannot read the export of keys and values: {message}")
