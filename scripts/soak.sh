#!/usr/bin/env bash
# Sends the daemon requests of every kind for a while, over tiers so small that both let go of blocks within it. Fails when
# resident memory was above its bounds plus 300 MB, or when a request was lost; no time is asserted. The write queue may be
# twice as long as usual, and that much is allowed: one peak on a busy machine shall not fail it. What is judged closely is
# `thresher bench --soak 600`.
# usage: soak.sh SECONDS THRESHER...    (THRESHER is the command that runs the binary)
set -euo pipefail

seconds=$1
shift
THRESHER__BLOCKS__MEMORY_BYTES_MAX=$((16 << 20)) THRESHER__BLOCKS__DISK_BYTES_MAX=$((32 << 20)) \
  THRESHER__BLOCKS__WRITE_QUEUE_BYTES_MAX=$((128 << 20)) THRESHER__REGISTRY__CACHE_BYTES_MAX=$((4 << 20)) \
  "$@" bench --soak "$seconds" --clients 4
