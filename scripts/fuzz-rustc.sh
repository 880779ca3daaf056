#!/usr/bin/env bash
# The compiler for `make fuzz`: cargo calls it for the crates of this workspace only, so that libraries are neither slowed down nor
# compiled again. The flags are those of LLVM's coverage that libFuzzer reads; stable Rust has them.
exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-trace-compares \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cdebug-assertions
