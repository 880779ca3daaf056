"""Makes the parity fixtures of the encoder families beside BERT: tiny random models, with the vectors of `transformers`.

    python models/tiny/make_encoder_goldens.py [NAME ...]

Writes models/tiny/NAME/ (checkpoint, tokenizer, golden.json) for each name, by default for all. Needs torch and transformers (the
committed files were made with torch 2.15 and transformers 5.23). Tests need neither; they read the committed files. Seeds are
fixed: the same versions give the same files.

A golden has cases of passages and questions. Each has the text, its token ids with all special tokens, and the unit vectors of all
tokens. The ids of a prefix are those of the joined text, prefix and all. A golden of a cross-encoder has pairs of texts with the logits of its
labels.
"""

import json
import pathlib
import shutil
import sys

import torch
from make_goldens import PIECES, tokenizer as bert_tokenizer, write_golden
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (BertConfig, BertForSequenceClassification, BertModel, DistilBertConfig, DistilBertForMaskedLM,
                          DistilBertForSequenceClassification, ModernBertConfig, ModernBertForMaskedLM, ModernBertModel, MPNetConfig,
                          MPNetForSequenceClassification, MPNetModel, NomicBertConfig, NomicBertModel, RobertaConfig,
                          RobertaForSequenceClassification, RobertaModel, XLMRobertaConfig, XLMRobertaForMaskedLM)

HERE = pathlib.Path(__file__).parent

TEXTS = ["the question", "the answer, 42!", "東京 the question? abc xyz 0123", "a b c d e f g h i j k l m n o p q r"]

# Longer than the distances that MPNet tells apart, and than ModernBERT's neighbourhoods.
LONG = "the answer is 42, the question is not. " * 12

UNIGRAM = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁the", -2.5), ("▁question", -3.0), ("▁answer", -3.1),
           ("▁query", -3.2), ("▁passage", -3.3), ("▁quest", -5.0), ("ion", -4.0), ("an", -4.2), ("swer", -4.5), ("東京", -5.0), ("東", -6.0),
           ("▁is", -3.3), ("▁not", -3.5), ("42", -5.0)] + [(c, -6.0 - 0.01 * i) for i, c in
                                                           enumerate("abcdefghijklmnopqrstuvwxyz0123456789.,?!:")]


def unigram(folder):
    """A tokenizer like that of XLM-RoBERTa: SentencePiece's Unigram, with a mask token."""
    t = Tokenizer(models.Unigram(UNIGRAM, unk_id=3, byte_fallback=False))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    t.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    return save_with_template(t, folder, "<s>", "</s>")


def byte_level(folder, first, last, extra):
    """A tokenizer of bytes with a few merges, like those of RoBERTa and ModernBERT."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("q", "u"), ("e", "s"), ("es", "t"), ("qu", "est"), ("i", "o"), ("io", "n"),
              ("quest", "ion"), ("Ġ", "question"), ("Ġ", "a")]
    vocab = {}
    for piece in alphabet + [first + second for first, second in merges]:
        vocab.setdefault(piece, len(vocab))
    t = Tokenizer(models.BPE(vocab, merges))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([first, last] + extra)
    return save_with_template(t, folder, first, last)


def word_pieces(folder):
    """BERT's tokenizer with the special tokens of MPNet."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] + PIECES[5:] + ["is", "not"]
    t = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="<unk>"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return save_with_template(t, folder, "<s>", "</s>")


def save_with_template(t, folder, first, last):
    ids = [(token, t.token_to_id(token)) for token in (first, last)]
    t.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", pair=f"{first} $A {last} {last} $B {last}",
                                                     special_tokens=ids)
    t.save(str(folder / "tokenizer.json"))
    return t


