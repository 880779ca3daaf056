#!/usr/bin/env bash
# Checks the locked crates: licences, sources, banned crates, unused dependencies, the Rust version that they need, the size of our packages, and known advisories.
# usage: audit.sh TOOLS    (TOOLS is the folder that holds cargo-deny and cargo-shear)
#
#   THRESHER_ADVISORIES   "skip": do not check advisories; "require": fail if they cannot be fetched
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$1
advisories=${THRESHER_ADVISORIES:-}

"$tools/cargo-deny" --locked --workspace check bans licenses sources
"$tools/cargo-shear"

python3 - <<'PYTHON'
import json, subprocess, sys

metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--locked", "--format-version", "1"]))
version = lambda package: [int(n) for n in (package["rust_version"] or "0").split(".")][:2]
ours = min(version(p) for p in metadata["packages"] if p["source"] is None)
newer = [f"{p['name']} {p['version']} needs Rust {p['rust_version']}" for p in metadata["packages"] if version(p) > ours]
if newer:
    sys.exit("error: locked crates need a newer Rust than rust-version in Cargo.toml\n  " + "\n  ".join(newer))
print("rust-version ok")
PYTHON

# What `cargo package` would upload: each crate holds what it includes, and no weights.
packages=target/package
mkdir -p "$packages"
rm -f "$packages"/thresher*.crate
cargo package --workspace --exclude thresher-fuzz --no-verify --allow-dirty --locked --quiet --target-dir target
for crate in "$packages"/thresher*.crate; do
  bytes=$(wc -c < "$crate")
  [ "$bytes" -lt 2000000 ] || { echo "error: $crate has $bytes bytes; the limit is 2000000" >&2; exit 1; }
done
echo "package sizes ok"

[ "$advisories" = skip ] && exit 0
if "$tools/cargo-deny" fetch db; then
  "$tools/cargo-deny" --locked --offline --workspace check advisories
elif [ "$advisories" = require ]; then
  exit 1
else
  echo "warning: the RustSec database cannot be fetched; known advisories were not checked" >&2
fi
