"""Adapter for llama.cpp: writes exported keys and values as a slot file, which `llama-server` restores.

The format of these files is not stable between builds. `BUILD` is the one that this module is tested with; another build refuses the
file or, in the worst case, misreads it. `docs/kv-export.md` of the project describes the steps and the limits.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

try:
    import numpy as np
except ImportError as error:
    raise ImportError("the llama.cpp adapter needs: pip install 'thresher-client[llama-cpp]'") from error

from ._kv_file import KvFile, KvTensor, fingerprint
from .errors import KvExportError

__all__ = ["BUILD", "KvExportError", "fingerprint", "write_slot"]

BUILD = "b11549"
"""The build of llama.cpp whose slot files this module writes. The package xllamacpp 2026.10.11549 contains it."""

# The magic number and the version of a file with the state of a sequence, from llama.h of this build.
_MAGIC, _VERSION = 0x67677371, 4
# ggml's number of the type F16.
_F16 = 1
# Sizes in bytes of the values of GGUF metadata, by number of their type. Strings (8) and arrays (9) have none.
_GGUF_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_STRING, _GGUF_ARRAY = 8, 9

Floats = np.ndarray[Any, np.dtype[np.float32]]


def write_slot(export: bytes | str | PathLike[str], path: str | PathLike[str], gguf: str | PathLike[str]) -> list[int]:
    """Writes an export to `path` as a slot file of llama.cpp, and returns the ids of its tokens.

    Write it into the folder of `llama-server --slot-save-path`, restore it with `POST /slots/0?action=restore`, and send the ids and
    then those of the question as `prompt` of `/completion`. The file appears under its name when it is complete.

    llama.cpp does not check the weights of a slot file, so this function does: it raises a `KvExportError` with code
    `model_mismatch` if the export was not made from the GGUF file that llama.cpp serves, `architecture_unsupported` if that is not a
    Llama, `policy_unsupported` for exports with policy `"heads"`, `kv_export_invalid` for a damaged file, `value_too_large` if a key
    or value does not fit into 16 bits, and `slot_unwritable` if the file cannot be written.

    Args:
        export: the bytes that `Client.kv` returned, or the path of a file with them.
        path: the file to write. An existing one is replaced.
        gguf: the GGUF file that llama.cpp serves, from which `thresher export` made the daemon's model.
    """
    file = KvFile.parse(export if isinstance(export, bytes) else Path(export).read_bytes())
    architecture = _architecture(Path(gguf))
    if architecture != "llama":
        raise KvExportError(
            "architecture_unsupported",
            f"{gguf} has the architecture {architecture!r}; slot files can only be written for 'llama', whose pairs of rotated "
            "dimensions are neighbours",
        )
    served = fingerprint(gguf)
    if served != file.fingerprint:
        raise KvExportError(
            "model_mismatch", f"the export has fingerprint {file.fingerprint}, {gguf} has {served}: export the daemon's model from this file"
        )
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            with open(part, "xb") as opened:
                _write(file, opened)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise KvExportError("slot_unwritable", f"cannot write the slot file {path}: {error.strerror}") from error
    return list(file.token_ids)


def _write(file: KvFile, opened: BinaryIO) -> None:
    """Writes the state of one sequence: its tokens, the cells of the cache, and the rows of all layers."""
    tokens = file.tokens
    opened.write(struct.pack("<III", _MAGIC, _VERSION, tokens))
    opened.write(np.array(file.token_ids, "<i4").tobytes())
    # One stream, with one cell for each token: its position, the number of its sequences, and their ids.
    opened.write(struct.pack("<II", 1, tokens))
    cells = np.stack([np.arange(tokens), np.ones(tokens), np.zeros(tokens)], axis=1)
    opened.write(cells.astype("<i4").tobytes())
    # Values are not transposed, as with flash attention; and nothing is rotated in addition, as quantised caches are.
    opened.write(struct.pack("<IIII", 0, len(file.keys), 0, 0))
    row_bytes = file.kv_heads * file.head_dim * 2
    for rows in _rows(file):
        opened.write(struct.pack("<iQ", _F16, row_bytes))
        opened.write(rows)


def _rows(file: KvFile) -> Iterator[bytes]:
    """Yields the rows of the keys of each layer and then those of the values, `[token, kv_head * head_dim]`, in half precision."""
    pairs = file.head_dim // 2
    for tensor in file.keys:
        halves = _floats(tensor).reshape(file.kv_heads, file.tokens, 2, pairs)
        # An export rotates dimension i with dimension i + pairs, llama.cpp rotates 2i with 2i + 1.
        yield _half(halves.swapaxes(2, 3).reshape(tensor.shape))
    for tensor in file.values:
        yield _half(_floats(tensor))


def _half(floats: Floats) -> bytes:
    """Converts `[kv_head, token, head_dim]` to rows of tokens in half precision."""
    with np.errstate(over="ignore"):
        rows = floats.swapaxes(0, 1).astype("<f2")
    if not np.isfinite(rows).all():
        raise KvExportError("value_too_large", "a key or value of the export does not fit into half precision, which llama.cpp's cache has")
    return rows.tobytes()


def _floats(tensor: KvTensor) -> Floats:
    if tensor.dtype == "BF16":
        # The upper half of a number in single precision.
        floats = (np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        floats = np.frombuffer(tensor.data, {"F32": "<f4", "F16": "<f2"}[tensor.dtype]).astype(np.float32)
    return floats.reshape(tensor.shape)


def _architecture(gguf: Path) -> str:
    """Returns `general.architecture` of a GGUF file. Raises a `KvExportError` if it has none."""
    with open(gguf, "rb") as opened:
        try:
            return _find_architecture(opened)
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise KvExportError("architecture_unsupported", f"{gguf} is not a GGUF file with an architecture") from error


def _find_architecture(opened: BinaryIO) -> str:
    def read(form: str) -> int:
        (value,) = struct.unpack(form, opened.read(struct.calcsize(form)))
        return int(value)

    def skip(kind: int) -> None:
        if kind == _GGUF_ARRAY:
            element, count = read("<I"), read("<Q")
            if element in _GGUF_BYTES:
                opened.seek(count * _GGUF_BYTES[element], os.SEEK_CUR)
            else:
                for _ in range(count):
                    skip(element)
        else:
            opened.seek(read("<Q") if kind == _GGUF_STRING else _GGUF_BYTES[kind], os.SEEK_CUR)

    if opened.read(4) != b"GGUF":
        raise KeyError("magic")
    # The version, and the number of tensors.
    opened.seek(12, os.SEEK_CUR)
    for _ in range(read("<Q")):
        key = opened.read(read("<Q"))
        kind = read("<I")
        if key == b"general.architecture" and kind == _GGUF_STRING:
            return opened.read(read("<Q")).decode()
        skip(kind)
    raise KeyError("general.architecture")
