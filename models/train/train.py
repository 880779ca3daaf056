"""Trains the facts model from scratch on rows of `world.py`, on two cores.

    python models/train/train.py train --work FOLDER     # takes hours; run it again to continue from the last checkpoint
    python models/train/train.py save --work FOLDER      # writes config.json, model.safetensors, tokenizer.json to models/facts

Training imitates how Thresher reads. In most batches, a chunk attends only to `<s>` and itself, and a question attends to
everything. The positions of the chunks follow one another, or the chunks share positions, so that each ends where the question
begins. In the other batches, attention is causal over the whole row.

Needs torch, tokenizers, safetensors and numpy (the published weights were made with torch 2.15). The random numbers are seeded, but
other threads or another processor add floats in another order, which gives slightly different weights.
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
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import world

HERE = pathlib.Path(__file__).parent

# ------------------------------------------------------------------------------------------------------------ tokenizer


def tokenizer():
    """Returns a byte-level BPE tokenizer. Each byte, syllable and template word is one token; words include the space in front."""
    pieces = ["<s>"] + sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = []

    def merge(a, b):
        if (a, b) not in merges:
            merges.append((a, b))

    # Only first syllables have a capital letter, so their merges can come first without affecting others.
    for s in world.FIRST:
        for end in range(2, len(s) + 1):
            merge(s[:end - 1], s[end - 1])
        merge("Ġ", s)
    for s in world.LAST:
        merge(s[:1], s[1])
        merge(s[:2], s[2])
    pieces += [a + b for a, b in merges] + ["Ġ" + w for w in world.WORDS]
    pieces = list(dict.fromkeys(pieces))
    # Words need no merges: with ignore_merges, a piece that is in the vocabulary becomes one token.
    bpe = models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, ignore_merges=True)
    made = Tokenizer(bpe)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])
    return made


class Ids:
    """Maps lists of words to token ids without the tokenizer. `check` compares the result with the tokenizer's."""

    def __init__(self):
        vocab = tokenizer().get_vocab()
        self.of = {w: [vocab["Ġ" + w]] for w in world.WORDS}
        self.of |= {a + b: [vocab["Ġ" + a], vocab[b]] for a in world.FIRST for b in world.LAST}
        self.check()

    def __call__(self, words):
        return [i for w in words for i in self.of[w]]

    def check(self):
        read = tokenizer()
        for row in world.rows("eval", 5, 0):
            for text in [c["text"] for c in row["chunks"]] + [row["query"]] + row["answers"]:
                assert read.encode(text).ids == [0] + self(text.split()), text
                assert read.decode(read.encode(text).ids).strip() == text, text


# -------------------------------------------------------------------------------------------------------------- batches

CHUNK_TOKENS = world.CHUNK_TOKENS_MAX + 1  # with <s>
POSITIONS = 2048
NOTHING = -100


class Shape:
    """The size of a batch: rows, chunks of each row, and tokens of each row's questions with their answers."""

    def __init__(self, rows, chunks, question_tokens):
        self.rows, self.chunks, self.question_tokens = rows, chunks, question_tokens


def copy_row(rng, shape, ids):
    """Makes a row with chunks of random syllables. A question is a span of a chunk, and its answer continues the span."""
    pool = [i for w in (a + b for a, b in zip(world.FIRST, world.LAST)) for i in ids.of[w]]
    if rng.random() < 0.5:
        pool = rng.sample(pool, rng.randint(8, 20))  # few syllables: two or three tokens must match before the next one is determined
    chunks = [[rng.choice(pool) for _ in range(rng.randint(14, CHUNK_TOKENS - 1))] for _ in range(shape.chunks)]
    questions, tokens_left = [], shape.question_tokens
    while tokens_left >= 12:
        chunk = rng.choice(chunks)
        start = rng.randrange(len(chunk) - 12)
        questions.append((chunk[start:start + 3], chunk[start + 3:start + 13], []))
        tokens_left -= 12
    return [[(chunk, None)] for chunk in chunks], questions


