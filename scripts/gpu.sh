#!/usr/bin/env bash
# Measures Thresher on an NVIDIA GPU (docs/performance.md, On a GPU), in three parts of a few minutes each. Writes each table as text and
# JSON to target/gpu. A table that fails does not stop the others; the script lists such tables at its end, and exits with 1.
#
#   prepare   fetches the models and the CUDA build of ONNX Runtime, and builds everything. Needs no GPU
#   tests     the tests that need a GPU, `thresher doctor`, two daemons on one GPU, and GPUs that cannot be used
#   encoder   the default model in f16 and f32, beside sentence-transformers on PyTorch, and how far answers differ from those of the CPU
#   decoder   SmolLM2-135M beside transformers on PyTorch, and how far the output of a decoder changes
#
# Needs the driver, CUDA 13, cuDNN 9, and what `make test` needs. If CUDA is not in the loader's path, the libraries of PyTorch's packages
# are used.
# usage: gpu.sh [PART]... [--device cuda:0]    (default: all four; `--device cpu` runs small sizes on the CPU, to test this script)
#
#   PEERS_PYTHON   a Python with the packages of crates/lab/peers/requirements.txt (default: target/peers, which `prepare` makes)
#   AGREE_FILES    more files of questions with chunks (docs/evaluation.md), whose answers on the GPU are compared with those on the CPU
set -euo pipefail
cd "$(dirname "$0")/.."

device=cuda:0
parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2; shift 2 ;;
    prepare | tests | encoder | decoder) parts+=("$1"); shift ;;
    *) echo "usage: gpu.sh [prepare|tests|encoder|decoder]... [--device cuda:0]" >&2; exit 2 ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(prepare tests encoder decoder)
gpu=$([ "$device" = cpu ] || echo 1)
out=target/gpu
binary=target/release/thresher
lab=target/release/thresher-lab
test_binary=target/gpu/libraries
source=models/.cache/all-MiniLM-L6-v2
facts=models/facts
peers=${PEERS_PYTHON:-target/peers/bin/python}
failed=()
mkdir -p "$out"

# Runs a command that prints a table, and keeps what it prints.
table() {
  local name=$1 started=$SECONDS
  shift
  echo "==> $name: $*"
  if "$@" 2>&1 | tee "$out/$name.txt"; then echo "<== $name: $((SECONDS - started)) s"; else
    failed+=("$name")
    echo "<== $name: FAILED after $((SECONDS - started)) s" >&2
  fi
}

# Prints the shared libraries that the CUDA provider of ONNX Runtime does not find. It loads cuDNN only when a model is loaded.
missing_libraries() {
  ldd models/.cache/onnxruntime-gpu/libonnxruntime_providers_cuda.so | awk '/not found/ { print $1 }'
  "$peers" -c 'import ctypes; ctypes.CDLL("libcudnn.so.9")' 2>/dev/null || echo libcudnn.so.9
}

