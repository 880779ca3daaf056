"""The peer: encodes passages with sentence-transformers on ONNX Runtime, as `thresher bench --peer` asks it to.

    python sentence_transformers_onnx.py --model DIR --threads 2 [--batch-size 32]

DIR is the Hugging Face folder that Thresher's model was exported from. It holds no ONNX file: sentence-transformers
exports one through optimum into a temporary folder, at every start.

First it prints {"versions": {...}}. Then each line of standard input is a JSON array of texts, and each is answered by
a line {"tokens": N, "seconds": S}: tokens without the special ones, seconds of `encode` alone. One process answers all
lines, so that its rounds can alternate with another's. Nothing is truncated: the sequence length is raised to what
the model's positions hold.
"""

import argparse
import json
import sys
import time
from importlib.metadata import version

import onnxruntime
import torch
from sentence_transformers import SentenceTransformer

POSITIONS = 512


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    model = SentenceTransformer(
        args.model,
        backend="onnx",
        device="cpu",
        model_kwargs={"export": True, "provider": "CPUExecutionProvider", "session_options": options},
    )
    model.max_seq_length = POSITIONS
    names = ("sentence-transformers", "optimum-onnx", "transformers", "onnxruntime", "torch")
    say({"versions": {name: version(name) for name in names}})
    for line in sys.stdin:
        say(encode(model, json.loads(line), args.batch_size))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    return parser.parse_args()


def encode(model, texts, batch_size):
    started = time.perf_counter()
    model.encode(texts, batch_size=batch_size, show_progress_bar=False)
    seconds = time.perf_counter() - started
    # Counted afterwards and outside the clock; a text that encode() had cut would show as a count too high.
    encoded = model.tokenizer(texts, truncation=False, padding=False)["input_ids"]
    cut = [len(ids) for ids in encoded if len(ids) > POSITIONS]
    if cut:
        raise SystemExit(f"a text of {max(cut)} tokens does not fit {POSITIONS} positions: it would be cut")
    specials = model.tokenizer.num_special_tokens_to_add()
    return {"tokens": sum(len(ids) - specials for ids in encoded), "seconds": seconds}


def say(answer):
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
