#!/usr/bin/env bash
# Starts the daemon on free loopback ports, sends it one request, prints the response, and stops the daemon.
# usage: demo.sh THRESHER REQUEST.json
set -euo pipefail

thresher=$1 request=$2
python=${PYTHON:-python3}
ready_s_max=120

work=$(mktemp -d)
daemon=
finish() {
  local status=$?
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  if [ "$status" -ne 0 ] && [ -s "$work/daemon.log" ]; then
    printf '\nthe last lines of the daemon'"'"'s log:\n' >&2
    tail -n 30 "$work/daemon.log" >&2
  fi
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

read -r http admin < <("$python" scripts/demo.py ports)

THRESHER__HTTP__LISTEN=127.0.0.1:$http THRESHER__ADMIN__LISTEN=127.0.0.1:$admin THRESHER__BLOCKS__DIR=$work/kv THRESHER__REGISTRY__DIR=$work/registry \
  "$thresher" serve --config config/thresher.toml > "$work/daemon.log" 2>&1 &
daemon=$!
echo "daemon on 127.0.0.1:$http, waiting until it is ready" >&2

"$python" scripts/demo.py wait "http://127.0.0.1:$admin/readyz" "$ready_s_max" "$daemon"
url=http://127.0.0.1:$http/v1/compress
echo "curl -H 'content-type: application/json' -d @$request $url" >&2
if command -v curl >/dev/null; then
  status=$(curl --silent --show-error --noproxy '*' --max-time 60 -H 'content-type: application/json' \
    --data-binary "@$request" --output "$work/answer.json" --write-out '%{http_code}' "$url")
  [ "$status" = 200 ] || { echo "error: HTTP $status: $(cat "$work/answer.json")" >&2; exit 1; }
else
  "$python" scripts/demo.py send "$url" "$request" > "$work/answer.json"
fi
"$python" scripts/demo.py show "$request" "$work/answer.json"
