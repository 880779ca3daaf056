#!/usr/bin/env bash
# Installs the packages of a requirements file into a folder, unless they are there already.
# usage: packages.sh REQUIREMENTS FOLDER [FLAG...]    (their programs are in FOLDER/bin; the flags are for pip)
#
#   PYTHON   the Python 3 with pip that installs them (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=$1 folder=$2
shift 2

cmp -s "$requirements" "$folder/requirements.txt" && exit 0
echo "$folder: installing the packages of $requirements" >&2
rm -rf "$folder"
# The host's packages and pip's settings for them have no part in this.
PIP_REQUIRE_VIRTUALENV=0 PIP_USER=0 "${PYTHON:-python3}" -m pip install --quiet --no-input --disable-pip-version-check \
  --root-user-action=ignore --no-warn-conflicts --no-warn-script-location "$@" --target "$folder" -r "$requirements"
cp "$requirements" "$folder/requirements.txt"
