#!/usr/bin/env bash
# scripts/figures.sh [BUILD]: regenerates the plots and diagrams of docs/.
set -euo pipefail
cd "$(dirname "$0")/.."
apps=${1:-build/release}/apps
"$apps/figures" docs --steps 50 --layers 4 --batch 16
"$apps/figures" --same-bits docs --steps 200 --lr 1e-2 --batch 4
"$apps/figures" --long-sequences docs 8192
"$apps/figures" --diagrams docs
"$apps/train" --mesh replicate=1,shard=2,tp=2 --model tiny --steps 100 --compare --plot docs/curves.svg
"$apps/moe" --ranks 4 --ep 2 --balance bias --steps 120 --load-plot docs/moe_load.svg
