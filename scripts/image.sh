#!/usr/bin/env bash
# Builds the container image of deploy/image/Dockerfile from files that are here already, and runs it: as a user without rights, on a
# read-only root file system, with a request. Prints the size of the image and the time until its health check succeeds.
#
# It builds all stages of the Dockerfile except the one that compiles the program, which is given. The images of a registry are replaced by
# packages of this machine's distribution, and `thresher init` takes the runtime and the model from a folder, so that neither a registry nor
# a package index is needed. The image is written to an archive, and podman runs what it loads from that archive.
#
# Needs root on Debian or Ubuntu, and installs podman, runc, mmdebstrap and curl with apt-get if one is missing.
# usage: image.sh [THRESHER [FROM]]
#   THRESHER   the program (default: target/release/thresher, from `make build`)
#   FROM       a folder with the runtime and the model, as `thresher init --download-to` writes it (default: models/.cache, from `make provision`)
set -euo pipefail
cd "$(dirname "$0")/.."

thresher=${1:-target/release/thresher} from=${2:-models/.cache}
request=docs/examples/request.json
archive=target/image/thresher.tar
ready_s_max=120
# podman would otherwise start timers of systemd for the health check, and fail where systemd does not run. The script runs the check itself.
export DISABLE_HC_SYSTEMD=true

fail() {
  echo "error: $1" >&2
  exit 1
}
[ -f "$thresher" ] || fail "$thresher does not exist; run \`make build\` first"
[ -d "$from" ] || fail "$from does not exist; run \`make provision\` first"
[ "$(id -u)" = 0 ] || fail "this script needs root: it builds a base image and enters the network of a container"
command -v apt-get >/dev/null || fail "this script needs Debian or Ubuntu: its base image is made of their packages"

