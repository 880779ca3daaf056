#!/usr/bin/env bash
# Checks what operators monitor the daemon with: the rules of Prometheus and their unit tests, the queries of the dashboard, and that alerts,
# dashboard, runbook and documentation agree with each other and with the metrics of a running daemon.
# usage: monitoring.sh THRESHER MODEL_DIR
#   THRESHER         the binary
#   MODEL_DIR        the exported default model
#
#   PROMTOOL         the path of promtool; without it, the one in PATH, or else that of Debian's package `prometheus`
set -euo pipefail
cd "$(dirname "$0")/.."
thresher=$1 model=$2
python=${PYTHON:-python3}
ready_s_max=120

work=target/monitoring
mkdir -p "$work"
promtool=${PROMTOOL:-$(command -v promtool || true)}
if [ -z "$promtool" ]; then
  promtool=$work/package/usr/bin/promtool
  if [ ! -x "$promtool" ]; then
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
      echo "error: promtool not found: install Prometheus, or set PROMTOOL to the path of promtool" >&2
      exit 1
    fi
    # The package is only unpacked: installed, it would start a server.
    echo "fetching promtool with apt-get" >&2
    [ "$(id -u)" != 0 ] || apt-get update -qq
    rm -rf "$work/package" "$work"/prometheus_*.deb
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root prometheus)
    dpkg-deb -x "$work"/prometheus_*.deb "$work/package"
    rm "$work"/prometheus_*.deb
  fi
fi

found=$("$promtool" check rules deploy/monitoring/alerts.yml) || { echo "$found"; exit 1; }
rules=$(grep -o '[0-9]* rules found' <<< "$found" | cut -d ' ' -f 1)
"$promtool" test rules deploy/monitoring/alerts.test.yml
"$python" scripts/monitoring.py queries > "$work/queries.yml"
"$promtool" check rules "$work/queries.yml" > "$work/queries.log" 2>&1 || { cat "$work/queries.log" >&2; exit 1; }

data=$(mktemp -d)
daemon=
finish() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  rm -rf "$data"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

read -r http admin < <("$python" scripts/demo.py ports)
THRESHER__HTTP__LISTEN=127.0.0.1:$http THRESHER__ADMIN__LISTEN=127.0.0.1:$admin THRESHER__MODEL__DIR=$model THRESHER__BLOCKS__DIR=$data/kv \
  THRESHER__REGISTRY__DIR=$data/registry THRESHER__ORIGINALS__DIR=$data/originals "$thresher" serve > "$data/daemon.log" 2>&1 &
daemon=$!
if ! "$python" scripts/demo.py wait "http://127.0.0.1:$admin/readyz" "$ready_s_max" "$daemon"; then
  tail -n 5 "$data/daemon.log" >&2
  exit 1
fi
# Most metrics appear with their first event.
for request in compress attribute; do
  example=docs/examples/${request/compress/request}.json
  "$python" scripts/demo.py send "http://127.0.0.1:$http/v1/$request" "$example" > /dev/null
done
"$python" scripts/monitoring.py check "$rules" "http://127.0.0.1:$admin/metrics"
