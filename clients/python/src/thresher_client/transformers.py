"""Hugging Face transformers: a model goes on from keys and values that the daemon has kept, instead of reading the chunks again.

`docs/handover.md` of the project describes the file and its limits.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Union, cast
from weakref import WeakKeyDictionary

try:
    import safetensors.torch
    import torch
    from safetensors import SafetensorError, safe_open
    from transformers import AttentionInterface, AttentionMaskInterface, Cache, DynamicCache, PreTrainedModel
    from transformers.cache_utils import DynamicLayer
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError("the transformers adapter needs: pip install 'thresher-client[transformers]'") from error

from .errors import HandoverError

__all__ = ["Handover", "HandoverError", "HandoverLayer", "attention", "fingerprint", "generate"]

FORMAT = "thresher-kv/1"
"""The version of the file that is read here."""

Tokens = Union[Sequence[int], torch.Tensor, Mapping[str, Any]]
"""Token ids of one text: a list, a tensor, one with a batch of one in front, or what a tokenizer gives of it."""

# The name of our attention among those of transformers.
_ATTENTION = "thresher_heads"
# On keys: to which token each row belongs, `[kv_head, row]`; -1: to none.
_ROWS = "thresher_rows"
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def fingerprint(folder: str | PathLike[str]) -> str:
    """Which weights lie in a Hugging Face folder: SHA-256 of what `sha256sum` prints of its checkpoint's files, by name."""
    folder = Path(folder)
    files = [folder / _SINGLE]
    if not files[0].is_file() and (folder / _INDEX).is_file():
        shards = set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        files = [folder / name for name in sorted(shards)]
    marks = [(str(file), file.stat()) for file in files]
    return _fingerprint(tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in marks))


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


