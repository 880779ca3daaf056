#!/usr/bin/env bash
# Runs all tests. `make test` calls this script after it has fetched the runtime, the model and redis-server.
#
#   MAKE_COMMAND CARGO CARGOFLAGS PYTHON   the commands, and flags for cargo
#   RUNTIME_LIB GPU                        the path of libonnxruntime; not empty if the tests use a GPU
#   MODEL_SOURCE MODEL_DIR                 the Hugging Face directory of the default model; the directory of its export
#   SDK                                    the directory of the official Python clients
set -euo pipefail
cd "$(dirname "$0")/.."

with_runtime=(env THRESHER_CONFIG= "THRESHER_RUNTIME_LIB=$RUNTIME_LIB")
began=$SECONDS

# pip waits for the network most of the time, so it runs while the Rust tests are built.
log=target/test-packages.log
mkdir -p target
echo "==> Python packages: installing in the background (about 5 minutes; output in $log)"
"$MAKE_COMMAND" --no-print-directory packages > "$log" 2>&1 &
packages=$!
trap 'kill "$packages" 2>/dev/null || true' EXIT

# CARGO and CARGOFLAGS may have several words.
# shellcheck disable=SC2086
scripts/stage.sh "Rust tests: build" "8 minutes" $CARGO test --no-run $CARGOFLAGS
if [ -z "${THRESHER_MULTILINGUAL_SOURCE:-}" ]; then
  scripts/stage.sh "multilingual model: fetch" "20 seconds" "$PYTHON" models/provision.py --multilingual
fi
if [ -z "${THRESHER_COLBERT_SOURCE:-}" ]; then
  scripts/stage.sh "ColBERT: fetch" "20 seconds" "$PYTHON" models/provision.py --colbert
fi
scripts/stage.sh "default model: export" "10 seconds" \
  "${with_runtime[@]}" scripts/model.sh "$MODEL_SOURCE" "$MODEL_DIR" target/debug/thresher
scripts/stage.sh "example of an embedded engine" "5 seconds" target/debug/examples/embed "$MODEL_DIR" "$RUNTIME_LIB"
# shellcheck disable=SC2086
scripts/stage.sh "Rust tests: run" "6 minutes" "${with_runtime[@]}" $CARGO test $CARGOFLAGS
if [ -n "$GPU" ]; then
  # Their names say that they need one; all other tests of this name have run above.
  # shellcheck disable=SC2086
  scripts/stage.sh "Rust tests that need a GPU" "1 minute" "${with_runtime[@]}" $CARGO test $CARGOFLAGS --test libraries -- --ignored --nocapture gpu
fi

if ! wait "$packages"; then
  echo "error: the packages of the Python tests could not be installed:" >&2
  tail -n 20 "$log" >&2
  exit 1
fi
trap - EXIT
scripts/stage.sh "Python tests: provisioning, official clients, middleware" "3 minutes" \
  "${with_runtime[@]}" THRESHER_TEST_SDK="$SDK" PYTHONPYCACHEPREFIX="$PWD/target/pycache" \
  "$PYTHON" -m unittest discover -s tests -p '*_test.py'
"$MAKE_COMMAND" --no-print-directory client
echo "<== all tests passed in $((SECONDS - began)) s"
