"""Encodes passages with sentence-transformers on ONNX Runtime, as a peer of `thresher bench --peer`.

    python sentence_transformers_onnx.py --model DIR --threads 2 [--batch-size 32]

DIR is the Hugging Face folder that Thresher's model was exported from. It has no ONNX file: sentence-transformers exports
one through optimum into a temporary folder at every start.

The program first prints {"versions": {...}}. Then it reads JSON arrays of texts from standard input, one per line, and
answers each with a line {"tokens": N, "seconds": S}: the number of tokens without special tokens, and the seconds of
`encode` alone. One process answers all lines, so that its rounds can alternate with Thresher's. Texts are not truncated:
the sequence length is raised to the model's number of positions.
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
    send({"versions": {name: version(name) for name in names}})
    for line in sys.stdin:
        send(encode(model, json.loads(line), args.batch_size))


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
    # Tokens are counted after the measured time. Texts longer than the positions, which encode() truncates, are an error.
    encoded = model.tokenizer(texts, truncation=False, padding=False)["input_ids"]
    cut = [len(ids) for ids in encoded if len(ids) > POSITIONS]
    if cut:
        raise SystemExit(f"a text has {max(cut)} tokens; the model has {POSITIONS} positions and would truncate it")
    specials = model.tokenizer.num_special_tokens_to_add()
    return {"tokens": sum(len(ids) - specials for ids in encoded), "seconds": seconds}


def send(reply):
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
