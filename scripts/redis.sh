#!/usr/bin/env bash
# Installs redis-server for the tests with apt-get if it is missing and this user is root. With THRESHER_TEST_REDIS=skip it does nothing, and
# the tests that need a server are skipped.
set -euo pipefail

if [ "${THRESHER_TEST_REDIS:-}" = skip ]; then
  echo "THRESHER_TEST_REDIS=skip: the shared tier is not tested" >&2
  exit 0
fi
command -v redis-server >/dev/null && command -v redis-cli >/dev/null && exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "error: redis-server not found: the tests of the shared tier start their own" >&2
  echo "  install it (apt-get install redis-server, brew install redis), or set THRESHER_TEST_REDIS=skip" >&2
  exit 1
fi

# The package may start a service, which the tests do not use.
"$(dirname "$0")/apt.sh" redis-server
