#!/usr/bin/env bash
# Checks the unit deploy/systemd/thresher.service: its syntax, how much of the system it could reach (systemd-analyze security, from 0,
# nothing, to 10, everything), and that the daemon works with all its restrictions. For that, systemd boots in a container without network, on a
# temporary layer over this machine's own file system, starts the unit as it is installed, and is sent a request.
#
# Needs root on Debian or Ubuntu; installs systemd, systemd-container and curl with apt-get if one is missing.
# usage: systemd.sh [THRESHER]    (default: target/release/thresher, from `make build`; `make model` makes the other files)
set -euo pipefail
cd "$(dirname "$0")/.."

thresher=${1:-target/release/thresher}
runtime_lib=${THRESHER_RUNTIME_LIB:-models/.cache/onnxruntime/libonnxruntime.so}
model=models/minilm-l6
request=docs/examples/request.json
# In tenths, as systemd-analyze takes it.
exposure_max=12
ready_s_max=120

fail() {
  echo "error: $1" >&2
  exit 1
}
for file in "$thresher" "$runtime_lib" "$model/contract.toml"; do
  [ -f "$file" ] || fail "$file does not exist; run \`make model\` first"
done
[ "$(id -u)" = 0 ] || fail "this script needs root: it boots systemd in a container"

missing=()
for tool in systemd-analyze:systemd systemd-nspawn:systemd-container curl:curl setfattr:attr; do
  command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || fail "not found: ${missing[*]}; install these packages"
  echo "installing ${missing[*]} with apt-get" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

work=$(mktemp -d)
container= init=
finish() {
  local status=$?
  if [ "$status" -ne 0 ] && [ -n "$container" ]; then
    echo "the last lines of the container's console and of the unit's log:" >&2
    tail -n 5 "$work/console.log" | sed 's/^/  /' >&2
    [ -z "$init" ] || nsenter --target "$init" --all journalctl --no-pager --quiet --unit thresher --output cat -n 20 2>&1 | sed 's/^/  /' >&2 || true
  fi
  if [ -n "$container" ]; then
    kill -KILL "$container" 2>/dev/null || true
    wait "$container" 2>/dev/null || true
  fi
  umount -l "$work/root" 2>/dev/null || true
  umount -l "$work/layer" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- install, in a layer over this machine's file system ---

# On a tmpfs, because an overlay cannot be the upper layer of another one.
mkdir -p "$work/layer" "$work/root"
mount -t tmpfs tmpfs "$work/layer"
installed=$work/layer/upper
mkdir -p "$installed" "$work/layer/work"
install -D -m 755 "$thresher" "$installed/usr/bin/thresher"
install -D -m 644 "$runtime_lib" "$installed/opt/thresher/onnxruntime/libonnxruntime.so"
cp -r "$model" "$installed/opt/thresher/minilm-l6"
chmod -R a+rX "$installed/opt"
install -D -m 644 deploy/systemd/thresher.toml "$installed/etc/thresher/thresher.toml"
install -D -m 644 deploy/systemd/thresher.service "$installed/usr/lib/systemd/system/thresher.service"
install -D -m 644 deploy/systemd/thresher.sysusers "$installed/usr/lib/sysusers.d/thresher.conf"

# The services of this machine are not enabled in the container.
mkdir -p "$installed/etc/systemd/system/multi-user.target.wants"
setfattr -n trusted.overlay.opaque -v y "$installed/etc/systemd/system"
ln -s /usr/lib/systemd/system/thresher.service "$installed/etc/systemd/system/multi-user.target.wants/thresher.service"
id=$(cat /proc/sys/kernel/random/uuid)
echo "${id//-/}" > "$installed/etc/machine-id"
mount -t overlay overlay -o "lowerdir=/,upperdir=$installed,workdir=$work/layer/work" "$work/root" ||
  fail "cannot mount an overlay over / (the file system needs to support it as a lower layer)"

# --- check the unit ---

# systemd only warns about unknown settings, so every line of output is an error.
found=$(systemd-analyze verify --man=no --root="$work/root" thresher.service 2>&1) || fail "$found"
[ -z "$found" ] || fail "$found"

security=$(systemd-analyze security --no-pager --offline=true --threshold="$exposure_max" deploy/systemd/thresher.service) ||
  fail "$(tail -n 1 <<<"$security"); the limit is $((exposure_max / 10)).$((exposure_max % 10))"
grep -o 'Overall exposure level.*: [0-9.]*' <<<"$security" | sed 's/^Overall exposure level.*: /exposure: /; s/$/ of 10/'

# --- boot ---

systemd-nspawn --quiet --directory="$work/root" --boot --private-network --register=no --keep-unit --console=pipe \
  systemd.unit=multi-user.target > "$work/console.log" 2>&1 < /dev/null &
container=$!
deadline=$((SECONDS + ready_s_max))
# `init` is the first process of the container, once systemd runs in it.
until [ -n "$init" ] && [ "$(cat "/proc/$init/comm" 2>/dev/null)" = systemd ]; do
  kill -0 "$container" 2>/dev/null || fail "systemd-nspawn ended"
  [ $SECONDS -lt $deadline ] || fail "systemd did not start in the container"
  sleep 0.1
  init=$(tr -d ' ' < "/proc/$container/task/$container/children" 2>/dev/null || true)
done
inside=(nsenter --target "$init" --all)
state() { "${inside[@]}" systemctl show thresher --property "$1" --value 2>/dev/null; }
web=(nsenter --target "$init" --net curl --silent --show-error --noproxy '*' --max-time 60)
until "${web[@]}" --fail --output /dev/null http://127.0.0.1:8081/readyz 2>/dev/null; do
  kill -0 "$container" 2>/dev/null || fail "the container ended"
  case $(state NRestarts) in 0 | '') ;; *) fail "the daemon ended before it was ready" ;; esac
  [ $SECONDS -lt $deadline ] || fail "the daemon was not ready within $ready_s_max s"
  sleep 0.1
done
[ "$(state NRestarts)" = 0 ] || fail "the daemon ended, and systemd started it again"
[ "$(state MemoryDenyWriteExecute)" = yes ] || fail "memory may be writable and executable"

code=$("${web[@]}" --header 'content-type: application/json' --data-binary "@$request" --output "$work/answer.json" \
  --write-out '%{http_code}' http://127.0.0.1:8080/v1/compress)
[ "$code" = 200 ] || fail "a request got HTTP $code: $(cat "$work/answer.json")"
grep -q '"citations":\[{' "$work/answer.json" || fail "the answer has no citations: $(cat "$work/answer.json")"
owner=$("${inside[@]}" stat -c '%U %a' /var/lib/thresher)
[ "$owner" = "thresher 700" ] || fail "/var/lib/thresher has the owner and mode $owner"

"${inside[@]}" systemctl stop thresher
[ "$(state Result)" = success ] || fail "the daemon ended with $(state Result)"
echo "booted: the daemon answered a request and stopped with the restrictions of the unit"
