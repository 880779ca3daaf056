#!/usr/bin/env bash
# The tests that a GPU changes, on the first one; and the demo with its model there.
# Needs an NVIDIA GPU with its driver, CUDA 13 where the loader finds it, and what `make test` needs.
# usage: gpu.sh [DEVICE]    (cuda:0 if not given; cpu runs the same tests on the processor)
set -euo pipefail
cd "$(dirname "$0")/.."

device=${1:-cuda:0}
gpu=$([ "$device" = cpu ] || echo 1)
make provision model GPU="$gpu"
runtime=models/.cache/onnxruntime${gpu:+-gpu}/libonnxruntime.so
THRESHER_RUNTIME_LIB=${THRESHER_RUNTIME_LIB:-$PWD/$runtime} THRESHER_TEST_DEVICE=$device \
  cargo test --test device --test decoder_blocks -- --nocapture
make demo GPU="$gpu"
