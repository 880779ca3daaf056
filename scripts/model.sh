#!/usr/bin/env bash
# Exports a model folder to a contract folder, unless it was exported from the same files by the same exporter.
# usage: model.sh SOURCE OUT THRESHER...    (THRESHER is the command that runs the binary)
set -euo pipefail

source=$1 out=$2
shift 2
stamp=$out/.made-from

# Contents, not times: a checkout that touches the exporter's files costs nothing.
inputs() {
  cksum "$source"/*.json "$source"/*.safetensors | sed "s|$source/||"
  find src -path 'src/export*' -type f | LC_ALL=C sort | xargs cksum
}

if [ -f "$out/contract.toml" ] && inputs | cmp -s - "$stamp"; then
  echo "$out: up to date" >&2
  exit 0
fi

# The new folder takes the old one's place only when it is complete.
mkdir -p models/.cache
work=$(mktemp -d models/.cache/.export-XXXXXX)
trap 'rm -rf "$work"' EXIT
fresh=$work/$(basename "$out")
"$@" export "$source" --out "$fresh"
[ -f "$fresh/contract.toml" ] || { echo "error: the export of $source wrote no contract.toml" >&2; exit 1; }
inputs > "$fresh/.made-from"
rm -rf "$out"
mv "$fresh" "$out"
echo "$out: exported from $source" >&2
