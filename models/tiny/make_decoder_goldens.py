"""Makes the parity fixtures of decoders: tiny random models with the output of `transformers`.

    python models/tiny/make_decoder_goldens.py

Writes one folder for each model beside this file: checkpoint, tokenizer, golden.json. Needs torch and transformers (the committed
files were made with torch 2.15 and transformers 4.57). Tests need neither; they read the committed files. Seeds are fixed:
the same versions give the same files.

golden.json contains cases. Inputs are lists of rows; outputs are flat lists. `past` is the index of the case whose keys and values
are the past of this one.
    position_ids      [batch, token], 0 at padding
    key_position_ids  [batch, past + token], the positions of all keys, past ones first; -1 for padding
    logits            [batch, token, vocab]
    key, value        [batch, kv_head, past + token, head_dim], keys after rotary
    attn_logits       [batch, head, token, past + token], scaled products of each query with every key, unmasked
The outputs of padding tokens (their rows, and from the second layer on their keys, values and columns of attn_logits) depend on
the result of a softmax over no keys. They are finite and have no meaning.
"""

import copy
import json
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import eager_mask

from make_goldens import HERE, write_golden

torch.set_num_threads(1)

SPECIAL = ["<unk>", "<s>"]
MERGES = [("i", "n"), ("e", "r"), ("▁", "t"), ("h", "e"), ("▁t", "he")]
PIECES = SPECIAL + ["▁"] + list("acdefghilmnoqrstuwy0123456789.,?") + [a + b for a, b in MERGES]
VOCAB = len(PIECES) + 1  # one row more than there are pieces: published embeddings have extra rows too

COMMON = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=1, initializer_range=0.2)
# Config keys of Llama, Mistral, Qwen and Gemma. head_dim is given where it differs from hidden_size / num_attention_heads.
ROTARY = COMMON | dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
                       intermediate_size=20, max_position_embeddings=64)
NEOX = COMMON | dict(num_hidden_layers=2, intermediate_size=20, max_position_embeddings=64)
GPT2 = COMMON | dict(n_embd=20, n_head=4, n_layer=2, n_inner=24, n_positions=40)
# At head_dim 16 and theta 500000 one frequency is kept, one blended and six divided.
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=48)

# `patch` has fields that published config.json files contain and save_pretrained does not write.
TINY = [
    dict(name="llama", cls="Llama", seed=1, bos=True, config=ROTARY | dict(rope_theta=10000.0)),
    dict(name="llama3-tied", cls="Llama", seed=2, bos=True, dtype=torch.bfloat16, shards=2, config=ROTARY | dict(
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, rope_theta=500000.0, rope_scaling=LLAMA3,
        attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3)),
    dict(name="mistral-sliding", cls="Mistral", seed=3, bos=True, dtype=torch.float16, config=ROTARY | dict(
        head_dim=12, sliding_window=4)),
    dict(name="mistral-linear", cls="Mistral", seed=4, bos=True, config=ROTARY | dict(
        num_key_value_heads=1, sliding_window=None, rope_scaling=dict(type="linear", factor=4.0),
        hidden_act="gelu_pytorch_tanh")),
    dict(name="qwen2", cls="Qwen2", seed=5, dtype=torch.bfloat16, config=ROTARY | dict(
        num_hidden_layers=3, num_key_value_heads=1, use_sliding_window=True, sliding_window=5,
        max_window_layers=1, tie_word_embeddings=True, rope_theta=1000000.0)),
    # A window that is turned off: save_pretrained leaves it out, published files have it.
    dict(name="qwen2-full", cls="Qwen2", seed=6, config=ROTARY, patch=dict(sliding_window=4)),
    dict(name="qwen3", cls="Qwen3", seed=7, dtype=torch.float16, config=ROTARY | dict(
        head_dim=16, tie_word_embeddings=True, rope_theta=1000000.0)),
    # Two layers with a window and one without. Published files have a pattern in place of a list of layers.
    dict(name="gemma3", cls="Gemma3", seed=12, bos=True, config=ROTARY | dict(
        num_hidden_layers=3, head_dim=12, query_pre_attn_scalar=10, sliding_window=5, sliding_window_pattern=3,
        rope_theta=1000000.0, rope_local_base_freq=10000.0), patch=dict(layer_types=None, sliding_window_pattern=3)),
    dict(name="gemma3-linear", cls="Gemma3", seed=13, bos=True, dtype=torch.bfloat16, config=ROTARY | dict(
        num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=24, sliding_window=4, attention_bias=True,
        layer_types=["full_attention", "sliding_attention"], tie_word_embeddings=False,
        rope_theta=100000.0, rope_local_base_freq=5000.0, rope_scaling=dict(rope_type="linear", factor=8.0))),
    dict(name="gpt-neox", cls="GPTNeoX", seed=8, config=NEOX | dict(
        hidden_size=32, num_attention_heads=2, rotary_pct=0.25)),
    dict(name="gpt-neox-serial", cls="GPTNeoX", seed=9, dtype=torch.float16, shards=2, config=NEOX | dict(
        hidden_size=24, num_attention_heads=3, rotary_pct=0.5, rotary_emb_base=1000, use_parallel_residual=False,
        attention_bias=True, layer_norm_eps=1e-3)),
    dict(name="gpt2", cls="GPT2", seed=10, prefix="", config=GPT2),
    dict(name="gpt2-prefixed", cls="GPT2", seed=11, dtype=torch.bfloat16, config=GPT2 | dict(
        activation_function="gelu", layer_norm_epsilon=1e-3)),
]

