#!/usr/bin/env bash
# scripts/figures.sh [BUILD]: draws docs/layouts_loss.svg, docs/layouts_memory.svg and docs/long_sequences.svg anew.
set -euo pipefail
cd "$(dirname "$0")/.."
"${1:-build/release}/examples/figures" docs --steps 50 --layers 4 --batch 16
"${1:-build/release}/examples/figures" --long-sequences docs 8192
