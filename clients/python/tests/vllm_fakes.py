"""The parts of torch and vLLM that the connector uses, so that its logic runs without them. tests/kv_engines runs it in vLLM."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from kv_files import FINGERPRINT, FREQUENCIES, HEAD_DIM, KV_HEADS, LAYERS

BLOCK_TOKENS = 4
ROPE: dict[str, Any] = {}
"""vLLM's rotary embeddings of the model that is loaded."""
RANK = [0]
"""The rank of this worker."""


class Tensor:
    """A tensor of torch, on an array of numpy. Only what the connector uses."""

    # numpy's numbers leave operations with a tensor to the tensor.
    __array_ufunc__ = None

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.device = SimpleNamespace(type="cpu")
        self.dtype = self.array.dtype
        self.shape = self.array.shape

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Tensor:
        plain = index if isinstance(index, tuple) else (index,)
        return Tensor(self.array[tuple(one.array if isinstance(one, Tensor) else one for one in plain)])

    def to(self, device: Any, dtype: Any = None) -> Tensor:
        return self if dtype is None else Tensor(self.array.astype(dtype))

    def view(self, shape: Sequence[int]) -> Tensor:
        return Tensor(self.array.reshape(shape))

    def transpose(self, first: int, second: int) -> Tensor:
        return Tensor(self.array.swapaxes(first, second))

    def repeat(self, *times: int) -> Tensor:
        return Tensor(np.tile(self.array, times))

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.array))

    def long(self) -> Tensor:
        return Tensor(self.array.astype(np.int64))

    def cos(self) -> Tensor:
        return Tensor(np.cos(self.array))

    def sin(self) -> Tensor:
        return Tensor(np.sin(self.array))

    def abs(self) -> Tensor:
        return Tensor(abs(self.array))

    def all(self) -> bool:
        return bool(self.array.all())

    def _with(self, operation: Any, other: Any) -> Tensor:
        return Tensor(operation(self.array, other.array if isinstance(other, Tensor) else other))

    def __add__(self, other: Any) -> Tensor:
        return self._with(np.add, other)

    def __sub__(self, other: Any) -> Tensor:
        return self._with(np.subtract, other)

    def __mul__(self, other: Any) -> Tensor:
        return self._with(np.multiply, other)

    def __floordiv__(self, other: Any) -> Tensor:
        return self._with(np.floor_divide, other)

    def __mod__(self, other: Any) -> Tensor:
        return self._with(np.mod, other)

    def __le__(self, other: Any) -> Tensor:
        return self._with(np.less_equal, other)

    __radd__, __rmul__ = __add__, __mul__


class Role:
    """The two sides of a connector."""

    SCHEDULER, WORKER = "scheduler", "worker"


class Connector:
    """vLLM's base class of connectors."""

    def __init__(self, vllm_config: Any, role: str, kv_cache_config: Any) -> None:
        self._vllm_config, self.role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._metadata: Any = None

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._metadata = metadata

    def _get_connector_metadata(self) -> Any:
        return self._metadata


@dataclass
class Statistics:
    """vLLM's base class of a connector's statistics."""

    data: dict[str, Any] = field(default_factory=dict)


class PromMetrics:
    """vLLM's base class of a connector's Prometheus metrics."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any) -> None:
        self._counter_cls, self._histogram_cls = metric_types["counter"], metric_types["histogram"]


@dataclass
class FullAttentionSpec:
    """The cache of layers with full attention."""

    block_size: int = BLOCK_TOKENS
    sliding_window: int | None = None
    attention_chunk_size: int | None = None


@dataclass
class SlidingWindowSpec:
    """The cache of layers with a sliding window."""

    block_size: int = BLOCK_TOKENS
    sliding_window: int | None = 16


class Attention:
    """An attention layer with its cache, `[row, kv_head, head_dim]`, which is filled with 9."""

    def __init__(self, rows: int, kv_heads: int) -> None:
        self.num_kv_heads = kv_heads
        self.keys, self.values = (np.full((rows, kv_heads, HEAD_DIM), 9.0) for _ in range(2))
        self.kv_cache = Tensor(np.zeros(1))
        self.impl: Any = self

    def do_kv_cache_update(self, layer: Any, keys: Tensor, values: Tensor, cache: Tensor, slots: Tensor) -> None:
        assert layer is self and cache is self.kv_cache
        self.keys[slots.array], self.values[slots.array] = keys.array, values.array


def rotary_embedding(frequencies: Sequence[float] = FREQUENCIES, **changes: Any) -> SimpleNamespace:
    """A rotary embedding with these frequencies, and a table of 100 positions."""
    angles = np.arange(100, dtype=np.float32)[:, None] * np.asarray(frequencies, dtype=np.float32)
    table = Tensor(np.concatenate([np.cos(angles), np.sin(angles)], axis=-1))
    return SimpleNamespace(**{"cos_sin_cache": table, "is_neox_style": True, **changes})


def configuration(ranks: int = 1, **extra: Any) -> Any:
    """The configuration of an engine that can load exports. `extra` is `kv_connector_extra_config`."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_role="kv_consumer",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"fingerprint": FINGERPRINT, **extra},
        ),
        model_config=SimpleNamespace(
            model="nowhere",
            quantization=None,
            use_mla=False,
            dtype=np.float32,
            hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS),
            get_total_num_kv_heads=lambda: KV_HEADS,
            get_head_size=lambda: HEAD_DIM,
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, tensor_parallel_size=ranks, decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=True),
        load_config=SimpleNamespace(load_format="auto"),
        lora_config=None,
        compilation_config=SimpleNamespace(static_forward_context={}),
    )


def cache_configuration(*specs: Any) -> Any:
    """The cache of an engine, by default one group of layers with full attention."""
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs or (FullAttentionSpec(),)])


def install() -> None:
    """Puts the fakes into `sys.modules`."""

    def module(name: str, **names: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(names)
        sys.modules[name] = made
        parent, _, child = name.rpartition(".")
        if parent:
            if parent not in sys.modules:
                module(parent)
            setattr(sys.modules[parent], child, made)

    module(
        "torch",
        float32=np.float32,
        float16=np.float16,
        bfloat16="bfloat16",
        float64=np.float64,
        Tensor=Tensor,
        frombuffer=lambda data, dtype: Tensor(np.frombuffer(data, dtype)),
        tensor=lambda values, dtype=None: Tensor(np.asarray(values, dtype)),
        arange=lambda start, end: Tensor(np.arange(start, end)),
        cat=lambda tensors, dim: Tensor(np.concatenate([one.array for one in tensors], axis=dim)),
        finfo=np.finfo,
        inference_mode=nullcontext,
    )
    base = "vllm.distributed.kv_transfer.kv_connector.v1"
    module("vllm.distributed", get_tensor_model_parallel_rank=lambda: RANK[0])
    module(
        f"{base}.base", KVConnectorBase_V1=Connector, KVConnectorMetadata=object, KVConnectorRole=Role, SupportsHMA=type("HMA", (), {})
    )
    module(f"{base}.metrics", KVConnectorPromMetrics=PromMetrics, KVConnectorStats=Statistics)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.model_executor.layers.rotary_embedding", _ROPE_DICT=ROPE)
    module("vllm.model_executor.models.utils", extract_layer_index=lambda name: int(name.split(".")[1]))
    module("vllm.v1.kv_cache_interface", FullAttentionSpec=FullAttentionSpec)
