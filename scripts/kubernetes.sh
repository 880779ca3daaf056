#!/usr/bin/env bash
# Checks the manifests of deploy/kubernetes: against the strict schemas of Kubernetes, and by starting the daemon and redis-server with the
# settings, variables and arguments of the manifests. No cluster is needed, and none is used. deploy/kubernetes/check.py says what is checked.
#
# Needs kubectl or kustomize (to render), and Python 3.9 or later with pip. Fetches the schemas with pip, once. Installs redis-server with
# apt-get if it is missing and this user is root.
# usage: kubernetes.sh [THRESHER [FROM]]
#   THRESHER   the program (default: target/release/thresher, from `make build`)
#   FROM       a folder with the runtime and the model, as `thresher init --download-to` writes it (default: models/.cache, from `make provision`)
set -euo pipefail
cd "$(dirname "$0")/.."

thresher=${1:-target/release/thresher} from=${2:-models/.cache}
python=${PYTHON:-python3}
packages=models/.cache/kubernetes

fail() {
  echo "error: $1" >&2
  exit 1
}
[ -f "$thresher" ] || fail "$thresher does not exist; run \`make build\` first"
[ -d "$from" ] || fail "$from does not exist; run \`make provision\` first"
command -v kustomize >/dev/null || kubectl kustomize --help >/dev/null 2>&1 ||
  fail "neither kustomize nor kubectl was found: install kubectl 1.27 or later, or kustomize 5 (https://kubernetes.io/docs/tasks/tools)"
THRESHER_TEST_REDIS='' scripts/redis.sh

scripts/packages.sh deploy/kubernetes/requirements.txt "$packages"

# As in the image, where this is /opt/thresher.
installed=$(mktemp -d)
trap 'rm -rf "$installed"' EXIT
"$thresher" init --root "$installed" --config "$installed/thresher.toml" --from "$from" >/dev/null 2> "$installed/log" || fail "$(cat "$installed/log")"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages "$python" deploy/kubernetes/check.py "$thresher" "$installed" "$(command -v redis-server)"