@dataclass(frozen=True, eq=False)
class HandoverLayer:
    """A layer's keys, turned to their places, and values: `[kv_head, token, head_dim]`.

    Where heads keep different tokens, rows of all heads one behind the other, `[row, head_dim]`: `counts` says how many each head
    has, `tokens` which token each row belongs to.
    """

    keys: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor | None = None
    tokens: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Handover:
    """Chunks as a model has read them: their tokens, and keys and values of these, on the processor.

    Of each token in order: its id, its place, the index of its chunk in `chunk_ids`, the number of its window, and the bytes of the
    chunk's text that it stands for. -1: none; the model's special tokens in front have no chunk, tokens of titles no bytes.
    """

    policy: Literal["chunks", "heads"]
    model: str
    fingerprint: str
    chunk_ids: tuple[str, ...]
    kv_heads: int
    head_dim: int
    next_position: int
    rotary_frequencies: tuple[float, ...]
    token_ids: torch.Tensor
    positions: torch.Tensor
    chunks: torch.Tensor
    windows: torch.Tensor
    offsets: torch.Tensor
    layers: tuple[HandoverLayer, ...]

    @classmethod
    def load(cls, source: bytes | str | PathLike[str]) -> Handover:
        """From what `Client.kv` gave, or from a file of it."""
        try:
            metadata, tensors = _read(source)
        except SafetensorError as error:
            raise _invalid(f"no safetensors, or not all of them: {error}") from error
        found = metadata.get("format")
        if found != FORMAT:
            raise _invalid(f"its format is {found!r}, this client reads {FORMAT!r}")
        try:
            return cls._of(metadata, tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise _invalid(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _of(cls, metadata: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> Handover:
        layers, kv_heads, head_dim, tokens = (
            int(metadata[name]) for name in ("layers", "kv_heads", "head_dim", "next_position")
        )

        def tensor(name: str, *shape: int) -> torch.Tensor:
            if tensors[name].shape != shape:
                raise ValueError(f"{name} is {list(tensors[name].shape)}, not {list(shape)}")
            return tensors[name]

        def layer(at: int) -> HandoverLayer:
            name = f"layers.{at}"
            if metadata["policy"] == "chunks":
                shape = (kv_heads, tokens, head_dim)
                return HandoverLayer(tensor(f"{name}.key", *shape), tensor(f"{name}.value", *shape))
            counts = tensor(f"{name}.counts", kv_heads)
            rows = int(counts.sum())
            keys, values = (tensor(f"{name}.{what}", rows, head_dim) for what in ("key", "value"))
            return HandoverLayer(keys, values, counts, tensor(f"{name}.tokens", rows))

        if metadata["policy"] not in ("chunks", "heads"):
            raise ValueError(f"its policy is {metadata['policy']!r}")
        return cls(
            policy=cast(Literal["chunks", "heads"], metadata["policy"]),
            model=metadata["model"],
            fingerprint=metadata["fingerprint"],
            chunk_ids=tuple(json.loads(metadata["chunk_ids"])),
            kv_heads=kv_heads,
            head_dim=head_dim,
            next_position=tokens,
            rotary_frequencies=tuple(json.loads(metadata["rotary_frequencies"])),
            **{name: tensor(name, tokens) for name in ("token_ids", "positions", "chunks", "windows")},
            offsets=tensor("offsets", tokens, 2),
            layers=tuple(layer(at) for at in range(layers)),
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(one.nbytes for layer in self.layers for one in (layer.keys, layer.values))

    @property
    def share(self) -> float:
        """Share of the chunks' keys that is here."""
        if self.policy == "chunks":
            return 1.0
        heads = len(self.layers) * self.kv_heads
        special = int((self.chunks < 0).sum())
        kept = sum(len(layer.keys) for layer in self.layers)
        return (kept - special * heads) / max((self.next_position - special) * heads, 1)

    def input_ids(self, question_ids: Tokens) -> torch.Tensor:
        """All tokens, the question's behind the chunks': what `model.generate` takes beside `past_key_values`. `[1, token]`"""
        question = _one_text(question_ids)
        if int(self.chunks[0]) < 0 and int(question[0]) == int(self.token_ids[0]):
            raise ValueError(
                f"the question begins with token {int(question[0])}, which stands in front of the chunks already: "
                "tokenize it with add_special_tokens=False"
            )
        return torch.cat([self.token_ids.to(question), question])[None]

    def cache(self, model: PreTrainedModel, fingerprint: str | None = None) -> Cache:
        """As `past_key_values`, on the model's device and in its precision; what is read next stands at `next_position`.

        It grows with what is read: of one conversation. For another question make another.

        `fingerprint` is the model's, if it was not loaded from a folder of this machine; another model is refused. Where heads keep
        different tokens, the cache is used within `attention(model)` only.
        """
        self.check(model, fingerprint)
        device, dtype = model.device, model.dtype
        if self.policy == "heads":
            layers = [_Heads(layer, self.next_position, model) for layer in self.layers]
            return Cache(layers=layers)
        cache = DynamicCache(config=model.config)
        for at, layer in enumerate(self.layers):
            cache.update(layer.keys[None].to(device, dtype), layer.values[None].to(device, dtype), at)
        return cache

    def check(self, model: PreTrainedModel, fingerprint: str | None = None) -> None:
        """A `HandoverError` unless these are keys and values of this very model."""
        theirs = fingerprint or _fingerprint_of(model)
        if theirs != self.fingerprint:
            raise _mismatch(f"of the model with fingerprint {self.fingerprint}, this one's is {theirs}")
        config = model.config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        shape = {
            "layers": (len(self.layers), config.num_hidden_layers),
            "kv_heads": (self.kv_heads, getattr(config, "num_key_value_heads", None) or heads),
            "head_dim": (self.head_dim, getattr(config, "head_dim", None) or config.hidden_size // heads),
        }
        for name, (ours, of_model) in shape.items():
            if ours != of_model:
                raise _mismatch(f"of a model with {name} {ours}, this one has {of_model}")
        frequencies = torch.tensor(self.rotary_frequencies, dtype=torch.float32)
        turning = [one for name, one in model.named_buffers() if name.endswith("rotary_emb.inv_freq")]
        if not turning:
            raise _mismatch("of a model whose keys turn with their place, this one has no rotary_emb.inv_freq")
        for one in turning:
            found, within = one.detach().to("cpu", torch.float32), max(1e-5, torch.finfo(one.dtype).eps)
            # In half precision the slowest are below what it can tell apart.
            least = 0.0 if one.dtype == torch.float32 else 1e-7
            if found.shape != frequencies.shape or not torch.allclose(found, frequencies, rtol=within, atol=least):
                raise _mismatch(f"turned by {_shown(frequencies)}, this model turns by {_shown(found)}")


def generate(
    model: PreTrainedModel,
    handover: Handover,
    question_ids: Tokens,
    *,
    fingerprint: str | None = None,
    **generate_options: Any,
) -> torch.Tensor:
    """What the model says behind the chunks and the question, with options of `model.generate`: new tokens' ids only.

    The question's are without special tokens: those in front of the chunks are the model's only ones. One text, one way to go on.
    """
    for name in ("attention_mask", "past_key_values", "input_ids", "inputs"):
        if name in generate_options:
            raise ValueError(f"{name} is what the handover is for: call model.generate with handover.cache and handover.input_ids")
    for name in ("num_beams", "num_return_sequences"):
        if (generate_options.get(name) or 1) > 1:
            raise ValueError(f"{name} is {generate_options[name]}: a handover is of one text, which goes on in one way")
    cache = handover.cache(model, fingerprint)
    ids = handover.input_ids(question_ids).to(model.device)
    with attention(model) if handover.policy == "heads" else nullcontext():
        said: Any = model.generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **generate_options
        )
    sequences = said if isinstance(said, torch.Tensor) else said.sequences
    return cast(torch.Tensor, sequences[0, ids.shape[1] :])


_lock = threading.Lock()
# How many are in `attention` of a model, and what it had before the first of them.
_within: WeakKeyDictionary[PreTrainedModel, tuple[int, str]] = WeakKeyDictionary()


@contextmanager
def attention(model: PreTrainedModel) -> Iterator[None]:
    """Within it, `model` sees of a cache where heads keep different tokens what they keep; any other cache as ever."""
    with _lock:
        count, before = _within.get(model, (0, model.config._attn_implementation))
        if count == 0:
            model.set_attn_implementation(_ATTENTION)
        if model.config._attn_implementation != _ATTENTION:
            raise HandoverError("attention_fixed", f"{type(model).__name__} does not let its attention be set")
        _within[model] = (count + 1, before)
    try:
        yield
    finally:
        with _lock:
            count, before = _within.pop(model)
            if count > 1:
                _within[model] = (count - 1, before)
            else:
                model.set_attn_implementation(before)


class _Heads(DynamicLayer):
    """A layer whose heads keep different tokens: as long as the longest of them, and a mask says which rows are whose."""

    def __init__(self, layer: HandoverLayer, tokens: int, model: PreTrainedModel) -> None:
        super().__init__()
        assert layer.counts is not None and layer.tokens is not None
        self.device, self.dtype, self.is_initialized = model.device, model.dtype, True
        self._config = model.config
        counts = layer.counts.tolist()
        self._kept, self._tokens = max(counts), tokens
        self._rows = torch.full((len(counts), self._kept), -1, dtype=torch.long)
        keys = torch.zeros((1, len(counts), self._kept, layer.keys.shape[1]), dtype=layer.keys.dtype)
        values = torch.zeros_like(keys)
        parts = zip(*(one.split(counts) for one in (layer.tokens, layer.keys, layer.values)))
        for head, (of_tokens, of_keys, of_values) in enumerate(parts):
            count = len(of_tokens)
            self._rows[head, :count] = of_tokens
            keys[0, head, :count], values[0, head, :count] = of_keys, of_values
        self._rows = self._rows.to(self.device)
        self.keys, self.values = keys.to(self.device, self.dtype), values.to(self.device, self.dtype)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As any layer; on the keys stands whose rows they are."""
        if self._config._attn_implementation != _ATTENTION:
            raise HandoverError("attention_missing", "heads keep different tokens: call the model within `with attention(model):`")
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        new = torch.arange(self._tokens, self.get_seq_length(), device=self._rows.device)
        setattr(keys, _ROWS, torch.cat([self._rows, new.expand(len(self._rows), -1)], dim=1))
        return keys, values

    def get_seq_length(self) -> int:
        """Of all that was read, evicted tokens included."""
        length: int = self._tokens + self.keys.shape[-2] - self._kept
        return length

    def get_mask_sizes(self, query: Any) -> tuple[int, int]:
        """As if nothing were evicted; `query` is how many are asked, before transformers 5 their places."""
        return self.get_seq_length() + (query if isinstance(query, int) else query.shape[0]), 0

    def crop(self, count: int) -> None:
        """Takes away what was read last, behind what was handed over."""
        # Before transformers 5, the length that is left.
        taken = -count if count <= 0 else self.get_seq_length() - count
        if taken > self.get_seq_length() - self._tokens:
            raise ValueError("what was handed over cannot be cropped")
        if taken > 0:
            self.keys, self.values = self.keys[..., :-taken, :], self.values[..., :-taken, :]

    def reset(self) -> None:
        """Not without what was handed over."""
        raise ValueError("a handover cannot be emptied: make another cache of it")


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`attention_mask` is of all tokens; each head's is that of the tokens that it has."""
    rows: torch.Tensor | None = getattr(key, _ROWS, None)
    if rows is None:
        found = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more)
        return cast("tuple[torch.Tensor, None]", found)
    assert attention_mask is not None, "our mask is never left out"
    batch, heads, length, _ = query.shape
    kv_heads, count = rows.shape
    of_rows = attention_mask[:, 0][..., rows.clamp(min=0)].movedim(2, 1) & (rows >= 0)[:, None]
    # Query heads of one key head side by side, so that keys need not be repeated.
    grouped = query.reshape(batch, kv_heads, heads // kv_heads * length, -1)
    mask = of_rows[:, :, None].expand(-1, -1, heads // kv_heads, -1, -1).reshape(batch, kv_heads, -1, count)
    found = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    return found.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def _mask(**asked: Any) -> Any:
    """Which tokens each one sees, always written out: bool, `[batch, 1, query, token]`."""
    return sdpa_mask(**{**asked, "allow_is_causal_skip": False})


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, _mask)


def _read(source: bytes | str | PathLike[str]) -> tuple[Mapping[str, str], Mapping[str, torch.Tensor]]:
    if not isinstance(source, (bytes, bytearray, memoryview)):
        with safe_open(source, framework="pt") as opened:
            return opened.metadata() or {}, {name: opened.get_tensor(name) for name in opened.keys()}
    data = bytes(source)
    tensors = safetensors.torch.load(data)
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]).get("__metadata__", {}), tensors


def _fingerprint_of(model: PreTrainedModel) -> str:
    folder = Path(model.name_or_path or "")
    if not model.name_or_path or not folder.is_dir():
        raise HandoverError(
            "fingerprint_unknown",
            f"{model.name_or_path!r} is no folder of this machine, so that nothing says which weights this model has: pass its fingerprint",
        )
    try:
        return fingerprint(folder)
    except (OSError, KeyError, ValueError) as error:
        raise HandoverError("fingerprint_unknown", f"{folder} does not hold a checkpoint ({error}): pass the model's fingerprint") from error


def _one_text(tokens: Tokens) -> torch.Tensor:
    if isinstance(tokens, str):
        raise TypeError("a question is given as token ids: tokenizer(text, add_special_tokens=False)")
    ids = torch.as_tensor(tokens["input_ids"] if isinstance(tokens, Mapping) else tokens)
    if not ids.numel():
        raise ValueError("a question has at least one token")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"token ids are integers, these are {ids.dtype}")
    if ids.dim() > 2 or (ids.dim() == 2 and len(ids) != 1):
        raise ValueError(f"one text at a time, this is a batch of shape {list(ids.shape)}")
    return ids.reshape(-1).long()


def _invalid(message: str) -> HandoverError:
    return HandoverError("handover_invalid", f"these are no keys and values of Thresher: {message}")


def _mismatch(message: str) -> HandoverError:
    return HandoverError("model_mismatch", f"these keys and values are {message}: only the same weights can take them over")


def _shown(values: torch.Tensor) -> str:
    first = ", ".join(f"{value:g}" for value in values[:4].tolist())
    return f"[{first}{', ...' if len(values) > 4 else ''}] ({len(values)})"
