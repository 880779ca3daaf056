"""Keys and values that the daemon exports, loaded into vLLM and llama.cpp.

`make kv-engines` installs the engines into a virtual environment and runs this there. vLLM serves models/facts in single precision on
the CPU, with a cache so small that concurrent requests are preempted.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import unittest
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import facts_gguf  # noqa: E402
import httpx  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import xllamacpp  # noqa: E402
from daemon import BINARY, ROOT, Daemon, eventually  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from thresher_client import Client, KvExportError  # noqa: E402
from thresher_client._kv_file import hash_token_ids  # noqa: E402
from thresher_client._vllm_connector import _rotates_by  # noqa: E402
from thresher_client.llama_cpp import write_slot  # noqa: E402
from thresher_client.transformers import KvExport  # noqa: E402
from thresher_client.vllm import request  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.rotary_embedding import get_rope  # noqa: E402

FOLDER = ROOT / "models" / "facts"
NEW_TOKENS = 24
START_S = 300
ANSWER_S = 120
# Longer than any pause of the daemon in these tests.
TIMEOUT_S = 60
BLOCK_TOKENS = 32
# Enough for two of the larger prompts, of about 700 tokens.
BLOCKS = 80

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(2)
torch.set_grad_enabled(False)


def setUpModule():
    global work, daemon, client, other_tenant, engine, model, tokenizer, rows
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    work = Path(folder.name)
    (work / "exports").mkdir()
    subprocess.run([BINARY, "export", FOLDER, "--out", work / "onnx"], check=True, stdout=subprocess.DEVNULL)
    keys = {name: new_key(name) for name in ("a", "b")}
    daemon = start_daemon(work / "onnx", THRESHER__ACCESS__KEYS_FILE=str(work / "keys.toml"))
    client, other_tenant = (Client(daemon.url, api_key=keys[name]) for name in ("a", "b"))
    for one in (client, other_tenant):
        unittest.addModuleCleanup(one.close)
    engine = Engine(keys["a"])
    unittest.addModuleCleanup(engine.stop)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    with open(FOLDER / "rows.jsonl") as lines:
        rows = [json.loads(line) for line in lines][:6]
    engine.wait()


def new_key(name):
    command = [BINARY, "key", "new", "--name", name, "--tenant", name, "--file", work / "keys.toml"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    (key,) = [word for word in made.stdout.split() if word.startswith("thr_")]
    return key


def start_daemon(folder, **settings):
    started = Daemon(**{"THRESHER__MODEL__DIR": str(folder), "THRESHER__BLOCKS__CODEC": "f32", **settings})
    unittest.addModuleCleanup(started.stop)
    return started


class Engine:
    """vLLM's server of the OpenAI API, on a socket in the file system, so that it needs no free port."""

    def __init__(self, key):
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=str(work / "vllm.sock")), base_url="http://vllm", timeout=ANSWER_S)
        self.log = work / "vllm.log"
        transfer = {
            "kv_connector": "ThresherConnector",
            "kv_connector_module_path": "thresher_client.vllm",
            "kv_role": "kv_consumer",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"url": daemon.url, "dir": str(work / "exports"), "timeout_s": TIMEOUT_S},
        }
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", FOLDER, "--served-model-name", "facts"),
            *("--uds", work / "vllm.sock", "--dtype", "float32", "--enforce-eager"),
            *("--block-size", BLOCK_TOKENS, "--num-gpu-blocks-override", BLOCKS, "--max-model-len", 1024),
            *("--kv-transfer-config", json.dumps(transfer)),
            *("--chat-template", "<s>{% for message in messages %}{{ message.content }}{% endfor %}"),
        ]
        environment = {
            **os.environ,
            # vLLM imports more than two thousand modules in each of three processes.
            "PYTHONDONTWRITEBYTECODE": "",
            "THRESHER_API_KEY": key,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "2",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log, cwd=work)

    def wait(self):
        try:
            eventually("vLLM is ready", self._is_ready, START_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-6000:]}") from error

    def _is_ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"vLLM ended with {self.process.returncode}")
        with warnings.catch_warnings():
            # httpcore does not close a socket that could not connect.
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return self.http.get("/health").status_code == 200
            except httpx.TransportError:
                return False

    def stop(self):
        self.http.close()
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def answer(self, body, new_tokens=NEW_TOKENS, **options):
        """The ids of the greedy answer to a request."""
        body = {"model": "facts", "max_tokens": new_tokens, "temperature": 0, "return_token_ids": True, "ignore_eos": True, **body}
        response = self.http.post("/v1/completions", json=body, **options)
        response.raise_for_status()
        return response.json()["choices"][0]["token_ids"]

    def metrics(self):
        """The values of the metrics by name and labels."""
        lines = self.http.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and not line.startswith("#")}

    def value(self, name):
        """The sum of a metric over all labels."""
        return sum(value for key, value in self.metrics().items() if key.partition("{")[0] == name)

    def outcomes(self):
        """How many requests had which outcome."""
        found = {key: value for key, value in self.metrics().items() if key.startswith("vllm:thresher_requests_total{")}
        return {key.partition('outcome="')[2].partition('"')[0]: int(value) for key, value in found.items()}

    def tokens(self):
        """How many tokens were loaded."""
        return int(self.value("vllm:thresher_tokens_total"))


