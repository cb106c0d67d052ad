#!/usr/bin/env bash
# Checks which files include headers of LibTorch and of backends, which every module can find.
# src/torchscript is a library of its own, and dtensor/mpi.h is for programs that own MPI.
# headers.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
status=0
forbid() {
  local what=$1 pattern=$2
  shift 2
  local hits
  hits=$(grep -rnE "^ *#include +[<\"]($pattern)" "$@" --include='*.h' --include='*.cpp' --exclude-dir=torchscript || true)
  hits=$(grep -v '^include/dtensor/mpi\.h:' <<< "$hits" || true)
  [ -z "$hits" ] || { echo "$what:"; echo "$hits"; status=1; }
}
forbid "pure modules and public headers must not include TensorImpl.h" 'c10/core/TensorImpl\.h' \
  src/placement src/sharding_prop src/redistribute/plan include
forbid "public headers must not include headers of a backend" 'mpi\.h|nccl\.h|cuda[^"]*\.h|ATen/core/dispatch' include
forbid "the library must not include torch::nn, torch::optim, JIT or c10d" \
  'torch/torch\.h|torch/nn|torch/optim|torch/csrc/jit|torch/csrc/distributed' src include
exit $status
