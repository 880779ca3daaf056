"""The connector that vLLM loads: its scheduler compares token ids in memory, and its workers fetch exports in threads.

A request goes through these steps:

1. Scheduler: `get_num_new_matched_tokens` compares the prompt with the hash in the request, and announces an asynchronous load.
2. Scheduler: `build_connector_meta` sends the blocks that vLLM allocated for it to the workers.
3. Worker: a thread fetches the export, checks it, and writes its rows with the attention back end's own function.
4. Worker: `get_finished` reports the request. After a failure, `get_block_ids_with_load_errors` reports its blocks, too, and vLLM
   prefills them.

Nothing here waits for the network in vLLM's own threads.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

try:
    import torch
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        KVConnectorRole,
        SupportsHMA,
    )
    from vllm.logger import init_logger
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.models.utils import extract_layer_index
    from vllm.v1.kv_cache_interface import FullAttentionSpec
except ImportError as error:
    raise ImportError(
        f"ThresherConnector runs inside vLLM 0.32: install thresher-client into vLLM's own environment ({error})"
    ) from error

from ._kv_file import KvFile, KvTensor, fingerprint, hash_token_ids
from ._kv_sources import Refused, Source, Sources
from ._vllm_metrics import PromMetrics, Stats

logger = init_logger("vllm.thresher")

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Positions at which the cosines and sines of vLLM's rotary embeddings are compared with those of an export's frequencies. The
# further a position, the smaller the differences between frequencies that it shows.
_ROTARY_POSITIONS = (1, 16, 256, 1024, 4096)


@dataclass(frozen=True)
class Settings:
    """`kv_connector_extra_config` of vLLM's configuration. Requests cannot change it.

    - `url`: address of the daemon. The API key is in the environment variable THRESHER_API_KEY
    - `dir`: folder of export files that requests may name
    - `cache_bytes_max`: size of the exports that each worker keeps in memory, in bytes
    - `threads`: exports that each worker fetches and writes at the same time
    - `timeout_s`: seconds after which a request whose export has not been fetched is prefilled
    - `fingerprint`: fingerprint of the weights, for a model that is not in a folder of this machine. It is trusted
    """

    url: str | None = None
    dir: str | None = None
    cache_bytes_max: int = 1 << 30
    threads: int = 4
    timeout_s: float = 10.0
    fingerprint: str | None = None

    @classmethod
    def from_extra_config(cls, config: Mapping[str, Any]) -> Settings:
        """Raises a `ValueError` for unknown settings and unusable values."""
        known = [one.name for one in fields(cls)]
        if unknown := sorted(set(config) - set(known)):
            raise ValueError(f"kv_connector_extra_config has unknown settings {unknown}; known are {known}")
        for name, kinds, says in (
            ("url", (str, type(None)), "a string"),
            ("dir", (str, type(None)), "a string"),
            ("fingerprint", (str, type(None)), "a string"),
            ("cache_bytes_max", (int,), "an integer of at least 0"),
            ("threads", (int,), "an integer of at least 1"),
            ("timeout_s", (int, float), "a number greater than 0"),
        ):
            value = config.get(name, getattr(cls, name))
            too_small = isinstance(value, (int, float)) and value < {"threads": 1, "timeout_s": 1e-3}.get(name, 0)
            if not isinstance(value, kinds) or isinstance(value, bool) or too_small:
                raise ValueError(f"kv_connector_extra_config.{name} is {value!r}; it must be {says}")
        settings = cls(**config)
        if settings.url is None and settings.dir is None:
            raise ValueError("kv_connector_extra_config needs url (the daemon's address), dir (a folder of export files), or both")
        if settings.dir is not None and not Path(settings.dir).is_dir():
            raise ValueError(f"kv_connector_extra_config.dir is {settings.dir!r}, which is not a folder")
        return settings


def find_unsupported(config: Any, kv_cache_config: Any) -> list[str]:
    """Returns what about an engine's configuration (`VllmConfig`, `KVCacheConfig`) prevents it from loading exports."""
    transfer, model, parallel = config.kv_transfer_config, config.model_config, config.parallel_config
    found = []
    if transfer.kv_role != "kv_consumer":
        found.append(f'kv_role is "{transfer.kv_role}"; it must be "kv_consumer"')
    if transfer.kv_load_failure_policy != "recompute":
        found.append(
            f'kv_load_failure_policy is "{transfer.kv_load_failure_policy}", with which requests fail if the daemon does; '
            'it must be "recompute"'
        )
    if parallel.pipeline_parallel_size > 1:
        found.append("pipeline parallelism is not supported")
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        found.append("context parallelism is not supported")
    if config.lora_config is not None:
        found.append("LoRA is not supported: adapters change keys and values")
    if model.quantization is not None:
        found.append(f"weights quantised by vLLM ({model.quantization}) are not supported: they are not the weights of the export")
    if config.load_config.load_format == "dummy":
        found.append("load_format dummy is not supported: its weights are random")
    if model.use_mla:
        found.append("multi-head latent attention (MLA) is not supported")
    if config.cache_config.cache_dtype not in ("auto", "float16", "bfloat16"):
        found.append(f"the quantised cache of keys and values ({config.cache_config.cache_dtype}) is not supported")
    groups = kv_cache_config.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    window = any(getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None) for spec in specs)
    if len(groups) != 1 or window or (type(specs[0]) is not FullAttentionSpec and not model.use_mla):
        kinds = sorted({type(spec).__name__ for spec in specs})
        found.append(f"all layers must have full attention without a sliding window; the cache is of {', '.join(kinds)}")
    return found


