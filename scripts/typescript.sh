#!/usr/bin/env bash
# Tests the TypeScript client and its adapters against a daemon with the default model, and calls with types that openapi-typescript generates
# from the daemon's OpenAPI document.
# usage: typescript.sh THRESHER    (the binary; the model is that of the default settings)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export THRESHER_TEST_BINARY=$root/$1 THRESHER_TEST_ROOT=$root

for command in node npm; do
  command -v "$command" >/dev/null || { echo "error: $command not found: install Node.js 20 or later with npm" >&2; exit 1; }
done
node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { echo "error: Node.js 20 or later is needed, found $(node --version)" >&2; exit 1; }

# The packages are installed in a copy, so that nothing in the source tree changes. The copy has the same layout.
work=$root/target/typescript
rm -rf "$work"
for folder in clients/typescript tests/generators/typescript; do
  mkdir -p "$work/$folder"
  (cd "$folder" && tar -c --exclude=./node_modules --exclude=./dist --exclude=./out .) | tar -x -C "$work/$folder"
  # The adapter's tests run on Node.js 20, too, although the AI SDK names a later one: npm warns of that.
  (cd "$work/$folder" && npm ci --silent)
done

echo "TypeScript client"
(cd "$work/clients/typescript" && npm test --silent)
echo "types that are generated from the OpenAPI document"
(cd "$work/tests/generators/typescript" && npm test --silent)

# The package that is published has no tests, and can be imported without the packages of the adapters.
echo "package"
(cd "$work/clients/typescript" && npm pack --silent --pack-destination "$work" >/dev/null)
mkdir "$work/installed"
(cd "$work/installed" && npm init --yes >/dev/null && npm install --silent --omit=peer "$work"/thresher-client-*.tgz \
  && node --input-type=module -e 'import { Client } from "thresher-client"; new Client();')
[ ! -e "$work/installed/node_modules/thresher-client/test" ] || { echo "error: the package has tests" >&2; exit 1; }
