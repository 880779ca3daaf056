#!/usr/bin/env bash
# Runs every fuzz target from its seeds, and fails with the input that broke one.
# usage: fuzz.sh SECONDS [TARGET...]    (seconds for each target; without a name, all of them)
#
# What a run finds is kept in target/fuzz/corpus for the next one. An input that broke a target lies in target/fuzz/broken; run the
# target with the file's name to see it again.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(basename -s .rs fuzz/src/bin/*.rs)

# Cargo keeps what a wrapper has compiled apart from what it compiles without one.
RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/fuzz-rustc.sh ${CARGO:-cargo} build --quiet --locked -p thresher-fuzz --bins

broken=target/fuzz/broken
mkdir -p "$broken"
for target in "${targets[@]}"; do
  seeds=target/fuzz/seeds/$target corpus=target/fuzz/corpus/$target
  mkdir -p "$seeds" "$corpus"
  [ ! -d "fuzz/seeds/$target" ] || cp "fuzz/seeds/$target"/* "$seeds"
  if [ "$target" = models ]; then
    # Those of the tests, each with the letter that says which file it is.
    for file in c:config.json t:tokenizer.json w:model.safetensors; do
      (printf %s "${file%:*}"; cat "models/tiny/bert-gelu/${file#*:}") > "$seeds/encoder-${file#*:}"
      (printf %s "${file%:*}" | tr ctw CTW; cat "models/tiny/llama/${file#*:}") > "$seeds/decoder-${file#*:}"
    done
  fi
  printf '%-14s ' "$target"
  if ! target/debug/"$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
    -artifact_prefix="$broken/$target-" "$corpus" "$seeds" > "target/fuzz/$target.log" 2>&1; then
    echo broken
    tail -n 40 "target/fuzz/$target.log" >&2
    exit 1
  fi
  sed -n 's/^Done \([0-9]*\) runs in \([0-9]*\) second.*/\1 inputs in \2 s/p' "target/fuzz/$target.log"
done
