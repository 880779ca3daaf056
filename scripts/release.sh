#!/usr/bin/env bash
# Packages a binary as a release does: the archive, the bill of materials and the checksums, in dist/. The binary has to run on this machine.
# usage: release.sh [BINARY [TARGET]]    (default: target/release/thresher, for this machine)
#
#   PYTHON              Python 3.8 or later (default: python3)
#   SOURCE_DATE_EPOCH   the time of all files in the archive (default: that of the last commit)
#   GLIBC_MAX           the newest glibc that a Linux binary may need, such as 2.28 (default: not checked)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
binary=${1:-target/release/thresher}
target=${2:-$(rustc -vV | sed -n 's/^host: //p')}

"$python" scripts/release.py archive "$binary" "$target"
"$python" scripts/release.py sbom "$target"
"$python" scripts/release.py checksums
