#!/usr/bin/env bash
# scripts/figures.sh [BUILD]: regenerates the plots and diagrams of docs/.
set -euo pipefail
cd "$(dirname "$0")/.."
examples=${1:-build/release}/examples
"$examples/figures" docs --steps 50 --layers 4 --batch 16
"$examples/figures" --long-sequences docs 8192
"$examples/figures" --diagrams docs
"$examples/train" --mesh replicate=1,shard=2,tp=2 --model tiny --steps 100 --compare --plot docs/curves.svg
"$examples/moe" --ranks 4 --ep 2 --balance bias --steps 120 --load-plot docs/moe_load.svg
