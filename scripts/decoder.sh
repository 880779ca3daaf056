#!/usr/bin/env bash
# Exports a decoder, unless that was done before, and sends one request to a daemon whose default model selects chunks, and whose decoder
# exports their keys and values.
# usage: decoder.sh SOURCE OUT THRESHER    (SOURCE is a GGUF file or a Hugging Face directory)
set -euo pipefail

source=$1 out=$2 thresher=$3

scripts/model.sh "$source" "$out" "$thresher"

# The form of eviction is chosen once, by questions of this repository.
if ! grep -q '^\[decoder.eviction\]' "$out/contract.toml"; then
  THRESHER__MODEL__DIR=$out "$thresher" calibrate --kv docs/examples/decoder/questions.jsonl --template '\nQuestion: {question}\nAnswer:'
fi

export THRESHER__MODEL__KV_DIR=$out
scripts/demo.sh "$thresher" docs/examples/decoder/request.json
