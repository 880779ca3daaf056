"""Makes the parity fixtures of encoders: tiny random BERTs with the readout of `transformers`, and MiniLM's readout.

    python models/tiny/make_goldens.py [FOLDER OF all-MiniLM-L6-v2]

Writes models/tiny/bert-*/ (checkpoint, tokenizer, golden.json), and models/tiny/minilm.golden.json if a folder is given. Needs torch
and transformers (the committed files were made with torch 2.15 and transformers 4.57). Tests need neither; they read the
committed files. Seeds are fixed: the same versions give the same files.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertModel

HERE = pathlib.Path(__file__).parent

# Word pieces of the tiny tokenizer. The texts contain known, unknown and continued pieces.
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list("abcdefghijklmnopqrstuvwxyz0123456789.,?!") \
    + ["##" + c for c in "abcdefghijklmnopqrstuvwxyz0123456789"] + ["the", "question", "##ion", "answer", "東", "京"]

TINY = [
    dict(name="bert-gelu", cls=BertModel, seed=1, dtype=torch.float32, shards=1, tokens_max=None,
         config=dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64,
                     hidden_act="gelu", max_position_embeddings=40)),
    dict(name="bert-tanh-masked-lm", cls=BertForMaskedLM, seed=2, dtype=torch.bfloat16, shards=2, tokens_max=24,
         config=dict(hidden_size=24, num_attention_heads=2, num_hidden_layers=3, intermediate_size=40,
                     hidden_act="gelu_new", max_position_embeddings=48, layer_norm_eps=1e-5)),
    dict(name="bert-relu-half", cls=BertModel, seed=3, dtype=torch.float16, shards=1, tokens_max=None,
         config=dict(hidden_size=20, num_attention_heads=5, num_hidden_layers=1, intermediate_size=28,
                     hidden_act="relu", max_position_embeddings=32, type_vocab_size=1)),
]

TEXTS = ["", "the question", "the answer, 42!", "東京 the question? abc xyz 0123", "a b c d e f g h i j k l m n o p q r"]

MINILM_TEXTS = [
    "who wrote the origin of species",
    "On the Origin of Species was published on 24 November 1859 by Charles Darwin.",
    "東京は日本の首都であり、世界最大の都市圏の一つである。",
    "中华人民共和国成立于1949年10月1日。",
    "Rocket 🚀 science isn't that hard 👩‍🔬, is it? 🤔🇨🇭",
    "Naïve café façade — “quotes”, soft\u00adhyphen, e\u0301 and zero\u200bwidth.",
    "def rc(x, y): return max(x - y, 0)  # f(i, j) = <q_j, k_i>",
    "Москва — столица России; Θεσσαλονίκη είναι πόλη.",
    "x",
    " ".join(f"Item {i} costs {i * 7 % 13} francs and weighs {i * 3 % 11} grams." for i in range(25)),
]
# Indices of the texts whose readout is stored completely. Of the others, PROJECTIONS dot products are stored for each token.
MINILM_WHOLE = [0, 8]
PROJECTIONS = 8


def tokenizer(folder):
    t = Tokenizer(models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", PIECES.index("[CLS]")), ("[SEP]", PIECES.index("[SEP]"))])
    t.enable_truncation(8)  # published tokenizers have truncation: the export must remove it
    t.save(str(folder / "tokenizer.json"))
    t.no_truncation()
    return t


def readout(encoder, ids):
    with torch.no_grad():
        hidden = encoder(torch.tensor([ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden, dim=-1).numpy()


def tiny(spec):
    folder = HERE / spec["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    torch.manual_seed(spec["seed"])
    # Larger than BERT's 0.02: otherwise the attention of a random encoder is nearly uniform, and parity proves little.
    config = BertConfig(vocab_size=len(PIECES) + 3, initializer_range=0.3, attn_implementation="eager",
                        **spec["config"])
    model = spec["cls"](config).eval()
    with torch.no_grad():  # biases and norms start as 0 and 1, which would hide a swapped or missing one
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.2)
    model = model.to(spec["dtype"])
    config.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    raw["architectures"] = [spec["cls"].__name__]
    raw.pop("dtype", None)
    (folder / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")

    tensors = {k: v.contiguous() for k, v in sorted(model.state_dict().items())
               if not k.startswith("cls.predictions.decoder")}
    if spec["shards"] == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        count, weight_map = spec["shards"], {}
        for s in range(count):
            file = f"model-{s + 1:05}-of-{count:05}.safetensors"
            part = {k: v for i, (k, v) in enumerate(tensors.items()) if i % count == s}
            save_file(part, folder / file, metadata={"format": "pt"})
            weight_map |= {k: file for k in part}
        index = {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    if spec["tokens_max"]:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": spec["tokens_max"]}) + "\n")

    tok = tokenizer(folder)
    exact = model.float()  # the stored weights, converted to f32
    encoder = exact.bert if hasattr(exact, "bert") else exact
    cases = []
    for text in TEXTS:
        ids = tok.encode(text).ids
        cases.append(dict(ids=ids, readout=[round(float(v), 7) for v in readout(encoder, ids).ravel()]))
    write_golden(folder / "golden.json", dict(dim=config.hidden_size, cases=cases))


def minilm(source):
    source = pathlib.Path(source)
    tok = Tokenizer.from_file(str(source / "tokenizer.json"))
    tok.no_truncation()
    tok.no_padding()
    encoder = BertModel.from_pretrained(source, attn_implementation="eager").eval()
    dim = encoder.config.hidden_size
    directions = np.random.default_rng(11).standard_normal((PROJECTIONS, dim)).astype("f4").round(4)
    cases = []
    for i, text in enumerate(MINILM_TEXTS):
        ids = tok.encode(text).ids
        assert len(ids) <= 256, len(ids)
        unit = readout(encoder, ids).astype("f8")
        case = dict(text=text, ids=ids, projected=[round(float(v), 6) for v in (unit @ directions.T).ravel()])
        if i in MINILM_WHOLE:
            case["readout"] = [round(float(v), 7) for v in unit.ravel()]
        cases.append(case)
    assert max(len(c["ids"]) for c in cases) >= 250
    golden = dict(dim=dim, directions=[round(float(v), 4) for v in directions.ravel()], cases=cases)
    write_golden(HERE / "minilm.golden.json", golden)


def write_golden(path, golden):
    path.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    for spec in TINY:
        tiny(spec)
    if len(sys.argv) > 1:
        minilm(sys.argv[1])
