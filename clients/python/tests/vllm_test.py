"""The connector of vLLM: its decisions, its threads and what it reports, without vLLM. tests/kv_engines runs it inside vLLM."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import vllm_fakes
from daemon import eventually
from kv_files import FINGERPRINT, FREQUENCIES, HEAD_DIM, KV_HEADS, LAYERS, element, export_file
from scripted_server import Answer, ScriptedServer
from thresher_client import KvExportError
from thresher_client._kv_file import KvFile, hash_token_ids
from thresher_client._kv_sources import Source
from thresher_client.vllm import request
from vllm_fakes import BLOCK_TOKENS, Attention, FullAttentionSpec, Role, SlidingWindowSpec

with patch.dict(sys.modules):
    vllm_fakes.install()
    from thresher_client import _vllm_connector as connector
    from thresher_client._vllm_metrics import PromMetrics, Stats

IDS = [1, 5, 6, 7, 8, 9, 10, 11, 12, 13]
QUESTION = [20, 21, 22]
HANDLE = "kv_0123456789abcdef"
ROWS = 64
ERROR = {"error": {"code": "", "message": "no", "type": "x", "param": None}}


def parameters(**changes: Any) -> dict[str, Any]:
    """`kv_transfer_params` of a request with these fields in place of the right ones; None removes one."""
    fields = {"handle": HANDLE, "tokens": len(IDS), "token_ids_sha256": hash_token_ids(IDS), **changes}
    return {"thresher": {name: value for name, value in fields.items() if value is not None}}


def engine_request(request_id: str = "r", **changes: Any) -> Any:
    """A request as the scheduler of vLLM has it."""
    fields = {
        "request_id": request_id,
        "kv_transfer_params": parameters(),
        "cache_salt": "salt",
        "prompt_token_ids": IDS + QUESTION,
        "prompt_embeds": None,
    }
    return SimpleNamespace(**{**fields, **changes})


def refusal(code: str) -> dict[str, Any]:
    return {"error": {**ERROR["error"], "code": code}}


def scheduler_side(**cache: Any) -> Any:
    config = vllm_fakes.configuration(url="http://127.0.0.1:1")
    config.cache_config.__dict__.update(cache)
    return connector.ThresherConnector(config, Role.SCHEDULER, vllm_fakes.cache_configuration())


class Quiet(unittest.TestCase):
    """Keeps the connector's warnings out of the output of the tests."""

    def setUp(self) -> None:
        logger = logging.getLogger("vllm.thresher")
        logger.propagate = False
        handler = logging.NullHandler()
        logger.addHandler(handler)


