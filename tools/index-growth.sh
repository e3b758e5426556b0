#!/usr/bin/env bash
# How the figures of the log index grow from 1 to 10 to 50 million logs, and how building scales with workers.
# Writes bench/results/index-growth.json; takes about five minutes on two quiet cores, and 5 GB of disk.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release -p finalized-log-index --example perf_stress
run=target/release/examples/perf_stress
mkdir -p bench/results
{
  for blocks in 8334 83334 416667; do
    "$run" --blocks "$blocks" --queries 300 --slice-blocks 512 --json
  done
  for builders in 1 2; do
    "$run" --blocks 49152 --queries 20 --builders "$builders" --json
  done
} 2>/dev/null | sed '1s/^/[/; $!s/$/,/; $s/$/]/' > bench/results/index-growth.json
