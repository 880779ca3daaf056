"""Measures how fast a decoder reads new passages and a question: in a daemon, and in transformers beside it.

    python benches/decoder_peer.py SOURCE [--device cuda:0] [--weights f16] [--exported DIR]

SOURCE is a GGUF file or a Hugging Face folder, such as models/facts. The daemon serves its export, or the one in DIR, which may list
heads (`thresher calibrate`). Each round has new passages and a new question, made of words of the model's vocabulary; the contenders
read the same tokens on the same device, in alternating order:

- the daemon reads the passages, each on its own, and then the question over them: `POST /v1/compress` through HTTP,
- the daemon reads another question over the same passages, which are cached now,
- transformers reads passages and question as one prompt, in f32 and in bf16: one forward pass that fills the key-value cache, without
  tokenization and without generated tokens.

The second part of the table does the same with as many passages as fit into --long-tokens and the model's context. Memory is measured
there, before the times, and for one contender after the other, each in a process of its own. On a GPU it is what nvidia-smi shows beyond
what was used before; on a CPU it is the highest resident memory of the daemon, and for transformers the same without what Python and its
packages need.

Needs torch and transformers, for GGUF files also gguf and accelerate, and THRESHER_RUNTIME_LIB.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import daemon as daemons  # noqa: E402

transformers.utils.logging.disable_progress_bar()
PRECISIONS = {"f32": torch.float32, "bf16": torch.bfloat16}
# Tokens of the context that are neither passages nor question: special tokens, and what a template adds.
SPARE_TOKENS = 64
DEADLINE_MS = 120_000
MB = 1e6


class Words:
    """Texts with an exact number of tokens. A word of the vocabulary is one token wherever it follows another word."""

    def __init__(self, tokenizer, seed):
        self.tokenizer, self.random = tokenizer, random.Random(seed)
        decoded = (tokenizer.decode([token]) for token in range(len(tokenizer)))
        self.words = sorted({word.strip() for word in decoded if word.strip().isascii() and word.strip().isalpha() and len(word.strip()) > 2})

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def text(self, tokens):
        while True:
            words = self.random.choices(self.words, k=tokens)
            while words and len(self.ids(" ".join(words))) > tokens:
                words.pop()
            text = " ".join(words)
            if len(self.ids(text)) == tokens:
                return text


class Served:
    """A daemon with an exported model."""

    def __init__(self, exported, device):
        settings = {
            "THRESHER__MODEL__DIR": str(exported),
            "THRESHER__MODEL__DEVICE": device,
        }
        self.daemon = daemons.Daemon(THRESHER_CONFIG="", **settings)

    def compress(self, question, passages):
        chunks = [{"id": str(at), "text": text} for at, text in enumerate(passages)]
        body = {"query": question, "chunks": chunks, "budget": {"ratio": 0.25}, "deadline_ms": DEADLINE_MS}
        request = urllib.request.Request(
            f"{self.daemon.url}/v1/compress", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=2 * DEADLINE_MS / 1e3) as answer:
            return json.loads(answer.read())

    def read_new(self, question, passages):
        read = self.compress(question, passages)["blocks"]["read"]
        assert read == len(passages), f"the daemon read {read} of {len(passages)} new passages: some were cached"

    def read_cached(self, question, passages):
        read = self.compress(question, passages)["blocks"]["read"]
        assert read == 0, f"the daemon read {read} cached passages again: raise memory_bytes_max"

    def peak_mb(self):
        return peak_mb(self.daemon.process.pid)

    def stop(self):
        self.daemon.stop()


class Prompt:
    """A model in transformers that reads prompts."""

    def __init__(self, source, precision, device):
        named = {"gguf_file": source.name} if source.is_file() else {}
        if named and hasattr(transformers, "GgufConfig"):
            # Newer versions can keep the blocks of a GGUF file, and then compute in neither of the precisions.
            named["quantization_config"] = transformers.GgufConfig(dequantize=True)
        folder = source.parent if source.is_file() else source
        # Single precision without TF32, as the daemon multiplies.
        torch.set_float32_matmul_precision("highest")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=PRECISIONS[precision], **named)
        self.model, self.device = model.to(device).eval(), device
        found = {parameter.dtype for parameter in self.model.parameters()}
        assert found == {PRECISIONS[precision]}, f"the weights are {found}, not {precision}"

    def read(self, ids):
        with torch.no_grad():
            self.model(ids.to(self.device), use_cache=True, logits_to_keep=1)
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)


def peak_mb(pid):
    """The highest resident memory of a process since its start, or since `forget_peak`. Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / MB


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")