class RequestFields(unittest.TestCase):
    def kv(self, **changes: Any) -> Any:
        return SimpleNamespace(**{"policy": "chunks", "handle": HANDLE, "token_ids": tuple(IDS), "extra": {}, **changes})

    def test_the_fields_of_a_response_with_token_ids(self) -> None:
        expected = {"prompt": IDS + QUESTION, "cache_salt": HANDLE, "kv_transfer_params": parameters()}
        self.assertEqual(request(self.kv(), QUESTION), expected)
        self.assertEqual(request(self.kv(text="Rain fell.\n")), {name: expected[name] for name in ("cache_salt", "kv_transfer_params")})
        # A client that does not know the field.
        older = SimpleNamespace(policy="chunks", handle=HANDLE, extra={"token_ids": IDS})
        self.assertEqual(request(older, iter(QUESTION)), expected)  # type: ignore[arg-type]
        self.assertEqual(request(self.kv(), QUESTION, cache_salt="mine")["cache_salt"], "mine")

    def test_the_fields_of_a_loaded_export(self) -> None:
        loaded: Any = SimpleNamespace(policy="chunks", token_ids=SimpleNamespace(tolist=lambda: IDS))
        self.assertEqual(request(loaded, QUESTION, handle=HANDLE)["kv_transfer_params"], parameters())
        made = [request(loaded, QUESTION, file="a.safetensors") for _ in range(2)]
        self.assertEqual(made[0]["kv_transfer_params"], parameters(handle=None, file="a.safetensors"))
        # Nobody can guess the salt of a file.
        self.assertEqual(len({one["cache_salt"] for one in made}), 2)
        self.assertEqual(len(made[0]["cache_salt"]), 32)

    def test_wrong_arguments(self) -> None:
        loaded: Any = SimpleNamespace(policy="chunks", token_ids=IDS)
        cases: list[tuple[str, Callable[[], Any], str]] = [
            ("no source", lambda: request(loaded, QUESTION), "handle"),
            ("two sources", lambda: request(loaded, QUESTION, handle=HANDLE, file="a"), "not both"),
            ("no question", lambda: request(self.kv(), []), "at least one token"),
            ("no text", lambda: request(self.kv(text=None)), "question_ids"),
            ("no ids", lambda: request(self.kv(token_ids=None), QUESTION), "token_ids"),
        ]
        for name, call, says in cases:
            with self.subTest(name), self.assertRaisesRegex(ValueError, says):
                call()
        with self.assertRaises(KvExportError) as raised:
            request(self.kv(policy="heads"), QUESTION)
        self.assertEqual(raised.exception.code, "policy_unsupported")

    def test_what_it_makes_is_what_the_connector_reads(self) -> None:
        made = request(self.kv(), QUESTION)
        self.assertEqual(Source.from_parameters(made["kv_transfer_params"]), Source(HANDLE, None, len(IDS), hash_token_ids(IDS)))

    def test_applications_do_not_need_vllm(self) -> None:
        program = (
            "import thresher_client.vllm as adapter; adapter.request\n"
            "try: adapter.ThresherConnector\n"
            "except ImportError as error: print(error)\n"
            "try: adapter.Other\n"
            "except AttributeError as error: print(error)\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("ThresherConnector runs inside vLLM 0.32: install thresher-client into vLLM's own environment", run.stdout)
        self.assertIn("has no attribute 'Other'", run.stdout)


class Configuration(Quiet):
    def test_engines_that_cannot_load_exports(self) -> None:
        def check(says: str, path: str, value: Any) -> None:
            config = vllm_fakes.configuration(url="http://127.0.0.1:1")
            target = config
            *parents, name = path.split(".")
            for parent in parents:
                target = getattr(target, parent)
            setattr(target, name, value)
            with self.subTest(path, value=value), self.assertRaisesRegex(ValueError, says):
                connector.ThresherConnector(config, Role.SCHEDULER, vllm_fakes.cache_configuration())

        check("kv_consumer", "kv_transfer_config.kv_role", "kv_both")
        check("recompute", "kv_transfer_config.kv_load_failure_policy", "fail")
        check("pipeline", "parallel_config.pipeline_parallel_size", 2)
        check("context parallelism", "parallel_config.decode_context_parallel_size", 2)
        check("context parallelism", "parallel_config.prefill_context_parallel_size", 2)
        check("LoRA", "lora_config", SimpleNamespace())
        check("weights quantised by vLLM .awq.", "model_config.quantization", "awq")
        check("random", "load_config.load_format", "dummy")
        check("MLA", "model_config.use_mla", True)
        for dtype in ("fp8", "fp8_e5m2", "nvfp4", "int8_per_token_head"):
            check(f"quantised cache of keys and values .{dtype}.", "cache_config.cache_dtype", dtype)

    def test_caches_that_cannot_be_loaded(self) -> None:
        class Latent(FullAttentionSpec):
            pass

        kinds: list[list[Any]] = [
            [SlidingWindowSpec()],
            [FullAttentionSpec(), SlidingWindowSpec()],
            [FullAttentionSpec(sliding_window=16)],
            [FullAttentionSpec(attention_chunk_size=16)],
            [Latent()],
        ]
        for specs in kinds:
            with self.subTest(str(specs)):
                config = vllm_fakes.configuration(url="http://127.0.0.1:1")
                (found,) = connector.find_unsupported(config, vllm_fakes.cache_configuration(*specs))
                self.assertIn("full attention without a sliding window", found)

    def test_all_reasons_are_reported_at_once(self) -> None:
        config = vllm_fakes.configuration(url="http://127.0.0.1:1")
        config.lora_config = config.model_config.quantization = "awq"
        self.assertEqual(len(connector.find_unsupported(config, vllm_fakes.cache_configuration())), 2)

    def test_wrong_settings(self) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "needs url"),
            ({"url": "http://h", "cache_bytes": 1}, "unknown settings"),
            ({"dir": "/nowhere"}, "not a folder"),
            ({"url": 1}, "url is 1"),
            ({"url": "http://h", "threads": 0}, "threads"),
            ({"url": "http://h", "threads": 1.5}, "threads"),
            ({"url": "http://h", "cache_bytes_max": -1}, "cache_bytes_max"),
            ({"url": "http://h", "timeout_s": 0}, "timeout_s"),
            ({"url": "http://h", "timeout_s": -1}, "timeout_s"),
            ({"url": "http://h", "timeout_s": True}, "timeout_s"),
            ({"url": "http://h", "cache_bytes_max": "1 GB"}, "cache_bytes_max"),
        ]
        for extra, says in cases:
            with self.subTest(str(extra)), self.assertRaisesRegex(ValueError, says):
                connector.Settings.from_extra_config(extra)
        connector.Settings.from_extra_config({"url": "http://h", "cache_bytes_max": 0})

    def test_weights_that_cannot_be_identified(self) -> None:
        config = vllm_fakes.configuration(url="http://127.0.0.1:1")
        del config.kv_transfer_config.kv_connector_extra_config["fingerprint"]
        with self.assertRaisesRegex(ValueError, "fingerprint of 'nowhere'"):
            connector.ThresherConnector(config, Role.WORKER, vllm_fakes.cache_configuration())