def random_model(cls, config, seed):
    torch.manual_seed(seed)
    # Larger than the usual 0.02: otherwise the attention of a random encoder is nearly uniform, and parity proves little.
    config.initializer_range = 0.3
    config._attn_implementation = "eager"
    model = cls(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:  # biases and norms start as 0 and 1, which would hide a swapped or missing one
                p.add_(torch.randn_like(p) * 0.2)
            elif "modernbert" in type(model).__module__:  # this family has its own rules for the initial scale
                p.copy_(torch.randn_like(p) * 0.3)
    return model


def save(folder, model, config, tensors=None, architecture=None):
    raw = config if isinstance(config, dict) else json.loads(config.to_json_string(use_diff=False))
    raw["architectures"] = [architecture or type(model).__name__]
    for key in ["dtype", "transformers_version", "_attn_implementation"]:
        raw.pop(key, None)
    (folder / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")
    tensors = tensors or {k: v for k, v in model.state_dict().items() if not k.endswith("position_ids")}
    seen, kept = set(), {}
    for key, tensor in sorted(tensors.items(), key=lambda item: ("decoder" in item[0], item[0])):  # tied weights are stored once
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            kept[key] = tensor.contiguous()
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def vectors(encoder, ids, projection=None, masked=()):
    """Unit vectors `[token, dim]` of all tokens. No token attends to those whose id is `masked`."""
    mask = torch.tensor([[int(i not in masked) for i in ids]])
    with torch.no_grad():
        hidden = encoder(input_ids=torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]
        if projection is not None:
            hidden = projection(hidden)
    return [round(float(v), 7) for v in torch.nn.functional.normalize(hidden, dim=-1).ravel()]


def golden(folder, dim, passages, questions):
    """`passages` and `questions` are lists of (text, ids, vectors)."""
    named = lambda cases: [dict(text=text, ids=ids, vectors=found) for text, ids, found in cases]
    write_golden(folder / "golden.json", dict(dim=dim, passages=named(passages), questions=named(questions)))


def golden_of_prefixes(folder, tok, encoder, dim, texts, query="", passage=""):
    def cases(prefix, texts):
        ids = [tok.encode(prefix + text).ids for text in texts]
        return [(text, i, vectors(encoder, i)) for text, i in zip(texts, ids)]
    golden(folder, dim, cases(passage, texts), cases(query, texts[:3]))


def xlm_roberta(folder):
    """XLM-RoBERTa as in multilingual-e5: Unigram tokenizer, prefixes."""
    tok = unigram(folder)
    config = XLMRobertaConfig(vocab_size=tok.get_vocab_size(), hidden_size=24, num_attention_heads=3, num_hidden_layers=2,
                              intermediate_size=40, max_position_embeddings=130, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1)
    model = random_model(XLMRobertaForMaskedLM, config, 21)
    save(folder, model, config)
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts, indent=2) + "\n")
    golden_of_prefixes(folder, tok, model.roberta, 24, TEXTS + ["ﬁ Ⅻ  the\tquestion", LONG[:160]], "query: ", "passage: ")


def roberta(folder):
    """RoBERTa: a byte-level tokenizer and another id of the padding token."""
    tok = byte_level(folder, "<s>", "</s>", ["<pad>", "<mask>"])
    config = RobertaConfig(vocab_size=tok.get_vocab_size(), hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=24,
                           max_position_embeddings=100, type_vocab_size=1, pad_token_id=2, hidden_act="gelu_new")
    model = random_model(RobertaModel, config, 22)
    save(folder, model, config)
    golden_of_prefixes(folder, tok, model, 16, TEXTS)


def distilbert(folder):
    tok = bert_tokenizer(folder)
    config = DistilBertConfig(vocab_size=len(PIECES), dim=20, n_heads=2, n_layers=2, hidden_dim=28, max_position_embeddings=48)
    model = random_model(DistilBertForMaskedLM, config, 23)
    save(folder, model, config)
    golden_of_prefixes(folder, tok, model.distilbert, 20, TEXTS)


def mpnet(folder):
    tok = word_pieces(folder)
    config = MPNetConfig(vocab_size=tok.get_vocab_size(), hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=20,
                         max_position_embeddings=202)
    model = random_model(MPNetModel, config, 24)
    save(folder, model, config)
    golden_of_prefixes(folder, tok, model, 16, TEXTS + [LONG])


def modernbert(folder):
    """ModernBERT with the keys that checkpoints had when it was published."""
    tok = byte_level(folder, "[CLS]", "[SEP]", ["[PAD]", "[MASK]"])
    config = ModernBertConfig(vocab_size=tok.get_vocab_size(), hidden_size=24, num_attention_heads=2, num_hidden_layers=4,
                              intermediate_size=20, max_position_embeddings=260, local_attention=8, global_attn_every_n_layers=3,
                              pad_token_id=0, bos_token_id=0, eos_token_id=0, cls_token_id=0, sep_token_id=0)
    model = random_model(ModernBertForMaskedLM, config, 25)
    raw = json.loads(config.to_json_string(use_diff=False))
    raw.pop("rope_parameters"), raw.pop("layer_types")
    raw |= dict(global_rope_theta=160000.0, local_rope_theta=10000.0, global_attn_every_n_layers=3)
    save(folder, model, raw)
    golden_of_prefixes(folder, tok, model.model, 24, TEXTS + [LONG[:100]])


