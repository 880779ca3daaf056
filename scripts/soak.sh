#!/usr/bin/env bash
# Sends the daemon requests of every kind. The memory and disk tiers are so small that both evict blocks. Fails if resident memory exceeds
# its limits by more than 300 MB, or if a request is lost; it asserts no times. The write queue may have twice its default size, so that a
# peak on a busy machine does not fail the run. `thresher-lab soak 600` has stricter limits.
# usage: soak.sh SECONDS THRESHER_LAB...    (the command that runs the laboratory)
set -euo pipefail

seconds=$1
shift
THRESHER__BLOCKS__MEMORY_BYTES_MAX=$((16 << 20)) THRESHER__BLOCKS__DISK_BYTES_MAX=$((32 << 20)) \
  THRESHER__BLOCKS__WRITE_QUEUE_BYTES_MAX=$((128 << 20)) THRESHER__REGISTRY__CACHE_BYTES_MAX=$((4 << 20)) \
  "$@" soak "$seconds" --clients 4