class Scheduling(Quiet):
    def check(self, name: str, expected: str | None, **changes: Any) -> None:
        """Asserts the outcome of a request, None if all tokens of its export are to be loaded."""
        with self.subTest(name):
            side = scheduler_side()
            found = [side.get_num_new_matched_tokens(engine_request(**changes), 0) for _ in range(3)]
            stats = side.get_kv_connector_stats()
            if expected is None:
                self.assertEqual((found, stats), ([(len(IDS), True)] * 3, None))
            else:
                # A request is counted once, however often vLLM asks.
                self.assertEqual((found, stats.data["outcomes"]), ([(0, False)] * 3, {expected: 1}))

    def test_decisions(self) -> None:
        check = self.check
        check("right", None)
        check("no salt", "cache_salt_missing", cache_salt=None)
        check("an empty salt", "cache_salt_missing", cache_salt="")
        check("prompt shorter than the export", "prompt_too_short", prompt_token_ids=IDS[:-1])
        check("prompt with embeddings", "parameters_invalid", prompt_embeds=object())
        check("no prompt", "prompt_too_short", prompt_token_ids=None)
        check("other tokens", "tokens_differ", prompt_token_ids=[2, *IDS[1:], *QUESTION])
        check("question in front", "tokens_differ", prompt_token_ids=QUESTION + IDS)
        wrong: list[dict[str, Any]] = [
            {"handle": None},
            {"file": "a"},
            {"handle": "../x"},
            {"handle": "http://other/"},
            {"handle": 1},
            {"handle": None, "file": ""},
            {"handle": None, "file": "a\0"},
            {"handle": None, "file": ["a"]},
            {"tokens": 0},
            {"tokens": True},
            {"tokens": 10.0},
            {"tokens": None},
            {"token_ids_sha256": "x"},
            {"token_ids_sha256": None},
            {"url": "http://other/"},
        ]
        for fields in wrong:
            check(str(fields), "parameters_invalid", kv_transfer_params=parameters(**fields))
        check("not an object", "parameters_invalid", kv_transfer_params={"thresher": HANDLE})

    def test_requests_without_an_export(self) -> None:
        side = scheduler_side()
        for given in (None, {}, {"other": 1}):
            self.assertEqual(side.get_num_new_matched_tokens(engine_request(str(given), kv_transfer_params=given), 0), (0, False))
        self.assertIsNone(side.get_kv_connector_stats())

    def test_a_salt_is_needed_only_with_prefix_caching(self) -> None:
        side = scheduler_side(enable_prefix_caching=False)
        self.assertEqual(side.get_num_new_matched_tokens(engine_request(cache_salt=None), 0), (len(IDS), True))

    def test_cached_tokens_are_not_loaded_again(self) -> None:
        for computed, expected in [(0, (10, True)), (4, (6, True)), (8, (2, True)), (12, (0, False))]:
            with self.subTest(computed):
                side = scheduler_side()
                self.assertEqual(side.get_num_new_matched_tokens(engine_request(), computed), expected)
        # The last token of the prompt is read, because vLLM needs its logits.
        self.assertEqual(scheduler_side().get_num_new_matched_tokens(engine_request(prompt_token_ids=IDS), 0), (9, True))

    def start(self, side: Any, made: Any, computed: int = 0, blocks: Sequence[int] = (7, 3, 5, 2)) -> Any:
        """Lets the scheduler allocate blocks for a load, and returns the load."""
        count, _ = side.get_num_new_matched_tokens(made, computed)
        side.update_state_after_alloc(made, SimpleNamespace(get_block_ids=lambda: (list(blocks),)), count)
        (load,) = side.build_connector_meta(None).loads
        return load

    def test_loads_are_sent_to_the_workers_once(self) -> None:
        side = scheduler_side()
        load = self.start(side, engine_request(), computed=4)
        self.assertEqual((load.request_id, load.start, load.end, load.block_ids), ("r", 4, 10, [7, 3, 5, 2]))
        self.assertEqual(load.source.handle, HANDLE)
        # After the load, vLLM allocates blocks for the question.
        side.update_state_after_alloc(engine_request(), SimpleNamespace(get_block_ids=lambda: ([7, 3, 5, 2, 9],)), 0)
        self.assertEqual(side.build_connector_meta(None).loads, [])

    def test_a_failed_load_is_not_repeated(self) -> None:
        side = scheduler_side()
        made = engine_request()
        self.start(side, made)
        # With tensor parallelism, a rank may report its failure before the others have finished.
        side.update_connector_output(SimpleNamespace(finished_recving=None, invalid_block_ids={7, 3}))
        self.assertEqual(side.get_num_new_matched_tokens(made, 0), (10, True))
        side.update_connector_output(SimpleNamespace(finished_recving={"r"}, invalid_block_ids=set()))
        self.assertEqual(side.get_num_new_matched_tokens(made, 0), (0, False))

    def test_a_preempted_request_is_loaded_again(self) -> None:
        side = scheduler_side()
        made, other = engine_request(), engine_request("other")
        self.start(side, made)
        self.start(side, other, blocks=(11, 12, 13))
        side.update_connector_output(SimpleNamespace(finished_recving={"r", "other"}, invalid_block_ids={12}))
        self.assertEqual(side.get_num_new_matched_tokens(made, 0), (10, True))
        self.assertEqual(side.get_num_new_matched_tokens(other, 0), (0, False))
        # Blocks that failed for another request are free again, and may be allocated for this one.
        self.assertEqual(self.start(side, made, blocks=(12, 1, 2)).block_ids, [12, 1, 2])
        side.update_connector_output(SimpleNamespace(finished_recving={"r"}, invalid_block_ids=set()))
        self.assertEqual(side.get_num_new_matched_tokens(made, 0), (10, True))

    def test_requests_that_end_are_forgotten(self) -> None:
        side = scheduler_side()
        made = engine_request()
        self.start(side, made)
        self.assertEqual(side.request_finished_all_groups(made, ([7],)), (False, None))
        self.assertEqual(side.request_finished(made, [7]), (False, None))
        side.update_connector_output(SimpleNamespace(finished_recving={"r"}, invalid_block_ids={7}))
        self.assertEqual(vars(side._scheduler), {**vars(scheduler_side()._scheduler), "_stats": side._scheduler._stats})