@dataclass
class Load:
    """Rows that a worker writes: those of the tokens `start` to `end` - 1 of the export, into the request's blocks."""

    request_id: str
    source: Source
    start: int
    end: int
    block_ids: list[int]


@dataclass
class Metadata(KVConnectorMetadata):
    """What the scheduler sends to the workers in one step."""

    loads: list[Load] = field(default_factory=list)


class ThresherConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads the export that a request names into the first blocks of its cache.

    vLLM creates one object in the scheduler and one in each worker. Raises a `ValueError` when vLLM starts if the configuration is
    not supported. If an export cannot be loaded, vLLM logs why, counts it, and prefills the prompt.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        if found := find_unsupported(vllm_config, kv_cache_config):
            raise ValueError("ThresherConnector cannot load exports into this engine: " + "; ".join(found))
        settings = Settings.from_extra_config(self._kv_transfer_config.kv_connector_extra_config)
        self._stats = Stats()
        block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = _Scheduler(self._stats, needs_salt=bool(vllm_config.cache_config.enable_prefix_caching))
        else:
            self._worker = _Worker(self._stats, settings, vllm_config, block_size)

    # Both sides.

    def get_kv_connector_stats(self) -> Stats | None:
        """Returns what happened since the last call, or None if nothing did."""
        if self._stats.is_empty():
            return None
        reported = Stats(self._stats.data)
        self._stats.reset()
        return reported

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats | None:
        """Returns the statistics with these values."""
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> PromMetrics:
        """Registers the metrics."""
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Stops the threads of a worker, at the latest after `timeout_s`."""
        if self.role == KVConnectorRole.WORKER:
            self._worker.close()

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Returns the number of tokens to load behind those that are cached already, and whether there are any."""
        count = self._scheduler.count_tokens(request, num_computed_tokens)
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Notes the blocks that vLLM allocated for a load."""
        if num_external_tokens > 0:
            self._scheduler.add_load(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Returns the loads of this step."""
        return Metadata(self._scheduler.take_loads())

    def update_connector_output(self, connector_output: Any) -> None:
        """Notes which loads have failed."""
        self._scheduler.note_results(connector_output.finished_recving or (), connector_output.invalid_block_ids)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Forgets the request."""
        self._scheduler.forget(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forgets the request."""
        self._scheduler.forget(request.request_id)
        return False, None

    # The worker's side.

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Notes the layers whose caches are written."""
        self._worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Hands the loads of this step to the threads."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Metadata)
        for load in metadata.loads:
            self._worker.start(load)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Returns the requests whose loads have ended, failed ones included."""
        return None, self._worker.take_finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Returns the blocks of the failed loads that the last call of `get_finished` returned."""
        return self._worker.take_failed_blocks()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: vLLM schedules a request only when its load has ended."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing: this connector only loads."""

    def wait_for_save(self) -> None:
        """Does nothing: this connector only loads."""


