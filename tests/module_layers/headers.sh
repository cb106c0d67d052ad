#!/usr/bin/env bash
# What the include folders of the rooms cannot say, since LibTorch's headers are there for every room: which of them who may use.
#   headers.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
status=0
forbid() {
  local what=$1 pattern=$2
  shift 2
  local hits
  hits=$(grep -rnE "^ *#include +[<\"]($pattern)" "$@" --include='*.h' --include='*.cpp' || true)
  [ -z "$hits" ] || { echo "$what:"; echo "$hits"; status=1; }
}
forbid "pure rooms and public headers know no TensorImpl" 'c10/core/TensorImpl\.h' \
  src/placement src/sharding_prop src/redistribute/plan include
forbid "public headers know no backend" 'mpi\.h|nccl\.h|cuda[^"]*\.h|ATen/core/dispatch' include
forbid "the library needs nothing of torch::nn, torch::optim, JIT or c10d" \
  'torch/torch\.h|torch/nn|torch/optim|torch/csrc/jit|torch/csrc/distributed' src include
exit $status