# ----------------------------------------------------------------------------------------------------- exports and expected answers


def exported(query, chunks, using=None, **options):
    """The loaded export, its handle, and the bytes of its file."""
    using = using or client
    handle = using.compress(query, chunks, **{"budget": {"ratio": 1}, "include": ["kv"], **options}).kv.handle
    data = using.kv(handle)
    return KvExport.load(data), handle, data


def question_of(row):
    return tokenizer(row["query"], add_special_tokens=False).input_ids


def greedy(ids, cache, new_tokens=NEW_TOKENS):
    """The greedy answer of transformers to these tokens, behind those of the cache. It does not stop at the end token."""
    answer = []
    while len(answer) < new_tokens:
        answer.append(int(model(torch.tensor([ids]), past_key_values=cache).logits[0, -1].argmax()))
        ids = answer[-1:]
    return answer


def handover(export, question, new_tokens=NEW_TOKENS, fingerprint=None):
    """The answer of transformers with the export's keys and values. `fingerprint` is only for exports of the same weights in another file."""
    return greedy(question, export.cache(model, fingerprint), new_tokens)


def prefill(ids, new_tokens=NEW_TOKENS):
    """The answer of transformers without an export."""
    return greedy(ids, DynamicCache(config=model.config), new_tokens)


def plain(body):
    """The request without the export."""
    return {"prompt": body["prompt"], "cache_salt": uuid.uuid4().hex}


def changed(data, name, tensors=None, **metadata):
    """Writes an export with other metadata, or with other tensors, into the folder of the engine."""
    path = work / "exports" / name
    path.write_bytes(data)
    with safe_open(path, framework="pt") as opened:
        before, found = opened.metadata(), {key: opened.get_tensor(key) for key in opened.keys()}
    save_file({key: (tensors or torch.clone)(tensor) for key, tensor in found.items()}, path, {**before, **metadata})
    return path


class VllmTest(unittest.TestCase):
    """Counts what vLLM says of its requests during a test."""

    def setUp(self):
        self.outcomes = engine.outcomes()

    def check_outcomes(self, **expected):
        """Asserts how many requests had which outcome since the test began."""
        found = {}

        def counted():
            found.update({name: count - self.outcomes.get(name, 0) for name, count in engine.outcomes().items()})
            return sum(found.values()) >= sum(expected.values())

        eventually("the requests are counted", counted)
        self.assertEqual({name: count for name, count in found.items() if count}, expected)