class _Scheduler:
    """Decides what is loaded, from the request alone. It runs in the loop of vLLM's engine, so it does no I/O."""

    def __init__(self, stats: Stats, *, needs_salt: bool) -> None:
        self._stats = stats
        self._needs_salt = needs_salt
        # The export of each request; None if there is none or if it cannot be loaded. vLLM asks repeatedly while a request waits.
        self._sources: dict[str, Source | None] = {}
        self._loads: dict[str, Load] = {}
        # Requests that workers load at the moment, and their blocks.
        self._loading: dict[str, set[int]] = {}
        self._failed_blocks: set[int] = set()

    def count_tokens(self, request: Any, computed: int) -> int:
        """Returns the number of tokens to load behind the `computed` first ones."""
        if request.request_id not in self._sources:
            self._sources[request.request_id] = self._find(request)
        source = self._sources[request.request_id]
        return 0 if source is None else max(_end(source, request) - computed, 0)

    def _find(self, request: Any) -> Source | None:
        """Returns the export that the request names, if the engine can load it."""
        try:
            source = Source.from_parameters(request.kv_transfer_params)
            if source is not None:
                self._check(request, source)
            return source
        except Refused as refused:
            self._stats.count(refused.reason)
            logger.warning("request %s is prefilled: %s (%s)", request.request_id, refused, refused.reason)
            return None

    def _check(self, request: Any, source: Source) -> None:
        # vLLM files blocks under the hash of their tokens. Keys and values of an export differ from those of a prefill, so without
        # a salt they would be reused for requests of everybody whose prompt has the same tokens.
        if self._needs_salt and not request.cache_salt:
            raise Refused("cache_salt_missing", "it has no cache_salt, without which other requests would reuse the export's keys")
        prompt = request.prompt_token_ids
        if request.prompt_embeds is not None:
            raise Refused("parameters_invalid", "its prompt contains embeddings, which cannot be compared with the export")
        if prompt is None or len(prompt) < source.tokens:
            raise Refused("prompt_too_short", f"its prompt has {len(prompt or ())} tokens, the export has {source.tokens}")
        if hash_token_ids(prompt[: source.tokens]) != source.token_ids_sha256:
            raise Refused("tokens_differ", f"its prompt does not begin with the {source.tokens} tokens of the export")

    def add_load(self, request: Any, block_ids: Iterable[int], count: int) -> None:
        """Adds the load of `count` tokens that `count_tokens` has announced: those behind the tokens that were cached already."""
        source = self._sources[request.request_id]
        assert source is not None, "vLLM loads only what count_tokens announced"
        end = _end(source, request)
        self._loads[request.request_id] = Load(request.request_id, source, end - count, end, list(block_ids))

    def take_loads(self) -> list[Load]:
        """Returns the loads that were added since the last call."""
        loads = list(self._loads.values())
        self._loading.update((load.request_id, set(load.block_ids)) for load in loads)
        self._loads = {}
        return loads

    def note_results(self, finished: Iterable[str], failed_blocks: set[int]) -> None:
        """Notes that loads have ended. A request whose load failed is not loaded again."""
        self._failed_blocks |= failed_blocks
        for request_id in finished:
            blocks = self._loading.pop(request_id, set())
            if blocks & self._failed_blocks and request_id in self._sources:
                self._sources[request_id] = None
            self._failed_blocks -= blocks

    def forget(self, request_id: str) -> None:
        """Forgets a request that has ended. Its load may still run."""
        self._sources.pop(request_id, None)
        self._loads.pop(request_id, None)


