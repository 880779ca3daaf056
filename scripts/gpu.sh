#!/usr/bin/env bash
# Runs the tests that need a GPU, which `make test` ignores, and then the demo with its model on the GPU.
# Needs an NVIDIA GPU with its driver, CUDA 13 in the loader's path, and everything that `make test` needs.
# usage: gpu.sh [DEVICE]    (default: cuda:0; "cpu" runs the same checks on the CPU, to test this script)
set -euo pipefail
cd "$(dirname "$0")/.."

device=${1:-cuda:0}
gpu=$([ "$device" = cpu ] || echo 1)
make provision model GPU="$gpu"
runtime=models/.cache/onnxruntime${gpu:+-gpu}/libonnxruntime.so
THRESHER_RUNTIME_LIB=${THRESHER_RUNTIME_LIB:-$PWD/$runtime} THRESHER_TEST_DEVICE=$device \
  cargo test --test libraries -- --nocapture ${gpu:+--include-ignored} device:: decoder_blocks::
make demo GPU="$gpu"
