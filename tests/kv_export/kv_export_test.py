"""Keys and values that the daemon exports, used by a transformers model with the same weights.

`make test` puts torch and transformers into PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
from daemon import BINARY, ROOT, Daemon, eventually  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from thresher_client import AsyncClient, AuthenticationError, Client, KvExportError, NotFoundError, RequestInvalidError  # noqa: E402
from thresher_client.transformers import KvExport, attention, fingerprint, generate  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, TextStreamer  # noqa: E402

FOLDER = ROOT / "models" / "facts"
GGUF = ROOT / "models" / "tiny" / "gguf" / "tiny.gguf"
SMOLLM2, SMOLLM2_GGUF = ROOT / "models/smollm2-135m", ROOT / "models/.cache/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf"
RECIPE = ROOT / "docs" / "recipes" / "kv_export" / "with_transformers.py"
NEW_TOKENS = 10
QUESTIONS = 6
WITHIN = 1e-4
HEADS = [{"ratio": 0.25}, {"ratio": 0.1}, {"mass": 0.9}, {"ratio": 0.5, "sinks": 1, "recent": 0}]
FAMILIES = ["llama", "llama3-tied", "mistral-linear", "mistral-sliding", "qwen2", "qwen2-full", "qwen3", "gemma3", "gpt-neox", "gpt-neox-serial"]

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.set_grad_enabled(False)


def setUpModule():
    global work, exported, daemon, client, model, tokenizer, rows
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    work = Path(folder.name)
    exported = work / "onnx"
    subprocess.run([BINARY, "export", FOLDER, "--out", exported], check=True, stdout=subprocess.DEVNULL)
    daemon = start_daemon()
    unittest.addModuleCleanup(daemon.stop)
    client = Client(daemon.url)
    unittest.addModuleCleanup(client.close)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    with open(FOLDER / "rows.jsonl") as lines:
        rows = [json.loads(line) for line in lines][:QUESTIONS]


def start_daemon(**settings):
    return Daemon(**{"THRESHER__MODEL__DIR": str(exported), "THRESHER__BLOCKS__CODEC": "f32", **settings})


def client_of(test, served, **options):
    """A client that is closed at the end of the test."""
    opened = Client(served.url, **options)
    test.addCleanup(opened.close)
    return opened


def without_special(text):
    return tokenizer(text, add_special_tokens=False).input_ids


def exported_kv(query, chunks, using=None, kv=None, **options):
    """The response of the daemon, the file, and the loaded export. No token is computed again unless `kv` says so."""
    options = {"budget": {"ratio": 1}, "kv": {"recompute": 0, **(kv or {})}, **options}
    answer = (using or client).compress(query, chunks, **options)
    data = (using or client).kv(answer.kv.handle)
    return answer, data, KvExport.load(data)


# ------------------------------------------------------------------------------------------------ reference results


def rotated(keys, by):
    """Keys `[kv_head, token, head_dim]`, rotated to a position that is larger by `by`."""
    angles = by * model.model.rotary_emb.inv_freq
    cos, sin = angles.cos().repeat(2), angles.sin().repeat(2)
    first, second = keys.chunk(2, dim=-1)
    return keys * cos + torch.cat([-second, first], dim=-1) * sin


def expected_blocks(chunks):
    """Keys and values of each layer, computed by transformers for windows that are read alone and moved. Also the token ids and the chunk,
    the window and the text of each token."""
    front, window_max = tokenizer("").input_ids, client.models()[0].window_tokens_max
    ids, of_chunk, of_window, texts = list(front), [-1] * len(front), [-1] * len(front), [None] * len(front)
    layers = None
    window = 0
    for index, chunk in enumerate(chunks):
        title = without_special(f"{chunk['title'].strip()}. ") if chunk.get("title") else []
        text = tokenizer(chunk["text"], add_special_tokens=False, return_offsets_mapping=True)
        own = title + text.input_ids
        texts += [None] * len(title) + [chunk["text"][a:b] for a, b in text.offset_mapping]
        for at in range(0, len(own), window_max):
            piece = own[at : at + window_max]
            read = model(torch.tensor([front + piece]), use_cache=True).past_key_values
            read = [(read.layers[layer].keys[0], read.layers[layer].values[0]) for layer in range(len(model.model.layers))]
            behind = len(ids) - len(front)
            if layers is None:
                layers = [([k[:, : len(front)]], [v[:, : len(front)]]) for k, v in read]
            for (keys, values), (k, v) in zip(layers, read):
                keys.append(rotated(k[:, len(front) :], behind))
                values.append(v[:, len(front) :])
            ids += piece
            of_chunk += [index] * len(piece)
            of_window += [window] * len(piece)
            window += 1
    layers = [(torch.cat(keys, dim=1), torch.cat(values, dim=1)) for keys, values in layers]
    return layers, ids, of_chunk, of_window, texts


def greedy(step, question):
    """The logits behind the question and the greedily chosen tokens. `step` reads new tokens and returns the logits of the last one."""
    logits = first = step(question)
    generated = []
    ends = torch.as_tensor(model.generation_config.eos_token_id).reshape(-1).tolist()
    while len(generated) < NEW_TOKENS:
        generated.append(int(logits.argmax()))
        if generated[-1] in ends:
            break
        logits = step(generated[-1:])
    return first, generated


def generate_by_transformers(layers, question):
    """The same by transformers, with a cache of these keys and values."""
    cache = DynamicCache()
    for at, (keys, values) in enumerate(layers):
        cache.update(keys[None], values[None], at)
    return greedy(lambda ids: model(torch.tensor([ids]), past_key_values=cache).logits[0, -1], question)


def generate_by_hand(layers, kept, question):
    """The same by a Llama in plain arithmetic over all keys. Keys that are false in `kept`, `[layer][kv_head, token]`, are masked."""
    weights, config = model.state_dict(), model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    group = config.num_attention_heads // config.num_key_value_heads
    inv_freq = model.model.rotary_emb.inv_freq
    layers = [(keys.clone(), values.clone()) for keys, values in layers]
    kept = list(kept)

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * weights[name]

    def rotate(x, positions):
        angles = positions[:, None] * inv_freq
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        return x * cos + torch.cat([-x[..., head_dim // 2 :], x[..., : head_dim // 2]], dim=-1) * sin

    def step(ids):
        before = layers[0][0].shape[1]
        positions = torch.arange(before, before + len(ids))
        x = weights["model.embed_tokens.weight"][ids]
        for at in range(config.num_hidden_layers):
            name = f"model.layers.{at}."
            h = norm(x, name + "input_layernorm.weight")
            q, k, v = (
                (h @ weights[f"{name}self_attn.{one}_proj.weight"].T).view(len(ids), -1, head_dim).transpose(0, 1) for one in "qkv"
            )
            q, k = rotate(q, positions), rotate(k, positions)
            keys, values = layers[at] = tuple(torch.cat(pair, dim=1) for pair in zip(layers[at], (k, v)))
            kept[at] = torch.cat([kept[at], torch.ones(len(k), len(ids), dtype=torch.bool)], dim=1)
            seen = (torch.arange(keys.shape[1])[None] <= positions[:, None])[None] & kept[at][:, None]
            logits = q @ keys.repeat_interleave(group, 0).transpose(1, 2) / head_dim**0.5
            logits = logits.masked_fill(~seen.repeat_interleave(group, 0), -torch.inf)
            h = (logits.softmax(-1) @ values.repeat_interleave(group, 0)).transpose(0, 1).reshape(len(ids), -1)
            x = x + h @ weights[name + "self_attn.o_proj.weight"].T
            h = norm(x, name + "post_attention_layernorm.weight")
            gate, up = (h @ weights[f"{name}mlp.{one}_proj.weight"].T for one in ("gate", "up"))
            x = x + (torch.nn.functional.silu(gate) * up) @ weights[name + "mlp.down_proj.weight"].T
        return norm(x[-1], "model.norm.weight") @ model.lm_head.weight.T

    return greedy(step, question)


def kept_masks(export):
    """Whether each key is kept, `[layer][kv_head, token]`."""
    masks = []
    for layer in export.layers:
        mask = torch.zeros(export.kv_heads, export.next_position, dtype=torch.bool)
        for head, of_head in enumerate(layer.tokens.split(layer.counts.tolist())):
            mask[head, of_head.long()] = True
        masks.append(mask)
    return masks


def chunks_of(export, chunks):
    """The kept chunks in the order of the export."""
    by_id = {chunk["id"]: chunk for chunk in chunks}
    return [by_id[name] for name in export.chunk_ids]


def long_chunks():
    """A short chunk, and one with a title and two windows. Together they nearly fill the context."""
    window, context = client.models()[0].window_tokens_max, model.config.max_position_embeddings
    texts = [chunk["text"] for row in rows for chunk in row["chunks"]]
    long = texts.pop()
    while len(without_special(long)) <= window * 1.1:
        long += " " + texts.pop()
    chunks = [{"id": "short", "text": rows[0]["chunks"][0]["text"]}, {"id": "long", "title": "The old people", "text": long}]
    total = sum(len(without_special(chunk["text"])) for chunk in chunks)
    assert window < total < context - 100, (window, total, context)
    return chunks


class Test(unittest.TestCase):
    maxDiff = 2000

    @contextmanager
    def refused(self, code, kind=RequestInvalidError):
        """Asserts that an error with this code is raised. Yields an object that has the error afterwards."""
        found = SimpleNamespace()
        with self.assertRaises(kind) as raised:
            yield found
        found.error, found.message = raised.exception, raised.exception.message
        self.assertEqual(raised.exception.code, code)

    def check_file(self, export, chunks):
        """Compares the export with the keys and values that transformers computes, and returns those."""
        kept = chunks_of(export, chunks)
        layers, ids, of_chunk, of_window, texts = expected_blocks(kept)
        self.assertEqual(export.token_ids.tolist(), ids)
        self.assertEqual(export.positions.tolist(), list(range(len(ids))))
        self.assertEqual(export.chunks.tolist(), of_chunk)
        self.assertEqual(export.windows.tolist(), of_window)
        self.assertEqual(export.next_position, len(ids))
        for (start, end), chunk, text in zip(export.offsets.tolist(), of_chunk, texts):
            if text is None:
                self.assertEqual((start, end), (-1, -1))
            else:
                self.assertEqual(kept[chunk]["text"].encode()[start:end].decode(errors="replace"), text)
        return layers

    def check_close(self, one, other, within=WITHIN):
        self.assertLess(float((one - other).abs().max()), within * max(1.0, float(other.abs().max())))


# --------------------------------------------------------------------------------------------------------------- tests


class WholeChunks(Test):
    def check_generates(self, query, chunks, **options):
        answer, data, export = exported_kv(query, chunks, **options)
        layers = self.check_file(export, chunks)
        self.assertEqual((export.policy, answer.kv.policy), ("chunks", "chunks"))
        self.assertEqual((answer.kv.tokens, answer.kv.bytes), (export.next_position, len(data)))
        self.assertEqual((answer.kv.share, export.share), (1.0, 1.0))
        self.assertEqual(answer.kv.fingerprint, export.fingerprint)
        self.assertEqual(sum(k.nbytes + v.nbytes for k, v in layers), export.kv_bytes)
        for ours, (keys, values) in zip(export.layers, layers):
            self.check_close(ours.keys, keys)
            self.check_close(ours.values, values)
        question = without_special(query)
        logits, generated = generate_by_transformers(layers, question)
        cache = export.cache(model)
        self.check_close(model(torch.tensor([question]), past_key_values=cache).logits[0, -1], logits)
        found = generate(model, export, question, max_new_tokens=NEW_TOKENS, do_sample=False)
        self.assertEqual(found.tolist(), generated)
        # The same with the model's own generate.
        ids = export.input_ids(question)
        plain = model.generate(ids, past_key_values=export.cache(model), max_new_tokens=NEW_TOKENS, do_sample=False)
        self.assertEqual(plain[0, ids.shape[1] :].tolist(), generated)
        return answer, export

    def test_an_export_of_all_chunks_continues_as_transformers_does(self):
        for row in rows:
            with self.subTest(row["id"]):
                _, export = self.check_generates(row["query"], row["chunks"])
                self.assertEqual(list(export.chunk_ids), [chunk["id"] for chunk in row["chunks"]])

    def test_an_export_has_the_chunks_that_the_budget_keeps(self):
        for row in rows:
            with self.subTest(row["id"]):
                answer, export = self.check_generates(row["query"], row["chunks"], budget={"ratio": 0.3})
                self.assertEqual(list(export.chunk_ids), [chunk.id for chunk in answer.chunks if chunk.kept])
                self.assertLess(len(export.chunk_ids), len(row["chunks"]))

    def test_an_export_is_in_the_order_of_relevance_on_request(self):
        moved = 0
        for row in rows:
            with self.subTest(row["id"]):
                answer, export = self.check_generates(row["query"], row["chunks"], order="relevance", granularity="chunk", budget={"ratio": 0.5})
                self.assertEqual(list(export.chunk_ids), list(dict.fromkeys(cite.chunk for cite in answer.citations)))
                self.assertGreater(len(export.chunk_ids), 1)
                positions = [[chunk["id"] for chunk in row["chunks"]].index(name) for name in export.chunk_ids]
                moved += positions != sorted(positions)
        self.assertGreater(moved, 0)

    def test_long_chunks_and_titles(self):
        _, export = self.check_generates(rows[0]["query"], long_chunks())
        self.assertEqual(export.windows.max(), 2)
        self.assertEqual(sorted(set(export.chunks.tolist())), [-1, 0, 1])

    def test_offsets_of_text_beyond_ascii(self):
        chunks = [{"id": "a", "title": "Caffè 😀", "text": "naïve — 漢字 😀 " + rows[0]["chunks"][0]["text"]}]
        _, data, export = exported_kv(rows[0]["query"], chunks)
        text = chunks[0]["text"].encode()
        spans = [(start, end) for start, end in export.offsets.tolist() if start >= 0]
        self.assertEqual(spans, sorted(spans))
        self.assertEqual(max(end for _, end in spans), len(text))
        self.assertGreater(sum(pair == [-1, -1] for pair in export.offsets.tolist()), len(tokenizer("").input_ids))
        generate(model, export, without_special("what ?"), max_new_tokens=2)

    def test_registered_chunks_are_exported(self):
        row = rows[0]
        client.register_chunks(row["chunks"], wait=True)
        _, _, export = exported_kv(row["query"], None, chunk_ids=[chunk["id"] for chunk in row["chunks"]])
        self.check_file(export, row["chunks"])

    def test_an_export_whose_tokens_are_all_computed_again_is_a_prompt(self):
        for kv in ({"recompute": 1}, {"recompute": 1, "before": "the keeper had a dog . ", "dtype": "bf16"}):
            with self.subTest(kv=kv):
                row = rows[0]
                answer, _, export = exported_kv(row["query"], row["chunks"], kv=kv)
                front = tokenizer("").input_ids + without_special(kv.get("before", ""))
                self.assertEqual(export.token_ids.tolist()[: len(front)], front)
                self.assertEqual((export.is_exact, answer.kv.exact), (True, True))
                self.assertEqual(list(answer.kv.token_ids), export.token_ids.tolist())
                self.assertEqual(int(export.recomputed.sum()), answer.kv.recomputed)
                within = 0.02 if "dtype" in kv else 10 * WITHIN  # Rounding adds up over 500 tokens.
                prompt = model(export.token_ids[None].long(), use_cache=True).past_key_values
                for ours, layer in zip(export.layers, prompt.layers):
                    self.check_close(ours.keys.float(), layer.keys[0], within)
                    self.check_close(ours.values.float(), layer.values[0], within)

    def test_a_share_of_the_tokens_is_computed_again(self):
        row = rows[0]
        _, _, none = exported_kv(row["query"], row["chunks"])
        answer, _, export = exported_kv(row["query"], row["chunks"], kv={"recompute": 0.2})
        default = client.compress(row["query"], row["chunks"], budget={"ratio": 1}, include=["kv"]).kv
        later = int((export.windows > 0).sum())
        self.assertEqual((answer.kv.recomputed, default.recomputed), (round(later * 0.2), round(later * 0.15)))
        self.assertEqual((none.is_exact, export.is_exact, int(none.recomputed.sum())), (False, False, 0))
        # It is nearer to a prompt than without.
        prompt = model(export.token_ids[None].long(), use_cache=True).past_key_values.layers[-1].values[0]
        off = [float((one.layers[-1].values - prompt).square().sum()) for one in (none, export)]
        self.assertLess(off[1], off[0])
        self.assertTrue(torch.equal(none.layers[-1].values[:, ~export.recomputed], export.layers[-1].values[:, ~export.recomputed]))
        one = exported_kv(row["query"], row["chunks"][:1], kv={"recompute": 0.2})[0].kv
        self.assertEqual((one.exact, one.recomputed), (True, 0))

    def test_a_part_of_a_file(self):
        answer, data, _ = exported_kv(rows[0]["query"], rows[0]["chunks"])

        def part(value):
            request = urllib.request.Request(f"{daemon.url}/v1/kv/{answer.kv.handle}", headers={"Range": value})
            try:
                with urllib.request.urlopen(request) as response:
                    return response.status, response.read(), response.headers["Content-Range"]
            except urllib.error.HTTPError as error:
                return error.code, json.loads(error.read())["error"]["code"], error.headers["Content-Range"]

        size = len(data)
        for value, start, end in (("bytes=0-7", 0, 8), ("bytes=5-99999", 5, min(size, 100_000)), (f"bytes={size - 3}-", size - 3, size), ("bytes=-9", size - 9, size)):
            with self.subTest(value):
                self.assertEqual(part(value), (206, data[start:end], f"bytes {start}-{end - 1}/{size}"))
        self.assertEqual(part("bytes=0-1,4-5"), (200, data, None))
        self.assertEqual(part(f"bytes={size}-"), (416, "out_of_range", f"bytes */{size}"))

    def test_an_export_loads_from_bytes_and_from_a_file(self):
        async def fetched():
            async with AsyncClient(daemon.url) as async_client:
                answer = await async_client.compress(rows[0]["query"], rows[0]["chunks"], kv={"policy": "chunks"})
                return await async_client.kv(answer.kv.handle, fingerprint=answer.kv.fingerprint)

        data = asyncio.run(fetched())
        file = work / "kv.safetensors"
        file.write_bytes(data)
        one, other = KvExport.load(data), KvExport.load(file)
        self.assertEqual(one.chunk_ids, other.chunk_ids)
        self.assertTrue(torch.equal(one.layers[-1].values, other.layers[-1].values))
        self.assertTrue(torch.equal(one.offsets, KvExport.load(str(file)).offsets))

    def test_a_response_has_no_export_unless_it_is_requested(self):
        self.assertIsNone(client.compress(rows[0]["query"], rows[0]["chunks"]).kv)

    def test_an_export_can_be_fetched_more_than_once(self):
        answer, data, _ = exported_kv(rows[0]["query"], rows[0]["chunks"])
        self.assertEqual(client.kv(answer.kv.handle), data)
        with urllib.request.urlopen(f"{daemon.url}/v1/kv/{answer.kv.handle}") as fetched:
            self.assertEqual(fetched.headers["content-length"], str(len(data)))
            self.assertEqual(fetched.read(), data)


class Heads(Test):
    def test_the_heads_policy_continues_as_a_model_with_masked_keys_does(self):
        for row in rows:
            _, whole, full = exported_kv(row["query"], row["chunks"])
            layers = self.check_file(full, row["chunks"])
            question = without_special(row["query"])
            for kv in HEADS:
                with self.subTest(row["id"], kv=kv):
                    answer, data, export = exported_kv(row["query"], row["chunks"], kv={"policy": "heads", **kv})
                    kept = kept_masks(export)
                    self.check_kept(answer, export, kept, kv)
                    self.check_rows(export, full)
                    self.assertEqual(answer.kv.bytes, len(data))
                    self.assertLess(len(data), len(whole))
                    self.assertLess(export.kv_bytes / full.kv_bytes, export.share + 0.01)
                    logits, generated = generate_by_hand(layers, kept, question)
                    cache = export.cache(model)
                    with attention(model):
                        found = model(torch.tensor([question]), past_key_values=cache).logits[0, -1]
                    self.check_close(found, logits)
                    found = generate(model, export, question, max_new_tokens=NEW_TOKENS, do_sample=False)
                    self.assertEqual(found.tolist(), generated)

    def check_kept(self, answer, export, kept, kv):
        special = len(tokenizer("").input_ids)
        kept = torch.stack(kept)
        self.assertEqual((answer.kv.tokens, kept.shape[-1]), (export.next_position,) * 2)
        own = kept[..., special:]
        self.assertAlmostEqual(answer.kv.share, float(own.float().mean()), places=6)
        self.assertAlmostEqual(answer.kv.share, export.share, places=9)
        if "ratio" in kv:
            tokens = own.shape[-1]
            self.assertEqual(int(own.sum()), own.numel() // tokens * int(tokens * kv["ratio"]))
        else:
            self.assertTrue(0 < answer.kv.share < 1)
        count = int(own.shape[-1] * kv.get("ratio", 1))
        sinks = kv.get("sinks", special + min(4, count // 16))
        recent = kv.get("recent", min(4, count // 16))
        self.assertTrue(kept[..., : max(sinks, special)].all())
        self.assertTrue(kept[..., kept.shape[-1] - recent :].all())

    def check_rows(self, export, full):
        """Asserts that all rows are rows of the export of whole chunks."""
        for layer, whole in zip(export.layers, full.layers):
            counts = layer.counts.tolist()
            for head, (tokens, keys, values) in enumerate(zip(*(one.split(counts) for one in (layer.tokens, layer.keys, layer.values)))):
                self.assertEqual(tokens.tolist(), sorted(set(tokens.tolist())))
                self.assertTrue(torch.equal(whole.keys[head][tokens.long()], keys))
                self.assertTrue(torch.equal(whole.values[head][tokens.long()], values))

    def test_heads_that_keep_everything_continue_as_whole_chunks_do(self):
        row = rows[0]
        question = without_special(row["query"])
        _, _, full = exported_kv(row["query"], row["chunks"])
        _, _, heads = exported_kv(row["query"], row["chunks"], kv={"policy": "heads", "ratio": 1.0})
        self.assertEqual(heads.share, 1.0)
        generated = [generate(model, one, question, max_new_tokens=NEW_TOKENS, do_sample=False).tolist() for one in (full, heads)]
        self.assertEqual(*generated)

    def test_long_chunks_and_titles(self):
        chunks, query = long_chunks(), rows[0]["query"]
        _, _, full = exported_kv(query, chunks)
        layers = self.check_file(full, chunks)
        _, _, export = exported_kv(query, chunks, kv={"policy": "heads"})
        question = without_special(query)
        _, generated = generate_by_hand(layers, kept_masks(export), question)
        self.assertEqual(generate(model, export, question, max_new_tokens=NEW_TOKENS, do_sample=False).tolist(), generated)

    def test_the_heads_policy_saves_memory(self):
        row = rows[0]
        size = []
        for kv in ({"policy": "chunks"}, {"policy": "heads", "ratio": 0.1}):
            _, _, export = exported_kv(row["query"], row["chunks"], kv=kv)
            size.append(sum(layer.keys.nbytes + layer.values.nbytes for layer in export.cache(model).layers))
        longest = sum(int(layer.counts.max()) for layer in export.layers) * export.kv_heads * export.head_dim * 4 * 2
        self.assertEqual(size[1], longest)
        self.assertLess(size[1], 0.6 * size[0])

    def test_a_cache_can_be_read_in_parts_and_cropped(self):
        row = rows[0]
        question = without_special(row["query"])
        _, _, export = exported_kv(row["query"], row["chunks"], kv={"policy": "heads"})
        with attention(model):
            whole = model(torch.tensor([question]), past_key_values=export.cache(model)).logits[0]
            cache = export.cache(model)
            self.assertEqual(cache.get_seq_length(), export.next_position)
            first = model(torch.tensor([question[:2]]), past_key_values=cache).logits[0]
            model(torch.tensor([question[:3]]), past_key_values=cache)
            cache.crop(-3)
            self.assertEqual(cache.get_seq_length(), export.next_position + 2)
            rest = model(torch.tensor([question[2:]]), past_key_values=cache).logits[0]
            self.check_close(torch.cat([first, rest]), whole)
            with self.assertRaises(ValueError):
                cache.crop(-len(question) - 1)
            with self.assertRaises(ValueError):
                cache.reset()

    def test_a_conversation_continues_after_the_first_answer(self):
        row = rows[0]
        question = without_special(row["query"])
        _, _, full = exported_kv(row["query"], row["chunks"])
        _, _, heads = exported_kv(row["query"], row["chunks"], kv={"policy": "heads"})
        layers = self.check_file(full, row["chunks"])
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
        for export, within in ((full, nullcontext()), (heads, attention(model))):
            kept = kept_masks(export) if export is heads else [torch.ones(full.kv_heads, full.next_position, dtype=torch.bool)] * len(layers)
            cache, ids = export.cache(model), export.input_ids(question)
            _, generated = generate_by_hand(layers, kept, question)
            _, more = generate_by_hand(layers, kept, question + generated + question)
            with within:
                ids = model.generate(ids, past_key_values=cache, attention_mask=torch.ones_like(ids), **options)
                self.assertEqual(ids[0, export.next_position :].tolist(), question + generated)
                ids = torch.cat([ids, torch.tensor([question])], dim=1)
                ids = model.generate(ids, past_key_values=cache, attention_mask=torch.ones_like(ids), **options)
            self.assertEqual(ids[0, -len(more) :].tolist(), more)

    def test_an_export_without_chunks_can_be_continued(self):
        for kv in ({"policy": "chunks"}, {"policy": "heads"}):
            answer, _, export = exported_kv(rows[0]["query"], [" "], kv=kv)
            self.assertEqual((export.chunk_ids, export.next_position), ((), len(tokenizer("").input_ids)))
            self.assertEqual(answer.kv.tokens, export.next_position)
            self.assertTrue(len(generate(model, export, without_special("what ?"), max_new_tokens=2)))

    def test_the_attention_of_the_model_is_restored(self):
        row = rows[0]
        question = torch.tensor([without_special(row["query"])])
        before = model.config._attn_implementation
        _, _, export = exported_kv(row["query"], row["chunks"], kv={"policy": "heads"})
        _, _, full = exported_kv(row["query"], row["chunks"])
        outside = model(question, past_key_values=full.cache(model)).logits
        with self.assertRaises(ZeroDivisionError), attention(model), attention(model):
            # Other caches work as before.
            self.check_close(model(question, past_key_values=full.cache(model)).logits, outside)
            raise ZeroDivisionError
        self.assertEqual(model.config._attn_implementation, before)
        with self.refused("attention_missing", KvExportError):
            model(question, past_key_values=export.cache(model))
        with self.refused("attention_missing", KvExportError):
            model.generate(export.input_ids(question), past_key_values=export.cache(model), max_new_tokens=1)
        self.check_close(model(question, past_key_values=full.cache(model)).logits, outside, 1e-9)

    def test_eager_attention_gives_the_same_tokens(self):
        row = rows[0]
        question = without_special(row["query"])
        eager = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager")
        _, _, export = exported_kv(row["query"], row["chunks"], kv={"policy": "heads"})
        generated = [generate(one, export, question, max_new_tokens=NEW_TOKENS, do_sample=False).tolist() for one in (model, eager)]
        self.assertEqual(*generated)
        self.assertEqual(eager.config._attn_implementation, "eager")

    def test_threads_can_generate_at_the_same_time(self):
        requests = [(row, kv) for row in rows[:2] for kv in ({"policy": "heads"}, {"policy": "chunks"})]
        found = [(exported_kv(row["query"], row["chunks"], kv=kv)[2], without_special(row["query"])) for row, kv in requests]
        generate_greedily = functools.partial(generate, model, max_new_tokens=NEW_TOKENS, do_sample=False)
        alone = [generate_greedily(*one).tolist() for one in found]
        together, raised = [None] * len(found), []

        def run(at):
            try:
                for _ in range(3):
                    together[at] = generate_greedily(*found[at]).tolist()
            except Exception as error:
                raised.append(error)

        threads = [threading.Thread(target=run, args=(at,)) for at in range(len(found))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(raised, [])
        self.assertEqual(together, alone)
        self.assertNotEqual(model.config._attn_implementation, "thresher_heads")

    def test_sampling_works(self):
        row = rows[0]
        _, _, export = exported_kv(row["query"], row["chunks"], kv={"policy": "heads"})
        torch.manual_seed(1)
        generated = generate(model, export, torch.tensor([without_special(row["query"])]), max_new_tokens=5, do_sample=True, return_dict_in_generate=True)
        self.assertTrue(1 <= len(generated) <= 5)


class SeveralSequences(Test):
    """Several questions over one export, several answers to one question, and beams."""

    OPTIONS = {"max_new_tokens": NEW_TOKENS, "do_sample": False}

    def setUp(self):
        self.row = rows[0]
        # Of different lengths.
        self.questions = [without_special(text) for text in (self.row["query"], "what ?", rows[1]["query"], self.row["query"][:20])]
        self.assertGreater(len({len(question) for question in self.questions}), 2)
        # One that was chosen for a question, and one of whole chunks.
        self.exports = [
            exported_kv(self.row["query"], self.row["chunks"], kv=kv)[2] for kv in ({"policy": "chunks"}, {"policy": "heads", "ratio": 0.25})
        ]

    def within(self, export):
        return attention(model) if export.policy == "heads" else nullcontext()

    def test_logits_of_a_batch_are_those_of_each_question(self):
        for export in self.exports:
            with self.subTest(export.policy), self.within(export):
                inputs = export.inputs(model, self.questions)
                mask = inputs["attention_mask"]
                self.assertLess(int(mask.sum()), mask.numel())
                new = inputs["input_ids"][:, export.next_position :]
                positions = (mask.cumsum(-1) - 1)[:, export.next_position :]
                found = model(new, past_key_values=export.cache(model), attention_mask=mask, position_ids=positions).logits
                for question, of_question in zip(self.questions, found):
                    alone = model(torch.tensor([question]), past_key_values=export.cache(model)).logits[0]
                    self.check_close(of_question[-len(question) :], alone)

    def test_a_batch_of_questions_has_the_answers_of_each_question(self):
        ends = model.generation_config.eos_token_id
        for export in self.exports:
            alone = [generate(model, export, question, **self.OPTIONS).tolist() for question in self.questions]
            texts = [self.row["query"], "what ?"]
            padded_right = tokenizer(texts, add_special_tokens=False)
            longest = max(map(len, padded_right.input_ids))
            padded_right = {
                "input_ids": torch.tensor([ids + [0] * (longest - len(ids)) for ids in padded_right.input_ids]),
                "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in padded_right.input_ids]),
            }
            for questions, expected in [(self.questions, alone), ([self.questions[0]] * 2, alone[:1] * 2), (padded_right, alone[:2])]:
                with self.subTest(export.policy, count=len(expected)):
                    found = generate(model, export, questions, **self.OPTIONS, pad_token_id=ends).tolist()
                    self.assertEqual([row[: len(one)] for row, one in zip(found, expected)], expected)
                    self.assertEqual({token for row, one in zip(found, expected) for token in row[len(one) :]} - {ends}, set())
                    # The same with the model's own generate.
                    with self.within(export):
                        inputs = export.inputs(model, questions)
                        plain = model.generate(**inputs, past_key_values=export.cache(model), **self.OPTIONS, pad_token_id=ends)
                    self.assertEqual(plain[:, inputs["input_ids"].shape[1] :].tolist(), found)

    def test_a_batch_of_one_question_is_one_question(self):
        export = self.exports[0]
        alone = generate(model, export, self.questions[0], **self.OPTIONS)
        self.assertEqual(generate(model, export, [self.questions[0]], **self.OPTIONS).tolist(), alone.tolist())

    def test_beams_are_those_over_a_repeated_cache(self):
        question = self.questions[0]
        whole = self.exports[0]
        layers = self.check_file(whole, self.row["chunks"])
        for beams, sequences in ((3, 1), (3, 2)):
            options = {**self.OPTIONS, "num_beams": beams, "num_return_sequences": sequences}
            cache = DynamicCache()
            for at, (keys, values) in enumerate(layers):
                cache.update(keys[None].repeat(beams, 1, 1, 1), values[None].repeat(beams, 1, 1, 1), at)
            ids = whole.input_ids(question)
            expected = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **options)[:, ids.shape[1] :]
            all_heads = exported_kv(self.row["query"], self.row["chunks"], kv={"policy": "heads", "ratio": 1.0})[2]
            for export in (whole, all_heads):
                with self.subTest(export.policy, sequences=sequences):
                    found = generate(model, export, question, **options)
                    self.assertEqual(found.reshape(sequences, -1).tolist(), expected.tolist())

    def test_scores_of_beams_are_the_log_probabilities_of_their_tokens(self):
        """Beams change places at each step, and the rows of each head with them."""
        options = {
            "max_new_tokens": NEW_TOKENS, "num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0, "eos_token_id": None,
            "output_scores": True, "return_dict_in_generate": True,
        }
        for export in self.exports:
            moved = 0
            with self.subTest(export.policy), self.within(export):
                for question in self.questions:
                    found = model.generate(**export.inputs(model, question), past_key_values=export.cache(model), do_sample=False, **options)
                    moved += int((found.beam_indices[:, 1:] != found.beam_indices[:, :-1]).sum())
                    for sequence, score in zip(found.sequences, found.sequences_scores):
                        new = sequence[export.next_position :][None]
                        logits = model(new, past_key_values=export.cache(model)).logits[0, len(question) - 1 : -1].log_softmax(-1)
                        self.assertAlmostEqual(float(logits.gather(1, new[0, len(question) :, None]).sum()), float(score), delta=1e-3)
                self.assertGreater(moved, 0)

    def test_several_sampled_answers(self):
        for export in self.exports:
            torch.manual_seed(1)
            found = generate(model, export, self.questions[0], max_new_tokens=5, do_sample=True, num_return_sequences=3)
            self.assertEqual(len(found), 3)

    def test_a_cache_does_not_change_its_number_of_sequences_twice(self):
        for export in self.exports:
            with self.subTest(export.policy), self.within(export):
                cache = export.cache(model)
                model(torch.tensor([[1]]), past_key_values=cache)
                model(torch.tensor([[1], [2]]), past_key_values=cache)
                for count in (1, 3):
                    with self.refused("sequences_changed", KvExportError) as found:
                        model(torch.tensor([[1]] * count), past_key_values=cache)
                    self.assertIn(f"reads {count} sequences", found.message)

    def test_an_answer_streams_token_by_token(self):
        class Streamed(TextStreamer):
            def __init__(self):
                super().__init__(tokenizer, skip_prompt=True)
                self.tokens, self.text = [], ""

            def put(self, value):
                if not self.next_tokens_are_prompt:
                    self.tokens.append(value.tolist())
                super().put(value)

            def on_finalized_text(self, text, stream_end=False):
                self.text += text

        for export in self.exports:
            with self.subTest(export.policy):
                streamer = Streamed()
                found = generate(model, export, self.questions[0], **self.OPTIONS, streamer=streamer)
                self.assertEqual(streamer.tokens, [[token] for token in found.tolist()])
                self.assertEqual(streamer.text.strip(), tokenizer.decode(found).strip())


class Measured(Test):
    """`thresher-lab kv` measures what the exported keys and values lose."""

    def test_the_measured_loss_is_that_of_the_export(self):
        file, out = work / "rows.jsonl", work / "measured.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        subprocess.run([f"{BINARY}-lab", "kv", file, "--model", exported, "--json", out], check=True, stdout=subprocess.DEVNULL)
        measured = json.loads(out.read_text())
        for ratio in (4, 16):
            divergence, right = 0.0, 0
            for row in rows:
                question, answer = without_special(row["query"]), without_special(row["answers"][0])
                kv = {"policy": "heads", "ratio": 1 / ratio}
                (whole, _), (left, generated) = (self.log_probabilities(row, question, answer, kv) for kv in ({"policy": "chunks"}, kv))
                divergence += float((whole.exp() * (whole - left)).sum(-1).mean()) / len(rows)
                right += (generated == answer) / len(rows)
            found = measured["ratios"][str(ratio)]["rc"]
            self.assertAlmostEqual(found["kl"], divergence, delta=1e-4 + 0.01 * divergence)
            self.assertAlmostEqual(found["accuracy"], right)

    def log_probabilities(self, row, question, answer, kv):
        """The log probabilities before each token of the answer, and the most likely tokens."""
        export = exported_kv(row["query"], row["chunks"], kv=kv)[2]
        with attention(model):
            logits = model(torch.tensor([question + answer[:-1]]), past_key_values=export.cache(model)).logits[0]
        behind = logits[len(question) - 1 :].log_softmax(-1)
        return behind, behind.argmax(-1).tolist()


class Families(Test):
    """With a single chunk, a model continues from an export exactly as it does from the prompt."""

    def test_each_family_continues_as_from_the_prompt(self):
        for family in FAMILIES:
            with self.subTest(family):
                folder, made = ROOT / "models" / "tiny" / family, work / family
                subprocess.run([BINARY, "export", folder, "--out", made], check=True, stdout=subprocess.DEVNULL)
                served = start_daemon(THRESHER__MODEL__DIR=str(made))
                try:
                    self.check_generates(client_of(self, served), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), folder)
                finally:
                    served.stop()

    def check_generates(self, using, plain, folder):
        words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        words.no_truncation()
        query, text = "what ?", "the keeper had a dog ."
        question = words.encode(query, add_special_tokens=False).ids
        prompt = torch.tensor([words.encode(text).ids + question])
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        logits = plain(prompt).logits[0, -1]
        generated = plain.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, prompt.shape[1] :].tolist()
        for kv in ({"policy": "chunks"}, {"policy": "heads", "ratio": 1.0}):
            _, _, export = exported_kv(query, [{"id": "a", "text": text}], using=using, kv=kv)
            self.assertEqual(export.input_ids(question).tolist(), prompt.tolist())
            cache = export.cache(plain)
            with attention(plain) if kv["policy"] == "heads" else nullcontext():
                self.check_close(plain(torch.tensor([question]), past_key_values=cache).logits[0, -1], logits)
            self.assertEqual(generate(plain, export, question, **options).tolist(), generated)
            self.check_several(plain, export, prompt, question, options)

    def check_several(self, plain, export, prompt, question, options):
        """Beams and batches. A model with a sliding window takes questions of one length only."""
        mask = torch.ones_like(prompt)
        beams = plain.generate(prompt, attention_mask=mask, num_beams=3, **options)[0, prompt.shape[1] :].tolist()
        self.assertEqual(generate(plain, export, question, num_beams=3, **options).tolist(), beams)
        turned, short = question[::-1], question[1:]
        expected = [generate(plain, export, one, **options).tolist() for one in (question, turned, short)]
        self.assertEqual(generate(plain, export, [question, turned], **options).tolist(), expected[:2])
        windows = getattr(plain.config, "layer_types", None) or ["sliding_attention" if getattr(plain.config, "sliding_window", None) else ""]
        if "sliding_attention" in windows:
            with self.refused("padding_unsupported", KvExportError):
                generate(plain, export, [question, short], **options)
        else:
            self.assertEqual(generate(plain, export, [question, turned, short], **options).tolist(), expected)

    def test_other_frequencies_in_layers_with_a_window_are_refused(self):
        folder, made = ROOT / "models/tiny/gemma3", work / "gemma3-local"
        subprocess.run([BINARY, "export", folder, "--out", made], check=True, stdout=subprocess.DEVNULL)
        served = start_daemon(THRESHER__MODEL__DIR=str(made))
        self.addCleanup(served.stop)
        _, _, export = exported_kv("what ?", [{"id": "a", "text": "the keeper had a dog ."}], using=client_of(self, served))
        self.assertIsNotNone(export.rotary_frequencies_local)
        self.assertNotEqual(export.rotary_frequencies, export.rotary_frequencies_local)
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        export.check(plain)
        for name, buffer in plain.named_buffers():
            if name.endswith(("rotary_emb_local.inv_freq", "sliding_attention_inv_freq")):
                buffer.mul_(2.0)
        with self.refused("model_mismatch", KvExportError) as found:
            export.check(plain)
        self.assertIn("rotary frequencies", found.message)

    def test_a_model_with_learned_positions_cannot_export(self):
        made = work / "gpt2"
        subprocess.run([BINARY, "export", ROOT / "models/tiny/gpt2", "--out", made], check=True, stdout=subprocess.DEVNULL)
        served = start_daemon(THRESHER__MODEL__DIR=str(made))
        self.addCleanup(served.stop)
        with self.refused("unavailable"):
            client_of(self, served).compress("what ?", ["the keeper had a dog ."], include=["kv"])


class Codecs(Test):
    def test_exports_of_blocks_in_reduced_precision_have_half_precision(self):
        row = rows[0]
        question = without_special(row["query"])
        for codec, within in (("f16", 0.002), ("int8", 0.03)):
            served = start_daemon(THRESHER__BLOCKS__CODEC=codec)
            try:
                using = client_of(self, served)
                for kv in ({"policy": "chunks"}, {"policy": "heads"}):
                    with self.subTest(codec, kv=kv):
                        answer, data, export = exported_kv(row["query"], row["chunks"], using=using, kv=kv)
                        self.assertEqual(answer.kv.bytes, len(data))
                        self.assertEqual({one.dtype for layer in export.layers for one in (layer.keys, layer.values)}, {torch.float16})
                        self.assertTrue(len(generate(model, export, question, max_new_tokens=3)))
                        half = copy.deepcopy(model).to(torch.float16)
                        self.assertEqual(export.cache(half).layers[0].keys.dtype, torch.float16)
                        if kv["policy"] == "chunks":
                            layers = self.check_file(export, row["chunks"])
                            for ours, exact in zip(export.layers, layers):
                                for a, b in zip((ours.keys, ours.values), exact):
                                    self.check_close(a.float() / b.abs().max(), b / b.abs().max(), within)
            finally:
                served.stop()


class Refusals(Test):
    def setUp(self):
        self.row = rows[0]

    def compress(self, using=None, **options):
        return (using or client).compress(self.row["query"], self.row["chunks"], **{"budget": {"ratio": 1}, **options})

    def test_an_unknown_handle(self):
        with self.refused("id_unknown", NotFoundError):
            client.kv("kv_00000000000000000000000000000000")
        with self.refused("id_unknown", NotFoundError):
            client.kv("a/b?c")
        self.assertEqual(self.compress(include=["kv"]).kv.expires_s, 600)

    def test_the_handle_of_another_tenant(self):
        keys, file = {}, work / "keys.toml"
        for name in ("a", "b"):
            made = subprocess.run([BINARY, "key", "new", "--name", name, "--tenant", name, "--file", file], capture_output=True, text=True, check=True)
            (keys[name],) = [word for word in made.stdout.split() if word.startswith("thr_")]
        served = start_daemon(THRESHER__ACCESS__KEYS_FILE=str(file))
        self.addCleanup(served.stop)
        clients = {name: client_of(self, served, api_key=key) for name, key in keys.items()}
        handle = self.compress(clients["a"], include=["kv"]).kv.handle
        with self.refused("id_unknown", NotFoundError):
            clients["b"].kv(handle)
        with self.refused("key_missing", AuthenticationError):
            client_of(self, served).kv(handle)
        self.assertTrue(KvExport.load(clients["a"].kv(handle)).chunk_ids)

    def test_an_encoder_has_no_exports(self):
        served = Daemon()
        self.addCleanup(served.stop)
        with self.refused("unavailable") as found:
            self.compress(client_of(self, served), include=["kv"])
        self.assertEqual(found.error.status, 422)
        self.assertIn("encoder", found.message)

    def test_invalid_budgets(self):
        with self.refused("budget_impossible"):
            self.compress(kv={"policy": "heads", "ratio": 0.001, "sinks": 4, "recent": 4})
        with self.refused("out_of_range"):
            self.compress(kv={"policy": "heads", "ratio": 1.5})
        with self.refused("fields_conflict"):
            self.compress(kv={"policy": "heads", "ratio": 0.5, "mass": 0.5})
        with self.refused("fields_conflict"):
            self.compress(kv={"policy": "chunks", "ratio": 0.5})
        with self.refused("out_of_range"):
            self.compress(kv={"recompute": 1.5})
        with self.refused("fields_conflict"):
            self.compress(kv={"policy": "heads", "before": "a dog"})
        with self.refused("field_empty"):
            self.compress(kv={"before": ""})
        with self.refused("too_long"):
            self.compress(kv={"before": "the " * 600})
        with self.refused("unknown_value"):
            self.compress(include=["everything"])
        with self.assertRaises(TypeError):
            self.compress(include="kv")

    def test_chunks_longer_than_the_context(self):
        chunks = [{"id": f"{at}", "text": f"{chunk['text']} {at} ."} for at in range(120) for chunk in self.row["chunks"][:1]]
        with self.refused("too_long"):
            client.compress(self.row["query"], chunks, budget={"ratio": 1}, include=["kv"])

    def test_a_small_share_of_a_short_chunk(self):
        chunks = [{"id": "a", "text": self.row["chunks"][0]["text"][:20]}]
        answer, _, export = exported_kv(self.row["query"], chunks, kv={"policy": "heads"})
        self.assertEqual(answer.kv.room_tokens, model.config.max_position_embeddings - export.next_position)
        self.assertLessEqual(answer.kv.share, 0.25)
        with self.refused("budget_impossible"):
            exported_kv(self.row["query"], chunks, kv={"policy": "heads", "sinks": 4})

    def test_the_fingerprint_of_another_model(self):
        answer, data, export = exported_kv(self.row["query"], self.row["chunks"])
        other_fingerprint = "0" * 64
        with self.refused("model_mismatch") as found:
            client.kv(answer.kv.handle, fingerprint=other_fingerprint)
        self.assertEqual(found.error.status, 409)
        self.assertIn(other_fingerprint, found.message)
        self.assertIn(export.fingerprint, found.message)
        with self.refused("model_mismatch", KvExportError) as found:
            export.cache(model, fingerprint=other_fingerprint)
        self.assertIn(other_fingerprint, found.message)
        self.assertIn(export.fingerprint, found.message)
        for policy in ({"policy": "chunks"}, {"policy": "heads"}):
            export = exported_kv(self.row["query"], self.row["chunks"], kv=policy)[2]
            with self.refused("model_mismatch", KvExportError):
                generate(model, export, [1], fingerprint=other_fingerprint)

    def test_other_weights_of_the_same_shape(self):
        other = work / "other"
        other.mkdir()
        (other / "config.json").write_text((FOLDER / "config.json").read_text())
        state = {name: value + 1 for name, value in model.state_dict().items() if name != "lm_head.weight"}
        save_file(state, other / "model.safetensors", metadata={"format": "pt"})
        _, _, export = exported_kv(self.row["query"], self.row["chunks"])
        loaded = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32)
        with self.refused("model_mismatch", KvExportError) as found:
            export.cache(loaded)
        self.assertIn(fingerprint(other), found.message)
        self.assertIn(fingerprint(FOLDER), found.message)

    def test_other_shapes(self):
        _, _, export = exported_kv(self.row["query"], self.row["chunks"])
        config = model.config
        head_dim = export.head_dim
        for name, changes in {
            "layers": {"num_hidden_layers": config.num_hidden_layers + 1},
            "kv_heads": {"num_key_value_heads": config.num_attention_heads},
            "head_dim": {"head_dim": head_dim * 2},
            "rotary frequencies": {"rope_theta": 5000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        }.items():
            with self.subTest(name):
                changed = copy.deepcopy(config)
                for key, value in changes.items():
                    setattr(changed, key, value)
                other = AutoModelForCausalLM.from_config(changed)
                with self.refused("fingerprint_unknown", KvExportError):
                    other.name_or_path = ""
                    export.cache(other)
                with self.refused("model_mismatch", KvExportError) as found:
                    export.cache(other, fingerprint=export.fingerprint)
                self.assertIn(name, found.message)

    def test_the_fingerprint_is_that_of_sha256sum(self):
        sums = subprocess.run("sha256sum *.safetensors | sha256sum", shell=True, cwd=FOLDER, capture_output=True, text=True, check=True)
        self.assertEqual(sums.stdout.split()[0], fingerprint(FOLDER))
        answer = self.compress(include=["kv"])
        self.assertEqual(answer.kv.fingerprint, fingerprint(FOLDER))
        shards = work / "shards"
        model.save_pretrained(shards, max_shard_size="200KB")
        self.assertGreater(len(list(shards.glob("*.safetensors"))), 1)
        (shards / "adapter.notes").write_text("nothing")
        sums = subprocess.run("sha256sum *.safetensors | sha256sum", shell=True, cwd=shards, capture_output=True, text=True, check=True)
        self.assertEqual(sums.stdout.split()[0], fingerprint(shards))
        with self.assertRaises(FileNotFoundError):
            fingerprint(work / "nowhere")

    def test_the_fingerprint_of_a_gguf_file(self):
        made = work / "gguf-onnx"
        subprocess.run([BINARY, "export", GGUF, "--out", made], check=True, stdout=subprocess.DEVNULL)
        served = start_daemon(THRESHER__MODEL__DIR=str(made))
        self.addCleanup(served.stop)
        sums = subprocess.run("sha256sum tiny.gguf | sha256sum", shell=True, cwd=GGUF.parent, capture_output=True, text=True, check=True)
        self.assertEqual(sums.stdout.split()[0], fingerprint(GGUF))
        self.assertEqual(fingerprint(str(GGUF)), fingerprint(GGUF))
        answer, _, export = exported_kv("a", ["bc a"], using=client_of(self, served))
        self.assertEqual((answer.kv.fingerprint, export.fingerprint), (fingerprint(GGUF),) * 2)
        # A model knows the file that it was loaded from, by its name in the folder or by its path.
        for folder, name in ((GGUF.parent, GGUF.name), (work, str(GGUF))):
            for config in ({"gguf_file": name}, SimpleNamespace(gguf_file=name)):
                with self.subTest(name, config=config):
                    loaded = SimpleNamespace(name_or_path=str(folder), config=SimpleNamespace(quantization_config=config))
                    with self.assertRaisesRegex(AttributeError, "get_text_config"):
                        export.check(loaded)  # The fingerprint is right; this model has no configuration to compare.
        with self.refused("fingerprint_unknown", KvExportError) as found:
            export.check(SimpleNamespace(name_or_path=str(GGUF.parent), config=SimpleNamespace()))
        self.assertIn("has no readable checkpoint", found.message)
        with self.assertRaises(FileNotFoundError):
            fingerprint(GGUF.parent / "other.gguf")

    def test_a_model_in_several_files(self):
        shards, made = work / "of-shards", work / "of-shards-onnx"
        model.save_pretrained(shards, max_shard_size="200KB")
        for name in ("tokenizer.json",):
            (shards / name).write_bytes((FOLDER / name).read_bytes())
        subprocess.run([BINARY, "export", shards, "--out", made], check=True, stdout=subprocess.DEVNULL)
        served = start_daemon(THRESHER__MODEL__DIR=str(made))
        self.addCleanup(served.stop)
        _, _, export = exported_kv(self.row["query"], self.row["chunks"], using=client_of(self, served))
        self.assertEqual(export.fingerprint, fingerprint(shards))

    def test_damaged_files(self):
        _, data, _ = exported_kv(self.row["query"], self.row["chunks"])
        for length in (0, 7, 100, len(data) // 2, len(data) - 1):
            with self.subTest(length):
                with self.refused("kv_export_invalid", KvExportError):
                    KvExport.load(data[:length])
                (work / "damaged").write_bytes(data[:length])
                with self.refused("kv_export_invalid", KvExportError):
                    KvExport.load(work / "damaged")
        with self.refused("kv_export_invalid", KvExportError) as found:
            KvExport.load(FOLDER / "model.safetensors")
        self.assertIn("thresher-kv/1", found.message)
        with self.refused("kv_export_invalid", KvExportError):
            KvExport.load(data.replace(b'"thresher-kv/1"', b'"thresher-kv/2"'))
        with self.refused("kv_export_invalid", KvExportError):
            KvExport.load(data.replace(b'"layers.0.value"', b'"layers.0.vvvvv"'))
        with self.assertRaises(FileNotFoundError):
            KvExport.load(work / "nowhere")

    def test_invalid_questions_and_options(self):
        _, _, export = exported_kv(self.row["query"], self.row["chunks"])
        ids = without_special(self.row["query"])
        for question, kind, says in [
            ([], ValueError, "at least one token"),
            ("what", TypeError, "token ids"),
            ([[]], ValueError, "at least one token"),
            ([ids, []], ValueError, "at least one token"),
            (torch.tensor([[ids]]), ValueError, "shape"),
            (torch.tensor(ids).float(), TypeError, "integers"),
            (tokenizer(self.row["query"]), ValueError, "add_special_tokens=False"),
            (tokenizer([self.row["query"]] * 2), ValueError, "add_special_tokens=False"),
        ]:
            with self.subTest(str(question)), self.assertRaisesRegex(kind, says):
                generate(model, export, question)
        for options in [{"attention_mask": torch.ones(1, 3)}, {"input_ids": torch.ones(1, 3)}]:
            with self.subTest(str(options)), self.assertRaisesRegex(ValueError, next(iter(options))):
                generate(model, export, ids, **options)
        with self.assertRaisesRegex(ValueError, "attention mask"):
            export.input_ids([ids, ids])

    def test_all_results_of_a_tokenizer_are_accepted(self):
        _, _, export = exported_kv(self.row["query"], self.row["chunks"])
        ids = without_special(self.row["query"])
        results = [tokenizer(self.row["query"], add_special_tokens=False, return_tensors=kind) for kind in (None, "pt", "np")]
        for question in [*results, results[1].input_ids, results[1].input_ids[0], list(results[1].input_ids[0])]:
            self.assertEqual(export.input_ids(question).tolist(), export.input_ids(ids).tolist())

    def test_an_unknown_query_parameter(self):
        with self.assertRaises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"{daemon.url}/v1/kv/x?fingerprnt=1")
        self.addCleanup(raised.exception.close)
        self.assertEqual(raised.exception.code, 400)


class Recipe(Test):
    def test_the_recipe_prints_what_the_docs_show(self):
        """With calibrated heads, as in docs/models.md."""
        calibrated = work / "calibrated"
        for command in (["export", FOLDER, "--out", calibrated], ["calibrate", FOLDER / "questions.jsonl"]):
            environment = {**os.environ, "THRESHER__MODEL__DIR": str(calibrated)}
            subprocess.run([BINARY, *command], env=environment, check=True, stdout=subprocess.DEVNULL)
        served = Daemon(THRESHER__MODEL__DIR=str(calibrated), THRESHER__MODEL__KV_DIR=str(calibrated))
        self.addCleanup(served.stop)
        environment = {**os.environ, "THRESHER_URL": served.url}
        run = subprocess.run([sys.executable, RECIPE], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
        self.assertEqual(run.returncode, 0, run.stderr)
        shown = (ROOT / "docs/models.md").read_text()
        for line in run.stdout.splitlines():
            self.assertTrue(f"`{line.strip()}`" in shown, line)

    def test_the_recipe_with_smollm2_prints_what_the_docs_show(self):
        """`make decoder` fetches and exports the model. transformers needs gguf and accelerate to load it."""
        missing = [str(path) for path in (SMOLLM2, SMOLLM2_GGUF) if not path.exists()]
        missing += [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
        if missing:
            self.skipTest(f"missing: {', '.join(missing)}")
        served = Daemon(THRESHER__MODEL__KV_DIR=str(SMOLLM2))
        self.addCleanup(served.stop)
        environment = {**os.environ, "THRESHER_URL": served.url}
        run = subprocess.run(
            [sys.executable, RECIPE.with_name("with_smollm2.py")], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        shown = (ROOT / "docs/kv-export.md").read_text()
        # Support is a score, whose last digit differs between machines.
        for line in run.stdout.splitlines():
            self.assertIn(line.partition(": [")[2] or line, shown)

    def test_its_answer_is_that_of_transformers(self):
        request = json.loads((ROOT / "docs/examples/facts.json").read_text())
        _, _, export = exported_kv(request["query"], request["chunks"], budget=request["budget"])
        layers = self.check_file(export, request["chunks"])
        question = without_special(request["query"])
        generated = generate(model, export, question, max_new_tokens=NEW_TOKENS, do_sample=False)
        self.assertEqual(generated.tolist(), generate_by_transformers(layers, question)[1])


if __name__ == "__main__":
    unittest.main()
