#!/usr/bin/env bash
# Runs the tests with a GPU, and prints all tables about it (docs/performance.md, On a GPU): speed beside sentence-transformers and
# transformers, in f32, TF32 and f16; how far results differ from those of the CPU; two daemons on one GPU. Writes each table as text and JSON
# to target/gpu. A table that fails does not stop the others; the script lists such tables at its end, and exits with 1.
#
# Needs an NVIDIA GPU with its driver, CUDA 13, cuDNN 9, and everything that `make test` needs. If CUDA is not in the loader's path, the
# libraries of PyTorch's packages are used.
# usage: gpu.sh [--no-tests] [DEVICE]    (default: cuda:0; "cpu" runs small sizes of everything on the CPU, to test this script)
#
#   PEERS_PYTHON   a Python with the packages of crates/lab/peers/requirements.txt (default: target/peers, which is made if it is missing)
set -euo pipefail
cd "$(dirname "$0")/.."

tests=1
[ "${1:-}" != --no-tests ] || { tests=; shift; }
device=${1:-cuda:0}
gpu=$([ "$device" = cpu ] || echo 1)
out=target/gpu
binary=target/release/thresher
lab=target/release/thresher-lab
source=models/.cache/all-MiniLM-L6-v2
facts=models/facts
peers=${PEERS_PYTHON:-target/peers/bin/python}
installed=target/peers/installed
failed=()
mkdir -p "$out"

# Runs a command that prints a table, and keeps what it prints.
table() {
  local name=$1
  shift
  echo "==> $name: $*"
  if "$@" 2>&1 | tee "$out/$name.txt"; then echo "<== $name: done"; else
    failed+=("$name")
    echo "<== $name: FAILED" >&2
  fi
}

# Prints the shared libraries that the CUDA provider of ONNX Runtime does not find. It loads cuDNN only when a model is loaded.
missing_libraries() {
  ldd models/.cache/onnxruntime-gpu/libonnxruntime_providers_cuda.so | awk '/not found/ { print $1 }'
  "$peers" -c 'import ctypes; ctypes.CDLL("libcudnn.so.9")' 2>/dev/null || echo libcudnn.so.9
}

if [ -n "$gpu" ]; then
  nvidia-smi -L 2>/dev/null | grep -q GPU || {
    echo "error: nvidia-smi finds no NVIDIA GPU; install the driver, or run scripts/gpu.sh cpu to test this script" >&2
    exit 1
  }
  nvidia-smi | tee "$out/machine.txt"
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: python3 must be 3.11 or later" >&2; exit 1; }
if [ -z "${PEERS_PYTHON:-}" ] && ! [ -f "$installed" ]; then
  python3 -m venv target/peers
  scripts/stage.sh "packages of the peers" "10 minutes" target/peers/bin/pip install --quiet -r crates/lab/peers/requirements.txt
  touch "$installed"
