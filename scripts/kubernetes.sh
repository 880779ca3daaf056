#!/usr/bin/env bash
# Checks the manifests of deploy/kubernetes: against the strict schemas of Kubernetes, and by starting the daemon and redis-server with the
# settings, variables and arguments of the manifests. No cluster is needed, and none is used. deploy/kubernetes/check.py says what is checked.
#
# Needs kubectl or kustomize (to render), Python 3.9 or later with pip, and the files that `make model` makes. Fetches the schemas with pip,
# once. Installs redis-server with apt-get if it is missing and this user is root.
# usage: kubernetes.sh [THRESHER]    (default: target/release/thresher)
set -euo pipefail
cd "$(dirname "$0")/.."

thresher=${1:-target/release/thresher}
runtime_lib=${THRESHER_RUNTIME_LIB:-models/.cache/onnxruntime/libonnxruntime.so}
model=models/minilm-l6
python=${PYTHON:-python3}
packages=models/.cache/kubernetes
requirements=deploy/kubernetes/requirements.txt

fail() {
  echo "error: $1" >&2
  exit 1
}
for file in "$thresher" "$runtime_lib" "$model/contract.toml"; do
  [ -f "$file" ] || fail "$file does not exist; run \`make model\` first"
done
command -v kustomize >/dev/null || kubectl kustomize --help >/dev/null 2>&1 ||
  fail "neither kustomize nor kubectl was found: install kubectl 1.27 or later, or kustomize 5 (https://kubernetes.io/docs/tasks/tools)"
THRESHER_TEST_REDIS='' scripts/redis.sh

if ! cmp -s "$requirements" "$packages/requirements.txt"; then
  rm -rf "$packages"
  PIP_REQUIRE_VIRTUALENV=0 PIP_USER=0 "$python" -m pip install --quiet --no-input --disable-pip-version-check --root-user-action=ignore \
    --no-warn-conflicts --no-warn-script-location --target "$packages" -r "$requirements" || fail "pip could not install $requirements"
  cp "$requirements" "$packages/"
fi
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages "$python" deploy/kubernetes/check.py "$thresher" "$runtime_lib" "$model" "$(command -v redis-server)"
