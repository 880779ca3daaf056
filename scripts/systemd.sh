#!/usr/bin/env bash
# Checks the unit deploy/systemd/thresher.service: its syntax, how much of the system it could reach (systemd-analyze security, from 0,
# nothing, to 10, everything), and that the daemon works with all its restrictions. For that, systemd boots in a container without network, on a
# temporary layer over this machine's own file system. There the script follows docs/install-cluster.md: it runs what the Debian package runs
# when it is installed, sets up the machine with `thresher init --system`, starts the service, and sends it a request.
#
# Needs root on Debian or Ubuntu; installs systemd, systemd-container and curl with apt-get if one is missing.
# usage: systemd.sh [THRESHER [FROM]]
#   THRESHER   the program (default: target/release/thresher, from `make build`)
#   FROM       a folder with the runtime and the model, as `thresher init --download-to` writes it (default: models/.cache, from `make provision`)
set -euo pipefail
cd "$(dirname "$0")/.."

thresher=${1:-target/release/thresher} from=${2:-models/.cache}
request=docs/examples/request.json
# In tenths, as systemd-analyze takes it.
exposure_max=12
boot_s_max=120

fail() {
  echo "error: $1" >&2
  exit 1
}
[ -f "$thresher" ] || fail "$thresher does not exist; run \`make build\` first"
[ -d "$from" ] || fail "$from does not exist; run \`make provision\` first"
[ "$(id -u)" = 0 ] || fail "this script needs root: it boots systemd in a container"

missing=()
for tool in systemd-analyze:systemd systemd-nspawn:systemd-container curl:curl setfattr:attr; do
  command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || fail "not found: ${missing[*]}; install these packages"
  scripts/apt.sh "${missing[@]}"
fi

work=$(mktemp -d)
container='' init=''
finish() {
  local status=$?
  if [ "$status" -ne 0 ] && [ -n "$container" ]; then
    echo "the last lines of the container's console and of the unit's log:" >&2
    tail -n 5 "$work/console.log" | sed 's/^/  /' >&2
    [ -z "$init" ] || nsenter --target "$init" --all journalctl --no-pager --quiet --unit thresher --output cat -n 20 2>&1 | sed 's/^/  /' >&2 || true
  fi
  if [ -n "$container" ]; then
    # The end of its first process ends the container; systemd-nspawn alone would leave it behind.
    [ -z "$init" ] || kill -KILL "$init" 2>/dev/null || true
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
install -D -m 644 deploy/systemd/thresher.service "$installed/usr/lib/systemd/system/thresher.service"
install -D -m 644 deploy/systemd/thresher.sysusers "$installed/usr/lib/sysusers.d/thresher.conf"
mkdir "$installed/package"
cp deploy/debian/* "$installed/package"

# The services of this machine are not enabled in the container, and the user `thresher` is not created when it boots.
mkdir -p "$installed/etc/systemd/system"
setfattr -n trusted.overlay.opaque -v y "$installed/etc/systemd/system"
ln -s /dev/null "$installed/etc/systemd/system/systemd-sysusers.service"
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
  --bind-ro="$(realpath "$from"):/from" systemd.unit=multi-user.target > "$work/console.log" 2>&1 < /dev/null &
container=$!
deadline=$((SECONDS + boot_s_max))
until [ -n "$init" ] && nsenter --target "$init" --all systemctl is-active --quiet multi-user.target 2>/dev/null; do
  kill -0 "$container" 2>/dev/null || fail "systemd-nspawn ended"
  [ $SECONDS -lt $deadline ] || fail "systemd did not start in the container within $boot_s_max s"
  sleep 0.1
  # The first process of the container, once systemd runs in it.
  init=$(tr -d ' ' < "/proc/$container/task/$container/children" 2>/dev/null || true)
  [ "$(cat "/proc/$init/comm" 2>/dev/null)" = systemd ] || init=''
done
inside=(nsenter --target "$init" --all env -i "PATH=/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root)
state() { "${inside[@]}" systemctl show thresher --property "$1" --value; }
# Fails unless the service is active and the daemon ready at once, without waiting.
require_ready() {
  [ "$(state ActiveState)" = active ] || fail "$1: the service is $(state ActiveState)"
  "${inside[@]}" thresher health >/dev/null || fail "$1: the service is active, but the daemon is not ready"
}

# --- install, and start without settings ---

"${inside[@]}" sh /package/postinst configure 2>/dev/null
"${inside[@]}" id thresher >/dev/null || fail "the package did not create the user thresher"
refusal=$("${inside[@]}" systemctl start thresher 2>&1) && fail "the service started although \`thresher init\` never ran"
"${inside[@]}" journalctl --sync
said=$("${inside[@]}" journalctl --no-pager --quiet --unit thresher --output cat)
grep -q "^error: cannot read /etc/thresher/thresher.toml" <<<"$said" || fail "without settings, systemctl says: $refusal; the journal: $said"

# --- set up, and start ---

# The strictest umask that root may have: the service can read what `init` writes in any case.
"${inside[@]}" sh -c "umask 077; exec thresher init --system --from /from" >/dev/null 2> "$work/init.log" || fail "$(cat "$work/init.log")"
"${inside[@]}" systemctl enable --now --quiet thresher || fail "the service does not start"
require_ready "after the start"
daemon=$(state MainPID)
[ "$(state MemoryDenyWriteExecute)" = yes ] || fail "memory may be writable and executable"

web=(nsenter --target "$init" --net curl --silent --show-error --noproxy '*' --max-time 60)
code=$("${web[@]}" --header 'content-type: application/json' --data-binary "@$request" --output "$work/answer.json" \
  --write-out '%{http_code}' http://127.0.0.1:8080/v1/compress)
[ "$code" = 200 ] || fail "a request got HTTP $code: $(cat "$work/answer.json")"
grep -q '"citations":\[{' "$work/answer.json" || fail "the answer has no citations: $(cat "$work/answer.json")"

# The daemon can write its data, but not the runtime and the model that it loads.
require_owners() {
  local file expected owner
  while read -r file expected; do
    owner=$("${inside[@]}" stat -c '%U %a' "$file")
    [ "$owner" = "$expected" ] || fail "$file has the owner and mode $owner, not $expected"
  done <<'OWNERS'
/var/lib/thresher root 755
/var/lib/thresher/runtime/libonnxruntime.so root 644
/var/lib/thresher/models/minilm-l6/weights.bin root 644
/var/lib/thresher/data thresher 700
/var/lib/thresher/data/kv thresher 700
OWNERS
}
require_owners
[ "$(state MainPID)" = "$daemon" ] || fail "the daemon ended, and systemd started it again"
"${inside[@]}" grep -qE '^[^ ]+ / [^ ]+ ro[, ]' "/proc/$daemon/mounts" || fail "the root file system is writable"

# --- an upgrade, and the end ---

"${inside[@]}" thresher init --system --from /from >/dev/null 2> "$work/init.log" || fail "$(cat "$work/init.log")"
began=$(date +%s%N)
"${inside[@]}" sh /package/postinst configure
echo "restarted: active after $((($(date +%s%N) - began) / 1000000)) ms, and ready"
[ "$(state MainPID)" != "$daemon" ] || fail "the service was not restarted by an upgrade"
require_ready "after an upgrade"
require_owners

"${inside[@]}" sh /package/prerm remove 2>/dev/null
[ "$(state ActiveState) $(state Result)" = "inactive success" ] || fail "the service is $(state ActiveState), its result $(state Result)"
echo "booted: installed, set up, started, answered a request, upgraded, and stopped, with the restrictions of the unit"