def fact_row(rng, shape, ids):
    """Makes a row of `world.World`.

    Many rows have few relations and many names; otherwise the relation alone often determines the answer.
    """
    made = None
    while not made or not made.facts:
        few = rng.random() < 0.4
        made = world.World(rng, shape.chunks, "train", rng.sample(world.RELATIONS, rng.randint(1, 4)) if few else None)
    questions, tokens_left = [], shape.question_tokens
    while True:
        one = getattr(made, rng.choices(list(world.KINDS), (0.62, 0.25, 0.13))[0])()
        if one is None:
            continue
        question, answer = ids(one[0].split()), ids(one[1].split())
        if len(question) + len(answer) - 1 > tokens_left:
            return [[(ids(words), fact and ids(fact)) for words, fact in chunk] for chunk in made.chunks], questions
        tokens_left -= len(question) + len(answer) - 1
        # Before each token of a value, the model must know the name and the relation that the value belongs to.
        words, gists, at = one[1].split(), [], 0
        for name, relation, value in one[3]:
            at = words.index(value, at) if value else 0
            for more in range(len(ids([value])) if value else 1):
                gists.append((len(question) - 1 + len(ids(words[:at])) + more, ids([name, relation])))
            at += 1
        questions.append((question, answer, gists))


def start_positions(rng, lengths, question_tokens):
    """Returns the first position of each chunk and of the questions.

    Chunks follow one another (sometimes after a gap, so that all positions are trained), or share positions and end together.
    """
    if rng.random() < 0.5:
        return [1 + max(lengths) - n for n in lengths], 1 + max(lengths)
    gap_max = POSITIONS - 1 - sum(lengths) - question_tokens
    start, starts = 1 + (rng.randrange(gap_max) if rng.random() < 0.3 else 0), []
    for length in lengths:
        starts.append(start)
        start += length
    return starts, start


def batch(rng, shape, ids, copies):
    """Makes a batch.

    - `chunk_ids`, `chunk_positions`, `chunk_keys` (whether the token can be attended to): [row, chunk, token]
    - `question_ids`, `question_positions`, `targets` (the next token, or `NOTHING`): [row, token]
    - `question_index`: [row, token], number of the question of each token, from 1; 0 is padding
    - `gist_at`: [fact], tokens (all chunks' first, then all questions') at which a sentence has stated a fact, or an answer needs one
    - `gist`: [fact, 5], token ids of that fact's name, relation and value, filled up with `NOTHING`
    """
    n = {k: np.zeros((shape.rows, shape.chunks, CHUNK_TOKENS), np.int64) for k in ("chunk_ids", "chunk_positions")}
    n["chunk_keys"] = np.zeros((shape.rows, shape.chunks, CHUNK_TOKENS), bool)
    n |= {k: np.zeros((shape.rows, shape.question_tokens), np.int64) for k in ("question_ids", "question_positions", "question_index")}
    n["targets"] = np.full((shape.rows, shape.question_tokens), NOTHING, np.int64)
    gist_at, gist = [], []
    for b in range(shape.rows):
        chunks, questions = (copy_row if copies else fact_row)(rng, shape, ids)
        starts, question_start = start_positions(rng, [sum(len(tokens) for tokens, _ in c) for c in chunks], 32)
        for c, (sentences, start) in enumerate(zip(chunks, starts)):
            tokens = []
            for words, fact in sentences:
                tokens += words
                if fact:
                    gist_at.append((b * shape.chunks + c) * CHUNK_TOKENS + len(tokens))
                    gist.append(fact + [NOTHING] * (5 - len(fact)))
            n["chunk_ids"][b, c, 1:1 + len(tokens)] = tokens
            n["chunk_positions"][b, c, 1:1 + len(tokens)] = range(start, start + len(tokens))
            n["chunk_keys"][b, c, 1:1 + len(tokens)] = True
        n["chunk_keys"][b, 0, 0] = True  # every chunk begins with its own <s>; all are equal, so a question attends to one of them
        at = 0
        for q, (question, answer, gists) in enumerate(questions):
            tokens = question + answer[:-1]
            to = at + len(tokens)
            n["question_ids"][b, at:to] = tokens
            n["question_positions"][b, at:to] = range(question_start, question_start + len(tokens))
            n["question_index"][b, at:to] = q + 1
            n["targets"][b, at + len(question) - 1:to] = answer
            for token, fact in gists:
                gist_at.append(n["chunk_ids"].size + b * shape.question_tokens + at + token)
                gist.append(fact + [NOTHING, NOTHING])
            at = to
    n["gist_at"], n["gist"] = np.array(gist_at, np.int64), np.array(gist, np.int64).reshape(-1, 5)
    return {k: torch.from_numpy(v) for k, v in n.items()}