def modernbert_biases(folder):
    """ModernBERT with biases everywhere and the keys of newer configurations."""
    tok = byte_level(folder, "[CLS]", "[SEP]", ["[PAD]", "[MASK]"])
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
    config = ModernBertConfig(vocab_size=tok.get_vocab_size(), hidden_size=16, num_attention_heads=2, num_hidden_layers=2,
                              intermediate_size=16, max_position_embeddings=64, local_attention=6, rope_parameters=rope,
                              layer_types=["sliding_attention", "full_attention"], norm_bias=True, attention_bias=True, mlp_bias=True,
                              hidden_activation="gelu_pytorch_tanh", pad_token_id=0, bos_token_id=0, eos_token_id=0, cls_token_id=0,
                              sep_token_id=0)
    model = random_model(ModernBertModel, config, 26)
    save(folder, model, config)
    golden_of_prefixes(folder, tok, model, 16, TEXTS)


def nomic(folder, is_published):
    tok = bert_tokenizer(folder)
    config = NomicBertConfig(vocab_size=64 * ((len(PIECES) + 63) // 64), hidden_size=24, num_attention_heads=2, num_hidden_layers=2,
                             intermediate_size=28, max_position_embeddings=60)
    model = random_model(NomicBertModel, config, 27)
    tensors = model.state_dict()
    if not is_published:
        save(folder, model, config, tensors)
    else:
        names = [("embeddings.LayerNorm", "emb_ln"), ("layers.", "encoder.layers."), ("self_attn.o_proj", "attn.out_proj"),
                 ("up_proj", "fc11"), ("gate_proj", "fc12"), ("down_proj", "fc2"), ("post_attention_layernorm", "norm1"),
                 ("post_mlp_layernorm", "norm2")]
        published = {}
        for key, tensor in tensors.items():
            for new, old in names:
                key = key.replace(new, old)
            published[key] = tensor
        for layer in range(config.num_hidden_layers):
            qkv = [published.pop(f"encoder.layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
            published[f"encoder.layers.{layer}.attn.Wqkv.weight"] = torch.cat(qkv)
        raw = dict(model_type="nomic_bert", vocab_size=len(PIECES), pad_vocab_size_multiple=64, n_embd=24, n_head=2, n_layer=2, n_inner=28,
                   n_positions=8192, max_trained_positions=60, rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_emb_interleaved=False,
                   rotary_emb_scale_base=None, rotary_scaling_factor=None, activation_function="swiglu", prenorm=False, causal=False,
                   parallel_block=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False, use_rms_norm=False,
                   type_vocab_size=2, layer_norm_epsilon=1e-12)
        save(folder, model, raw, published)
    golden_of_prefixes(folder, tok, model, 24, TEXTS)


def colbert_cases(tok, encoder, projection, markers, mask, length, attended):
    def ids(text, marker):
        first, *rest = tok.encode(text).ids
        return [first, marker] + rest
    passages = [(text, ids(text, markers[1])) for text in TEXTS]
    questions = [(text, ids(text, markers[0])) for text in TEXTS]
    questions = [(text, i + [mask] * (length - len(i))) for text, i in questions]
    masked = () if attended else (mask,)
    found = lambda cases: [(text, i, vectors(encoder, i, projection, masked)) for text, i in cases]
    return found(passages), found(questions)


def colbert(folder):
    """A checkpoint as Stanford's ColBERT writes it. No token attends to the padding of a question."""
    pieces = ["[PAD]", "[unused0]", "[unused1]"] + PIECES[1:]
    t = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok = save_with_template(t, folder, "[CLS]", "[SEP]")
    config = BertConfig(vocab_size=len(pieces), hidden_size=20, num_attention_heads=2, num_hidden_layers=2, intermediate_size=24,
                        max_position_embeddings=48)
    model = random_model(BertModel, config, 28)
    projection = torch.nn.Linear(20, 12, bias=False)
    tensors = {f"bert.{key}": value for key, value in model.state_dict().items()} | {"linear.weight": projection.weight.detach()}
    save(folder, model, config, tensors, "HF_ColBERT")
    metadata = dict(query_token_id="[unused0]", doc_token_id="[unused1]", query_token="[Q]", doc_token="[D]", query_maxlen=24,
                    doc_maxlen=40, attend_to_mask_tokens=False, similarity="cosine", dim=12)
    (folder / "artifact.metadata").write_text(json.dumps(metadata, indent=4) + "\n")
    golden(folder, 12, *colbert_cases(tok, model, projection, (1, 2), pieces.index("[MASK]"), 24, False))


def colbert_pylate(folder):
    """A ColBERT on ModernBERT as PyLate writes it. Tokens attend to the padding of a question."""
    tok = byte_level(folder, "[CLS]", "[SEP]", ["[PAD]", "[MASK]", "[Q] ", "[D] "])
    config = ModernBertConfig(vocab_size=tok.get_vocab_size(), hidden_size=16, num_attention_heads=2, num_hidden_layers=2,
                              intermediate_size=16, max_position_embeddings=64, local_attention=8, pad_token_id=0, bos_token_id=0,
                              eos_token_id=0, cls_token_id=0, sep_token_id=0)
    model = random_model(ModernBertModel, config, 29)
    projection = torch.nn.Linear(16, 8, bias=False)
    save(folder, model, config)
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": projection.weight.detach()}, folder / "1_Dense" / "model.safetensors")
    dense = dict(in_features=16, out_features=8, bias=False, activation_function="torch.nn.modules.linear.Identity")
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense) + "\n")
    modules = [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer"),
               dict(idx=1, name="1", path="1_Dense", type="pylate.models.Dense.Dense")]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    settings = dict(query_prefix="[Q] ", document_prefix="[D] ", query_length=36, document_length=60, attend_to_expansion_tokens=True,
                    skiplist_words=[], prompts={})
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]"}) + "\n")
    ids = [tok.token_to_id(token) for token in ("[Q] ", "[D] ")]
    golden(folder, 8, *colbert_cases(tok, model, projection, ids, tok.token_to_id("[MASK]"), 36, True))