fi
make provision GPU="$gpu"
if [ -n "$gpu" ]; then
  missing=$(missing_libraries)
  if [ -n "$missing" ]; then
    packaged=$("$peers" -c 'import glob, sysconfig; print(":".join(glob.glob(sysconfig.get_path("purelib") + "/nvidia/*/lib")))')
    export LD_LIBRARY_PATH=$packaged${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    missing=$(missing_libraries)
  fi
  if [ -n "$missing" ]; then
    echo "error: these libraries are not in the loader's path:" "$missing" >&2
    echo "  install CUDA 13 and cuDNN 9 from NVIDIA's packages (apt-get install cuda-libraries-13-0 libcudnn9-cuda-13)," >&2
    echo "  or install crates/lab/peers/requirements.txt for $peers, which has them" >&2
    exit 1
  fi
fi
make model GPU="$gpu"
cargo build --release --quiet -p thresher-lab
python3 models/provision.py --decoder ${gpu:+--gpu}

# Sizes: those of docs/performance.md, or small ones on a CPU.
if [ -n "$gpu" ]; then
  warm=() throughput_100=(--rounds 10) throughput_1000=(--chunks 1000 --rounds 5) decoder_rounds=(--rounds 10 --long-rounds 5)
  decoder=models/.cache/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf
  kv_rows=50 peer=()
else
  warm=(--chunks 10 --rounds 1 --requests 10 --clients 2)
  throughput_100=(--rounds 1 --tokens 20 --clients 1) throughput_1000=(--chunks 200 --rounds 1 --tokens 20 --clients 1)
  decoder_rounds=(--rounds 2 --long-rounds 1) decoder=$facts
  # PyTorch, as on a GPU.
  kv_rows=3 peer=(--peer-backend torch)
fi

# CUDA and nvidia-smi number GPUs alike. What the GPU fails to compute is a failure, and not left to the CPU.
export CUDA_DEVICE_ORDER=PCI_BUS_ID THRESHER_TEST_DEVICE=$device
if [ -n "$tests" ] && [ -n "$gpu" ]; then
  table tests make test GPU=1
elif [ -n "$tests" ]; then
  # The tests that a GPU affects, as far as they do not need one.
  table tests cargo test --test libraries -- device:: decoder_blocks::
fi
table demo make demo GPU="$gpu"

export THRESHER_CONFIG='' THRESHER__MODEL__DEVICE=$device
# Progress bars of the peers do not belong in the files.
export TQDM_DISABLE=1
export THRESHER_RUNTIME_LIB=${THRESHER_RUNTIME_LIB:-$PWD/models/.cache/onnxruntime${gpu:+-gpu}/libonnxruntime.so}
table doctor "$binary" doctor

# How the model multiplies: f32, f32 as TF32, which is the same on a CPU, or f16.
use_precision() {
  weights=${1/tf32/f32}
  tf32=()
  [ "$1" != tf32 ] || tf32=(--tf32)
}

for precision in f32 tf32 f16; do
  use_precision "$precision"
  model=$out/minilm-l6-$precision
  table "export-$precision" "$binary" export "$source" --out "$model" --name minilm-l6 --weights "$weights"
  [ -f "$model/contract.toml" ] || continue
  export THRESHER__MODEL__DIR=$model
  table "warm-$precision" "$lab" warm "${tf32[@]}" "${warm[@]}" --json "$out/warm-$precision.json"
  table "throughput-100-$precision" "$lab" throughput "${tf32[@]}" --chunks 100 "${throughput_100[@]}" --peer "$peers" "${peer[@]}" \
    --json "$out/throughput-100-$precision.json"
  table "throughput-1000-$precision" "$lab" throughput "${tf32[@]}" "${throughput_1000[@]}" --peer "$peers" "${peer[@]}" \
    --json "$out/throughput-1000-$precision.json"
  table "kinds-$precision" "$lab" kinds "${tf32[@]}" --json "$out/kinds-$precision.json"
  table "two-daemons-$precision" python3 scripts/gpu.py two-daemons "$binary" docs/examples/request.json
  unset THRESHER__MODEL__DIR
done

for precision in f32 tf32 f16; do
  use_precision "$precision"
  # As much as the context holds has to fit into 4 GB.
  THRESHER__MODEL__DEVICE_MEMORY_BYTES_MAX=4000000000 table "decoder-$precision" "$peers" benches/decoder_peer.py "$decoder" \
    --device "$device" --weights "$weights" "${decoder_rounds[@]}" --json "$out/decoder-$precision.json"
  model=$out/facts-$precision
  table "export-facts-$precision" "$binary" export "$facts" --out "$model" --name facts --weights "$weights"
  table "kv-$precision" "$lab" kv "${tf32[@]}" "$facts/rows.jsonl" --rows "$kv_rows" --model "$model" --json "$out/kv-$precision.json"
done
table host cargo bench -p thresher-lab --bench host

# The same on the CPU in f32, and the largest difference of each measure.
export THRESHER__MODEL__DEVICE=cpu
table kinds-cpu "$lab" kinds --model "$out/minilm-l6-f32" --json "$out/kinds-cpu.json"
table kv-cpu "$lab" kv "$facts/rows.jsonl" --rows "$kv_rows" --model "$out/facts-f32" --json "$out/kv-cpu.json"
for precision in f32 tf32 f16; do
  for measured in kinds kv; do
    [ -f "$out/$measured-$precision.json" ] || continue
    table "$measured-$precision-and-cpu" python3 scripts/gpu.py compare "$out/$measured-cpu.json" "$out/$measured-$precision.json" \
      --json "$out/$measured-$precision-and-cpu.json"
  done
done

echo "tables: $out"
[ ${#failed[@]} = 0 ] || { echo "FAILED: ${failed[*]}" >&2; exit 1; }
