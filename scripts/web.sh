#!/usr/bin/env bash
# Tests the page: rebuilds web/dist and compares it with the committed files, checks types, runs the unit tests, and runs the end-to-end tests
# in Chromium against daemons that this script starts: one with the default model, one with a small decoder.
# usage: web.sh THRESHER MODEL_DIR DECODER_SOURCE [SCREENSHOTS]
#   THRESHER         the binary, which serves the page
#   MODEL_DIR        the exported default model
#   DECODER_SOURCE   the Hugging Face directory of the decoder
#   SCREENSHOTS      a folder for pictures of all views; they are made instead of the end-to-end tests
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
binary=$root/$1 model=$root/$2 decoder=$root/$3 screenshots=${4:-}

for command in node npm curl; do
  command -v "$command" >/dev/null || { echo "error: $command not found: install Node.js 20 or later with npm, and curl" >&2; exit 1; }
done
node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { echo "error: Node.js 20 or later is needed, found $(node --version)" >&2; exit 1; }
if [ -z "${CHROMIUM:-}" ] && ! command -v chromium >/dev/null; then
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "error: chromium not found: install it, or set CHROMIUM to the path of Chromium or Chrome" >&2
    exit 1
  fi
  scripts/apt.sh chromium
fi
export CHROMIUM=${CHROMIUM:-$(command -v chromium)}

# The packages are installed in a copy, so that nothing in the source tree changes. The copy has the same layout: the page uses types of the
# TypeScript client.
work=$root/target/web
rm -rf "$work"
mkdir -p "$work/clients/typescript"
cp -R web "$work"
cp -R clients/typescript/src "$work/clients/typescript"
cd "$work/web"
npm ci --silent
npm run --silent build
diff -r dist "$root/web/dist" || { echo "error: web/dist is not what its sources give: run npm ci && npm run build in web/" >&2; exit 1; }
npm run --silent check
npm test --silent

data=$(mktemp -d)
pids=()
stop() {
  kill "${pids[@]}" 2>/dev/null || true
  wait "${pids[@]}" 2>/dev/null || true
  rm -rf "$data"
}
trap stop EXIT

# start NAME PORT MODEL: starts a daemon on PORT, with its admin listener on the next one.
start() {
  local name=$1 port=$2 folder=$3
  mkdir -p "$data/$name"
  (cd "$data/$name" && exec env THRESHER__MODEL__DIR="$folder" THRESHER__MODEL__KV_DIR="${KV_DIR:-}" THRESHER__HTTP__LISTEN="127.0.0.1:$port" \
    THRESHER__ADMIN__LISTEN="127.0.0.1:$((port + 1))" "$binary" serve > daemon.log 2>&1) &
  pids+=($!)
  for _ in $(seq 150); do
    # Another process may have the port: its answer does not count.
    kill -0 "${pids[-1]}" 2>/dev/null || break
    curl -sf "http://127.0.0.1:$((port + 1))/readyz" >/dev/null && return
    sleep 0.2
  done
  echo "error: the daemon $name is not ready; its log ends:" >&2
  tail -n 5 "$data/$name/daemon.log" >&2
  exit 1
}

"$binary" export "$decoder" --out "$data/decoder" >/dev/null
KV_DIR="$data/decoder" start decoder 28090 "$data/decoder"
start default 28080 "$model"
# The Python client and its packages, which `make test` installs: a copied program imports it.
export THRESHER_PYTHONPATH=$root/clients/python/src:$root/models/.cache/frameworks
export THRESHER_URL=http://127.0.0.1:28080 THRESHER_ADMIN_URL=http://127.0.0.1:28081 THRESHER_DECODER_URL=http://127.0.0.1:28090
if [ -n "$screenshots" ]; then
  npm run --silent screenshots -- "$screenshots"
else
  # A browser on a busy machine can be slower than any limit: the tests get a second try, and the output shows both.
  npm run --silent e2e || { echo "the end-to-end tests failed; running them a second time" >&2; npm run --silent e2e; }
fi
