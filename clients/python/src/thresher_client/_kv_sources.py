"""Fetches exports for an engine from the daemon or from a folder, and keeps the most recently used ones in memory."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ._kv_file import KvFile
from ._retry import Retries
from ._sync.client import Client
from .errors import ApiError, KvExportError, NotFoundError, ThresherError

PARAMETERS = "thresher"
"""The key of `kv_transfer_params` that this package reads."""

Reason = Literal[
    "cache_salt_missing",
    "parameters_invalid",
    "prompt_too_short",
    "tokens_differ",
    "source_not_configured",
    "handle_unknown",
    "file_unknown",
    "fetch_failed",
    "export_invalid",
    "policy_unsupported",
    "model_mismatch",
    "rotary_mismatch",
    "failed",
]
"""Why a prompt is prefilled although its request names an export. These are values of a label of vLLM's metrics."""

_HANDLE = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Refused(Exception):
    """The engine cannot load an export, and prefills the prompt instead. `reason` is a stable name of the cause."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Source:
    """The export that a request names: exactly one of a handle of the daemon and a file name, with what the file must contain.

    `tokens` is the number of its tokens, and `token_ids_sha256` the hash of their ids, so that an engine can compare them with the
    prompt without the file.
    """

    handle: str | None
    file: str | None
    tokens: int
    token_ids_sha256: str

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any] | None) -> Source | None:
        """Reads the `kv_transfer_params` of a request. Returns None if they do not name an export.

        Raises `Refused` if they are not those that `thresher_client.vllm.request` makes.
        """
        fields = (parameters or {}).get(PARAMETERS)
        if fields is None:
            return None
        if not isinstance(fields, dict):
            raise Refused("parameters_invalid", f"kv_transfer_params.{PARAMETERS} must be an object")
        unknown = sorted(set(fields) - {"handle", "file", "tokens", "token_ids_sha256"})
        if unknown:
            raise Refused("parameters_invalid", f"kv_transfer_params.{PARAMETERS} has unknown fields: {str(unknown)[:200]}")
        handle, file, tokens, digest = (fields.get(name) for name in ("handle", "file", "tokens", "token_ids_sha256"))
        if (handle is None) == (file is None):
            raise Refused("parameters_invalid", f"kv_transfer_params.{PARAMETERS} must have one of handle and file")
        if handle is not None and not (isinstance(handle, str) and _HANDLE.fullmatch(handle)):
            raise Refused("parameters_invalid", f"kv_transfer_params.{PARAMETERS}.handle is not a handle of the daemon")
        if file is not None and not (isinstance(file, str) and 0 < len(file) <= 1024 and "\0" not in file):
            raise Refused("parameters_invalid", f"kv_transfer_params.{PARAMETERS}.file is not a file name")
        if type(tokens) is not int or tokens < 1:
            raise Refused("parameters_invalid", f"kv_transfer_params.{PARAMETERS}.tokens must be a positive integer")
        if not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
            raise Refused("parameters_invalid", f"kv_transfer_params.{PARAMETERS}.token_ids_sha256 must be 64 hexadecimal digits")
        return cls(handle, file, tokens, digest)

    def __str__(self) -> str:
        return f"export {self.handle}" if self.handle is not None else f"export file {self.file!r}"


class Sources:
    """Fetches exports, and keeps those that were used last, at most `cache_bytes_max` bytes. Threads can share it.

    `url` is the daemon's address and `folder` the folder of files; either may be None. `fingerprint` is that of the engine's
    weights: exports of other weights are refused.
    """

    def __init__(
        self, *, url: str | None, folder: str | None, fingerprint: str, cache_bytes_max: int, timeout_s: float
    ) -> None:
        # A repeated fetch would take longer than a prefill, so the client does not retry.
        self._client = None if url is None else Client(url, timeout_s=timeout_s, retries=Retries(count_max=0))
        self._folder = None if folder is None else os.path.realpath(folder)
        self._fingerprint = fingerprint
        self._cache_bytes_max = cache_bytes_max
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, KvFile] = OrderedDict()
        self._cached_bytes = 0
        self._fetching: dict[str, Future[KvFile]] = {}

    @property
    def cached_bytes(self) -> int:
        """Size of all exports that are kept in memory, in bytes."""
        return self._cached_bytes

    def close(self) -> None:
        """Closes the connections to the daemon."""
        if self._client is not None:
            self._client.close()

    def get(self, source: Source, deadline: float) -> KvFile:
        """Returns the export, from memory or by fetching it until `deadline`, a time of `time.monotonic`.

        If several threads need the same export, one of them fetches it and the others wait. Raises `Refused` if it cannot be
        fetched in time, if it is damaged or of other weights, or if it has other tokens than the request says.
        """
        if source.handle is not None:
            file = self._once(f"handle {source.handle}", deadline, lambda: self._download(source.handle or "", deadline))
        else:
            path, stats = self._locate(source.file or "")
            # A file that was written again is another export.
            key = f"file {stats.st_dev} {stats.st_ino} {stats.st_size} {stats.st_mtime_ns}"
            file = self._once(key, deadline, lambda: self._read(path))
        if (file.tokens, file.token_ids_sha256) != (source.tokens, source.token_ids_sha256):
            raise Refused("tokens_differ", f"{source} has {file.tokens} tokens, which are not the {source.tokens} that the request names")
        return file

    def _once(self, key: str, deadline: float, fetch: Callable[[], KvFile]) -> KvFile:
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
                return self._cached[key]
            waiting = self._fetching.get(key)
            if waiting is None:
                mine: Future[KvFile] = Future()
                self._fetching[key] = mine
        if waiting is not None:
            try:
                return waiting.result(max(deadline - time.monotonic(), 0.0))
            except FutureTimeoutError as error:
                raise Refused("fetch_failed", "another request fetches the same export and has not finished in time") from error
        try:
            file = fetch()
        except BaseException as error:
            with self._lock:
                del self._fetching[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._fetching[key]
            self._keep(key, file)
        mine.set_result(file)
        return file

    def _keep(self, key: str, file: KvFile) -> None:
        """Adds an export to those in memory, and drops the least recently used ones if they are too large together."""
        self._cached[key] = file
        self._cached_bytes += file.file_bytes
        while self._cached_bytes > self._cache_bytes_max:
            _, dropped = self._cached.popitem(last=False)
            self._cached_bytes -= dropped.file_bytes

    def _download(self, handle: str, deadline: float) -> KvFile:
        left_s = deadline - time.monotonic()
        if self._client is None:
            raise Refused("source_not_configured", "the request names a handle, but kv_connector_extra_config has no url")
        if left_s <= 0:
            raise Refused("fetch_failed", "the request waited for other fetches until its time was over")
        try:
            data = self._client.kv(handle, fingerprint=self._fingerprint, timeout_s=left_s)
        except NotFoundError as error:
            raise Refused("handle_unknown", f"the daemon does not know {handle}: {error.message}") from error
        except ApiError as error:
            reason: Reason = "model_mismatch" if error.code == "model_mismatch" else "fetch_failed"
            raise Refused(reason, f"the daemon refuses {handle}: {error}") from error
        except ThresherError as error:
            raise Refused("fetch_failed", f"cannot fetch {handle}: {error}") from error
        return self._checked(data)

    def _locate(self, name: str) -> tuple[str, os.stat_result]:
        """Returns the path of a file below the folder. Raises `Refused` for any other path."""
        if self._folder is None:
            raise Refused("source_not_configured", "the request names a file, but kv_connector_extra_config has no dir")
        path = os.path.realpath(os.path.join(self._folder, name))
        # The path has no symbolic links any more, so a link out of the folder is refused here, too.
        if Path(self._folder) not in Path(path).parents:
            raise Refused("file_unknown", f"{name!r} is not below the folder of exports")
        try:
            stats = os.stat(path)
        except OSError as error:
            raise Refused("file_unknown", f"cannot read {name!r}: {error.strerror}") from error
        if not stat.S_ISREG(stats.st_mode):
            raise Refused("file_unknown", f"{name!r} is not a regular file")
        return path, stats

    def _read(self, path: str) -> KvFile:
        try:
            # Not mapped into memory: if the file were cut while it is read, the process would be killed.
            data = Path(path).read_bytes()
        except OSError as error:
            raise Refused("fetch_failed", f"cannot read {Path(path).name!r}: {error.strerror}") from error
        return self._checked(data)

    def _checked(self, data: bytes) -> KvFile:
        try:
            # torch reads tensors only from buffers that can be written.
            file = KvFile.parse(bytearray(data))
        except KvExportError as error:
            raise Refused(
                "policy_unsupported" if error.code == "policy_unsupported" else "export_invalid", error.message
            ) from error
        if file.fingerprint != self._fingerprint:
            raise Refused("model_mismatch", f"the export has fingerprint {file.fingerprint}, the engine's weights have {self._fingerprint}")
        return file
