#!/usr/bin/env bash
# make demo: trains the tiny model on four ranks (threads) and on one device, compares the loss curves, and writes the
# plot. Exits with a non-zero status if they differ by more than rounding (docs/design.md).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
train=$build/apps/train
if [ ! -x "$train" ]; then
  echo "demo: no $train; run make demo" >&2
  exit 2
fi
out=$build/demo
mkdir -p "$out"
echo 'A transformer in plain ATen, on replicate=1,shard=2,tp=2 (four threads of this process) and on one device:'
"$train" --mesh replicate=1,shard=2,tp=2 --model tiny --steps 100 --compare --log "$out/log.jsonl" --plot "$out/curves.svg"