def gpu_used_mb(device):
    """The memory of a GPU that all programs use. Neither ONNX Runtime nor torch returns what it has allocated, so this is also the peak."""
    return int(query_gpu(device, "memory.used")) * 2**20 / MB


def query_gpu(device, what):
    number = device.removeprefix("cuda:")
    # With this variable, the number counts the listed GPUs only. nvidia-smi ignores it.
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        number = visible.split(",")[int(number)].strip()
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", "-i", number]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def seconds_of(work):
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Inputs:
    """New passages and questions."""

    def __init__(self, words, options, tokens_max):
        self.words, self.options = words, options
        self.long = max(1, (min(options.long_tokens, tokens_max - SPARE_TOKENS) - options.question_tokens) // options.tokens)

    def of(self, chunks):
        passages = [self.words.text(self.options.tokens) for _ in range(chunks)]
        return passages, [self.words.text(self.options.question_tokens) for _ in range(2)]

    def prompt(self, passages, question):
        return torch.tensor([[token for text in [*passages, question] for token in self.words.ids(text)]])


def measure_memory(inputs, exported, source, device):
    """The memory of each contender over the long prompt, in MB. The daemon comes first: then torch has not used the GPU."""
    is_gpu = device != "cpu"
    before = gpu_used_mb(device) if is_gpu else 0
    passages, questions = inputs.of(inputs.long)
    found = {}
    served = Served(exported, device)
    try:
        served.read_new(questions[0], passages)
        found["daemon"] = (gpu_used_mb(device) - before) if is_gpu else served.peak_mb()
    finally:
        served.stop()
    ids = inputs.prompt(passages, questions[0])
    for precision in PRECISIONS:
        # A process of its own: what earlier models leave behind does not count.
        with multiprocessing.get_context("spawn").Pool(1) as process:
            found[precision] = process.apply(memory_of_prompt, (source, precision, device, ids.tolist()))
    return found


def memory_of_prompt(source, precision, device, ids):
    """The memory that a model in transformers needs to read a prompt, in MB."""
    used = (lambda: gpu_used_mb(device)) if device != "cpu" else (lambda: peak_mb("self"))
    before = used()
    prompt = Prompt(source, precision, device)
    if device == "cpu":
        # The file may have been in memory as a whole, which is not what a pass needs.
        forget_peak()
    prompt.read(torch.tensor(ids))
    return used() - before


def measure_times(inputs, served, prompts, chunks, rounds):
    """Seconds of each contender and round. The first round warms up and does not count."""
    times = {name: [] for name in ("new", "cached", *prompts)}
    for number in range(rounds + 1):
        passages, questions = inputs.of(chunks)
        ids = inputs.prompt(passages, questions[0])

        def daemon(passages=passages, questions=questions):
            return {
                "new": seconds_of(lambda: served.read_new(questions[0], passages)),
                "cached": seconds_of(lambda: served.read_cached(questions[1], passages)),
            }

        def prompt(name, ids=ids):
            return {name: seconds_of(lambda: prompts[name].read(ids))}

        contenders = [daemon, *(lambda name=name: prompt(name) for name in prompts)]
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            for name, seconds in contender().items():
                if number > 0:
                    times[name].append(seconds)
    return times


def spread(values):
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": median, "low": low, "high": high}


def shown(spread):
    digits = 1 if spread["median"] >= 10 else 3
    return " ".join([f"{spread['median']:.{digits}f}", f"[{spread['low']:.{digits}f}, {spread['high']:.{digits}f}]"])


def describe(options, exported):
    weights = tomllib.loads((exported / "contract.toml").read_text())["weights"].get("dtype", "f32")
    environment = {**os.environ, "THRESHER_CONFIG": "", "THRESHER__MODEL__DIR": str(exported), "THRESHER__MODEL__DEVICE": options.device}
    doctor = subprocess.run([daemons.BINARY, "doctor"], env=environment, cwd=ROOT, capture_output=True, text=True)
    runtime = next((line.split(": ", 1)[1].split(" from ")[0] for line in doctor.stdout.splitlines() if " runtime: " in line), "?")
    return {
        "source": str(options.source),
        "device": options.device,
        "gpu": query_gpu(options.device, "name") if options.device != "cpu" else None,
        "execution_provider": "CPUExecutionProvider" if options.device == "cpu" else "CUDAExecutionProvider",
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "arch": platform.machine(),
        "weights": weights,
        "runtime": runtime,
        "thresher": subprocess.run([daemons.BINARY, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1],
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def table(report):
    on = report["on"]
    where = on["gpu"] or f"{on['cores']} cores, {on['arch']}"
    lines = [
        f"{Path(on['source']).name} in {on['weights']} on {on['device']} ({where}; {on['execution_provider']}, {on['runtime']}), "
        f"Thresher {on['thresher']}; transformers {on['transformers']} on torch {on['torch']}",
        f"passages of {report['passage_tokens']} tokens, questions of {report['question_tokens']}; seconds, median and quartiles of "
        + " and of ".join(f"{part['rounds']} rounds" for part in report["parts"]),
        "",
    ]
    heads = [f"{part['chunks']} passages, {part['prompt_tokens']} tokens" for part in report["parts"]]
    lines.append(f"  {'':44} {heads[0]:>28} {heads[1]:>28} {'memory':>10}")
    names = {
        "new": "daemon, new passages and a question",
        "cached": "daemon, cached passages and a question",
        **{name: f"transformers, one prompt, {name}" for name in PRECISIONS},
    }
    for name, text in names.items():
        cells = [shown(part["seconds"][name]) for part in report["parts"]]
        memory = report["memory_mb"].get("daemon" if name == "new" else name)
        memory = "" if memory is None else f"{memory:,.0f} MB"
        lines.append(f"  {text:44} {cells[0]:>28} {cells[1]:>28} {memory:>10}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file or a Hugging Face folder")
    parser.add_argument("--thresher", default="target/release/thresher")
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, ...")
    parser.add_argument("--weights", choices=("f32", "f16", "int8"), default="f32", help="of the export")
    parser.add_argument("--exported", type=Path, help="an export of SOURCE, in place of a new one")
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=150, help="of a passage")
    parser.add_argument("--question-tokens", type=int, default=16)
    parser.add_argument("--long-tokens", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--long-rounds", type=int, default=3)
    parser.add_argument("--no-memory", action="store_true", help="measure times only, which takes half as long")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    options = parser.parse_args()
    daemons.BINARY = str((ROOT / options.thresher).resolve())
    source = options.source.resolve()
    named = {"gguf_file": source.name} if source.is_file() else {}
    tokenizer = AutoTokenizer.from_pretrained(source.parent if source.is_file() else source, **named)
    with tempfile.TemporaryDirectory() as folder:
        exported = options.exported.resolve() if options.exported else Path(folder) / "exported"
        if not options.exported:
            command = [daemons.BINARY, "export", source, "--out", exported, "--weights", options.weights]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        context = tomllib.loads((exported / "contract.toml").read_text())["decoder"]["context_tokens_max"]
        inputs = Inputs(Words(tokenizer, seed=1), options, context)
        report = {
            "on": describe(options, exported),
            "passage_tokens": options.tokens,
            "question_tokens": options.question_tokens,
            "memory_mb": {} if options.no_memory else measure_memory(inputs, exported, source, options.device),
            "parts": [],
        }
        prompts = {precision: Prompt(source, precision, options.device) for precision in PRECISIONS}
        served = Served(exported, options.device)
        try:
            for chunks, rounds in ((options.chunks, options.rounds), (inputs.long, options.long_rounds)):
                times = measure_times(inputs, served, prompts, chunks, rounds)
                report["parts"].append(
                    {
                        "chunks": chunks,
                        "prompt_tokens": chunks * options.tokens + options.question_tokens,
                        "rounds": rounds,
                        "seconds": {name: spread(values) for name, values in times.items()},
                    }
                )
        finally:
            served.stop()
    print(table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