# Name, index of the case with the past, number of new tokens, padding in front of each row, position of the first token.
# The first case is longer than every sliding window here.
CASES = [
    ("many", None, 6, [0], 0),
    ("one after many", 0, 1, [0], None),
    ("several after many", 0, 2, [0], None),
    ("batch", None, 2, [0, 0], 0),
    ("padded", None, 5, [0, 3], 0),
    ("one after padded", 4, 1, [0, 0], None),
    ("chosen places", None, 3, [0], 11),
]

CAPTURED = []  # what `capture` recorded, one entry for each layer


def capture(module, query, key, value, attention_mask, **kwargs):
    """Computes the model's own eager attention and records its inputs. `query`, `key` and `value` are [batch, head, token, head_dim]."""
    scale = kwargs.get("scaling", query.shape[-1] ** -0.5)  # GPT-2 does not pass one
    every = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    output, weights = eager(module, query, key, value, attention_mask, **kwargs)
    CAPTURED.append(dict(key=key, value=value, attn_logits=query @ every.mT * scale, weights=weights))
    return output, weights


AttentionInterface.register("capture", capture)
AttentionMaskInterface.register("capture", eager_mask)  # without this, transformers creates no mask


def tokenizer(folder, bos):
    t = Tokenizer(models.BPE({p: i for i, p in enumerate(PIECES)}, MERGES, unk_token="<unk>", fuse_unk=True))
    t.add_special_tokens([AddedToken(s, normalized=False) for s in SPECIAL])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    if bos:
        t.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", PIECES.index("<s>"))])
    ids = t.encode("the inner question, 42?").ids
    assert max(ids) < VOCAB and PIECES.index("▁the") in ids and (ids[0] == 1) == bos, ids
    t.enable_truncation(8)  # published tokenizers have truncation: the export must remove it
    t.save(str(folder / "tokenizer.json"), pretty=False)


def checkpoint(folder, cls, spec):
    """Writes the config and the weights of a random model. Returns the weights as they are stored."""
    torch.manual_seed(spec["seed"])
    model = cls(cls.config_class(**spec["config"])).eval()
    with torch.no_grad():  # biases and norms start as 0 and 1, which would hide a swapped or missing one
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.2)
    model.config.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text()) | spec.get("patch", {})
    raw["architectures"] = [cls.__name__]
    for key in ("dtype", "torch_dtype"):
        raw.pop(key, None)
    (folder / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")

    dtype = spec.get("dtype", torch.float32)
    stored = {k: v.detach().to(dtype).contiguous() for k, v in sorted(model.state_dict().items())
              if not (model.config.tie_word_embeddings and k == "lm_head.weight")}
    tensors = dict(stored)
    if "prefix" in spec:  # GPT-2 on the hub has no prefix, and has the masks of old versions
        n = model.config.n_positions
        tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()} \
            | {f"h.{i}.attn.bias": torch.ones(n, n).tril().view(1, 1, n, n) for i in range(model.config.n_layer)}
    save(folder, dict(sorted(tensors.items())), spec.get("shards", 1))
    return stored


