#!/usr/bin/env bash
# Sends the daemon requests of every kind. The memory and disk tiers are so small that both evict blocks. Fails if resident memory exceeds
# its limits by more than 300 MB, or if a request is lost; it asserts no times. `thresher-lab soak 600` has stricter limits.
# usage: soak.sh SECONDS THRESHER_LAB...    (the command that runs the laboratory)
set -euo pipefail

seconds=$1
shift
THRESHER__BLOCKS__DISK_BYTES_MAX=$((32 << 20)) \
  "$@" soak "$seconds" --memory-mb 16 --clients 4