# ---------------------------------------------------------------------------------------------------------------- model

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 192,
    "intermediate_size": 384, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32,
    "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "rope_scaling": None,
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
    """Returns initial weights in float32, with the names that `transformers` uses.

    Two heads of the first layer start out attending one and two tokens back, which training alone takes long to find: all embeddings
    get a common part, from which these heads make keys and queries that differ by one or two positions.
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
    pairs[:6] = 0.85  # the fastest rotary pairs, which distinguish neighbouring positions
    frequency = CONFIG["rope_theta"] ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    attention = "model.layers.0.self_attn."
    w[attention + "k_proj.weight"][:HEAD_DIM] = torch.outer(torch.cat([pairs, 0 * pairs]), common)
    for head, back in ((0, 1), (1, 2)):
        rotated = torch.cat([pairs * (frequency * back).cos(), -pairs * (frequency * back).sin()])
        w[attention + "q_proj.weight"][head * HEAD_DIM:(head + 1) * HEAD_DIM] = torch.outer(rotated, common)
    return {k: v.requires_grad_() for k, v in w.items()}


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * weight


def angles(at):
    """Returns cos and sin, [token, 1, head_dim], for positions of any shape, flattened."""
    frequency = CONFIG["rope_theta"] ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = at.reshape(-1, 1, 1) * torch.cat([frequency, frequency])
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def attend(q, k, v, mask, batches):
    """Computes attention for `batches` groups of tokens of equal length. `q`, `k` and `v` are [batch * token, head, dim].

    Each key head serves a group of query heads.
    """
    group = HEADS // KV_HEADS
    q = q.reshape(batches, -1, KV_HEADS, group, HEAD_DIM).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [batch, kv, group * token, dim]
    k, v = (t.reshape(batches, -1, KV_HEADS, HEAD_DIM).transpose(1, 2) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)).unflatten(2, (group, -1)) * HEAD_DIM ** -0.5
    weights = scores.masked_fill(~mask, -1e9).softmax(-1).to(v.dtype)
    out = (weights.flatten(2, 3) @ v).unflatten(2, (group, -1))  # [batch, kv, group, token, dim]
    return out.permute(0, 3, 1, 2, 4).reshape(-1, HEADS * HEAD_DIM)


def hidden(w, n, whole):
    """Returns hidden states: of all tokens after `GIST_LAYER` layers, [token, hidden], chunks first; and of question tokens after the
    last layer, [row * token, hidden].

    With `whole`, chunks also attend to the chunks in front of them. With `n["blind"]`, questions attend to no chunk in the first
    `GIST_LAYER` layers.
    """
    rows, chunks, length = n["chunk_ids"].shape
    in_chunks = rows * chunks * length
    x = w["model.embed_tokens.weight"][torch.cat([n["chunk_ids"].flatten(), n["question_ids"].flatten()])]
    positions = torch.cat([n["chunk_positions"].flatten(), n["question_positions"].flatten()])
    cos, sin = angles(positions)
    question_tokens = n["question_ids"].shape[1]
    keys = n["chunk_keys"].view(rows, 1, -1)
    index = n["question_index"]
    own = (index[:, :, None] == index[:, None, :]) & torch.ones(question_tokens, question_tokens, dtype=torch.bool).tril()
    seen = torch.cat([keys.expand(rows, question_tokens, -1), own], -1)[:, None, None]
    is_first = torch.zeros_like(keys)
    is_first[..., 0] = True
    without_chunks = torch.cat([is_first.expand(rows, question_tokens, -1), own], -1)[:, None, None]
    seen_at_first = torch.where(n["blind"], without_chunks, seen)
    if whole:
        order = torch.arange(chunks * length)
        causal = ((order[:, None] >= order) & keys.view(rows, 1, -1)) | (order[:, None] == order)
        causal = causal[:, None, None]
    else:
        causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None, None]

    def both(t):
        """Returns the keys or values that questions attend to: those of a row's chunks, then those of its questions."""
        return torch.cat([part.view(rows, -1, KV_HEADS, HEAD_DIM) for part in (t[:in_chunks], t[in_chunks:])], 1)

    gist = None
    for layer in range(LAYERS):
        if layer == GIST_LAYER:
            gist = x
        p = {k: w[f"model.layers.{layer}.{k}.weight"] for k in
             ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
              "mlp.down_proj", "input_layernorm", "post_attention_layernorm")}
        last = layer == LAYERS - 1
        y = norm(x, p["input_layernorm"])
        k = rotate((y @ p["self_attn.k_proj"].T).view(-1, KV_HEADS, HEAD_DIM), cos, sin)
        v = (y @ p["self_attn.v_proj"].T).view(-1, KV_HEADS, HEAD_DIM)
        if last:
            x, y, cos_q, sin_q = x[in_chunks:], y[in_chunks:], cos[in_chunks:], sin[in_chunks:]
        else:
            cos_q, sin_q = cos, sin
        q = rotate((y @ p["self_attn.q_proj"].T).view(-1, HEADS, HEAD_DIM), cos_q, sin_q)

        visible = seen_at_first if layer < GIST_LAYER else seen
        z = attend(q if last else q[in_chunks:], both(k), both(v), visible, rows)
        if not last:
            of_chunks = attend(q[:in_chunks], k[:in_chunks], v[:in_chunks], causal, rows if whole else rows * chunks)
            z = torch.cat([of_chunks, z])
        x = x + z @ p["self_attn.o_proj"].T
        y = norm(x, p["post_attention_layernorm"])
        x = x + (F.silu(y @ p["mlp.gate_proj"].T) * (y @ p["mlp.up_proj"].T)) @ p["mlp.down_proj"].T
    return gist, norm(x, w["model.norm.weight"])