def save(folder, tensors, shards):
    if shards == 1:
        return save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    weight_map = {}
    for s in range(shards):
        file = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        part = {k: v for i, (k, v) in enumerate(tensors.items()) if i % shards == s}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= {k: file for k in part}
    index = {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def plan(seed):
    """Returns the inputs of the cases: tokens, their positions, and the earlier case that is their past."""
    generator, cases = torch.Generator().manual_seed(seed), []
    for name, past, tokens, pads, start in CASES:
        before = [[] for _ in pads] if past is None else cases[past]["key_position_ids"]
        firsts = [start - pad if past is None else max(row) + 1 for pad, row in zip(pads, before)]
        positions = [[max(first + i, -1) for i in range(tokens)] for first in firsts]
        ids = torch.randint(len(SPECIAL), VOCAB, (len(pads), tokens), generator=generator).tolist()
        cases.append(dict(
            name=name, past=past,
            input_ids=[[i if p >= 0 else 0 for i, p in zip(*row)] for row in zip(ids, positions)],
            position_ids=[[max(p, 0) for p in row] for row in positions],
            key_position_ids=[old + new for old, new in zip(before, positions)]))
    return cases


def run(model, case, past):
    CAPTURED.clear()
    with torch.no_grad():
        return model(input_ids=torch.tensor(case["input_ids"]), position_ids=torch.tensor(case["position_ids"]),
                     attention_mask=(torch.tensor(case["key_position_ids"]) >= 0).long(),
                     past_key_values=past, use_cache=past is not None).logits


def whole(cases, case):
    """Returns the case with the tokens of its past in front of its own, so that it needs no past."""
    if case["past"] is None:
        return case
    past = whole(cases, cases[case["past"]])
    return case | {k: [a + b for a, b in zip(past[k], case[k])] for k in ("input_ids", "position_ids")}


def real(case):
    """Returns which tokens of the case are not padding, bool [batch, token]."""
    return torch.tensor(case["key_position_ids"])[:, -len(case["position_ids"][0]):] >= 0


def check_close(name, actual, expected, tolerance):
    difference = (actual - expected).abs().max().item()
    assert difference <= tolerance, f"{name} differs by {difference}, more than {tolerance}"


def check_weights(config, layer, case, seen):
    """Checks that the recorded logits, masked by positions only, give the attention weights of the tokens that are not padding."""
    keys = torch.tensor(case["key_position_ids"])[:, None, None, :]
    queries = torch.tensor(case["position_ids"])[:, None, :, None]
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    visible = (keys >= 0) & (keys <= queries)
    if window and (kinds is None or kinds[layer] == "sliding_attention"):
        visible &= queries - keys < window
    weights = seen["attn_logits"].masked_fill(~visible, -1e30).softmax(-1)
    at = real(case)[:, None, :, None].expand_as(weights)
    check_close("attention", weights[at], seen["weights"][at], 1e-5)


def golden(folder, cls, spec, stored):
    exact, info = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="capture",
                                      output_loading_info=True)
    assert not any(info.values()), info
    loaded = exact.state_dict()
    assert all(torch.equal(loaded[k], v.float()) for k, v in stored.items())
    eager = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    config, cases, caches, out = exact.config, plan(spec["seed"]), [], []
    for case in cases:
        # The cache is made without the config, so that sliding layers keep every key. It grows in place, so it is copied.
        caches.append(DynamicCache() if case["past"] is None else copy.deepcopy(caches[case["past"]]))
        again = copy.deepcopy(caches[-1])
        logits, seen = run(exact, case, caches[-1]), list(CAPTURED)
        keys = len(case["key_position_ids"][0])
        assert all(s["key"].shape[2] == layer.keys.shape[2] == keys for s, layer in zip(seen, caches[-1].layers))
        for layer, s in enumerate(seen):
            check_weights(config, layer, case, s)
        check_close("eager", logits, run(eager, case, again), 1e-5)
        full = run(eager, whole(cases, case), None)[:, -logits.shape[1]:]
        check_close("without cache", logits[real(case)], full[real(case)], 1e-4)
        layers = [{k: flat(s[k]) for k in ("key", "value", "attn_logits")} for s in seen]
        out.append(case | dict(logits=flat(logits), layers=layers))
    _, kv_heads, _, head_dim = seen[0]["key"].shape
    write_golden(folder / "golden.json", dict(
        heads=seen[0]["attn_logits"].shape[1], kv_heads=kv_heads, head_dim=head_dim, layers=len(seen),
        vocab=config.vocab_size, cases=out))
    return out


def flat(tensor):
    assert tensor.isfinite().all()
    return [float(f"{v:.7g}") for v in tensor.flatten().tolist()]


def tiny(spec):
    folder, cls = HERE / spec["name"], getattr(transformers, spec["cls"] + (
        "LMHeadModel" if spec["cls"] == "GPT2" else "ForCausalLM"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    stored = checkpoint(folder, cls, spec)
    tokenizer(folder, spec.get("bos", False))
    cases = golden(folder, cls, spec, stored)
    largest = max(abs(v) for case in cases for layer in case["layers"] for v in layer["attn_logits"])
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{spec['name']:16} largest |attn_logits| {largest:5.2f}  {size:7} bytes")
    return size


if __name__ == "__main__":
    print("in all", sum([tiny(spec) for spec in TINY]), "bytes")
