"""Makes the facts model: a Llama-shaped decoder of 0.65 M parameters, trained from scratch to retrieve facts from chunks.

    python models/facts/make.py data                    # tokenizer.json, rows.jsonl, questions.jsonl: seconds
    python models/facts/make.py train --work FOLDER     # about an hour on one CPU thread; run again, it goes on
    python models/facts/make.py save --work FOLDER      # config.json and model.safetensors of the last checkpoint
    python models/facts/make.py check                   # accuracy and heads of what lies here, by `transformers`

Everything is generated: made-up names, made-up values, no text of anyone's. Training imitates how Thresher reads: a chunk
sees the BOS token and itself, a question sees everything; positions run on through the chunks in half of the rows, and
start again at 1 in every chunk in the other half. Needs torch, transformers, tokenizers and safetensors (made with torch
2.15, transformers 4.57). Seeds are fixed, so data are the same every time. The weights kept here are of a run whose mixture
was changed by hand on the way (README.md says how): `train` gives others of the same kind.
"""

import argparse
import hashlib
import json
import math
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent

# ---------------------------------------------------------------------------------------------------------------- words

SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
RELATIONS = "colour owner home friend food song tool price maker shape smell origin".split()
# {e} is a name, {r} a relation, {v} a value.
FACTS = [("the {r} of {e} is {v} .", 25), ("{e} has the {r} {v} .", 25), ("{v} is the {r} of {e} .", 33),
         ("as for {e} , the {r} is {v} .", 17)]
# Value first is the hardest by far: what comes last in the sentence has to gather all of it.
FACTS_IN_TRAINING = [(form, weight) for (form, _), weight in zip(FACTS, (16, 16, 52, 16))]
FILLERS = ["many people came to the market today .", "the weather was cold and the road was long .",
           "nobody knew what to say about it .", "it was late and they went on in silence .",
           "{e} was seen near the old bridge .", "people say that {e} came late .", "they asked about {e} at the market .",
           "the old people talk about the {r} of many things .", "they could not agree about the {r} ."]
QUESTIONS = [("what is the {r} of {e} ?", 70), ("which {r} does {e} have ?", 30)]
# In training a statement to be completed is asked for too: it is nearest to plain copying, and leads to the others.
PROMPTS = QUESTIONS + [("the {r} of {e} is", 10), ("{e} has the {r}", 10), ("as for {e} , the {r} is", 5)]
PUNCTUATION = [".", ",", "?"]
WORDS = sorted({w for t in [f for f, _ in FACTS] + FILLERS + [q for q, _ in QUESTIONS] for w in t.split()
                if w[0] != "{" and w not in PUNCTUATION} | set(RELATIONS)) + PUNCTUATION
# Made-up words are split by the sum of their syllables' numbers, so that no made-up word of one split occurs in another.
SPLITS = {"rows": [0], "questions": [1], "train": [2, 3, 4, 5, 6]}


def tokenizer():
    """Byte-level BPE: 256 bytes, every syllable and every word of a template one token, with its space in front."""
    byte_alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>"] + byte_alphabet + SYLLABLES + ["Ġ" + s for s in SYLLABLES] + ["Ġ" + w for w in WORDS]
    pieces = list(dict.fromkeys(pieces))
    merges = [(s[0], s[1]) for s in SYLLABLES] + [("Ġ", s) for s in SYLLABLES]
    # Words need no merges of their own: a piece that stands in the vocabulary whole is taken whole.
    bpe = models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, ignore_merges=True)
    made = Tokenizer(bpe)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])
    return made


class Ids:
    """Token ids of lists of words, without going through text; `make_data` asserts that text gives the same."""

    def __init__(self):
        self.vocab = tokenizer().get_vocab()
        self.known = {w: [self.vocab["Ġ" + w]] for w in WORDS}
        self.first = {s: self.vocab["Ġ" + s] for s in SYLLABLES}
        self.rest = {s: self.vocab[s] for s in SYLLABLES}

    def __call__(self, words):
        return [i for w in words for i in self.known.get(w) or self.made_up(w)]

    def made_up(self, word):
        return [self.first[word[:2]]] + [self.rest[word[i:i + 2]] for i in range(2, len(word), 2)]


# ----------------------------------------------------------------------------------------------------------------- rows


