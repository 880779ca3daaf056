#!/usr/bin/env bash
# Checks that the TypeScript client's types are those of docs/openapi.json, and tests the client and its adapters against a daemon with the
# default model.
# usage: typescript.sh THRESHER    (the binary; the model is that of the default settings)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export THRESHER_TEST_BINARY=$root/$1 THRESHER_TEST_ROOT=$root

for command in node npm; do
  command -v "$command" >/dev/null || { echo "error: $command not found: install Node.js 20 or later with npm" >&2; exit 1; }
done
node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { echo "error: Node.js 20 or later is needed, found $(node --version)" >&2; exit 1; }

# The packages are installed in a copy, so that nothing in the source tree changes.
work=$root/target/typescript
rm -rf "$work"
mkdir -p "$work/client"
(cd clients/typescript && tar -c --exclude=./node_modules --exclude=./dist --exclude=./out .) | tar -x -C "$work/client"
# The adapter's tests run on Node.js 20, too, although the AI SDK names a later one: npm warns of that.
(cd "$work/client" && npm ci --silent)

echo "types"
scripts/types.sh --check typescript
echo "client"
(cd "$work/client" && npm test --silent)

# The package that is published has no tests, and can be imported without the packages of the adapters.
echo "package"
(cd "$work/client" && npm pack --silent --pack-destination "$work" >/dev/null)
mkdir "$work/installed"
(cd "$work/installed" && npm init --yes >/dev/null && npm install --silent --omit=peer "$work"/thresher-client-*.tgz \
  && node --input-type=module -e 'import { Client } from "thresher-client"; new Client();')
[ ! -e "$work/installed/node_modules/thresher-client/test" ] || { echo "error: the package has tests" >&2; exit 1; }
