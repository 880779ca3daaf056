#!/usr/bin/env bash
# Runs fuzz targets, starting from their seeds. Fails with the input if a target crashes.
# usage: fuzz.sh SECONDS [TARGET...]    (SECONDS for each target; default: all targets)
#
# New inputs are kept in target/fuzz/corpus for the next run. Inputs that crash a target are written to target/fuzz/broken; to
# reproduce the crash: THRESHER_FUZZ_TARGET=TARGET target/debug/thresher-fuzz FILE
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(basename -s .rs fuzz/src/targets/*.rs)

# The wrapper gives the crates of this workspace other build artifacts than `make test`; dependencies are shared with it.
echo "==> fuzz targets: build (about 2 minutes on two cores after make test)"
RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/fuzz-rustc.sh ${CARGO:-cargo} build --quiet --locked -p thresher-fuzz

broken=target/fuzz/broken
mkdir -p "$broken"
for target in "${targets[@]}"; do
  seeds=target/fuzz/seeds/$target corpus=target/fuzz/corpus/$target
  mkdir -p "$seeds" "$corpus"
  [ ! -d "fuzz/seeds/$target" ] || cp "fuzz/seeds/$target"/* "$seeds"
  if [ "$target" = models ]; then
    # The files of the tiny models. The first letter of a seed says which file it is.
    for file in c:config.json t:tokenizer.json w:model.safetensors; do
      (printf %s "${file%:*}"; cat "models/tiny/bert-gelu/${file#*:}") > "$seeds/encoder-${file#*:}"
      (printf %s "${file%:*}" | tr ctw CTW; cat "models/tiny/llama/${file#*:}") > "$seeds/decoder-${file#*:}"
    done
  fi
  [ "$target" != gguf ] || cp models/tiny/gguf/tiny.gguf "$seeds"
  printf '%-14s ' "$target"
  if ! THRESHER_FUZZ_TARGET=$target target/debug/thresher-fuzz -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
    -artifact_prefix="$broken/$target-" "$corpus" "$seeds" > "target/fuzz/$target.log" 2>&1; then
    echo broken
    tail -n 40 "target/fuzz/$target.log" >&2
    exit 1
  fi
  sed -n 's/^Done \([0-9]*\) runs in \([0-9]*\) second.*/\1 inputs in \2 s/p' "target/fuzz/$target.log"
done
