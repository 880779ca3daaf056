#!/usr/bin/env bash
# Writes what is generated from docs/openapi.json: the types of the clients, and the blocking half of the Python client. The page uses the types
# of the TypeScript client.
# usage: types.sh [--check] LANGUAGE...    (python, typescript; with --check, it writes nothing, and fails if a file is not what the sources give)
#
#   PYTHON       the Python 3.11 for python (default: python3)
#   PYTHONPATH   has the packages of scripts/types/requirements.txt, for python
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

check=
if [ "$1" = --check ]; then
  check=yes
  shift
fi

python() {
  "${PYTHON:-python3}" scripts/types/python.py ${check:+--check}
}

typescript() {
  local types=clients/typescript/src/schema.ts
  # The packages are installed in a copy, so that nothing in the source tree changes.
  mkdir -p target/types
  cp scripts/types/package*.json scripts/types/.npmrc scripts/types/typescript.mjs target/types
  (cd target/types && npm ci --silent && node typescript.mjs "$root/docs/openapi.json" schema.ts)
  if [ -z "$check" ]; then
    cp target/types/schema.ts "$types"
  elif ! cmp -s target/types/schema.ts "$types"; then
    echo "error: $types is not what docs/openapi.json gives: run make types" >&2
    exit 1
  fi
}

for language in "$@"; do
  "$language"
done