class Working(Quiet):
    def setUp(self) -> None:
        super().setUp()
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.folder = Path(work.name, "exports")
        self.folder.mkdir()
        self.outside = Path(work.name, "outside.safetensors")
        self.outside.write_bytes(export_file(IDS))
        vllm_fakes.ROPE.clear()
        vllm_fakes.ROPE["model"] = vllm_fakes.rotary_embedding()

    def side(self, ranks: int = 1, rank: int = 0, **extra: Any) -> Any:
        """A worker with empty caches."""
        config = vllm_fakes.configuration(ranks, **{"dir": str(self.folder), "timeout_s": 5, **extra})
        self.layers = [Attention(ROWS, max(KV_HEADS // ranks, 1)) for _ in range(LAYERS)]
        names = {f"layers.{index}.attn": layer for index, layer in enumerate(self.layers)}
        config.compilation_config.static_forward_context = names
        side = connector.ThresherConnector(config, Role.WORKER, vllm_fakes.cache_configuration())
        self.addCleanup(side.shutdown)
        with patch.object(vllm_fakes, "RANK", [rank]):
            vllm_fakes.RANK[0] = rank
            with patch.object(connector, "get_tensor_model_parallel_rank", lambda: rank):
                side.register_kv_caches(dict.fromkeys(names))
        return side

    def submit(self, side: Any, request_id: str = "r", start: int = 0, end: int = len(IDS), **fields: Any) -> None:
        source = Source.from_parameters(parameters(**fields))
        assert source is not None
        side.bind_connector_metadata(connector.Metadata([connector.Load(request_id, source, start, end, [7, 3, 5])]))
        side.start_load_kv(None)

    def finish(self, side: Any, count: int = 1) -> tuple[set[str], set[int], dict[str, int]]:
        """Waits for loads. Returns the requests, the failed blocks and the outcomes."""
        finished: set[str] = set()

        def ended() -> bool:
            finished.update(side.get_finished(set())[1])
            return len(finished) == count

        eventually("loads have ended", ended)
        stats = side.get_kv_connector_stats()
        return finished, side.get_block_ids_with_load_errors(), {} if stats is None else stats.data["outcomes"]

    def check_rows(self, start: int = 0, end: int = len(IDS), first_head: int = 0) -> None:
        """Asserts that exactly the rows of these tokens were written into blocks 7, 3 and 5."""
        for index, layer in enumerate(self.layers):
            for kind, cache in enumerate((layer.keys, layer.values)):
                rows = {[7, 3, 5][token // BLOCK_TOKENS] * BLOCK_TOKENS + token % BLOCK_TOKENS: token for token in range(start, end)}
                for row in range(ROWS):
                    for head in range(layer.num_kv_heads):
                        expected = [
                            element(kind, index, first_head + head, rows[row], dim) if row in rows else 9.0 for dim in range(HEAD_DIM)
                        ]
                        self.assertEqual(cache[row, head].tolist(), expected, (index, kind, row, head))

    def test_rows_are_written_into_the_blocks_of_the_request(self) -> None:
        (self.folder / "deep").mkdir()
        for dtype in ("F32", "F16"):
            for start, end in [(0, len(IDS)), (4, 9), (8, 10)]:
                with self.subTest(dtype, start=start):
                    (self.folder / "deep" / "a.safetensors").write_bytes(export_file(IDS, dtype))
                    side = self.side()
                    self.submit(side, start=start, end=end, handle=None, file="deep/a.safetensors")
                    self.assertEqual(self.finish(side), ({"r"}, set(), {"loaded": 1}))
                    self.check_rows(start, end)

    def test_each_rank_writes_its_own_heads(self) -> None:
        (self.folder / "a").write_bytes(export_file(IDS))
        for ranks, rank, first_head in [(2, 0, 0), (2, 1, 2), (4, 3, 3), (8, 5, 2)]:
            with self.subTest(ranks, rank=rank):
                side = self.side(ranks, rank)
                self.submit(side, handle=None, file="a")
                # One rank counts for all.
                self.assertEqual(self.finish(side), ({"r"}, set(), {"loaded": 1} if rank == 0 else {}))
                self.check_rows(first_head=first_head)

    def test_exports_are_fetched_with_the_key_of_the_environment_and_the_fingerprint(self) -> None:
        with ScriptedServer(Answer(body=export_file(IDS))) as server, patch.dict(os.environ, {"THRESHER_API_KEY": "secret"}):
            side = self.side(url=server.url)
            self.submit(side)
            self.assertEqual(self.finish(side), ({"r"}, set(), {"loaded": 1}))
            self.check_rows()
            (sent,) = server.requests
            self.assertEqual(sent.path, f"/v1/kv/{HANDLE}?fingerprint={FINGERPRINT}")
            self.assertEqual(sent.headers["Authorization"], "Bearer secret")

    def test_the_daemon_fails(self) -> None:
        for outcome, answer in [
            ("handle_unknown", Answer(404, refusal("id_unknown"))),
            ("model_mismatch", Answer(409, refusal("model_mismatch"))),
            ("fetch_failed", Answer(401, refusal("key_missing"))),
            ("fetch_failed", Answer(503, refusal("overloaded"))),
            ("fetch_failed", Answer(hang_up=True)),
            ("fetch_failed", Answer(body=export_file(IDS), wait_s=1.0)),
            ("export_invalid", Answer(body=b"not an export")),
        ]:
            with self.subTest(outcome, answer=answer.status), ScriptedServer(answer) as server:
                side = self.side(url=server.url, timeout_s=0.4)
                self.submit(side)
                self.assertEqual(self.finish(side), ({"r"}, {7, 3, 5}, {outcome: 1}))
                self.check_rows(0, 0)
                self.assertEqual(side.get_block_ids_with_load_errors(), set())

    def test_blocks_with_cached_tokens_are_not_reported(self) -> None:
        side = self.side()
        self.submit(side, start=4, handle=None, file="nothing")
        self.assertEqual(self.finish(side), ({"r"}, {3, 5}, {"file_unknown": 1}))

    def test_files_that_cannot_be_loaded(self) -> None:
        whole = export_file(IDS)
        local = {"rotary_frequencies_local": "[1.0, 0.5]"}
        for name, outcome, data in [
            ("cut in the header", "export_invalid", whole[:100]),
            ("cut in a tensor", "export_invalid", whole[:-1]),
            ("empty", "export_invalid", b""),
            ("another format", "export_invalid", export_file(IDS, format="thresher-kv/2")),
            ("no fingerprint", "export_invalid", export_file(IDS, fingerprint=None)),
            ("heads", "policy_unsupported", export_file(IDS, policy="heads")),
            ("sliding window", "policy_unsupported", export_file(IDS, **local)),
            ("other weights", "model_mismatch", export_file(IDS, fingerprint="0" * 64)),
            ("fewer layers", "model_mismatch", export_file(IDS, layers="1")),
            ("other shape", "export_invalid", export_file(IDS, kv_heads="2")),
            ("other rotary settings", "rotary_mismatch", export_file(IDS, rotary_frequencies="[1.0, 0.11]")),
            ("other number of frequencies", "rotary_mismatch", export_file(IDS, rotary_frequencies="[1.0]")),
            ("other tokens", "tokens_differ", export_file([*IDS[:-1], 99])),
            ("more tokens", "tokens_differ", export_file([*IDS, 99])),
        ]:
            with self.subTest(name):
                (self.folder / "a").write_bytes(data)
                side = self.side()
                self.submit(side, handle=None, file="a")
                self.assertEqual(self.finish(side), ({"r"}, {7, 3, 5}, {outcome: 1}))
                self.check_rows(0, 0)

    def test_files_outside_the_folder_are_not_read(self) -> None:
        (self.folder / "link").symlink_to(self.outside)
        os.mkfifo(self.folder / "pipe")
        (self.folder / "folder").mkdir()
        side = self.side()
        for name in ("../outside.safetensors", str(self.outside), "link", "pipe", "folder", ".", "..", "x" * 1000, "no\udcff"):
            with self.subTest(name):
                self.submit(side, handle=None, file=name)
                self.assertEqual(self.finish(side), ({"r"}, {7, 3, 5}, {"file_unknown": 1}))

    def test_sources_that_are_not_configured(self) -> None:
        side = self.side()
        self.submit(side)
        self.assertEqual(self.finish(side)[2], {"source_not_configured": 1})
        with ScriptedServer(Answer(404)) as server:
            side = self.side(url=server.url, dir=None)
            self.submit(side, handle=None, file="a")
            self.assertEqual(self.finish(side)[2], {"source_not_configured": 1})
            self.assertEqual(server.requests, [])

    def test_an_unexpected_error_is_reported(self) -> None:
        (self.folder / "a").write_bytes(export_file(IDS))
        side = self.side()
        self.layers[1].impl = SimpleNamespace(do_kv_cache_update=lambda *_: 1 / 0)
        self.submit(side, handle=None, file="a")
        self.assertEqual(self.finish(side), ({"r"}, {7, 3, 5}, {"failed": 1}))

    def test_models_that_do_not_rotate_as_the_export(self) -> None:
        scaled = vllm_fakes.rotary_embedding()
        scaled.cos_sin_cache.array *= 1.1
        for name, module in [
            ("scaled", scaled),
            ("neighbouring pairs", vllm_fakes.rotary_embedding(is_neox_style=False)),
            ("no table", SimpleNamespace(is_neox_style=True)),
            ("twice as fast", vllm_fakes.rotary_embedding([2 * one for one in FREQUENCIES])),
        ]:
            with self.subTest(name):
                (self.folder / "a").write_bytes(export_file(IDS))
                vllm_fakes.ROPE["model"] = module
                side = self.side()
                self.submit(side, handle=None, file="a")
                self.assertEqual(self.finish(side)[2], {"rotary_mismatch": 1})
        vllm_fakes.ROPE.clear()
        side = self.side()
        self.submit(side, handle=None, file="a")
        self.assertEqual(self.finish(side)[2], {"rotary_mismatch": 1})

    def test_layers_that_cannot_be_written(self) -> None:
        side = self.side()
        for names in (["layers.0.attn"], ["layers.0.attn", "layers.1.attn", "layers.2.attn"], ["layers.0.attn", "layers.2.attn"]):
            side._worker._config.compilation_config.static_forward_context = {name: Attention(1, 1) for name in names}
            with self.subTest(str(names)), self.assertRaisesRegex(ValueError, "speculative"):
                side.register_kv_caches(dict.fromkeys(names))
        side = self.side()
        side._worker._config.compilation_config.static_forward_context["layers.1.attn"].impl = SimpleNamespace()
        with self.assertRaisesRegex(ValueError, "attention back end"):
            side.register_kv_caches(dict.fromkeys(["layers.0.attn", "layers.1.attn"]))

    def test_the_engine_does_not_wait_for_the_daemon(self) -> None:
        with ScriptedServer(Answer(body=export_file(IDS), wait_s=0.5)) as server:
            side = self.side(url=server.url)
            before = time.monotonic()
            self.submit(side)
            self.assertEqual(side.get_finished(set()), (None, set()))
            self.assertEqual(side.get_block_ids_with_load_errors(), set())
            self.assertIsNone(side.get_kv_connector_stats())
            self.assertLess(time.monotonic() - before, 0.4)
            self.assertEqual(self.finish(side)[2], {"loaded": 1})

    def test_requests_for_one_export_fetch_it_once(self) -> None:
        with ScriptedServer(Answer(body=export_file(IDS), wait_s=0.2)) as server:
            side = self.side(url=server.url)
            for at in range(4):
                self.submit(side, f"r{at}")
            self.assertEqual(self.finish(side, 4), ({"r0", "r1", "r2", "r3"}, set(), {"loaded": 4}))
            self.submit(side, "later")
            self.finish(side)
            self.assertEqual(len(server.requests), 1)

    def test_requests_that_wait_for_a_failed_fetch_fail_too_and_the_next_fetches_again(self) -> None:
        answers = [Answer(404, refusal("id_unknown"), wait_s=0.2), Answer(body=export_file(IDS))]
        with ScriptedServer(*answers) as server:
            side = self.side(url=server.url, threads=2)
            self.submit(side, "a")
            self.submit(side, "b")
            self.assertEqual(self.finish(side, 2)[2], {"handle_unknown": 2})
            self.submit(side, "c")
            self.assertEqual(self.finish(side)[2], {"loaded": 1})

    def test_waiting_for_a_thread_counts_for_the_timeout(self) -> None:
        with ScriptedServer(Answer(body=export_file(IDS), wait_s=0.6)) as server:
            side = self.side(url=server.url, threads=1, timeout_s=0.4)
            for at in range(5):
                self.submit(side, f"r{at}", handle=f"{HANDLE}{at}")
            before = time.monotonic()
            self.assertEqual(self.finish(side, 5)[2], {"fetch_failed": 5})
            # Not five times the timeout.
            self.assertLess(time.monotonic() - before, 1.2)

    def test_exports_in_memory_are_bounded(self) -> None:
        size = len(export_file(IDS))
        for limit, fetches, kept in [(0, 6, 0), (size - 1, 6, 0), (size, 5, 1), (2 * size, 2, 2), (10 * size, 2, 2)]:
            with self.subTest(limit), ScriptedServer(Answer(body=export_file(IDS))) as server:
                side = self.side(url=server.url, cache_bytes_max=limit)
                for at, name in enumerate("abaaba"):
                    self.submit(side, f"r{at}", handle=name)
                    self.finish(side)
                self.assertEqual(side._worker._sources.cached_bytes, kept * size)
                self.assertEqual(len(server.requests), fetches)

    def test_a_file_that_was_written_again_is_read_again(self) -> None:
        path = self.folder / "a"
        path.write_bytes(export_file(IDS))
        side = self.side()
        self.submit(side, handle=None, file="a")
        self.assertEqual(self.finish(side)[2], {"loaded": 1})
        other = [*IDS[:-1], 99]
        (self.folder / "new").write_bytes(export_file(other))
        (self.folder / "new").rename(path)
        self.submit(side, handle=None, file="a")
        self.assertEqual(self.finish(side)[2], {"tokens_differ": 1})

    def test_shutdown_waits_for_loads_that_have_begun_and_drops_the_others(self) -> None:
        with ScriptedServer(Answer(body=export_file(IDS), wait_s=0.3)) as server:
            side = self.side(url=server.url, threads=1)
            for at in range(3):
                self.submit(side, f"r{at}", handle=f"{HANDLE}{at}")
            eventually("the first fetch has begun", lambda: bool(server.requests))
            side.shutdown()
            self.assertEqual((side.get_finished(set()), len(server.requests)), ((None, {"r0"}), 1))


class Counting(unittest.TestCase):
    def test_statistics(self) -> None:
        one, other = Stats(), Stats()
        self.assertTrue(one.is_empty())
        one.count("loaded")
        one.data["tokens"], one.data["fetch_s"], one.data["write_s"] = 10, [0.2], [0.1]
        other.count("loaded")
        other.count("fetch_failed")
        sums = one.aggregate(other)
        self.assertEqual(
            sums.reduce(),
            {"thresher fetch_failed": 1, "thresher loaded": 2, "thresher tokens": 10, "thresher fetch (ms)": 200.0, "thresher write (ms)": 100.0},
        )
        self.assertFalse(sums.is_empty())
        made = connector.ThresherConnector.build_kv_connector_stats(sums.data)
        assert isinstance(made, Stats)
        self.assertEqual(made.data, sums.data)

    def test_a_report_is_not_changed_by_what_happens_later(self) -> None:
        side = scheduler_side()
        side._stats.count("tokens_differ")
        reported = side.get_kv_connector_stats()
        side._stats.count("tokens_differ")
        self.assertEqual(reported.data["outcomes"], {"tokens_differ": 1})
        self.assertEqual(side.get_kv_connector_stats().data["outcomes"], {"tokens_differ": 1})
        self.assertIsNone(side.get_kv_connector_stats())

    def test_metrics(self) -> None:
        values: dict[tuple[Any, ...], Any] = {}

        class Metric:
            def __init__(self, name: str, documentation: str, labelnames: list[str], buckets: Any = None) -> None:
                self.name = name

            def labels(self, *labels: Any) -> Any:
                key = (self.name, *labels)
                return SimpleNamespace(
                    inc=lambda by: values.__setitem__(key, values.get(key, 0) + by),
                    observe=lambda value: values.setdefault(key, []).append(value),
                )

        types: Any = {"counter": Metric, "histogram": Metric}
        made = connector.ThresherConnector.build_prom_metrics(None, types, ["engine"], {0: ["0"]})
        assert isinstance(made, PromMetrics)
        stats = Stats()
        stats.count("loaded")
        stats.count("handle_unknown")
        stats.data.update(tokens=10, fetch_s=[0.2], write_s=[0.1])
        made.observe(stats.data)
        self.assertEqual(
            values,
            {
                ("vllm:thresher_requests", "0", "loaded"): 1,
                ("vllm:thresher_requests", "0", "handle_unknown"): 1,
                ("vllm:thresher_tokens", "0"): 10,
                ("vllm:thresher_fetch_seconds", "0"): [0.2],
                ("vllm:thresher_write_seconds", "0"): [0.1],
            },
        )


class Files(unittest.TestCase):
    def test_a_file_in_every_precision(self) -> None:
        for dtype in ("F32", "F16", "BF16"):
            file = KvFile.parse(export_file(IDS, dtype))
            self.assertEqual((file.tokens, list(file.token_ids), file.keys[0].dtype), (len(IDS), IDS, dtype))
            self.assertEqual(file.keys[1].shape, (KV_HEADS, len(IDS), HEAD_DIM))

    def test_damaged_files(self) -> None:
        whole = export_file(IDS)
        for at in range(0, len(whole), 7):
            with self.subTest(at), self.assertRaises(KvExportError) as raised:
                KvFile.parse(whole[:at])
            self.assertEqual(raised.exception.code, "kv_export_invalid")
        for name, data in [
            ("positions", whole.replace(b'"positions"', b'"positionX"')),
            ("offsets", whole.replace(b'"data_offsets": [0, 40]', b'"data_offsets": [1, 40]')),
            ("negative", whole.replace(b'"data_offsets": [0, 40]', b'"data_offsets": [-4,36]')),
            ("dtype", whole.replace(b'"F32"', b'"F64"', 1)),
            ("header", whole.replace(b'{"__meta', b'["__meta', 1)),
            ("no metadata", whole.replace(b"__metadata__", b"__metaXata__")),
        ]:
            with self.subTest(name), self.assertRaises(KvExportError):
                KvFile.parse(data)


if __name__ == "__main__":
    unittest.main()
