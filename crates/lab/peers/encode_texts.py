"""Encodes texts with sentence-transformers, as a peer of `thresher-lab throughput --peer`.

    python encode_texts.py --model DIR --threads 2 [--backend onnx|torch] [--device cpu|cuda:0] [--precision f32|f16] [--batch-size 32]

DIR is the Hugging Face folder that Thresher's model was exported from. It has no ONNX file: with `--backend onnx`,
sentence-transformers exports one through optimum into a temporary folder at every start, and runs it on the CPU in f32. With
`--backend torch`, PyTorch runs the model on the device.

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

import torch
import transformers
from sentence_transformers import SentenceTransformer

transformers.utils.logging.disable_progress_bar()
POSITIONS = 512
PACKAGES = {
    "onnx": ("sentence-transformers", "optimum-onnx", "transformers", "onnxruntime", "torch"),
    "torch": ("sentence-transformers", "transformers", "torch"),
}


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    model = {"onnx": load_onnx, "torch": load_torch}[args.backend](args)
    model.max_seq_length = POSITIONS
    # A device allocates memory and chooses kernels in the first run.
    model.encode(["A text to warm up with."] * args.batch_size, batch_size=args.batch_size, show_progress_bar=False)
    send({"versions": {name: version(name) for name in PACKAGES[args.backend]}})
    for line in sys.stdin:
        send(encode(model, json.loads(line), args))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--backend", choices=PACKAGES, default="onnx")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("f32", "f16"), default="f32")
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    if args.backend == "onnx" and (args.device, args.precision) != ("cpu", "f32"):
        parser.error("--backend onnx runs on the CPU in f32; use --backend torch")
    return args


def load_onnx(args):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    model_args = {"export": True, "provider": "CPUExecutionProvider", "session_options": options}
    return SentenceTransformer(args.model, backend="onnx", device="cpu", model_kwargs=model_args)


def load_torch(args):
    # Single precision without TF32, as Thresher multiplies.
    torch.set_float32_matmul_precision("highest")
    model = SentenceTransformer(args.model, device=args.device)
    return model.half() if args.precision == "f16" else model


def encode(model, texts, args):
    synchronize(args.device)
    started = time.perf_counter()
    model.encode(texts, batch_size=args.batch_size, show_progress_bar=False)
    synchronize(args.device)
    seconds = time.perf_counter() - started
    # Tokens are counted after the measured time. Texts longer than the positions, which encode() truncates, are an error.
    encoded = model.tokenizer(texts, truncation=False, padding=False)["input_ids"]
    cut = [len(ids) for ids in encoded if len(ids) > POSITIONS]
    if cut:
        raise SystemExit(f"a text has {max(cut)} tokens; the model has {POSITIONS} positions and would truncate it")
    specials = model.tokenizer.num_special_tokens_to_add()
    return {"tokens": sum(len(ids) - specials for ids in encoded), "seconds": seconds}


def synchronize(device):
    """Waits for the device: a GPU computes while the program goes on."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def send(reply):
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
