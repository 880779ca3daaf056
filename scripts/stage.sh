#!/usr/bin/env bash
# Runs one stage of a longer command. Prints what runs and about how long it takes on two cores, and afterwards how long it took.
# usage: stage.sh NAME ESTIMATE COMMAND...
set -euo pipefail

name=$1 estimate=$2
shift 2
echo "==> $name (about $estimate on two cores)"
began=$SECONDS status=0
"$@" || status=$?
[ "$status" = 0 ] && outcome="done" || outcome=FAILED
echo "<== $name: $outcome after $((SECONDS - began)) s"
exit "$status"
