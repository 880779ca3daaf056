"""Compares eviction by RC with other methods of kvpress, on generated tasks of the kinds that RULER has (arXiv 2404.06654).

    python benches/kvpress_ruler.py measure hotpot.jsonl xquad.jsonl --gguf FILE --out rows.jsonl [--part 0 2]
    python benches/kvpress_ruler.py report rows.jsonl
    python benches/kvpress_ruler.py check --gguf FILE --url http://127.0.0.1:8080

`RCPress` is Thresher's eviction (crates/core/src/pipeline/evict.rs, the default form) as a press of kvpress. The compressed
context ends with the question, as in kvpress's evaluation with `query_aware`, and the budget includes the question. RC scores the
keys in front of the question and keeps those of the question; the window of SnapKV and DropKV is the question. A context is
encoded once. The presses' own hooks then get what the layers got, so all presses have the same keys. KVzip scores for no question
in particular: in further forward passes over these keys, the model repeats the context, and the question as its end. A score is
RULER's: the share of the expected strings in the answer, or 1 if one of several true answers is. Tasks below 0.15 with the full
cache are not in the means.

`measure` runs in one thread. Run a process for each core, with --part and its own file. It skips rows that the file already has.
`check` compares the kept keys with those of a daemon that serves the same GGUF file with `blocks.codec = "f32"`, and answers with
those of kvpress's pipeline. Files of passages are as in benches/kv_handover.py. Needs kvpress 0.5.5, gguf and accelerate.
"""

import argparse
import functools
import itertools
import json
import random
import urllib.request
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, quantiles
from unittest import mock

import kvpress
import safetensors.torch
import torch
from kvpress.utils import compute_n_kept, get_prerope_query_states
from reader import lines
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

RATIOS = (0.5, 0.75)
FLOOR = 0.2  # The share of an even budget that RC keeps in each head.
TASKS = ("needle", "multikey", "multivalue", "tracking", "common", "frequent")
OFTEN = ("needle", "multikey", "multivalue", "frequent")  # A small model fails the others: every fourth row only.
NEW_TOKENS = 6  # The model may write so many tokens more than the true answer has.
SENTENCES = ["The bus was late again.", "Rain fell on the tin roof.", "A window was open."]
SENTENCES += ["We drank tea and spoke about the weather.", "A dog slept."]
COLOURS = "amber black blue brown copper golden green grey ivory olive orange pink purple red silver white yellow scarlet"
ANIMALS = "badger bear crane crow deer eagle falcon fox goose hare heron horse lynx mouse otter owl rabbit raven seal wolf"
SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]

Row = namedtuple("Row", "context question prefix expected is_any", defaults=[False])


def rc_of_keys(logits, own, kv_heads):
    """RC of each key, `[kv_head, key]`, from the logits over keys, `[head, query, key]`, and over the question's own keys."""
    count = own.shape[-1]
    # RC is the mean over y of max(x - y, 0), where y are the logits over the question's own keys that a query sees.
    own = own.masked_fill(torch.ones(count, count).triu(1).bool(), torch.inf).sort(-1).values
    sums = torch.nn.functional.pad(own.double().masked_fill(own.isinf(), 0).cumsum(-1), (1, 0))
    below = torch.searchsorted(own, logits)
    rc = (logits * below - sums.gather(-1, below)).clamp(min=0) / torch.arange(1, count + 1)[:, None]
    scores = rc.square().view(kv_heads, -1, logits.shape[-1]).mean(1).sqrt()
    return scores / scores.mean(-1, keepdim=True).clamp(min=1e-30).sqrt()