def _end(source: Source, request: Any) -> int:
    """The number of tokens of the export that are loaded. One token of the prompt must remain, because vLLM needs its logits."""
    return min(source.tokens, len(request.prompt_token_ids) - 1)


class _Worker:
    """Fetches exports and writes them into the cache, in threads."""

    def __init__(self, stats: Stats, settings: Settings, config: Any, block_size: int) -> None:
        self._stats = stats
        self._timeout_s = settings.timeout_s
        self._config = config
        self._block_size = block_size
        self._sources = Sources(
            url=settings.url,
            folder=settings.dir,
            fingerprint=settings.fingerprint or _fingerprint_of(config.model_config.model),
            cache_bytes_max=settings.cache_bytes_max,
            timeout_s=settings.timeout_s,
        )
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="thresher")
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._failed_blocks: set[int] = set()
        # By number of the layer.
        self._layers: dict[int, Any] = {}
        self._rotary: list[Any] = []
        # Keys of an export that belong to this worker: all of them without tensor parallelism.
        self._first_head = 0
        self._is_first_rank = True

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Checks and notes the layers. Raises a `ValueError` if one of them cannot be written."""
        context = self._config.compilation_config.static_forward_context
        self._layers = {extract_layer_index(name): context[name] for name in kv_caches}
        layers = self._config.model_config.hf_text_config.num_hidden_layers
        if sorted(self._layers) != list(range(layers)) or len(kv_caches) != layers:
            raise ValueError(f"ThresherConnector: the model has {layers} layers, but caches of {len(kv_caches)} (speculative decoding?)")
        for name in kv_caches:
            if not hasattr(context[name].impl, "do_kv_cache_update"):
                kind = type(context[name].impl).__name__
                raise ValueError(f"ThresherConnector: the attention back end {kind} has no function that writes keys and values")
        # vLLM keeps the rotary embeddings of the model that it has loaded here.
        self._rotary = list(rotary_embedding._ROPE_DICT.values())
        rank, ranks = get_tensor_model_parallel_rank(), self._config.parallel_config.tensor_parallel_size
        self._is_first_rank = rank == 0
        # With more ranks than key heads, several ranks have the same head.
        self._first_head = rank * self._config.model_config.get_total_num_kv_heads() // ranks

    def start(self, load: Load) -> None:
        """Hands a load to the threads."""
        device = self._layers[0].kv_cache.device
        # Work that is in the device's queue may still write into the blocks, and must come first.
        before = None if device.type == "cpu" else torch.Event(device)
        if before is not None:
            before.record()
        self._threads.submit(self._run, load, before, time.monotonic())

    def _run(self, load: Load, before: Any, started: float) -> None:
        """Loads, and reports the result in every case, because vLLM waits for it."""
        result = _Result(load, "loaded")
        try:
            file = self._sources.get(load.source, started + self._timeout_s)
            self._check(file)
            fetched = time.monotonic()
            result.fetch_s = fetched - started
            self._write(file, load, before)
            result.write_s = time.monotonic() - fetched
        except Refused as refused:
            result.outcome = refused.reason
            logger.warning("request %s is prefilled: %s (%s)", load.request_id, refused, refused.reason)
        except Exception:
            result.outcome = "failed"
            logger.exception("request %s is prefilled: %s could not be loaded", load.request_id, load.source)
        self._results.put(result)

    def _check(self, file: KvFile) -> None:
        """Raises `Refused` unless the model has the shape and the rotary frequencies of the export."""
        model = self._config.model_config
        shape = (len(file.keys), file.kv_heads, file.head_dim)
        in_model = (len(self._layers), model.get_total_num_kv_heads(), model.get_head_size())
        if shape != in_model:
            raise Refused("model_mismatch", f"the export has {shape} layers, key heads and dimensions, the model has {in_model}")
        if not self._rotary:
            raise Refused("rotary_mismatch", "the export has rotated keys, the model has no rotary embeddings")
        for module in self._rotary:
            if not _rotates_by(module, file.rotary_frequencies):
                raise Refused(
                    "rotary_mismatch",
                    f"the export has other rotary frequencies than the model's {type(module).__name__}: check rope_scaling, "
                    "rope_theta and --hf-overrides",
                )

    def _write(self, file: KvFile, load: Load, before: Any) -> None:
        """Writes the rows of all layers, and waits until the device has written them."""
        device = self._layers[0].kv_cache.device
        tokens = torch.arange(load.start, load.end)
        blocks = torch.tensor(load.block_ids)
        # Number of the row in the cache, [token].
        slots = (blocks[tokens // self._block_size] * self._block_size + tokens % self._block_size).to(device)
        # A stream of its own, so that the copies do not wait for the model's work nor the model for them.
        stream = None if before is None else torch.Stream(device)
        if stream is not None:
            stream.wait_event(before)
        with torch.inference_mode(), stream or nullcontext():
            for index, layer in self._layers.items():
                keys, values = (self._rows(one[index], load, layer) for one in (file.keys, file.values))
                layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, slots)
        if stream is not None:
            stream.synchronize()

    def _rows(self, tensor: KvTensor, load: Load, layer: Any) -> torch.Tensor:
        """Returns the rows of this worker's heads, `[token, kv_head, head_dim]`, on the model's device and in its precision."""
        whole = torch.frombuffer(tensor.data, dtype=_DTYPES[tensor.dtype]).view(tensor.shape)
        own = whole[self._first_head : self._first_head + layer.num_kv_heads, load.start : load.end]
        return own.transpose(0, 1).to(layer.kv_cache.device, self._config.model_config.dtype).contiguous()

    def take_finished(self) -> set[str]:
        """Returns the requests whose loads have ended since the last call."""
        finished = set()
        while not self._results.empty():
            result = self._results.get()
            finished.add(result.load.request_id)
            loaded = result.outcome == "loaded"
            if not loaded:
                first, last = result.load.start // self._block_size, -(-result.load.end // self._block_size)
                self._failed_blocks.update(result.load.block_ids[first:last])
            # Every rank loads its own heads of the same request, which counts once.
            if self._is_first_rank:
                self._stats.count(result.outcome)
                if loaded:
                    self._stats.data["tokens"] += result.load.end - result.load.start
                    self._stats.data["fetch_s"].append(result.fetch_s)
                    self._stats.data["write_s"].append(result.write_s)
        return finished

    def take_failed_blocks(self) -> set[int]:
        """Returns the blocks that were not written, of requests that `take_finished` has returned."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def close(self) -> None:
        """Waits for the loads that have begun, drops the others, and closes the connections."""
        # The threads write into memory that vLLM frees afterwards.
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._sources.close()