# ------------------------------------------------------------------------------------------------------------- training


class Muon(torch.optim.Optimizer):
    """The Muon optimizer (Jordan et al. 2024): momentum with orthogonalised steps.

    Matrices learn to retrieve in far fewer steps than with Adam.
    """

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.02):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            alike = {}
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                alike.setdefault(p.shape, []).append((p, p.grad.lerp(state["momentum"], group["momentum"])))
            for shape, some in alike.items():
                steps = orthogonal(torch.stack([step for _, step in some])) * max(1, shape[0] / shape[1]) ** 0.5
                for (p, _), step in zip(some, steps):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(step, alpha=-group["lr"])


def orthogonal(g):
    """Returns the nearest matrices whose singular values are all about one, with five Newton-Schulz steps."""
    is_tall = g.shape[1] > g.shape[2]
    x = (g.mT if is_tall else g).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if is_tall else x).float()


# Training moves to the next stage when this share of the answers' tokens is right. Names are learned most easily with few chunks, but
# this does not carry over to many chunks.
STAGES = [(Shape(24, 2, 96), 0.90), (Shape(16, 4, 128), 0.92), (Shape(8, 10, 224), 0.92), (Shape(6, 20, 256), None)]
STEPS = 5200
COPIES_SHARE, EARLIER_SHARE, WHOLE_SHARE = 0.1, 0.15, 0.06
MUON_RATE, ADAM_RATE, WARM_UP_STEPS, DECAY_SHARE = 0.02, 3e-3, 200, 0.3
CHECKPOINT_S, LOG_STEPS = 120, 50
# An additional loss during training: at the end of each sentence, the model must predict the fact that the sentence states. It has to
# gather the fact there before questions can find it.
GIST_LAYER, GIST_WEIGHT = 2, 0.5
# Share of batches in which questions do not see the chunks in the first layers. A head of the second layer soon learns to find any
# place where the second syllable of a name follows the first. Which of these places the question asks for is learned in the batches
# where that shortcut is not available.
BLIND_SHARE = 0.5


def shape_for(rng, stage):
    if stage == 0:
        return STAGES[0][0], rng.random() < (2 * COPIES_SHARE)
    if stage > 0 and rng.random() < EARLIER_SHARE:
        stage = rng.randrange(stage)
    return STAGES[stage][0], rng.random() < COPIES_SHARE * (stage == 0)


def rate(step, steps):
    """Returns the factor of the learning rates: it rises during the warm-up, stays at 1, then falls linearly to 1/50."""
    left = (steps - step) / (steps * DECAY_SHARE)
    return min(1, (step + 1) / WARM_UP_STEPS, max(left, 0.02))