def pick(rng, weighted):
    return rng.choices([x for x, _ in weighted], [w for _, w in weighted])[0]


class Words:
    """Made-up words of one row, none twice."""

    def __init__(self, rng, split):
        self.rng, self.residues, self.used = rng, SPLITS[split], set(WORDS)

    def new(self, near=None):
        """A fresh word of two or three syllables; with `near`, one that differs from it in one syllable."""
        while True:
            if near is None:
                numbers = [self.rng.randrange(len(SYLLABLES)) for _ in range(self.rng.choice((2, 3)))]
            else:
                numbers = [SYLLABLES.index(near[i:i + 2]) for i in range(0, len(near), 2)]
                numbers[self.rng.randrange(len(numbers))] = self.rng.randrange(len(SYLLABLES))
            word = "".join(SYLLABLES[n] for n in numbers)
            if sum(numbers) % 7 in self.residues and word not in self.used:
                self.used.add(word)
                return word


def make_row(rng, chunks, split, tokens_max=57):
    """Chunks as lists of sentences (lists of words), and the facts in them as (chunk, name, relation, value)."""
    words, forms = Words(rng, split), FACTS_IN_TRAINING if split == "train" else FACTS
    # Half of the rows in training have one or two relations and many names: else the relation alone answers too often.
    many_names = split == "train" and rng.random() < 0.5
    names = []
    for _ in range(2 * chunks if many_names else max(2, round(chunks * rng.uniform(0.6, 1.0)))):
        near = rng.choice(names) if names and rng.random() < 0.4 else None
        names.append(words.new(near))
    if many_names:
        relations = rng.sample(RELATIONS, rng.randint(1, 2))
    else:
        relations = rng.sample(RELATIONS, rng.randint(3, 5) if chunks < 4 else rng.randint(4, 8))
    values, row, facts, used = [], [], [], set()
    for chunk in range(chunks):
        here = rng.sample(names, min(len(names), rng.randint(1, 3)))
        sentences, length = [], 0
        for _ in range(rng.randint(2, 5)):
            name, relation = rng.choice(here), rng.choice(relations)
            if (name, relation) in used:
                continue
            value = words.new(rng.choice(values) if values and rng.random() < 0.15 else None)
            sentence = pick(rng, forms).format(e=name, r=relation, v=value).split()
            cost = len(sentence) + (len(name) + len(value)) // 2 - 2
            if length + cost > tokens_max:
                break
            length += cost
            used.add((name, relation))
            values.append(value)
            facts.append((chunk, name, relation, value))
            sentences.append(sentence)
        sentences_min = rng.randint(3, 5)
        for _ in range(6):
            filler = rng.choice(FILLERS).format(e=rng.choice(here), r=rng.choice(relations)).split()
            cost = len(filler) + 2
            if length + cost <= tokens_max and (len(sentences) < sentences_min or length < 40):
                length += cost
                sentences.insert(rng.randint(0, len(sentences)), filler)
        row.append(sentences)
    return row, facts


def question_of(rng, fact, forms):
    _, name, relation, value = fact
    return pick(rng, forms).format(e=name, r=relation).split(), value


def is_hard(fact, facts):
    """Whether words alone do not give the chunk away: the name and the relation both occur in several other chunks."""
    chunk, name, relation, _ = fact
    same_name = {c for c, n, r, _ in facts if n == name and c != chunk}
    same_relation = {c for c, n, r, _ in facts if r == relation and n != name and c != chunk}
    return len(same_name) >= 2 and len(same_relation) >= 3


def make_rows(split, count, seed, chunks=8):
    rng, made = random.Random(seed), []
    while len(made) < count:
        row, facts = make_row(rng, chunks, split)
        hard = [f for f in facts if is_hard(f, facts)]
        if not hard:
            continue
        fact = rng.choice(hard)
        question, value = question_of(rng, fact, QUESTIONS)
        texts = [" ".join(w for s in sentences for w in s) for sentences in row]
        made.append({"id": f"{split}-{len(made):03}", "query": " ".join(question),
                     "chunks": [{"id": f"c{i}", "title": None, "text": t} for i, t in enumerate(texts)],
                     "gold": [fact[0]], "answers": [value]})
    return made