missing=()
for tool in podman runc mmdebstrap curl; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
[ ${#missing[@]} -eq 0 ] || scripts/apt.sh "${missing[@]}"

work=$(mktemp -d)
# Its own storage, so that the script neither sees nor leaves images of this machine.
podman=(podman --root "$work/storage" --runroot "$work/run" --runtime runc --cgroup-manager cgroupfs)
finish() {
  local status=$?
  if [ "$status" -ne 0 ] && "${podman[@]}" container exists thresher; then
    echo "the last lines of the daemon's log:" >&2
    "${podman[@]}" logs --tail 20 thresher 2>&1 | sed 's/^/  /' >&2 || true
  fi
  "${podman[@]}" rm -f -a -t 1 >/dev/null 2>&1 || true
  umount -l "$work/storage/overlay" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- build ---

# packages NAME PACKAGE... makes an image of packages. glibc has to be at least as recent as that of the machine that built the program, so they
# are of this machine's distribution.
. /etc/os-release
packages() {
  local name=$1
  shift
  mmdebstrap --quiet --variant=extract --include="$(IFS=, && echo "$*")" "$VERSION_CODENAME" "$work/$name.tar" ||
    fail "mmdebstrap could not fetch the packages of the image $name"
  "${podman[@]}" import -q "$work/$name.tar" "localhost/$name" >/dev/null 2>&1
}
libraries=(libc6 libgcc-s1 libstdc++6 ca-certificates)
packages base "${libraries[@]}"
packages rust "${libraries[@]}" base-files dash coreutils

# The stage `build` of the Dockerfile leaves the program there.
mkdir -p "$work/build/thresher/target/release"
strip -o "$work/build/thresher/target/release/thresher" "$thresher"
"${podman[@]}" build -q --format docker --isolation chroot --volume "$(realpath "$from"):/from:ro" \
  --build-context "build=$work/build" --build-arg RUST=localhost/rust --build-arg BASE=localhost/base --build-arg INIT="--from /from" \
  -f deploy/image/Dockerfile -t localhost/thresher . > "$work/log" 2>&1 || fail "$(cat "$work/log")"

mkdir -p "$(dirname "$archive")"
rm -f "$archive"
"${podman[@]}" save -q --format docker-archive -o "$archive" localhost/thresher
"${podman[@]}" rmi -f -a >/dev/null
"${podman[@]}" load -q -i "$archive" >/dev/null
size=$("${podman[@]}" image inspect -f '{{.Size}}' localhost/thresher)
echo "image: $((size / 1000000)) MB, of which the base $(($(stat -c %s "$work/base.tar") / 1000000)) MB; $archive: $(($(stat -c %s "$archive") / 1000000)) MB"

# --- run ---

# No limit that is higher than this machine's own, which podman could not set.
limits=(--ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" --ulimit "nproc=4096:4096")
confined=("${limits[@]}" --network none --read-only --read-only-tmpfs=false --cap-drop all --security-opt no-new-privileges)

# An address other than loopback without keys is refused.
refusal=$("${podman[@]}" run --rm "${confined[@]}" localhost/thresher 2>&1) && fail "the daemon started on 0.0.0.0 without a keys file"
grep -q "access.keys_file" <<<"$refusal" || fail "without a keys file, the daemon says: $refusal"

mkdir "$work/keys"
key=$("${podman[@]}" run --rm "${limits[@]}" --network none --user "$(id -u)" -v "$work/keys:/keys" localhost/thresher \
  key new --name web --file /keys/keys.toml 2>/dev/null)
chmod a+r "$work/keys/keys.toml"

began=$(date +%s%N)
"${podman[@]}" run -d --name thresher "${confined[@]}" -v data:/var/lib/thresher -v "$work/keys:/etc/thresher/keys:ro" \
  localhost/thresher >/dev/null
daemon=$("${podman[@]}" inspect -f '{{.State.Pid}}' thresher)
[ "$daemon" != 0 ] || fail "the daemon ended at once"
healthy() { "${podman[@]}" healthcheck run thresher >/dev/null 2>&1; }
inside=(nsenter --net="/proc/$daemon/ns/net" curl --silent --show-error --noproxy '*' --max-time 60)
until healthy; do
  kill -0 "$daemon" 2>/dev/null || fail "the daemon ended before it was ready"
  [ $(($(date +%s%N) - began)) -lt $((ready_s_max * 1000000000)) ] || fail "the daemon was not ready within $ready_s_max s"
  sleep 0.05
done
echo "healthy: after $((($(date +%s%N) - began) / 1000000)) ms, on a new volume"
"${inside[@]}" --fail --output /dev/null http://127.0.0.1:8081/readyz || fail "the health check succeeded before the daemon was ready"

# The process has the user, the rights and the file system that docs/install-cluster.md promises.
status=$(cat "/proc/$daemon/status")
for line in 'Uid:\s*65532\s' 'CapEff:\s*0*$' 'CapBnd:\s*0*$' 'NoNewPrivs:\s*1$' 'Seccomp:\s*2$'; do
  grep -qE "^$line" <<<"$status" || fail "/proc/$daemon/status has no line $line"
done
grep -qE '^[^ ]+ / [^ ]+ ro[, ]' "/proc/$daemon/mounts" || fail "the root file system is writable"

answer=$work/answer.json
send() {
  "${inside[@]}" --header 'content-type: application/json' --data-binary "@$request" --output "$answer" --write-out '%{http_code}' \
    "$@" http://127.0.0.1:8080/v1/compress
}
code=$(send)
[ "$code" = 401 ] || fail "a request without a key got HTTP $code, not 401"
code=$(send --header "authorization: Bearer $key")
[ "$code" = 200 ] || fail "a request got HTTP $code: $(cat "$answer")"
python3 - "$request" "$answer" <<'PYTHON'
import json, sys
request, answer = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
texts = {chunk["id"]: chunk["text"] for chunk in request["chunks"]}
assert answer["citations"], "error: the answer has no citations"
for citation in answer["citations"]:
    assert citation["text"] in texts[citation["chunk"]], "error: a citation is not in its chunk: {}".format(citation)
usage = answer["usage"]
print("answer: {} citations, {} of {} tokens".format(len(answer["citations"]), usage["tokens_out"], usage["tokens_in"]))
PYTHON

"${podman[@]}" stop -t 30 thresher >/dev/null 2>&1
code=$("${podman[@]}" inspect -f '{{.State.ExitCode}}' thresher)
[ "$code" = 0 ] || fail "the daemon ended with status $code after SIGTERM"

# The same image as a sidecar: on loopback, without keys. `doctor` ends with 1 if it cannot run there.
"${podman[@]}" run --rm "${confined[@]}" -v sidecar:/var/lib/thresher -e THRESHER__HTTP__LISTEN=127.0.0.1:8080 -e THRESHER__ACCESS__KEYS_FILE= \
  localhost/thresher doctor > "$work/doctor.txt" || fail "$(cat "$work/doctor.txt")"
echo "sidecar: $(tail -n 1 "$work/doctor.txt")"