def logits_of_question(module, hidden_states, keys, kwargs, count):
    """The logits of the last `count` tokens over all keys, `[head, query, key]`, not scaled."""
    cos, sin = (part[:, -count:] for part in kwargs["position_embeddings"])
    queries = get_prerope_query_states(module, hidden_states[:, -count:])
    queries, _ = apply_rotary_pos_emb(queries, keys[:, :, -count:], cos, sin)
    return queries[0] @ keys[0].repeat_interleave(queries.shape[1] // keys.shape[1], 0).transpose(1, 2)


@dataclass
class RCPress(kvpress.BasePress):
    """Keeps the keys with the largest RC for the last `question_tokens` tokens, with one budget for all heads of `scope`."""

    compression_ratio: float
    question_tokens: int
    scope: str = "model"

    @contextmanager
    def __call__(self, model):
        self.scores = []
        with super().__call__(model):
            yield
        for layer, kept in zip(model.model.layers, self.kept(torch.stack(self.scores))):
            heads, keys = torch.nonzero(~kept, as_tuple=True)
            layer.self_attn.masked_key_indices = (torch.zeros_like(heads), heads, keys)

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        """Adds the score of each key in front of the question, `[kv_head, key]`."""
        count, (_, kv_heads, length, _) = self.question_tokens, keys.shape
        logits = logits_of_question(module, hidden_states, keys, kwargs, count)
        logits, own = logits[..., : length - count].contiguous(), logits[..., length - count :]
        self.scores.append(rc_of_keys(logits, own, kv_heads))
        return keys, values

    def kept(self, scores):
        """Which keys are kept, `[layer, kv_head, key]`."""
        layers, kv_heads, length = scores.shape
        even = compute_n_kept(length + self.question_tokens, self.compression_ratio) - self.question_tokens
        edge = min(4, even // 16)
        heads = scores.reshape(layers * kv_heads, length).clone()
        heads[:, :edge] = heads[:, length - edge :] = torch.inf
        best = heads.sort(dim=-1, descending=True, stable=True).indices[:, : int(even * FLOOR)]
        together = kv_heads * (layers if self.scope == "model" else 1)
        groups = heads.scatter_(-1, best, torch.inf).view(-1, together * length)
        best = groups.sort(dim=-1, descending=True, stable=True).indices[:, : even * together]
        kept = torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, best, True).view(scores.shape)
        return torch.nn.functional.pad(kept, (0, self.question_tokens), value=True)


@dataclass
class DropKVPress(kvpress.ScorerPress):
    """DropKV (https://openreview.net/forum?id=MqfNzH3TVH) is not in kvpress 0.5.5. This is our implementation of its criterion.

    The score of a pair is the squared change of the attention's output without this pair, summed over the last `window_size`
    queries. As in the authors' code, it is then averaged over the heads of a group and over 11 neighbouring pairs.
    """

    window_size: int = 8

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        count, (_, kv_heads, length, _) = self.window_size, keys.shape
        logits = logits_of_question(module, hidden_states, keys, kwargs, count) * module.scaling
        later = torch.ones(count, length, dtype=torch.bool).triu(length - count + 1)
        weights = logits.masked_fill(later, -torch.inf).softmax(-1)
        values = values[0].repeat_interleave(len(logits) // kv_heads, 0)
        # Without a pair, the other weights grow by 1 / (1 - weight), so the output moves away from the pair's value.
        distances = torch.cdist(weights @ values, values, compute_mode="donot_use_mm_for_euclid_dist")
        scores = (weights / (1 - weights + 1e-6) * distances).square().sum(1).view(1, kv_heads, -1, length).mean(2)
        scores = torch.nn.functional.avg_pool1d(scores, 11, stride=1, padding=5)
        scores[..., -count:] = torch.inf
        return scores


def presses(ratio, question_tokens):
    return {
        "RC": RCPress(ratio, question_tokens),
        "RC, budget per layer": RCPress(ratio, question_tokens, scope="layer"),
        "SnapKV": kvpress.SnapKVPress(ratio, window_size=question_tokens),
        "AdaKV + SnapKV": kvpress.AdaKVPress(kvpress.SnapKVPress(ratio, window_size=question_tokens)),
        "Expected Attention": kvpress.ExpectedAttentionPress(ratio),
        "AdaKV + Expected Attention": kvpress.AdaKVPress(kvpress.ExpectedAttentionPress(ratio, epsilon=1e-2)),
        "DropKV": DropKVPress(ratio, window_size=question_tokens),
        "AdaKV + DropKV": kvpress.AdaKVPress(DropKVPress(ratio, window_size=question_tokens)),
        "KVzip": kvpress.KVzipPress(ratio),
        "TOVA": kvpress.TOVAPress(ratio),
        "StreamingLLM": kvpress.StreamingLLMPress(ratio),
        "random": kvpress.RandomPress(ratio),
    }


def generated(task, length, index, ids):
    """A row whose context has about `length` tokens. `ids` tokenizes."""
    rng = random.Random(f"{task} {length} {index}")
    names = rng.sample(pairs := [f"{colour} {animal}" for colour in COLOURS.split() for animal in ANIMALS.split()], len(pairs))
    words = rng.sample(pairs := [one + other + "n" for one in SYLLABLES for other in SYLLABLES], len(pairs))
    codes = [str(rng.randrange(10_000, 100_000)) for _ in names]
    facts = [f"The gate code of the {name} is {code}." for name, code in zip(names, codes)]
    chain = [word.upper() for word in words[:4]]
    links = [f"Let {name} = {before}." for name, before in zip(chain, [codes[0], *chain])]

    def noise(facts, count):
        """Sentences over and over, with facts at random places in the given order."""
        sentences = [SENTENCES[place % len(SENTENCES)] for place in range(count)]
        for place, fact in zip(sorted(rng.sample(range(count), len(facts)), reverse=True), reversed(facts)):
            sentences.insert(place, fact)
        return " ".join(sentences)

    def common(count):
        drawn = names[:4] * (count // 12) + names[4 : 4 + count * 2 // 9] * 3
        return "\n".join(f"{place}. {name}" for place, name in enumerate(rng.sample(drawn, len(drawn)), 1))

    def frequent(count):
        drawn = [word for rank, word in enumerate(words[:40], 1) for _ in range(1 + int(count * 0.5 / rank**2))]
        return " ".join(rng.sample(drawn, len(drawn)))

    code = (f"What is the gate code of the {names[0]}?", f"The gate code of the {names[0]} is", codes[:1])
    three = (f"What are the three gate codes of the {names[0]}?", f"The three gate codes of the {names[0]} are", codes[:3])
    value = f"Which four names have the value {codes[0]}, directly or by way of another name?"
    most = "Which three words are used most often in the text?"
    make, question, prefix, expected = {
        "needle": (lambda count: noise(facts[:1], count), *code),
        "multikey": (lambda count: noise(rng.sample(facts[:4], 4), count), *code),
        "multivalue": (lambda count: noise([f"One gate code of the {names[0]} is {code}." for code in codes[:3]], count), *three),
        "tracking": (lambda count: noise(links, count), value, f"The four names with the value {codes[0]} are", chain),
        "common": (common, "Which four animals are most common in the list?", "The four most common animals are the", names[:4]),
        "frequent": (frequent, most, "The three words used most often are", words[:3]),
    }[task]
    return Row(make(length * 256 // len(ids(make(256)))), question, prefix, expected)


def of_passages(rows, length, index, ids):
    """A question with its passages and others, up to `length` tokens, in random order."""
    rng = random.Random(f"{length} {index}")
    row = random.Random(1).sample(rows, len(rows))[index]
    chunks = sorted(row["chunks"], key=lambda chunk: chunk["id"] not in row["gold"])
    chunks += [chunk for other in rng.sample(rows, 20) for chunk in other["chunks"] if other["id"] != row["id"]]
    chosen, size = [], 0
    for text in dict.fromkeys(f"{chunk['title']}. {chunk['text']}".strip() for chunk in chunks):
        if size + len(ids(text)) <= length:
            chosen, size = [*chosen, text], size + len(ids(text))
    question = f"Answer with a few words from the passages. {row['query'].strip()}"
    return Row("\n\n".join(rng.sample(chosen, len(chosen))), question, "Answer:", row["answers"], is_any=True)


class Model:
    def __init__(self, gguf):
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        self.ids = functools.partial(tokenizer.encode, add_special_tokens=False)
        self.pipeline = kvpress.KVPressTextGenerationPipeline(model=self.model, tokenizer=tokenizer)
        self.attentions = [layer.self_attn for layer in self.model.model.layers]

    def encode(self, ids):
        """Encodes a context. Returns what the attention of each layer got, with a cache of all keys and values."""
        recorded, cache = [], DynamicCache()
        record = {"hook": lambda _module, _inputs, kwargs, _output: recorded.append(kwargs), "with_kwargs": True}
        hooks = [attention.register_forward_hook(**record) for attention in self.attentions]
        self.model.model(input_ids=torch.tensor([ids]), past_key_values=cache)
        for hook in hooks:
            hook.remove()
        return recorded

    def repeat(self, ids, recorded):
        """KVzip's scores of an encoded context, `[layer, 1, kv_head, key]`, from forward passes in which the model repeats it."""
        press, empty = kvpress.KVzipPress(0.5), self.pipeline.preprocess("", [""], "", max_context_length=10_000)
        press.prefix_length, press._suffix_ids = empty["context_ids"].shape[1], empty["questions_ids"][0]
        press._context_ids, (press._cache, _) = torch.tensor([ids]), self.compress(recorded, None)
        press._perform_kvzip_compression(self.model, self.pipeline.tokenizer)
        return press.score_val

    def compress(self, recorded, press, repeated=None):
        """The cache as a press leaves it, and the keys of each layer that it masks. `repeated` are KVzip's scores."""
        cache = DynamicCache()
        for index, (attention, kwargs) in enumerate(zip(self.attentions, recorded)):
            attention.masked_key_indices = None
            layer = kwargs["past_key_values"].layers[index]
            cache.update(layer.keys, layer.values, index)
        if isinstance(press, kvpress.KVzipPress):
            press.score_val = repeated
            press.compress_post(self.model)
        elif press:
            with press(self.model):
                for attention, kwargs in zip(self.attentions, recorded):
                    press.forward_hook(attention, [], {**kwargs, "past_key_values": cache}, (None, None))
        return cache, [attention.masked_key_indices for attention in self.attentions]

    def answers(self, compressed, position, tail, answer):
        """Greedy answers as kvpress generates them, from caches of one length, and log-likelihoods of the true one per token."""
        cache, count = DynamicCache(), len(compressed)
        for index, attention in enumerate(self.attentions):
            layers = [one.layers[index] for one, _ in compressed]
            cache.update(torch.cat([layer.keys for layer in layers]), torch.cat([layer.values for layer in layers]), index)
            masks = [(one[index][0] + row, *one[index][1:]) for row, (_, one) in enumerate(compressed) if one[index]]
            attention.masked_key_indices = tuple(map(torch.cat, zip(*masks))) if masks else None

        def step(ids, position, keep=1):
            positions = torch.arange(position, position + ids.shape[1])[None]
            return self.model(input_ids=ids, past_key_values=cache, position_ids=positions, logits_to_keep=keep).logits

        end, behind, truth = self.model.generation_config.eos_token_id, position + tail.shape[1], torch.tensor(answer)
        first, length = step(tail.expand(count, -1), position), cache.get_seq_length()
        logits = torch.cat([first, step(truth.expand(count, -1), behind, len(answer))[:, :-1]], 1).log_softmax(-1)
        likelihoods = logits[:, torch.arange(len(answer)), truth].mean(-1)
        self.pipeline._remove_answer_from_cache(cache, [length] * len(self.attentions))
        written = first.argmax(-1)
        while written.shape[1] < len(answer) + NEW_TOKENS and not (written == end).any(1).all():
            written = torch.cat([written, step(written[:, -1:], behind + written.shape[1] - 1)[:, -1:].argmax(-1)], 1)
        rows = [row[: row.index(end)] if end in row else row for row in written.tolist()]
        return zip([self.pipeline.tokenizer.decode(row, skip_special_tokens=True) for row in rows], likelihoods.tolist())

    def of_row(self, row, seed):
        """Answer, score and likelihood of each press."""
        asked = self.ids("\n\n" + row.question)
        made = self.pipeline.preprocess(f"{row.context}\n\n{row.question}", [""], row.prefix, max_context_length=10_000)
        context = made["context_ids"][0].tolist()
        answer = self.ids(" " + (row.expected[0] if row.is_any else ", ".join(row.expected)))
        assert context[-len(asked) :] == asked, "the question has other tokens behind the context than alone"
        recorded = self.encode(context)
        repeated = self.repeat(context, recorded)
        torch.manual_seed(seed)
        arms = {"full cache": self.compress(recorded, None)}
        for ratio in RATIOS:
            for name, press in presses(ratio, len(asked)).items():
                arms[f"{name} {ratio}"] = self.compress(recorded, press, repeated)
        found = {}
        for length in {cache.get_seq_length() for cache, _ in arms.values()}:
            group = {arm: one for arm, one in arms.items() if one[0].get_seq_length() == length}
            results = self.answers(list(group.values()), len(context), made["questions_ids"][0], answer)
            for arm, (text, likelihood) in zip(group, results):
                hits = [float(one.lower() in text.lower()) for one in row.expected]
                found[arm] = {"score": max(hits) if row.is_any else fmean(hits), "nll": -likelihood, "answer": text}
        return {"tokens": len(context), "arms": {arm: found[arm] for arm in arms}}


def measure(options):
    model, indexes = Model(options.gguf), range(options.part[0], options.rows, options.part[1])
    passages = {file.stem: lines(file) for file in options.files}
    done = {(row["task"], row["index"]) for row in (lines(options.out) if options.out.exists() else [])}
    with options.out.open("a", buffering=1) as out:
        for index, task in itertools.product(indexes, (*TASKS, *passages)):
            if (task, index) in done or task not in OFTEN and index % 4:
                continue
            place = (options.lengths[index % len(options.lengths)], index, model.ids)
            row = of_passages(passages[task], *place) if task in passages else generated(task, *place)
            out.write(json.dumps({"task": task, "length": place[0], "index": index, **model.of_row(row, index)}) + "\n")


def report(options):
    rows, rng = [row for file in options.files for row in lines(file)], random.Random(1)
    tasks = {task: [row for row in rows if row["task"] == task] for task in dict.fromkeys(row["task"] for row in rows)}

    def means(arm, what):
        return {task: fmean([row["arms"][arm][what] for row in own]) for task, own in tasks.items()}

    counted = [task for task, own in means("full cache", "score").items() if own >= 0.15]
    print(len(rows), "rows:", ", ".join(f"{task} {len(own)}" for task, own in tasks.items()))
    print("in the means:", ", ".join(counted))
    titles = {"score": "score, higher is better", "nll": "negative log-likelihood per token of the true answer, lower is better"}
    for what, ratio in itertools.product(titles, RATIOS):
        print(f"\ncompression ratio {ratio}: {titles[what]}")
        print(f"{'':26}", *(f"{task[:8]:>8}" for task in tasks), f"{'mean':>6} minus RC")
        for arm in ["full cache", *(f"{name} {ratio}" for name in presses(ratio, 1))]:
            # The interval is a paired bootstrap: rows are drawn within each task.
            of = [[row["arms"][arm][what] - row["arms"][f"RC {ratio}"][what] for row in tasks[task]] for task in counted]
            low, *_, high = quantiles((fmean([fmean(rng.choices(own, k=len(own))) for own in of]) for _ in range(2000)), n=40)
            own = means(arm, what)
            print(f"{arm.removesuffix(f' {ratio}'):26}", *(f"{value:8.3f}" for value in own.values()), end=" ")
            print(f"{fmean([own[task] for task in counted]):6.3f} {fmean(map(fmean, of)):+.3f} [{low:+.3f}, {high:+.3f}]")


def check(options):
    model = Model(options.gguf)
    for task in ("needle", "multivalue", "common"):
        row = generated(task, 400, 0, model.ids)  # One window of the daemon: its keys are those of a prompt.
        ids, asked = model.ids(row.context), model.ids("\n\n" + row.question)
        press = RCPress(1 - (len(ids) // 4 + len(asked) + 0.5) / len(ids + asked), len(asked))
        model.compress(model.encode(ids + asked), press)
        ours = press.kept(torch.stack(press.scores))[..., : len(ids)]
        kv = {"policy": "heads", "ratio": 0.25, "recompute": 0, "prompt": "\n\n" + row.question}
        body = {"query": row.question, "chunks": [{"id": "0", "text": row.context}], "include": ["kv"], "kv": kv}
        body = json.dumps({**body, "budget": {"ratio": 1}, "granularity": "chunk", "deadline_ms": 90_000}).encode()
        call = urllib.request.Request(options.url + "/v1/compress", body, {"content-type": "application/json"})
        handle = json.load(urllib.request.urlopen(call))["kv"]["handle"]
        export = safetensors.torch.load(urllib.request.urlopen(f"{options.url}/v1/kv/{handle}").read())
        assert export["token_ids"].tolist() == ids
        shared = 0
        for layer, kept in enumerate(ours):
            heads = torch.arange(len(kept)).repeat_interleave(export[f"layers.{layer}.counts"].long())
            shared += kept[heads, export[f"layers.{layer}.tokens"].long()].sum().item()
        print(f"{task}: {len(ids)} tokens, {ours.sum().item()} keys kept, {shared} of them by the daemon too")
    row, same = generated("needle", 400, 1, model.ids), []
    found = model.of_row(row, 0)["arms"]
    made = {"answer_prefix": row.prefix, "max_new_tokens": len(model.ids(" " + row.expected[0])) + NEW_TOKENS}
    for name, ratio in itertools.product(presses(0, 1).keys() - {"random"}, RATIOS):
        press = presses(ratio, len(model.ids("\n\n" + row.question)))[name]
        with mock.patch.object(AutoTokenizer, "from_pretrained", return_value=model.pipeline.tokenizer):  # KVzip loads it anew.
            answer = model.pipeline(f"{row.context}\n\n{row.question}", press=press, max_context_length=10_000, **made)["answer"]
        same.append(answer == found[f"{name} {ratio}"]["answer"])
    print(f"{sum(same)} of {len(same)} answers are those of kvpress's pipeline")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=("measure", "report", "check"))
    parser.add_argument("files", type=Path, nargs="*", help="passages with questions to measure, or measured rows to report")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--out", type=Path, help="measured rows")
    parser.add_argument("--rows", type=int, default=24, help="of each task")
    parser.add_argument("--lengths", type=int, nargs="+", default=(1024, 1024, 2048), help="tokens of the contexts, in turn")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="begin with this row and take every n-th one")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of a daemon, for check")
    options = parser.parse_args()
    {"measure": measure, "report": report, "check": check}[options.work](options)


if __name__ == "__main__":
    main()