def make_data():
    tokenizer().save(str(HERE / "tokenizer.json"))
    ids, read = Ids(), Tokenizer.from_file(str(HERE / "tokenizer.json"))
    for split, count, seed in (("rows", 120, 1), ("questions", 60, 2)):
        rows = make_rows(split, count, seed)
        for text in [c["text"] for r in rows for c in r["chunks"]] + [r["query"] for r in rows]:
            assert read.encode(text).ids == [0] + ids(text.split()), text
            assert read.decode(read.encode(text).ids).strip() == text, text
        (HERE / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        lengths = [len(read.encode(c["text"]).ids) - 1 for r in rows for c in r["chunks"]]
        print(f"{split}: {len(rows)} rows, tokens per chunk {min(lengths)}..{max(lengths)}, mean {np.mean(lengths):.1f}")


# -------------------------------------------------------------------------------------------------------------- batches

CHUNK_TOKENS, QUESTION_TOKENS = 59, 12  # with the BOS token and a newline; with all of the answer but its last token
POSITIONS = 1024
NOTHING = -100


class Shape:
    """Rows of a batch, chunks of a row, questions of a row; `copies`: random syllables and copies of them, no facts."""

    def __init__(self, rows, chunks, questions, copies=False):
        self.rows, self.chunks, self.questions, self.copies = rows, chunks, questions, copies


def copy_row(rng, shape, ids):
    """Chunks of random syllables, short ones in most rows; a question is a span of one of them, to be continued."""
    pool = list(ids.rest.values()) + list(ids.first.values())
    if rng.random() < 0.5:
        pool = rng.sample(pool, rng.randint(8, 20))  # so few that one token before does not tell the next: match two or three
    tokens_max = rng.choice((QUESTION_TOKENS + 2, 20, 32, CHUNK_TOKENS - 1))
    chunks = [[rng.choice(pool) for _ in range(rng.randint(QUESTION_TOKENS + 1, tokens_max))] for _ in range(shape.chunks)]
    asked = []
    for _ in range(shape.questions):
        chunk = rng.choice(chunks)
        start = rng.randrange(len(chunk) - QUESTION_TOKENS)
        asked.append((chunk[start:start + 3], chunk[start + 3:start + QUESTION_TOKENS + 1]))
    return chunks, asked


def fact_row(rng, shape, ids):
    row, facts = make_row(rng, shape.chunks, "train")
    chunks = [ids([w for s in sentences for w in s]) for sentences in row]
    for chunk in chunks:
        if rng.random() < 0.15:
            chunk.append(ids.vocab["Ċ"])  # so that a separator between chunks does no harm
    asked = []
    for fact in rng.choices(facts, k=shape.questions) if len(facts) < shape.questions else rng.sample(facts, shape.questions):
        question, value = question_of(rng, fact, PROMPTS)
        asked.append((ids(question), ids([value, "."])))
    return chunks, asked


def place(rng, lengths, question_tokens):
    """Where each chunk begins and where the question does: running on (with a gap, to use all positions), or again at 1."""
    if rng.random() < 0.5:
        return [1] * len(lengths), 1 + max(lengths)
    room = POSITIONS - 1 - sum(lengths) - question_tokens
    start, starts = 1 + (rng.randrange(room) if rng.random() < 0.3 else 0), []
    for length in lengths:
        starts.append(start)
        start += length
    return starts, start


def batch(rng, shape, ids):
    """Arrays `chunk_*` are [rows, chunks, token], `asked_*` and `wanted` [rows, questions, token]."""
    n = {k: np.zeros((shape.rows, shape.chunks, CHUNK_TOKENS), np.int64) for k in ("chunk_ids", "chunk_at")}
    n["chunk_keys"] = np.zeros((shape.rows, shape.chunks, CHUNK_TOKENS), bool)
    n |= {k: np.zeros((shape.rows, shape.questions, QUESTION_TOKENS), np.int64) for k in ("asked_ids", "asked_at")}
    n["wanted"] = np.full((shape.rows, shape.questions, QUESTION_TOKENS), NOTHING, np.int64)
    for b in range(shape.rows):
        chunks, asked = (copy_row if shape.copies else fact_row)(rng, shape, ids)
        starts, question_start = place(rng, [len(c) for c in chunks], QUESTION_TOKENS)
        for c, (tokens, start) in enumerate(zip(chunks, starts)):
            n["chunk_ids"][b, c, 1:1 + len(tokens)] = tokens  # column 0 is BOS: id 0 at position 0
            n["chunk_at"][b, c, 1:1 + len(tokens)] = range(start, start + len(tokens))
            n["chunk_keys"][b, c, 1:1 + len(tokens)] = True
        n["chunk_keys"][b, 0, 0] = True  # every chunk carries a BOS of its own; all are equal, so a question sees one
        for q, (question, answer) in enumerate(asked):
            tokens = question + answer[:-1]
            n["asked_ids"][b, q, :len(tokens)] = tokens
            n["asked_at"][b, q] = range(question_start, question_start + QUESTION_TOKENS)
            n["wanted"][b, q, len(question) - 1:len(tokens)] = answer
    return {k: torch.from_numpy(v) for k, v in n.items()}


# ---------------------------------------------------------------------------------------------------------------- model

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
    "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": True,
    "initializer_range": 0.02, "pretraining_tp": 1, "use_cache": True, "torch_dtype": "float16",
    "bos_token_id": 0, "eos_token_id": None, "vocab_size": None,
}
LAYERS, HEADS, KV_HEADS, HEAD_DIM = (CONFIG[k] for k in
                                     ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"))


def config():
    vocab = tokenizer().get_vocab()
    return CONFIG | {"vocab_size": len(vocab), "eos_token_id": vocab["Ġ."]}


def fresh_weights(seed):
    """Named as `transformers` names them; float32, to be trained.

    Two heads of the first layer start out looking one and two tokens back, which plain training takes long to find: all
    embeddings get a common part, and from it these heads make keys and queries that differ by one or two positions.
    """
    torch.manual_seed(seed)
    c = config()
    h, m, kv = c["hidden_size"], c["intermediate_size"], KV_HEADS * HEAD_DIM
    shapes = {"self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
              "self_attn.o_proj": (h, h), "mlp.gate_proj": (m, h), "mlp.up_proj": (m, h), "mlp.down_proj": (h, m)}
    w = {"model.embed_tokens.weight": torch.randn(c["vocab_size"], h) * 0.05, "model.norm.weight": torch.ones(h)}
    for layer in range(LAYERS):
        for name, (rows, columns) in shapes.items():
            scale = columns ** -0.5 / (math.sqrt(2 * LAYERS) if name.endswith(("o_proj", "down_proj")) else 1)
            w[f"model.layers.{layer}.{name}.weight"] = torch.randn(rows, columns) * scale
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"model.layers.{layer}.{name}.weight"] = torch.ones(h)
    w["model.embed_tokens.weight"] += 0.06
    common = torch.full((h,), h ** -0.5)
    pairs = torch.zeros(HEAD_DIM // 2)
    pairs[:8] = 0.7  # the fast ones, which tell neighbours apart
    frequency = CONFIG["rope_theta"] ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    attention = "model.layers.0.self_attn."
    w[attention + "k_proj.weight"][:HEAD_DIM] = torch.outer(torch.cat([pairs, 0 * pairs]), common)
    for head, back in ((0, 1), (1, 2)):
        turned = torch.cat([pairs * (frequency * back).cos(), -pairs * (frequency * back).sin()])
        w[attention + "q_proj.weight"][head * HEAD_DIM:(head + 1) * HEAD_DIM] = torch.outer(turned, common)
    return {k: v.requires_grad_() for k, v in w.items()}


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * weight


def angles(at):
    """cos and sin, [token, 1, head_dim], for positions of any shape, flattened."""
    frequency = CONFIG["rope_theta"] ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = at.reshape(-1, 1, 1) * torch.cat([frequency, frequency])
    return angle.cos(), angle.sin()


def turn(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def attend(q, k, v, mask, batches):
    """Tokens of `batches` equal batches, each [token, head, dim]; a key head serves its group of query heads."""
    group = HEADS // KV_HEADS
    q = q.reshape(batches, -1, KV_HEADS, group, HEAD_DIM).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [batch, kv, group * token, dim]
    k, v = (t.reshape(batches, -1, KV_HEADS, HEAD_DIM).transpose(1, 2) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)).unflatten(2, (group, -1)) * HEAD_DIM ** -0.5
    weights = scores.masked_fill(~mask, -1e9).softmax(-1).to(v.dtype)
    z = (weights.flatten(2, 3) @ v).unflatten(2, (group, -1))
    return z.permute(0, 3, 1, 2, 4).reshape(-1, HEADS * HEAD_DIM)


def logits(w, n):
    """The forward pass on a batch: logits where something is wanted, and what was wanted there.

    Chunks are rows of their own, so a chunk costs what its own length costs. In the last layer nothing of a chunk but its
    keys and values is needed.
    """
    (rows, chunks, length), questions = n["chunk_ids"].shape, n["asked_ids"].shape[1]
    in_chunks, asked = rows * chunks * length, questions * QUESTION_TOKENS
    x = w["model.embed_tokens.weight"][torch.cat([n["chunk_ids"].flatten(), n["asked_ids"].flatten()])]
    cos, sin = angles(torch.cat([n["chunk_at"].flatten(), n["asked_at"].flatten()]))
    causal = torch.ones(length, length).tril().bool()
    own = torch.block_diag(*[torch.ones(QUESTION_TOKENS, QUESTION_TOKENS).tril()] * questions).bool()
    seen = torch.cat([n["chunk_keys"].reshape(rows, 1, -1).expand(-1, asked, -1), own.expand(rows, -1, -1)], 2)[:, None, None]

    def both(t):
        """What questions see: keys or values of a row's chunks, then those of its questions."""
        return torch.cat([part.view(rows, -1, KV_HEADS, HEAD_DIM) for part in (t[:in_chunks], t[in_chunks:])], 1)

    for layer in range(LAYERS):
        p = {k: w[f"model.layers.{layer}.{k}.weight"] for k in
             ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
              "mlp.down_proj", "input_layernorm", "post_attention_layernorm")}
        last = layer == LAYERS - 1
        y = norm(x, p["input_layernorm"])
        k = turn((y @ p["self_attn.k_proj"].T).view(-1, KV_HEADS, HEAD_DIM), cos, sin)
        v = (y @ p["self_attn.v_proj"].T).view(-1, KV_HEADS, HEAD_DIM)
        if last:
            x, y, cos_q, sin_q = x[in_chunks:], y[in_chunks:], cos[in_chunks:], sin[in_chunks:]
        else:
            cos_q, sin_q = cos, sin
        q = turn((y @ p["self_attn.q_proj"].T).view(-1, HEADS, HEAD_DIM), cos_q, sin_q)

        z = attend(q if last else q[in_chunks:], both(k), both(v), seen, rows)
        if not last:
            of_chunks = attend(q[:in_chunks], k[:in_chunks], v[:in_chunks], causal, rows * chunks)
            z = torch.cat([of_chunks, z])
        x = x + z @ p["self_attn.o_proj"].T
        y = norm(x, p["post_attention_layernorm"])
        x = x + (F.silu(y @ p["mlp.gate_proj"].T) * (y @ p["mlp.up_proj"].T)) @ p["mlp.down_proj"].T
    return norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T


