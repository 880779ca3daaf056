#!/usr/bin/env bash
# Installs Debian packages. The caller has checked that this user is root and that there is apt-get.
# usage: apt.sh PACKAGE...
set -euo pipefail

echo "installing $* with apt-get" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@" >/dev/null