PAIRS = [("the answer is 42.", "the question is not 42"), ("a b c d e f", "g"), ("the", "the the, the answer"), ("東京 the question? abc xyz 0123", "answer 9!")]


def cross(folder, tok, model, config):
    """A cross-encoder, with the logits of its labels for pairs of texts."""
    save(folder, model, config)
    cases = []
    for evidence, claim in PAIRS:
        encoded = tok.encode(evidence, claim)
        inputs = {"input_ids": torch.tensor([encoded.ids])}
        if getattr(config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = torch.tensor([encoded.type_ids])
        with torch.no_grad():
            logits = model(**inputs).logits[0].tolist()
        cases.append({"evidence": evidence, "claim": claim, "tokens": len(encoded.ids), "logits": logits})
    (folder / "golden.json").write_text(json.dumps({"pairs": cases}, ensure_ascii=False) + "\n")


LABELS = {0: "contradiction", 1: "neutral", 2: "entailment"}


def cross_bert(folder):
    tok = bert_tokenizer(folder)
    config = BertConfig(vocab_size=len(PIECES), hidden_size=20, num_attention_heads=2, num_hidden_layers=2, intermediate_size=24,
                        max_position_embeddings=48, id2label=LABELS)
    cross(folder, tok, random_model(BertForSequenceClassification, config, 30), config)


def cross_roberta(folder):
    """A cross-encoder with a single label, as rerankers have it."""
    tok = byte_level(folder, "<s>", "</s>", ["<pad>", "<mask>"])
    config = RobertaConfig(vocab_size=tok.get_vocab_size(), hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=24,
                           max_position_embeddings=100, type_vocab_size=1, pad_token_id=1, num_labels=1)
    cross(folder, tok, random_model(RobertaForSequenceClassification, config, 31), config)


def cross_distilbert(folder):
    """A cross-encoder whose labels have no names."""
    tok = bert_tokenizer(folder)
    config = DistilBertConfig(vocab_size=len(PIECES), dim=20, n_heads=2, n_layers=1, hidden_dim=28, max_position_embeddings=48)
    cross(folder, tok, random_model(DistilBertForSequenceClassification, config, 32), config)


def cross_mpnet(folder):
    tok = word_pieces(folder)
    config = MPNetConfig(vocab_size=tok.get_vocab_size(), hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=20,
                         max_position_embeddings=62, id2label={0: "SUPPORTS", 1: "REFUTES"})
    cross(folder, tok, random_model(MPNetForSequenceClassification, config, 33), config)


FIXTURES = {"xlm-roberta": xlm_roberta, "roberta": roberta, "distilbert": distilbert, "mpnet": mpnet, "modernbert": modernbert,
            "modernbert-biases": modernbert_biases, "nomic-bert": lambda folder: nomic(folder, True),
            "nomic-bert-transformers": lambda folder: nomic(folder, False), "colbert": colbert, "colbert-pylate": colbert_pylate,
            "cross-bert": cross_bert, "cross-roberta": cross_roberta, "cross-distilbert": cross_distilbert, "cross-mpnet": cross_mpnet}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIXTURES:
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        FIXTURES[name](folder)