@dataclass
class _Result:
    """How a load ended: `"loaded"`, or the reason why it did not."""

    load: Load
    outcome: str
    fetch_s: float = 0.0
    write_s: float = 0.0


def _fingerprint_of(model: str) -> str:
    try:
        return fingerprint(model)
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"ThresherConnector cannot compute the fingerprint of {model!r} ({error}): serve a folder of this machine with "
            ".safetensors files, or set kv_connector_extra_config.fingerprint"
        ) from error


def _rotates_by(module: Any, frequencies: tuple[float, ...]) -> bool:
    """Returns whether a rotary embedding of vLLM rotates keys by these angles, in the two halves of each head.

    It compares rows of the table of cosines and sines, `[position, 2 * pair]`, with which the model rotates, because scaling and
    overrides of the configuration only show there.
    """
    table = getattr(module, "cos_sin_cache", None)
    if table is None or not module.is_neox_style or table.shape[-1] != 2 * len(frequencies):
        return False
    positions = torch.tensor([one for one in _ROTARY_POSITIONS if one < len(table)], dtype=torch.float64)
    angles = positions[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    expected = torch.cat([angles.cos(), angles.sin()], dim=-1)
    found = table[positions.long().to(table.device)].to("cpu", torch.float64)
    # Rounding of the table, and of angles in single precision.
    allowed = 2 * torch.finfo(table.dtype).eps + 1e-6 * angles.repeat(1, 2)
    return bool(((found - expected).abs() <= allowed).all())