# ------------------------------------------------------------------------------------------------------------- training

# A stage is left when its own rows are answered this well (share of tokens), the last never; each keeps showing what the
# earlier ones did. Names are learned most easily with two chunks; what is learned there does not carry over to eight unseen.
STAGES = [(Shape(24, 2, 4, copies=True), 0.85), (Shape(24, 2, 4), 0.91), (Shape(12, 4, 6), 0.88), (Shape(7, 8, 8), None)]
STEPS = 13000
COPIES_SHARE, EARLIER_SHARE = 0.06, 0.4
LEARNING_RATE, WARM_UP_STEPS, DECAY_SHARE = 2e-3, 300, 0.3
CHECKPOINT_S, LOG_STEPS = 120, 50


def shape_for(rng, stage):
    copies = STAGES[0][0]
    if stage == 0 or rng.random() < COPIES_SHARE:
        return copies
    if stage > 1 and rng.random() < EARLIER_SHARE:
        return STAGES[rng.randrange(1, stage)][0]
    return STAGES[stage][0]


def rate(step, steps):
    """Warm up, hold, then fall in a line to a fiftieth."""
    left = (steps - step) / (steps * DECAY_SHARE)
    return LEARNING_RATE * min(1, (step + 1) / WARM_UP_STEPS, max(left, 0.02))