class InVllm(VllmTest):
    """The answers of vLLM, compared with those of transformers in single precision."""

    def test_one_chunk_is_answered_as_without_an_export(self):
        for row in rows[:4]:
            with self.subTest(row["id"]):
                chunk = row["chunks"][row["gold"][0]]
                export, handle, _ = exported(row["query"], [chunk])
                body = request(export, question_of(row), handle=handle)
                expected = prefill(body["prompt"])
                self.assertEqual(engine.answer(plain(body)), expected)
                self.assertEqual(engine.answer(body), expected)
        self.check_outcomes(loaded=4)

    def test_several_chunks_are_answered_as_by_transformers_with_the_export(self):
        tokens, other = engine.tokens(), 0
        for row in rows:
            with self.subTest(row["id"]):
                export, handle, _ = exported(row["query"], row["chunks"])
                body = request(export, question_of(row), handle=handle)
                expected = handover(export, question_of(row))
                self.assertEqual(engine.answer(body), expected)
                other += expected != prefill(body["prompt"])
                tokens += export.next_position
        # Chunks that were read separately have other keys, so the export was used.
        self.assertGreater(other, 0)
        self.check_outcomes(loaded=len(rows))
        self.assertEqual(engine.tokens(), tokens)

    def test_exports_in_half_precision(self):
        row = rows[0]
        _, _, data = exported(row["query"], row["chunks"])
        for dtype in (torch.float16, torch.bfloat16):
            with self.subTest(dtype):
                path = changed(data, f"{dtype}.safetensors", lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
                export = KvExport.load(path)
                self.assertEqual(export.layers[0].keys.dtype, dtype)
                body = request(export, question_of(row), file=path.name)
                self.assertEqual(engine.answer(body), handover(export, question_of(row)))
        self.check_outcomes(loaded=2)

    def test_other_requests_do_not_reuse_the_keys(self):
        row, salt = rows[1], uuid.uuid4().hex
        export, handle, _ = exported(row["query"], row["chunks"])
        body = request(export, question_of(row), handle=handle, cache_salt=salt)
        with_export, without = handover(export, question_of(row)), prefill(body["prompt"])
        self.assertNotEqual(with_export, without)
        self.assertEqual(engine.answer({**body, "cache_salt": None}), without)
        self.check_outcomes(cache_salt_missing=1)
        self.assertEqual(engine.answer(body), with_export)
        self.assertEqual(engine.answer({"prompt": body["prompt"]}), without)
        self.assertEqual(engine.answer(plain(body)), without)
        # With the same salt, vLLM's prefix cache has the first blocks, and the connector loads the rest.
        tokens = engine.tokens()
        self.assertEqual(engine.answer(body), with_export)
        self.check_outcomes(cache_salt_missing=1, loaded=2)
        self.assertEqual(engine.tokens() - tokens, export.next_position % BLOCK_TOKENS)

    def test_a_prompt_that_is_the_export(self):
        row = rows[2]
        export, handle, _ = exported(row["query"], [row["chunks"][0]])
        body = request(export, [0], handle=handle)
        body["prompt"] = body["prompt"][:-1]
        self.assertEqual(engine.answer(body), prefill(body["prompt"]))
        self.check_outcomes(loaded=1)

    def test_concurrent_requests_that_are_preempted(self):
        made, new_tokens = [], 120
        for row in rows[:4]:
            export, handle, _ = exported(row["query"], row["chunks"])
            body = request(export, question_of(row), handle=handle)
            made.append((body, handover(export, question_of(row), new_tokens)))
            made.append((plain(body), prefill(body["prompt"], new_tokens)))
        preempted = engine.value("vllm:num_preemptions_total")
        with ThreadPoolExecutor(len(made) * 3) as threads:
            # Salts of their own, so that every request is loaded.
            bodies = [{**body, "cache_salt": uuid.uuid4().hex} for body, _ in made * 3]
            answers = list(threads.map(lambda body: engine.answer(body, new_tokens), bodies))
        for at, (answer, (_, expected)) in enumerate(zip(answers, made * 3)):
            with self.subTest(at):
                self.assertEqual(answer, expected)
        self.assertGreater(engine.value("vllm:num_preemptions_total"), preempted)
        self.assertGreaterEqual(engine.outcomes()["loaded"] - self.outcomes.get("loaded", 0), 12)

    def test_exports_that_cannot_be_loaded(self):
        row = rows[3]
        export, handle, data = exported(row["query"], row["chunks"])
        _, foreign, _ = exported(row["query"], row["chunks"], other_tenant)
        cut = work / "exports" / "cut"
        cut.write_bytes(data[: len(data) // 2])
        changed(data, "weights", fingerprint="0" * 64)
        changed(data, "rotary", rotary_frequencies=json.dumps([one * 1.01 for one in export.rotary_frequencies]))
        changed(data, "heads", policy="heads")
        (work / "outside").write_bytes(data)
        question = question_of(row)
        body = request(export, question, handle=handle)
        expected = prefill(body["prompt"])
        self.assertNotEqual(handover(export, question), expected)
        for outcome, source in [
            ("handle_unknown", {"handle": "kv_unknown"}),
            ("handle_unknown", {"handle": foreign}),
            ("export_invalid", {"file": "cut"}),
            ("model_mismatch", {"file": "weights"}),
            ("rotary_mismatch", {"file": "rotary"}),
            ("policy_unsupported", {"file": "heads"}),
            ("file_unknown", {"file": "../outside"}),
            ("parameters_invalid", {"handle": "../../metrics", "cache_salt": uuid.uuid4().hex}),
        ]:
            with self.subTest(outcome, source=source):
                self.setUp()
                self.assertEqual(engine.answer(request(export, question, **source)), expected)
                self.check_outcomes(**{outcome: 1})
        with self.subTest("other tokens"):
            self.setUp()
            other = [*body["prompt"][:5], 9, *body["prompt"][6:]]
            self.assertEqual(engine.answer({**body, "prompt": other}), prefill(other))
            self.check_outcomes(tokens_differ=1)
        with self.subTest("a hash of other tokens"):
            self.setUp()
            fields = request(export, question, handle=handle)
            own = fields["kv_transfer_params"]["thresher"]
            fields["prompt"], own["token_ids_sha256"] = other, hash_token_ids(other[: own["tokens"]])
            self.assertEqual(engine.answer(fields), prefill(other))
            self.check_outcomes(tokens_differ=1)

    def test_a_chat_begins_with_the_text_of_the_export(self):
        row = rows[4]
        # This tokenizer begins every text with a blank.
        chunks = [{"id": chunk["id"], "text": " " + chunk["text"]} for chunk in row["chunks"]]
        kv = client.compress(row["query"], chunks, budget={"ratio": 1}, include=["kv"], kv={"before": "many people :"}).kv
        export = KvExport.load(client.kv(kv.handle))
        messages = [{"role": "system", "content": "many people :"}, {"role": "user", "content": f"{kv.text} {row['query']}"}]
        body = {"model": "facts", "messages": messages, "max_tokens": NEW_TOKENS, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        response = engine.http.post("/v1/chat/completions", json={**body, **request(kv)})
        response.raise_for_status()
        self.assertEqual(response.json()["choices"][0]["token_ids"], handover(export, question_of(row)))
        self.check_outcomes(loaded=1)

    def test_vllm_answers_others_while_it_waits_for_the_daemon(self):
        row, other = rows[4], rows[5]
        export, handle, _ = exported(row["query"], row["chunks"])
        body = request(export, question_of(row), handle=handle)
        ids = tokenizer(other["query"]).input_ids
        with ThreadPoolExecutor(1) as thread:
            daemon.pause()
            try:
                waiting = thread.submit(engine.answer, body)
                eventually("the request waits", lambda: engine.value("vllm:num_requests_waiting") == 1)
                for _ in range(3):
                    self.assertEqual(engine.answer({"prompt": ids}), prefill(ids))
                self.assertFalse(waiting.done())
            finally:
                daemon.resume()
            self.assertEqual(waiting.result(), handover(export, question_of(row)))
        self.check_outcomes(loaded=1)

    def test_a_request_that_is_cancelled_while_it_waits(self):
        row = rows[5]
        export, handle, _ = exported(row["query"], row["chunks"][:5])
        body = request(export, question_of(row), handle=handle)
        daemon.pause()
        try:
            with self.assertRaises(httpx.ReadTimeout):
                engine.answer(body, timeout=2)
        finally:
            daemon.resume()
        # The load ends, and its blocks are free again.
        self.check_outcomes(loaded=1)
        eventually("no request waits", lambda: engine.value("vllm:num_requests_waiting") == 0)
        eventually("no block is used", lambda: engine.value("vllm:kv_cache_usage_perc") == 0)
        self.assertEqual(engine.answer(body), handover(export, question_of(row)))


class RotaryEmbeddings(unittest.TestCase):
    """vLLM's own embeddings, whose tables are in the precision of the model, compared with the frequencies of transformers."""

    def setUp(self):
        # VllmConfig warns of what this machine lacks.
        logging.disable(logging.WARNING)
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_frequencies_are_compared_in_every_precision(self):
        llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        for theta, dims, scaling in [(1e4, 64, {}), (1e6, 32, {}), (5e5, 128, llama3), (1e4, 64, {"rope_type": "linear", "factor": 2.0})]:
            own = {"rope_type": "default", "rope_theta": theta, **scaling}
            others = [{**own, "rope_theta": theta * factor} for factor in (0.5, 0.98, 1.02, 10)]
            others.append({"rope_theta": theta, "rope_type": "default"} if scaling else {**llama3, "rope_theta": theta})
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                with self.subTest(theta, dims=dims, scaling=scaling, dtype=dtype), set_current_vllm_config(VllmConfig()):
                    module = get_rope(dims, 8192, rope_parameters=own, dtype=dtype)
                    self.assertTrue(_rotates_by(module, frequencies(dims, own)))
                    for other in others:
                        self.assertFalse(_rotates_by(module, frequencies(dims, other)), other)


def frequencies(dims, parameters):
    """The rotary frequencies of a Llama of transformers with heads of `dims` dimensions."""
    config = LlamaConfig(hidden_size=dims, num_attention_heads=1, head_dim=dims, max_position_embeddings=131072, rope_parameters=parameters)
    return tuple(LlamaRotaryEmbedding(config).inv_freq.tolist())


class InLlamaCpp(unittest.TestCase):
    """The answers of llama.cpp, whose cache is in half precision, up to the end token."""

    @classmethod
    def setUpClass(cls):
        cls.gguf, cls.slots = work / "facts.gguf", work / "slots"
        cls.slots.mkdir()
        facts_gguf.write(FOLDER, cls.gguf)
        subprocess.run([BINARY, "export", cls.gguf, "--out", work / "gguf-onnx"], check=True, stdout=subprocess.DEVNULL)
        cls.client = Client(start_daemon(work / "gguf-onnx").url)
        cls.addClassCleanup(cls.client.close)
        options = xllamacpp.CommonParams()
        options.model.path, options.slot_save_path, options.port = str(cls.gguf), f"{cls.slots}/", 0
        options.n_ctx, options.n_parallel, options.cpuparams.n_threads, options.verbosity = 2048, 1, 2, 0
        options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
        cls.server = xllamacpp.Server(options)
        cls.http = httpx.Client(base_url=cls.server.listening_address, timeout=ANSWER_S)
        cls.addClassCleanup(cls.http.close)

    def answer(self, ids, **options):
        """The greedy answer, and how many tokens of the prompt were read for it."""
        body = {"prompt": ids, "n_predict": NEW_TOKENS, "temperature": 0, "return_tokens": True, "id_slot": 0, **options}
        found = self.http.post("/completion", json=body).raise_for_status().json()
        return found["tokens"], found["timings"]["prompt_n"]

    def restore(self, data, row):
        """Restores an export, and returns the tokens of the prompt."""
        name = f"{uuid.uuid4().hex}.bin"
        ids = write_slot(data, self.slots / name, self.gguf)
        found = self.http.post("/slots/0?action=restore", json={"filename": name}).raise_for_status().json()
        self.assertEqual(found["n_restored"], len(ids))
        return ids + question_of(row)

    def check_answer(self, row, data, expected):
        ids, question = self.restore(data, row), question_of(row)
        # The end token is included.
        end = expected.index(model.config.eos_token_id) + 1
        self.assertEqual(self.answer(ids), (expected[:end], len(question)))
        return ids, expected[:end]

    def test_one_chunk_is_answered_as_without_an_export(self):
        for row in rows[:4]:
            with self.subTest(row["id"]):
                export, _, data = exported(row["query"], [row["chunks"][row["gold"][0]]], self.client)
                ids, expected = self.check_answer(row, data, prefill(export.token_ids.tolist() + question_of(row)))
                self.assertEqual(self.answer(ids, cache_prompt=False), (expected, len(ids)))

    def test_several_chunks_are_answered_as_by_transformers_with_the_export(self):
        for row in rows:
            with self.subTest(row["id"]):
                export, _, data = exported(row["query"], row["chunks"], self.client)
                self.check_answer(row, data, handover(export, question_of(row), fingerprint=export.fingerprint))

    def test_another_version_is_refused(self):
        _, _, data = exported(rows[0]["query"], rows[0]["chunks"], self.client)
        write_slot(data, self.slots / "other.bin", self.gguf)
        slot = bytearray((self.slots / "other.bin").read_bytes())
        slot[4] += 1
        (self.slots / "other.bin").write_bytes(slot)
        self.assertEqual(self.http.post("/slots/0?action=restore", json={"filename": "other.bin"}).status_code, 400)

    def test_exports_of_other_weights(self):
        _, _, data = exported(rows[0]["query"], rows[0]["chunks"])
        with self.assertRaises(KvExportError) as raised:
            write_slot(data, self.slots / "never.bin", self.gguf)
        self.assertEqual(raised.exception.code, "model_mismatch")


class InVllmWithoutADaemon(VllmTest):
    """Runs last, because it stops the daemon."""

    def test_the_daemon_is_gone(self):
        row = rows[0]
        kept, gone = (exported(row["query"], chunks) for chunks in (row["chunks"], row["chunks"][:10]))
        bodies = [request(export, question_of(row), handle=handle) for export, handle, _ in (kept, gone)]
        self.assertEqual(engine.answer(bodies[0]), handover(kept[0], question_of(row)))
        daemon.stop()
        # The worker still has the first one in memory.
        again = {**bodies[0], "cache_salt": uuid.uuid4().hex}
        self.assertEqual(engine.answer(again), handover(kept[0], question_of(row)))
        self.assertEqual(engine.answer(bodies[1]), prefill(bodies[1]["prompt"]))
        self.check_outcomes(loaded=2, fetch_failed=1)


if __name__ == "__main__":
    unittest.main()
