#!/usr/bin/env bash
# Exports a decoder, unless that was done before, and sends one request to a daemon that serves it.
# usage: decoder.sh SOURCE OUT THRESHER    (SOURCE is a GGUF file or a Hugging Face directory)
set -euo pipefail

source=$1 out=$2 thresher=$3

scripts/model.sh "$source" "$out" "$thresher"

# Heads and the form of eviction are chosen once, by questions of this repository. Use your own questions for your own model.
if ! grep -q '^\[decoder.eviction\]' "$out/contract.toml"; then
  THRESHER__MODEL__DIR=$out "$thresher" calibrate docs/examples/questions.jsonl
  THRESHER__MODEL__DIR=$out "$thresher" calibrate --kv docs/examples/questions.jsonl --template '\nQuestion: {question}\nAnswer:'
fi

# Keys and values are exported from all layers.
export THRESHER__MODEL__DIR=$out THRESHER__MODEL__LAYERS=all
scripts/demo.sh "$thresher" docs/examples/decoder.json
