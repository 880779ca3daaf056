#!/usr/bin/env bash
# Checks the workflows of .github with actionlint and zizmor, and the shell scripts with shellcheck. Needs no network once the tools are installed.
# usage: workflows.sh
#
#   PYTHON   a Python 3 with pip, which installs the tools (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/models/.cache/workflows
scripts/packages.sh scripts/workflows.txt "$tools" --no-deps --require-hashes

# actionlint runs shellcheck on the commands of the workflows.
PYTHONPATH="$tools" "$tools/bin/actionlint" -shellcheck "$tools/bin/shellcheck" .github/workflows/*.yml
"$tools/bin/zizmor" --offline --persona pedantic --no-progress --quiet .github
# SC1091: files that a script reads from the system cannot be checked.
"$tools/bin/shellcheck" --exclude=SC1091 scripts/*.sh .ci/run deploy/debian/*
echo "workflows and scripts ok"