find_libraries() {
  local missing packaged
  missing=$(missing_libraries)
  if [ -n "$missing" ]; then
    packaged=$("$peers" -c 'import glob, sysconfig; print(":".join(glob.glob(sysconfig.get_path("purelib") + "/nvidia/*/lib")))')
    export LD_LIBRARY_PATH=$packaged${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    missing=$(missing_libraries)
  fi
  [ -z "$missing" ] || {
    echo "error: these libraries are not in the loader's path:" "$missing" >&2
    echo "  install CUDA 13 and cuDNN 9 from NVIDIA's packages (apt-get install cuda-libraries-13-0 libcudnn9-cuda-13)," >&2
    echo "  or install crates/lab/peers/requirements.txt for $peers, which has them" >&2
    exit 1
  }
}

prepare() {
  local installed=target/peers/installed
  if [ -z "${PEERS_PYTHON:-}" ] && ! [ -f "$installed" ]; then
    python3 -m venv target/peers
    scripts/stage.sh "packages of the peers" "10 minutes" target/peers/bin/pip install --quiet -r crates/lab/peers/requirements.txt
    touch "$installed"
  fi
  make provision GPU="$gpu"
  make model GPU="$gpu"
  python3 models/provision.py --decoder ${gpu:+--gpu}
  cargo build --release --quiet -p thresher -p thresher-lab
  cp "$(cargo test --no-run --message-format=json --test libraries | python3 scripts/gpu.py executable libraries)" "$test_binary"
}

# Prints the first error of a command that has to fail.
refusal() {
  local said
  if said=$("$@" 2>&1); then
    echo "error: this should have failed: $*" >&2
    return 1
  fi
  grep FAILED <<<"$said"
}

tests() {
  export THRESHER_TEST_DEVICE=$device
  table doctor "$binary" doctor
  if [ -n "$gpu" ]; then
    table tests "$test_binary" --ignored --test-threads 2 gpu
    table two-daemons python3 scripts/gpu.py two-daemons "$binary" docs/examples/request.json
    # What `busy` leaves free is less than the model needs.
    table busy "$peers" scripts/gpu.py busy "$binary" docs/examples/request.json
    table gone env CUDA_VISIBLE_DEVICES= bash -c "$(declare -f refusal); refusal $binary doctor"
    table no-such-gpu env THRESHER__MODEL__DEVICE=cuda:99 bash -c "$(declare -f refusal); refusal $binary doctor"
    # A driver that says that it is of CUDA 11.
    cc -shared -fPIC -o "$out/libcuda.so.1" -xc - <<<'int cuDriverGetVersion(int *version) { *version = 11000; return 0; }'
    table old-driver env LD_LIBRARY_PATH="$PWD/$out:${LD_LIBRARY_PATH:-}" bash -c "$(declare -f refusal); refusal $binary doctor"
    table small-limit env THRESHER__MODEL__DEVICE_MEMORY_BYTES_MAX=1000000 bash -c "$(declare -f refusal); refusal $binary doctor"
  else
    table tests "$test_binary" device:: decoder_blocks::
  fi
}

encoder() {
  local sizes=(--rounds 10) sizes_1000=(--chunks 1000 --rounds 3) warm=(--rounds 2) peer=() rows=40 more precision model
  read -ra more <<<"${AGREE_FILES:-}"
  [ -n "$gpu" ] || {
    sizes=(--rounds 1 --tokens 20 --clients 1) sizes_1000=(--chunks 200 --rounds 1 --tokens 20 --clients 1)
    warm=(--chunks 10 --rounds 1 --requests 10 --clients 2) peer=(--peer-backend torch) rows=2
  }
  for precision in f16 f32; do
    model=$out/minilm-l6-$precision
    table "export-$precision" "$binary" export "$source" --out "$model" --name minilm-l6 --weights "$precision"
    export THRESHER__MODEL__DIR=$model
    # f16 is what docs/models.md recommends on a GPU. The peers compute in f32 and in f16 beside it.
    if [ "$precision" = f16 ]; then
      table lengths python3 scripts/gpu.py lengths "$binary" docs/examples/request.json --json "$out/lengths.json"
      table throughput-100-f16 "$lab" throughput --chunks 100 "${sizes[@]}" --peer "$peers" "${peer[@]}" --json "$out/throughput-100-f16.json"
      table throughput-1000-f16 "$lab" throughput "${sizes_1000[@]}" --json "$out/throughput-1000-f16.json"
      table warm-f16 "$lab" warm "${warm[@]}" --json "$out/warm-f16.json"
    else
      table "throughput-100-$precision" "$lab" throughput --chunks 100 "${sizes[@]}" --json "$out/throughput-100-$precision.json"
    fi
    unset THRESHER__MODEL__DIR
  done
  table agree python3 scripts/gpu.py agree "$binary" "$out/minilm-l6-f32" "$out/minilm-l6-f16" --device "$device" \
    --rows "$rows" models/facts/rows.jsonl "${more[@]}" --json "$out/agree.json"
}

decoder() {
  local model=models/.cache/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf rounds=(--rounds 10 --long-rounds 5) rows=20 precision
  [ -n "$gpu" ] || { model=$facts rounds=(--rounds 2 --long-rounds 1) rows=3; }
  for precision in f16 f32; do
    # As much as the context holds has to fit into 4 GB.
    THRESHER__MODEL__DEVICE_MEMORY_BYTES_MAX=4000000000 table "decoder-$precision" "$peers" benches/decoder_peer.py "$model" \
      --device "$device" --weights "$precision" "${rounds[@]}" --json "$out/decoder-$precision.json"
  done
  for precision in f16 f32; do
    table "export-facts-$precision" "$binary" export "$facts" --out "$out/facts-$precision" --name facts --weights "$precision"
    table "kv-$precision" "$lab" kv "$facts/rows.jsonl" --rows "$rows" --model "$out/facts-$precision" --json "$out/kv-$precision.json"
  done
  THRESHER__MODEL__DEVICE=cpu table kv-cpu "$lab" kv "$facts/rows.jsonl" --rows "$rows" --model "$out/facts-f32" --json "$out/kv-cpu.json"
  for precision in f16 f32; do
    table "kv-$precision-and-cpu" python3 scripts/gpu.py compare "$out/kv-cpu.json" "$out/kv-$precision.json" \
      --json "$out/kv-$precision-and-cpu.json"
  done
}

for part in "${parts[@]}"; do
  [ "$part" = prepare ] || break
  prepare
done
if [ -n "$gpu" ] && [ "${parts[*]}" != prepare ]; then
  nvidia-smi -L 2>/dev/null | grep -q GPU || {
    echo "error: nvidia-smi finds no NVIDIA GPU; install the driver, or run scripts/gpu.sh --device cpu to test this script" >&2
    exit 1
  }
  nvidia-smi | tee "$out/machine.txt"
  find_libraries
fi
# CUDA and nvidia-smi number GPUs alike. What the GPU fails to compute is a failure, and not left to the CPU.
export CUDA_DEVICE_ORDER=PCI_BUS_ID THRESHER_CONFIG='' THRESHER__MODEL__DEVICE=$device
# Progress bars of the peers do not belong in the files.
export TQDM_DISABLE=1
export THRESHER_RUNTIME_LIB=${THRESHER_RUNTIME_LIB:-$PWD/models/.cache/onnxruntime${gpu:+-gpu}/libonnxruntime.so}
for part in "${parts[@]}"; do
  [ "$part" = prepare ] || "$part"
done

[ "${parts[*]}" = prepare ] || echo "tables: $out"
[ ${#failed[@]} = 0 ] || { echo "FAILED: ${failed[*]}" >&2; exit 1; }
