#!/usr/bin/env bash
# Exports a decoder, unless that was done before, and sends one request to a daemon that serves it.
# usage: decoder.sh SOURCE OUT THRESHER    (SOURCE is a GGUF file or a Hugging Face directory)
set -euo pipefail

source=$1 out=$2 thresher=$3

scripts/model.sh "$source" "$out" "$thresher"

# The form of eviction is chosen once, by questions of this repository. Heads are not: 16 questions are too few for that, and a head that
# suits them may not suit attribution.
if ! grep -q '^\[decoder.eviction\]' "$out/contract.toml"; then
  THRESHER__MODEL__DIR=$out "$thresher" calibrate --kv docs/examples/decoder/questions.jsonl --template '\nQuestion: {question}\nAnswer:'
fi

# Keys and values are exported from all layers.
export THRESHER__MODEL__DIR=$out THRESHER__MODEL__LAYERS=all
scripts/demo.sh "$thresher" docs/examples/decoder/request.json
