#!/usr/bin/env bash
# Exports a Hugging Face directory or a GGUF file, unless it was exported before from the same files by the same exporter.
# usage: model.sh SOURCE OUT THRESHER...    (THRESHER is the command that runs the binary)
set -euo pipefail

source=$1 out=$2
shift 2
stamp=models/.cache/$(basename "$out").made-from

# Checksums, not times: a checkout that only touches the exporter's files causes no new export.
inputs() {
  if [ -f "$source" ]; then
    cksum < "$source"
  else
    cksum "$source"/*.json "$source"/*.safetensors | sed "s|$source/||"
  fi
  find crates/export/src crates/core/src/model/contract* crates/core/src/model/onnx* crates/core/src/pipeline/calibration -type f | LC_ALL=C sort | xargs cksum
}

if [ -f "$out/contract.toml" ] && [ -f "$stamp" ] && [ "$(inputs)" = "$(cat "$stamp")" ]; then
  echo "$out: up to date" >&2
  exit 0
fi
# The calibration of another version would stay beside the new export.
rm -f "$out/calibration.toml"
"$@" export "$source" --out "$out"
mkdir -p models/.cache
inputs > "$stamp"
