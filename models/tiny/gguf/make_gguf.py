"""Makes the fixtures of GGUF files: quants.json and tiny.gguf.

    python models/tiny/gguf/make_gguf.py

Needs gguf and numpy (the committed files were made with gguf 0.19 and numpy 2.4). Tests need neither. Seeds are fixed.

quants.json has blocks of every element type that Thresher reads, with the values that the `gguf` package computes. The blocks are
random bytes; only the 16-bit scales are chosen, so that they are finite. `bytes` and `values` are hexadecimal: the blocks one after
another, and their elements as little-endian 32-bit floats.

tiny.gguf is a Llama of one layer with random weights, a byte-level tokenizer and a chat template. It is small enough for fuzzing.
"""

import json
from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).resolve().parent
BLOCKS = 3
# The offsets of the 16-bit scales in a block, in bytes.
SCALES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "F16": [0], "BF16": [], "F32": [],
}


def blocks(name, random):
    kind = gguf.GGMLQuantizationType[name]
    if name in ("F32", "BF16"):
        floats = random.standard_normal(BLOCKS).astype(np.float32)
        return gguf.quants.quantize(floats, kind).view(np.uint8).reshape(BLOCKS, -1)
    block = random.integers(0, 256, (BLOCKS, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in SCALES[name]:
        block[:, at:at + 2] = random.standard_normal(BLOCKS).astype(np.float16).view(np.uint8).reshape(BLOCKS, 2)
    return block


def quants(random):
    rows = []
    for name in SCALES:
        stored = blocks(name, random)
        flat = stored.reshape(-1) if name not in ("F32", "F16") else stored.reshape(-1).view({"F32": np.float32, "F16": np.float16}[name])
        values = gguf.quants.dequantize(flat, gguf.GGMLQuantizationType[name]).astype("<f4")
        rows.append({"type": name, "bytes": stored.tobytes().hex(), "values": values.tobytes().hex()})
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    (HERE / "quants.json").write_text(text)


def tiny(random):
    hidden, inner, heads, kv_heads = 32, 128, 4, 2
    writer = gguf.GGUFWriter(HERE / "tiny.gguf", "llama")
    writer.add_name("tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(hidden // heads)
    tokens = ["<unk>", "<s>", "</s>", "Ġ", "a", "b", "c", "Ġa", "bc"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ a", "b c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ bos_token }}{% for message in messages %}{{ message['content'] }}{{ eos_token }}{% endfor %}")
    width = hidden // heads
    for name, shape, kind in [
        ("token_embd", (len(tokens), hidden), "Q8_0"),
        ("output_norm", (hidden,), "F32"),
        ("blk.0.attn_norm", (hidden,), "F32"),
        ("blk.0.attn_q", (heads * width, hidden), "Q4_0"),
        ("blk.0.attn_k", (kv_heads * width, hidden), "Q5_0"),
        ("blk.0.attn_v", (kv_heads * width, hidden), "F16"),
        ("blk.0.attn_output", (hidden, heads * width), "BF16"),
        ("blk.0.ffn_norm", (hidden,), "F32"),
        ("blk.0.ffn_gate", (inner, hidden), "Q4_1"),
        ("blk.0.ffn_up", (inner, hidden), "Q5_1"),
        ("blk.0.ffn_down", (hidden, inner), "Q4_1"),
    ]:
        kind = gguf.GGMLQuantizationType[kind]
        values = random.standard_normal(shape).astype(np.float32)
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(name + ".weight", stored, raw_shape=stored.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


quants(np.random.default_rng(7))
tiny(np.random.default_rng(8))
