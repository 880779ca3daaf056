"""Adapter for Hugging Face transformers: loads exported keys and values into a model, which then does not read the chunks again.

`docs/kv-export.md` of the project describes the file and its limits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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

from ._kv_file import FORMAT, fingerprint
from .errors import KvExportError

__all__ = ["KvExport", "KvExportError", "KvExportLayer", "attention", "fingerprint", "generate"]

Tokens = Union[Sequence[int], Sequence[Sequence[int]], torch.Tensor, Mapping[str, Any]]
"""Token ids of one text or of several: a list, a list of lists, a tensor of shape `[token]` or `[text, token]`, or the output of a
tokenizer."""

# Name under which this module registers its attention with transformers.
_ATTENTION = "thresher_heads"
# Attribute of a keys tensor: the token of each row, `[kv_head, row]`; -1 for a row of padding.
_ROW_TOKENS = "thresher_row_tokens"
# Ends of the names of buffers with rotary frequencies: those of layers with full attention or of all layers, and those of layers
# with a sliding window. The first of each is that of transformers 4, the second that of transformers 5.
_GLOBAL = ("rotary_emb.inv_freq", "full_attention_inv_freq")
_LOCAL = ("rotary_emb_local.inv_freq", "sliding_attention_inv_freq")


@dataclass(frozen=True, eq=False)
class KvExportLayer:
    """Keys and values of one layer. Keys are rotated to their positions.

    With policy `"chunks"`, `keys` and `values` are `[kv_head, token, head_dim]`, and `counts` and `tokens` are None. With policy
    `"heads"`, they are `[row, head_dim]`, with the rows of all heads one head after another; `counts` `[kv_head]` is the number
    of rows of each head, and `tokens` `[row]` the token of each row.
    """

    keys: torch.Tensor
    values: torch.Tensor
    counts: torch.Tensor | None = None
    tokens: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class KvExport:
    """Exported keys and values of chunks, in every layer, with their tokens. All tensors are on the CPU.

    - `policy`: `"chunks"` (all keys and values) or `"heads"` (a part of each head's, chosen for the question)
    - `model`, `fingerprint`: the model's name in the daemon, and the fingerprint of its weights
    - `chunk_ids`: ids of the chunks, in the order of their tokens
    - `kv_heads`, `head_dim`: key heads of a layer, and dimensions of a key
    - `next_position`: number of tokens, which is the position of the next token
    - `rotary_frequencies`: for each pair of a key's dimensions, the angle by which it rotates from one position to the next
    - `rotary_frequencies_local`: the same for layers with a sliding window, if they have other frequencies; otherwise None
    - `token_ids`, `positions`: id and position of each token, `[token]`
    - `chunks`: index in `chunk_ids` of each token, `[token]`; -1 for a special token in front
    - `windows`: number of the window in which the model read each token, `[token]`; -1 for a special token
    - `recomputed`: whether each token was encoded again, attending to the chunks before it, `[token]`
    - `is_exact`: whether keys and values are those that the model would compute in a prompt, up to rounding
    - `offsets`: range of each token in the chunk's text, in bytes, `[token, 2]`; -1, -1 for a special token or one of a title
    - `layers`: keys and values of each layer
    """

    policy: Literal["chunks", "heads"]
    model: str
    fingerprint: str
    chunk_ids: tuple[str, ...]
    kv_heads: int
    head_dim: int
    next_position: int
    rotary_frequencies: tuple[float, ...]
    rotary_frequencies_local: tuple[float, ...] | None
    token_ids: torch.Tensor
    positions: torch.Tensor
    chunks: torch.Tensor
    windows: torch.Tensor
    recomputed: torch.Tensor
    is_exact: bool
    offsets: torch.Tensor
    layers: tuple[KvExportLayer, ...]

    @classmethod
    def load(cls, source: bytes | str | PathLike[str]) -> KvExport:
        """Reads an export from the bytes that `Client.kv` returned, or from the path of a file with them.

        Raises a `KvExportError` with code `kv_export_invalid` if it is damaged or has another format.
        """
        try:
            metadata, tensors = _read(source)
        except SafetensorError as error:
            raise _invalid(f"it is not a complete safetensors file: {error}") from error
        file_format = metadata.get("format")
        if file_format != FORMAT:
            raise _invalid(f"its format is {file_format!r}; this client reads {FORMAT!r}")
        try:
            return cls._parse(metadata, tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise _invalid(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _parse(cls, metadata: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> KvExport:
        layers, kv_heads, head_dim, tokens = (
            int(metadata[name]) for name in ("layers", "kv_heads", "head_dim", "next_position")
        )

        def tensor(name: str, *shape: int) -> torch.Tensor:
            if tensors[name].shape != shape:
                raise ValueError(f"tensor {name} has the shape {list(tensors[name].shape)}, not {list(shape)}")
            return tensors[name]

        def layer(index: int) -> KvExportLayer:
            name = f"layers.{index}"
            if metadata["policy"] == "chunks":
                shape = (kv_heads, tokens, head_dim)
                return KvExportLayer(tensor(f"{name}.key", *shape), tensor(f"{name}.value", *shape))
            counts = tensor(f"{name}.counts", kv_heads)
            rows = int(counts.sum())
            keys, values = (tensor(f"{name}.{kind}", rows, head_dim) for kind in ("key", "value"))
            return KvExportLayer(keys, values, counts, tensor(f"{name}.tokens", rows))

        if metadata["policy"] not in ("chunks", "heads"):
            raise ValueError(f"its policy is {metadata['policy']!r}; it must be 'chunks' or 'heads'")
        return cls(
            policy=cast(Literal["chunks", "heads"], metadata["policy"]),
            model=metadata["model"],
            fingerprint=metadata["fingerprint"],
            chunk_ids=tuple(json.loads(metadata["chunk_ids"])),
            kv_heads=kv_heads,
            head_dim=head_dim,
            next_position=tokens,
            rotary_frequencies=tuple(json.loads(metadata["rotary_frequencies"])),
            rotary_frequencies_local=tuple(json.loads(local)) if (local := metadata.get("rotary_frequencies_local")) else None,
            **{name: tensor(name, tokens) for name in ("token_ids", "positions", "chunks", "windows")},
            # An older daemon encodes no token again.
            recomputed=tensor("recomputed", tokens).bool() if "recomputed" in tensors else torch.zeros(tokens, dtype=torch.bool),
            is_exact=metadata.get("exact") == "true",
            offsets=tensor("offsets", tokens, 2),
            layers=tuple(layer(index) for index in range(layers)),
        )

    @property
    def kv_bytes(self) -> int:
        """Size of all keys and values in bytes."""
        return sum(tensor.nbytes for layer in self.layers for tensor in (layer.keys, layer.values))

    @property
    def share(self) -> float:
        """Share of the chunks' keys that the export contains, 0 to 1. Special tokens do not count."""
        if self.policy == "chunks":
            return 1.0
        heads = len(self.layers) * self.kv_heads
        special = int((self.chunks < 0).sum())
        kept = sum(len(layer.keys) for layer in self.layers)
        return (kept - special * heads) / max((self.next_position - special) * heads, 1)

    def input_ids(self, question_ids: Tokens) -> torch.Tensor:
        """Returns the ids of all tokens, those of the chunks and then those of the question, `[1, token]`.

        `model.generate` needs them in addition to `past_key_values`. The question must be tokenized without special tokens. For
        several questions, use `inputs`.
        """
        questions = self._questions(question_ids)
        if len(questions) > 1:
            raise ValueError(f"these are {len(questions)} questions, which need an attention mask: call inputs(model, question_ids)")
        return torch.cat([self.token_ids.to(questions[0]), questions[0]])[None]

    def inputs(self, model: PreTrainedModel, question_ids: Tokens) -> dict[str, torch.Tensor]:
        """Returns `input_ids` and `attention_mask` for `model.generate`, `[question, token]`, on the model's device.

        The questions must be tokenized without special tokens. They may have different lengths: padding goes between the chunks
        and the question, and the mask hides it. Raises a `KvExportError` with code `padding_unsupported` if the lengths differ
        and the model has layers with a sliding window, in which the padding would take the place of other tokens.
        """
        questions = self._questions(question_ids)
        longest = max(len(question) for question in questions)
        has_window = any(getattr(layer, "is_sliding", False) for layer in DynamicCache(config=model.config).layers)
        if has_window and any(len(question) < longest for question in questions):
            raise KvExportError(
                "padding_unsupported",
                "the questions have different lengths, and the model has layers with a sliding window, in which padding would take the "
                "place of other tokens: pass questions of equal length together, and others one at a time",
            )
        ids, masks = [], []
        for question in questions:
            padding = longest - len(question)
            # The mask hides the padding, but repetition penalties count it. The first token is in the question anyway.
            ids.append(torch.cat([self.token_ids.to(question), question[:1].expand(padding), question]))
            masks.append(torch.ones_like(ids[-1]))
            masks[-1][self.next_position : self.next_position + padding] = 0
        return {"input_ids": torch.stack(ids).to(model.device), "attention_mask": torch.stack(masks).to(model.device)}

    def _questions(self, question_ids: Tokens) -> list[torch.Tensor]:
        questions = _texts(question_ids)
        for question in questions:
            if self.next_position and int(self.chunks[0]) < 0 and int(question[0]) == int(self.token_ids[0]):
                raise ValueError(
                    f"the question begins with token {int(question[0])}, which is already in front of the chunks: "
                    "tokenize the question with add_special_tokens=False"
                )
        return questions

    def cache(self, model: PreTrainedModel, fingerprint: str | None = None) -> Cache:
        """Returns the export as a cache to pass as `past_key_values`, on the model's device and in its precision.

        The next token is read at position `next_position`. The cache grows with every token that is read, so use one cache for
        one conversation. If the model reads several sequences (questions, beams), the cache repeats the export for each of them.
        With policy `"heads"`, use the cache only inside `attention(model)`.

        `fingerprint` is that of the model's weights; it is needed only if the model was not loaded from a folder of this machine.
        Raises a `KvExportError` if the model is not the one that the keys and values are of.
        """
        self.check(model, fingerprint)
        device, dtype = model.device, model.dtype
        if self.policy == "heads":
            cache = _Cache()
            cache.layers = [_Heads(layer, self.next_position, model) for layer in self.layers]
            return cache
        cache = _Cache(config=model.config)
        for index, layer in enumerate(self.layers):
            cache.update(layer.keys[None].to(device, dtype), layer.values[None].to(device, dtype), index)
        return cache

    def check(self, model: PreTrainedModel, fingerprint: str | None = None) -> None:
        """Raises a `KvExportError` unless `model` has the weights, shape and rotary frequencies that the keys and values were
        made with.

        `fingerprint` is that of the model's weights; it is needed only if the model was not loaded from a folder of this machine.
        """
        model_fingerprint = fingerprint or _fingerprint_of(model)
        if model_fingerprint != self.fingerprint:
            raise _mismatch(f"the export has fingerprint {self.fingerprint}, the model has {model_fingerprint}")
        config = model.config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        shape = {
            "layers": (len(self.layers), config.num_hidden_layers),
            "kv_heads": (self.kv_heads, getattr(config, "num_key_value_heads", None) or heads),
            "head_dim": (self.head_dim, getattr(config, "head_dim", None) or config.hidden_size // heads),
        }
        for name, (in_export, in_model) in shape.items():
            if in_export != in_model:
                raise _mismatch(f"the export has {name} = {in_export}, the model has {in_model}")
        self._check_rotary(model)

    def _check_rotary(self, model: PreTrainedModel) -> None:
        """Raises a `KvExportError` unless `model` rotates keys as the export does."""
        buffers = [(buffer, name.endswith(_LOCAL)) for name, buffer in model.named_buffers() if name.endswith(_GLOBAL + _LOCAL)]
        if not buffers:
            raise _mismatch("the export has rotated keys, the model has no rotary embeddings (rotary_emb.inv_freq)")
        if self.rotary_frequencies_local and not any(local for _, local in buffers):
            raise _mismatch("the export has other rotary frequencies in layers with a sliding window, the model has one list for all")
        for buffer, local in buffers:
            in_export = (self.rotary_frequencies_local if local else None) or self.rotary_frequencies
            frequencies = torch.tensor(in_export, dtype=torch.float32)
            in_model, relative = buffer.detach().to("cpu", torch.float32), max(1e-5, torch.finfo(buffer.dtype).eps)
            # Half precision cannot represent the lowest frequencies exactly.
            absolute = 0.0 if buffer.dtype == torch.float32 else 1e-7
            if in_model.shape != frequencies.shape or not torch.allclose(in_model, frequencies, rtol=relative, atol=absolute):
                raise _mismatch(f"the export has rotary frequencies {_shown(frequencies)}, the model has {_shown(in_model)}")


def generate(
    model: PreTrainedModel,
    export: KvExport,
    question_ids: Tokens,
    *,
    fingerprint: str | None = None,
    **generate_options: Any,
) -> torch.Tensor:
    """Generates an answer from the export and the question, and returns the ids of the new tokens, `[token]`.

    Takes the options of `model.generate`, except those that set the input. For several questions, or with `num_return_sequences`,
    the result is `[sequence, token]`; answers that end early are padded as by `model.generate`. Tokenize questions without
    special tokens: the export begins with them. `fingerprint` is that of the model's weights; it is needed only if the model was
    not loaded from this machine.
    """
    for name in ("attention_mask", "past_key_values", "input_ids", "inputs"):
        if name in generate_options:
            raise ValueError(f"generate sets {name}: to set it yourself, call model.generate with export.cache and export.inputs")
    cache = export.cache(model, fingerprint)
    inputs = export.inputs(model, question_ids)
    with attention(model) if export.policy == "heads" else nullcontext():
        output: Any = model.generate(**inputs, past_key_values=cache, **generate_options)
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    new = cast(torch.Tensor, sequences[:, inputs["input_ids"].shape[1] :])
    return new if len(new) > 1 else new[0]


_lock = threading.Lock()
# For each model: how many `attention` blocks are active, and the attention that the model had before the first of them.
_active: WeakKeyDictionary[PreTrainedModel, tuple[int, str]] = WeakKeyDictionary()


@contextmanager
def attention(model: PreTrainedModel) -> Iterator[None]:
    """Context manager inside which `model` can use caches of exports with policy `"heads"`: each head sees the keys exported for
    it.

    Other caches work as usual. Blocks can be nested, and several threads can be inside one at the same time. Raises a
    `KvExportError` with code `attention_fixed` if the model's attention cannot be replaced.
    """
    with _lock:
        count, original = _active.get(model, (0, model.config._attn_implementation))
        if count == 0:
            model.set_attn_implementation(_ATTENTION)
        if model.config._attn_implementation != _ATTENTION:
            raise KvExportError("attention_fixed", f"the attention of {type(model).__name__} cannot be replaced")
        _active[model] = (count + 1, original)
    try:
        yield
    finally:
        with _lock:
            count, original = _active.pop(model)
            if count > 1:
                _active[model] = (count - 1, original)
            else:
                model.set_attn_implementation(original)


class _Cache(DynamicCache):
    """A cache of an export. It is of one sequence until the model reads several: then it repeats what it has for each of them."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends keys and values as other caches do, after it has repeated those that it has."""
        layer = self.layers[layer_idx]
        if layer.keys is not None and len(layer.keys) != len(key_states):
            if len(layer.keys) > 1:
                raise KvExportError(
                    "sequences_changed",
                    f"the model reads {len(key_states)} sequences, but the cache already has tokens of {len(layer.keys)}: call "
                    "export.cache(model) for a new cache",
                )
            layer.keys, layer.values = (one.repeat_interleave(len(key_states), 0) for one in (layer.keys, layer.values))
        return cast("tuple[torch.Tensor, torch.Tensor]", super().update(key_states, value_states, layer_idx, *args, **kwargs))


class _Heads(DynamicLayer):
    """A cache layer whose heads have different tokens.

    It is as long as its longest head; other heads are padded. `_row_tokens` `[kv_head, row]` is the token of each row, -1 for
    padding.
    """

    def __init__(self, layer: KvExportLayer, tokens: int, model: PreTrainedModel) -> None:
        super().__init__()
        assert layer.counts is not None and layer.tokens is not None
        self.device, self.dtype, self.is_initialized = model.device, model.dtype, True
        self._config = model.config
        counts = layer.counts.tolist()
        self._kept, self._tokens = max(counts), tokens
        self._row_tokens = torch.full((len(counts), self._kept), -1, dtype=torch.long)
        keys = torch.zeros((1, len(counts), self._kept, layer.keys.shape[1]), dtype=layer.keys.dtype)
        values = torch.zeros_like(keys)
        by_head = zip(*(tensor.split(counts) for tensor in (layer.tokens, layer.keys, layer.values)))
        for head, (head_tokens, head_keys, head_values) in enumerate(by_head):
            count = len(head_tokens)
            self._row_tokens[head, :count] = head_tokens
            keys[0, head, :count], values[0, head, :count] = head_keys, head_values
        self._row_tokens = self._row_tokens.to(self.device)
        self.keys, self.values = keys.to(self.device, self.dtype), values.to(self.device, self.dtype)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends keys and values as other layers do, and attaches the tokens of the rows to the returned keys."""
        if self._config._attn_implementation != _ATTENTION:
            raise KvExportError("attention_missing", "the export has policy \"heads\": call the model inside `with attention(model):`")
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        new = torch.arange(self._tokens, self.get_seq_length(), device=self._row_tokens.device)
        setattr(keys, _ROW_TOKENS, torch.cat([self._row_tokens, new.expand(len(self._row_tokens), -1)], dim=1))
        return keys, values

    def get_seq_length(self) -> int:
        """Returns the number of tokens that were read, including those that the export left out."""
        length: int = self._tokens + self.keys.shape[-2] - self._kept
        return length

    def get_mask_sizes(self, query: Any) -> tuple[int, int]:
        """Returns length and offset of the mask, which covers all tokens, including those that the export left out.

        `query` is the number of query tokens; before transformers 5, it is their positions.
        """
        return self.get_seq_length() + (query if isinstance(query, int) else query.shape[0]), 0

    def crop(self, count: int) -> None:
        """Removes the tokens that were read last. Tokens of the export cannot be removed.

        `count` is minus the number of tokens to remove; before transformers 5, it is the number of tokens to keep.
        """
        removed = -count if count <= 0 else self.get_seq_length() - count
        if removed > self.get_seq_length() - self._tokens:
            raise ValueError(f"cannot remove {removed} tokens: only {self.get_seq_length() - self._tokens} were read after the export")
        if removed > 0:
            self.keys, self.values = self.keys[..., :-removed, :], self.values[..., :-removed, :]

    def reset(self) -> None:
        """Raises a `ValueError`: a cache of an export cannot be emptied."""
        raise ValueError("a cache of an export cannot be emptied: call export.cache(model) for a new one")


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
    """Computes SDPA in which each head sees the tokens of its own rows. Without row tokens on `key`, it is the usual SDPA.

    `query` is `[batch, head, query, head_dim]`, `key` and `value` are `[batch, kv_head, row, head_dim]`, and `attention_mask` is
    `[batch, 1, query, token]` over all tokens.
    """
    row_tokens: torch.Tensor | None = getattr(key, _ROW_TOKENS, None)
    if row_tokens is None:
        output = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more)
        return cast("tuple[torch.Tensor, None]", output)
    assert attention_mask is not None, "_mask always creates a mask"
    batch, heads, length, _ = query.shape
    kv_heads, count = row_tokens.shape
    # [batch, kv_head, query, row]
    row_mask = attention_mask[:, 0][..., row_tokens.clamp(min=0)].movedim(2, 1) & (row_tokens >= 0)[:, None]
    # The query heads of a key head are joined along the query axis, so that keys need not be repeated.
    grouped = query.reshape(batch, kv_heads, heads // kv_heads * length, -1)
    mask = row_mask[:, :, None].expand(-1, -1, heads // kv_heads, -1, -1).reshape(batch, kv_heads, -1, count)
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    return output.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def _mask(**options: Any) -> Any:
    """Creates the attention mask, bool `[batch, 1, query, token]`. SDPA's own function may leave a causal mask out; this one
    never does.
    """
    return sdpa_mask(**{**options, "allow_is_causal_skip": False})


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
    path = _path_of(model)
    if not model.name_or_path or not path.exists():
        raise KvExportError(
            "fingerprint_unknown",
            f"the model was loaded from {model.name_or_path!r}, which is not a folder of this machine: pass the fingerprint of its weights",
        )
    try:
        return fingerprint(path)
    except (OSError, KeyError, ValueError) as error:
        message = f"{path} has no readable checkpoint ({error}): pass the fingerprint of the model's weights"
        raise KvExportError("fingerprint_unknown", message) from error


def _path_of(model: PreTrainedModel) -> Path:
    """The folder or the GGUF file that `model` was loaded from."""
    folder = Path(model.name_or_path or "")
    # transformers 5 notes the GGUF file there, by its name in the folder or by its path.
    quantization = getattr(model.config, "quantization_config", None) or {}
    file = quantization.get("gguf_file") if isinstance(quantization, dict) else getattr(quantization, "gguf_file", None)
    if not file:
        return folder
    return Path(file) if Path(file).is_file() else folder / file


def _texts(tokens: Tokens) -> list[torch.Tensor]:
    if isinstance(tokens, str):
        raise TypeError("the question is a string; pass token ids: tokenizer(text, add_special_tokens=False)")
    ids = tokens["input_ids"] if isinstance(tokens, Mapping) else tokens
    several = _dims(ids) > 1 or (len(ids) > 0 and _dims(ids[0]) > 0)
    texts = [torch.as_tensor(text) for text in (ids if several else [ids])]
    if isinstance(tokens, Mapping) and tokens.get("attention_mask") is not None:
        masks = tokens["attention_mask"] if several else [tokens["attention_mask"]]
        texts = [text[torch.as_tensor(mask).bool()] for text, mask in zip(texts, masks)]
    for text in texts:
        if not text.numel():
            raise ValueError("the question is empty; it must have at least one token")
        if text.is_floating_point() or text.is_complex() or text.dtype == torch.bool:
            raise TypeError(f"token ids must be integers, but these are {text.dtype}")
        if text.dim() != 1:
            raise ValueError(f"pass token ids of shape [token] or [question, token]; each of these questions has shape {list(text.shape)}")
    if not texts:
        raise ValueError("there is no question")
    return [text.long() for text in texts]


def _dims(value: Any) -> int:
    """The dimensions of a tensor or array; 1 for a list; 0 for a number."""
    return int(value.ndim) if hasattr(value, "ndim") else int(isinstance(value, Sequence))


def _invalid(message: str) -> KvExportError:
    return KvExportError("kv_export_invalid", f"cannot read the export of keys and values: {message}")


def _mismatch(message: str) -> KvExportError:
    return KvExportError("model_mismatch", f"{message}: the model must have the same weights as the daemon's model")


def _shown(values: torch.Tensor) -> str:
    first = ", ".join(f"{value:g}" for value in values[:4].tolist())
    return f"[{first}{', ...' if len(values) > 4 else ''}] ({len(values)})"
