#!/usr/bin/env bash
# The compiler of `make fuzz`. Cargo calls it only for the crates of this workspace, so that dependencies are neither instrumented nor
# compiled again. The flags turn on the coverage of LLVM that libFuzzer reads; stable Rust supports them.
exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-trace-compares \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cdebug-assertions