def train(work, steps, until, threads):
    torch.set_num_threads(threads)
    w, rng, ids = fresh_weights(0), random.Random(0), Ids()
    w["gist"] = (torch.randn(5, CONFIG["hidden_size"], CONFIG["hidden_size"]) * CONFIG["hidden_size"] ** -0.5).requires_grad_()
    inner = [v for k, v in w.items() if v.dim() == 2 and "layers" in k]
    outer = [v for k, v in w.items() if v.dim() != 2 or "layers" not in k]
    optimizers = [Muon(inner, MUON_RATE), torch.optim.AdamW(outer, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]
    state = {"step": 0, "stage": 0, "good": 0.0, "since": 0, "seconds": 0.0}
    work.mkdir(parents=True, exist_ok=True)
    last = work / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=False)
        for k, v in saved["weights"].items():
            w[k].data.copy_(v)
        for optimizer, optimizer_state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(optimizer_state)
        rng.setstate(saved["rng"])
        state = saved["state"]
    torch._dynamo.config.recompile_limit = 32  # one compilation for each shape, with and without `whole`
    forward = torch.compile(hidden, dynamic=False)

    def save_checkpoint():
        saved = {"weights": {k: v.data for k, v in w.items()}, "optimizers": [o.state_dict() for o in optimizers],
                 "rng": rng.getstate(), "state": state}
        torch.save(saved, work / "last.part")
        (work / "last.part").replace(last)

    saved_at, logged_at, results = time.time(), time.time(), {}
    while state["step"] < until:
        shape, copies = shape_for(rng, state["stage"])
        n, whole = batch(rng, shape, ids, copies), not copies and rng.random() < WHOLE_SHARE
        gist_at, gist, targets = n.pop("gist_at"), n.pop("gist"), n.pop("targets").flatten()
        share = rate(state["step"], steps)
        blind = not copies and rng.random() < BLIND_SHARE
        n["blind"] = torch.tensor(blind)
        with torch.autocast("cpu", torch.bfloat16):
            middle, out = forward(w, n, whole)
            words = w["model.embed_tokens.weight"].T
            out = (out[targets != NOTHING] @ words).float()
            targets = targets[targets != NOTHING]
            loss = total = F.cross_entropy(out, targets)
            if len(gist_at):
                middle = torch.einsum("nh,sgh->nsg", norm(middle[gist_at], 1.0), w["gist"])
                middle = (middle @ words).float()
                gist_loss = F.cross_entropy(middle.flatten(0, 1), gist.flatten(), ignore_index=NOTHING)
                total = loss + GIST_WEIGHT * share * gist_loss
        total.backward()
        torch.nn.utils.clip_grad_norm_(outer, 1.0)
        for optimizer, base in zip(optimizers, (MUON_RATE, ADAM_RATE)):
            optimizer.param_groups[0]["lr"] = base * share
            optimizer.step()
            optimizer.zero_grad()
        right = (out.argmax(-1) == targets).float().mean().item()
        kind = "copies" if copies else f"{shape.chunks}{' whole' if whole else ''}{' blind' if blind else ''}"
        results.setdefault(kind, []).append((loss.item(), right))
        if len(gist_at):
            gist_right = (middle.argmax(-1) == gist)[gist != NOTHING].float().mean().item()
            results.setdefault("gist", []).append((gist_loss.item(), gist_right))
        state["step"] += 1
        state["since"] += 1
        if shape is STAGES[state["stage"]][0] and not copies and not whole:
            state["good"] += (right - state["good"]) * 0.03
            enough = STAGES[state["stage"]][1]
            if enough and state["good"] > enough and state["since"] > 100:
                state |= {"stage": state["stage"] + 1, "good": 0.0, "since": 0}
        if state["step"] % LOG_STEPS == 0:
            state["seconds"] += time.time() - logged_at
            logged_at = time.time()
            means = "  ".join("{}: {:.3f} {:.3f}".format(k, *np.mean(v, 0)) for k, v in sorted(results.items()))
            print(f"step {state['step']} {state['seconds']:.0f} s stage {state['stage']}  {means}", flush=True)
            results = {}
        if time.time() - saved_at > CHECKPOINT_S or state["step"] == until:
            save_checkpoint()
            saved_at = time.time()


def save(work, folder):
    """Writes the last checkpoint as a Hugging Face folder, and prints the SHA-256 of its weights."""
    weights = torch.load(work / "last.pt", weights_only=False)["weights"]
    del weights["gist"]
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.half().contiguous() for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(), indent=2) + "\n")
    tokenizer().save(str(folder / "tokenizer.json"))
    print(hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["train", "save"])
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--folder", type=pathlib.Path, default=HERE.parent / "facts", help="folder that `save` writes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--until", type=int, help="stop after this step, but keep the learning rate schedule of --steps")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.command == "train":
        train(options.work, options.steps, min(options.until or options.steps, options.steps), options.threads)
    else:
        save(options.work, options.folder)


if __name__ == "__main__":
    main()