def train(work, steps):
    torch.set_num_threads(1)
    w, rng, ids = fresh_weights(0), random.Random(0), Ids()
    grouped = [{"params": [v for v in w.values() if v.dim() == 2], "weight_decay": 0.02},
               {"params": [v for v in w.values() if v.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(grouped, lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-8, fused=True)
    state = {"step": 0, "stage": 0, "good": 0.0, "since": 0, "seconds": 0.0}
    last = work / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=False)
        for k, v in saved["weights"].items():
            w[k].data.copy_(v)
        optimizer.load_state_dict(saved["optimizer"])
        rng.setstate(saved["rng"])
        state = saved["state"]
    forward = torch.compile(logits, dynamic=False)

    def keep():
        saved = {"weights": {k: v.data for k, v in w.items()}, "optimizer": optimizer.state_dict(), "rng": rng.getstate(),
                 "state": state}
        torch.save(saved, work / "last.part")
        (work / "last.part").replace(last)

    kept, before, seen = time.time(), time.time(), {}
    while state["step"] < steps:
        shape = shape_for(rng, state["stage"])
        n = batch(rng, shape, ids)
        with torch.autocast("cpu", torch.bfloat16):
            out = forward(w, n)
        wanted = n.pop("wanted").flatten()
        out, wanted = out[wanted != NOTHING].float(), wanted[wanted != NOTHING]
        loss = F.cross_entropy(out, wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(state["step"], steps)
        optimizer.step()
        optimizer.zero_grad()
        right = (out.argmax(-1) == wanted).float().mean().item()
        kind = "copies" if shape.copies else shape.chunks
        seen.setdefault(kind, []).append((loss.item(), right))
        state["step"] += 1
        state["since"] += 1
        if shape is STAGES[state["stage"]][0]:
            state["good"] += (right - state["good"]) * 0.03
            enough = STAGES[state["stage"]][1]
            if enough and state["good"] > enough and state["since"] > 100:
                state |= {"stage": state["stage"] + 1, "good": 0.0, "since": 0}
        if state["step"] % LOG_STEPS == 0:
            state["seconds"] += time.time() - before
            before = time.time()
            means = "  ".join("{}: {:.3f} {:.3f}".format(k, *np.mean(v, 0)) for k, v in sorted(seen.items(), key=str))
            print(f"step {state['step']} {state['seconds']:.0f} s stage {state['stage']}  {means}", flush=True)
            seen = {}
        if time.time() - kept > CHECKPOINT_S or state["step"] == steps:
            keep()
            kept = time.time()


def save(work, folder):
    """A Hugging Face folder of the last checkpoint."""
    weights = torch.load(work / "last.pt", weights_only=False)["weights"]
    folder.mkdir(exist_ok=True)
    save_file({k: v.half().contiguous() for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(), indent=2) + "\n")
    if folder != HERE:
        (folder / "tokenizer.json").write_bytes((HERE / "tokenizer.json").read_bytes())
    print(hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())


# ---------------------------------------------------------------------------------------------------------------- check


def reading(read, row, chunks, running):
    """Token ids, positions, owner of each token (-1 BOS, chunk number, `len(chunks)` the question) of a row."""
    parts = [read.encode(row["chunks"][c]["text"]).ids[1:] for c in chunks] + [read.encode(row["query"]).ids[1:]]
    tokens, at, owner, start = [0], [0], [-1], 1
    for number, part in enumerate(parts):
        if not running:
            start = 1 if number < len(chunks) else 1 + max(map(len, parts[:-1]))
        tokens, at, owner = tokens + part, at + list(range(start, start + len(part))), owner + [number] * len(part)
        start += len(part)
    return tokens, at, owner


def arguments(tokens, at, owner, asker):
    """What `transformers` takes: the mask is additive, [1, 1, token, token]; a chunk sees BOS and itself."""
    who = torch.tensor(owner)
    sees = (who[:, None] == who) | (who == -1) | (who[:, None] == asker)
    mask = torch.where(sees & torch.ones_like(sees).tril(), 0.0, torch.finfo(torch.float32).min)
    return {"input_ids": torch.tensor([tokens]), "position_ids": torch.tensor([at]), "attention_mask": mask[None, None]}


def answer(model, read, row, chunks, running):
    tokens, at, owner = reading(read, row, chunks, running)
    said = []
    while len(said) < 5 and (not said or said[-1] != model.config.eos_token_id):
        said.append(model(**arguments(tokens, at, owner, len(chunks))).logits[0, -1].argmax().item())
        tokens, at, owner = tokens + said[-1:], at + [at[-1] + 1], owner + owner[-1:]
    return read.decode(said).strip()


def peaks(model, read, row, running):
    """For every layer and head, which chunk holds the highest raw product of a question's query with a key."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    tokens, at, owner = reading(read, row, range(len(row["chunks"])), running)
    owner = torch.tensor(owner)
    found = arguments(tokens, at, owner.tolist(), len(row["chunks"]))
    states = model(**found, output_hidden_states=True).hidden_states
    cos, sin = model.model.rotary_emb(states[0], found["position_ids"])
    chunks = []
    for layer, x in zip(model.model.layers, states):
        x, a = layer.input_layernorm(x), layer.self_attn
        q, k = (p(x).view(1, len(tokens), -1, HEAD_DIM).transpose(1, 2) for p in (a.q_proj, a.k_proj))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        raw = q[0] @ k[0].repeat_interleave(HEADS // KV_HEADS, 0).transpose(1, 2)  # [head, token, token]
        in_chunk = (owner >= 0) & (owner < len(row["chunks"]))
        best = raw[:, owner == len(row["chunks"])][:, :, in_chunk].amax(1).argmax(1)
        chunks.append(owner[in_chunk][best])
    return torch.stack(chunks)  # [layer, head]


@torch.no_grad()
def check(folder):
    from transformers import LlamaForCausalLM
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    read = Tokenizer.from_file(str(folder / "tokenizer.json"))
    agree(model, folder)
    rows = [json.loads(line) for line in (HERE / "rows.jsonl").open()]
    for running in (True, False):
        name = "positions run on" if running else "positions start again"
        for count in (1, 2, 4, 8):
            right = 0
            for row in rows:
                gold = row["gold"][0]
                others = [c for c in range(len(row["chunks"])) if c != gold][:count - 1]
                right += answer(model, read, row, sorted(others + [gold]), running) == row["answers"][0] + " ."
            print(f"{name}, {count} chunks: {right}/{len(rows)} = {right / len(rows):.3f}", flush=True)
        share = sum((peaks(model, read, r, running) == r["gold"][0]).float() for r in rows) / len(rows)
        for layer, heads in enumerate(share.tolist()):
            print(f"{name}, layer {layer}, share of rows whose peak is in the gold chunk, by head:", *(f"{h:.2f}" for h in heads))
    long = make_rows("rows", 60, 3, chunks=16)
    for running in (True, False):
        right = sum(answer(model, read, r, range(16), running) == r["answers"][0] + " ." for r in long)
        print(f"positions {'run on' if running else 'start again'}, 16 chunks (other rows): {right / len(long):.3f}", flush=True)


def agree(model, folder):
    """Holds this file's forward pass to that of `transformers`, on a batch of both placements."""
    w = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    n = batch(random.Random(9), Shape(6, 4, 1), Ids())
    ours = logits(w, n).view(6, QUESTION_TOKENS, -1)
    worst = 0.0
    for b in range(6):
        keys = n["chunk_keys"][b]
        tokens = n["chunk_ids"][b][keys].tolist() + n["asked_ids"][b, 0].tolist()
        at = n["chunk_at"][b][keys].tolist() + n["asked_at"][b, 0].tolist()
        owner = [-1] + torch.arange(4).repeat_interleave(keys.sum(1) - torch.tensor([1, 0, 0, 0])).tolist() + [4] * QUESTION_TOKENS
        theirs = model(**arguments(tokens, at, owner, 4)).logits[0, -QUESTION_TOKENS:]
        worst = max(worst, (theirs - ours[b]).abs().max().item())
    print(f"largest difference from transformers' logits: {worst:.1e}, logits up to {ours.abs().max().item():.1f}")
    assert worst < 1e-2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["data", "train", "save", "check"])
    parser.add_argument("--work", type=pathlib.Path, help="folder of checkpoints")
    parser.add_argument("--folder", type=pathlib.Path, default=HERE, help="what to save to or to check")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    if options.what == "data":
        make_data()
    elif options.what == "train":
        train(options.work, options.steps)
    elif options.what == "save":
        save(options.work, options.folder)
    else:
        check(options.folder)


if __name__ == "__main__":
    main()
