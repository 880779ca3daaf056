"""A small language model as the reader of contexts, and what its benches share: rows, requests, runs and scores.

Runs a GGUF file in transformers in single precision, on a GPU if there is one. Needs torch, transformers 5, gguf and accelerate.
"""

import json
import random
import re
import string
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

ANSWER_TOKENS_MAX = 24
TAIL = "\n\nAnswer with a few words from the text.\nQuestion: {}\nAnswer:"
"""What the model reads after the context."""


class Reader:
    """A model of transformers whose cache, positions and masks are given for each call."""

    def __init__(self, gguf):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        self.torch = torch
        torch.set_grad_enabled(False)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.recorded = None

        def recording(module, query, key, value, mask, scaling=None, dropout=0.0, **more):
            if self.recorded is not None:
                groups = query.shape[1] // key.shape[1]
                self.recorded.append(query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scaling)
            return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, **more)

        ALL_ATTENTION_FUNCTIONS.register("recording", recording)
        ALL_MASK_ATTENTION_FUNCTIONS.register("recording", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        self.tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="recording")
        self.model = model.to(self.device).eval()
        config = model.config
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        self.is_sliding = [kind == "sliding_attention" for kind in kinds]
        self.window = config.sliding_window if any(self.is_sliding) else None
        self.kv_heads = config.num_key_value_heads
        self.is_normalised = hasattr(model.model.layers[0].self_attn, "q_norm")
        buffers = dict(model.model.rotary_emb.named_buffers())
        names = ("sliding_attention_inv_freq", "full_attention_inv_freq") if any(self.is_sliding) else ("inv_freq", "inv_freq")
        self.frequencies = [buffers[names[0] if sliding else names[1]].to(self.device).float() for sliding in self.is_sliding]
        self.prefix = self.tokenizer("").input_ids

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def tensor(self, values):
        return self.torch.tensor(values, device=self.device)

    def cache(self, layers, rows=None):
        """A cache with these keys and values. With `rows` `[batch, token]`, what is read replaces those rows."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        class Layer(DynamicLayer):
            def update(self, key_states, value_states, *args, **more):
                if rows is None:
                    return super().update(key_states, value_states, *args, **more)
                index = rows[:, None, :, None].expand_as(key_states)
                self.keys = self.keys.scatter(2, index, key_states)
                self.values = self.values.scatter(2, index, value_states)
                return self.keys, self.values

        cache = DynamicCache()
        cache.layers = []
        for layer in layers or [None] * len(self.is_sliding):
            made = Layer()
            if layer is not None:
                made.keys, made.values = layer
                made.dtype, made.device, made.is_initialized = made.keys.dtype, made.keys.device, True
            cache.layers.append(made)
        return cache

    def read(self, ids, positions, key_positions, layers=None, rows=None, keep=0):
        """Reads tokens `[batch, token]` over cached keys. Returns the logits of the last `keep` tokens, and keys and values.

        `key_positions` `[batch, key]` are those of all keys, -1 for padding, which no token sees.
        """
        queries, keys = positions[:, None, :, None], key_positions[:, None, None, :]
        full = (keys >= 0) & (keys <= queries)
        mask = full if self.window is None else {"full_attention": full, "sliding_attention": full & (queries - keys < self.window)}
        cache = self.cache(layers, rows)
        hidden = self.model.model(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
        ).last_hidden_state
        logits = self.model.lm_head(hidden[:, -keep:]).float() if keep else None
        return logits, [(layer.keys, layer.values) for layer in cache.layers]

    def prompt(self, ids):
        ids = self.tensor([ids])
        positions = self.torch.arange(ids.shape[1], device=self.device)[None]
        return self.read(ids, positions, positions)[1]

    def answers(self, batch, question):
        """Greedy answers from each cache. `batch` is a list of caches of one sequence each, of any lengths."""
        torch = self.torch
        longest = max(layers[0][0].shape[2] for layers in batch)
        lengths = self.tensor([layers[0][0].shape[2] for layers in batch])[:, None]
        places = torch.arange(longest, device=self.device)[None]
        key_positions = torch.where(places < lengths, places, -1)
        joined = []
        for index in range(len(self.is_sliding)):
            joined.append(tuple(padded(torch, [layers[index][kind] for layers in batch], longest) for kind in (0, 1)))
        ids = self.tensor([question] * len(batch))
        positions = lengths + torch.arange(len(question), device=self.device)[None]
        written = []
        for _ in range(ANSWER_TOKENS_MAX):
            key_positions = torch.cat([key_positions, positions], 1)
            logits, joined = self.read(ids, positions, key_positions, joined, keep=1)
            ids, positions = logits[:, -1].argmax(-1, keepdim=True), positions[:, -1:] + 1
            written.append(ids)
        return [self.tokenizer.decode(row, skip_special_tokens=True).strip().split("\n")[0] for row in torch.cat(written, 1).tolist()]

    def likelihoods(self, layers, question, answer):
        """Log-probabilities of every token of the vocabulary at each place of the answer, `[cache, place, vocabulary]`."""
        torch, (count, _, cached, _) = self.torch, layers[0][0].shape
        read = question + answer[:-1]
        positions = torch.arange(cached + len(read), device=self.device)[None].expand(count, -1)
        logits, _ = self.read(self.tensor([read] * count), positions[:, cached:], positions, layers, keep=len(answer))
        return logits.log_softmax(-1)


def padded(torch, layers, longest):
    """Keys or values of one layer `[1, head, token, dim]`, each padded to `longest` tokens and joined, `[cache, head, longest, dim]`."""
    return torch.cat([torch.nn.functional.pad(one, (0, 0, 0, longest - one.shape[2])) for one in layers])


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def drawn(file, count, seed):
    """Rows of a file with a true answer in one of their chunks, in random order."""
    rows = [row for row in lines(file) if any(answer in chunk["text"] for answer in row["answers"] for chunk in row["chunks"])]
    random.Random(seed).shuffle(rows)
    print(file.stem, min(len(rows), count), "rows", flush=True)
    return rows[:count]


def compress(url, row, **options):
    """The daemon's response; one without a context if the budget is too small for any unit."""
    body = json.dumps({"query": row["query"], "chunks": row["chunks"], **options}).encode()
    call = urllib.request.Request(url + "/v1/compress", body, {"content-type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(call, timeout=60))
    except urllib.error.HTTPError as error:
        found = json.loads(error.read())["error"]
        if found["code"] == "budget_impossible":
            return {"context": "", "chunks": []}
        raise SystemExit(f"{row['id']}, {options}: {found['message']}") from error


def in_turns(rows):
    """Rows of all sets, one of each in turn, so that a run that is stopped has rows of each."""
    by_set = {}
    for row in rows:
        by_set.setdefault(row["set"], []).append(row)
    return [own[place] for place in range(max(map(len, by_set.values()))) for own in by_set.values() if place < len(own)]


def add_measure(commands, size_of, measured):
    """Adds the command `measure`, which writes `measured(reader, row, index)` for each row.

    It leaves out rows of which `size_of(row)`, in characters, is more than the model's context may hold.
    """

    def measure(options):
        rows = in_turns(lines(options.file))[options.part :: options.parts][: options.rows]
        began, reader = time.monotonic(), Reader(options.gguf)
        print(f"model loaded after {time.monotonic() - began:.1f} s on {reader.device}", flush=True)
        with options.out.open("w") as out:
            for index, row in enumerate(rows):
                if time.monotonic() - began > options.seconds:
                    print(f"stopped after {index} rows", flush=True)
                    break
                if size_of(row) > options.characters:
                    print(f"{row['id']}: {size_of(row)} characters are too many", flush=True)
                    continue
                out.write(json.dumps(measured(reader, row, index)) + "\n")
                if index % 25 == 24:
                    out.flush()
                    print(f"{index + 1} rows, {time.monotonic() - began:.0f} s", flush=True)

    command = commands.add_parser("measure")
    command.add_argument("file", type=Path)
    command.add_argument("--gguf", type=Path, required=True)
    command.add_argument("--rows", type=int)
    command.add_argument("--seconds", type=float, default=float("inf"))
    command.add_argument("--characters", type=int, default=30_000)
    command.add_argument("--parts", type=int, default=1, help="take every n-th row, for several processes beside one another")
    command.add_argument("--part", type=int, default=0)
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(work=measure)


def add_report(commands, print_set):
    """Adds the command `report`, which calls `print_set(name, rows, generator)` for each set and for all rows."""

    def report(options):
        rows = [row for file in options.files for row in lines(file)]
        generator = random.Random(1)
        for name in [*dict.fromkeys(row["set"] for row in rows), None]:
            print_set(name or "all sets", [row for row in rows if name in (None, row["set"])], generator)

    command = commands.add_parser("report")
    command.add_argument("files", type=Path, nargs="+")
    command.set_defaults(work=report)


def normalised(text):
    """As SQuAD's script: lower case, no punctuation, no articles, single blanks."""
    text = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def scored(text, answers):
    own = normalised(text)
    exact = max(own == normalised(answer) for answer in answers)
    contained = max(f" {normalised(answer)} " in f" {own} " for answer in answers)

    def f1(answer):
        ours, theirs = own.split(), normalised(answer).split()
        common = sum((Counter(ours) & Counter(theirs)).values())
        return 2 * common / (len(ours) + len(theirs)) if common else 0.0

    return {"exact": float(exact), "contained": float(contained), "f1": max(map(f1, answers))}


def mean_scores(rows, arm):
    """The mean of each score of an arm's answers."""
    found = [scored(row["arms"][arm]["answer"], row["answers"]) for row in rows]
    return {key: sum(one[key] for one in found) / len(rows) for key in found[0]}


def interval(values, generator, draws=2000):
    means = sorted(sum(generator.choices(values, k=len(values))) / len(values) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]
