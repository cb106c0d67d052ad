#!/usr/bin/env bash
# Runs all benchmarks on this machine: bench.sh BUILD_FOLDER. Compares with plain ATen and memcpy, and with MPI and
# PyTorch if they are installed. PEER_PYTHON is the Python whose torch is compared (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."
bench=$1/bench
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none

echo "== Dispatch: DTensors on a mesh of one rank against regular tensors"
"$bench/bench_dispatch"
echo
echo "== Redistribution of 64 MB against a copy of the bytes that must move"
for ranks in 2 4; do "$bench/bench_redistribute" --ranks $ranks; done
"$bench/bench_between_meshes" --ranks 4
for ranks in 2 4; do "$bench/bench_pipeline" --ranks $ranks; done
for ranks in 2 4; do scripts/processes.sh $ranks "$bench/bench_redistribute"; done
if command -v mpirun > /dev/null; then
  for ranks in 2 4; do mpirun -n $ranks "$bench/bench_redistribute"; done
  mpirun -n 4 "$bench/bench_between_meshes"
  for ranks in 2 4; do mpirun -n $ranks "$bench/bench_pipeline"; done
fi
echo
echo "== Attention over a sharded sequence: ranks with one thread each against one thread"
for strategy in ring ulysses; do "$bench/bench_attention" --ranks 2 --strategy $strategy; done
"$bench/bench_attention" --ranks 2 --strategy ring --placement contiguous
echo
echo "== Images whose rows are sharded: ranks with one thread each against one thread"
for ranks in 2 4; do "$bench/bench_images" --ranks $ranks; done
echo
echo "== Collectives and memory of a training step against their formula"
"$bench/bench_costs"
echo
echo "== The same bits on every mesh: hashes after 100 steps, and the time of a step against the ordinary one"
"$bench/bench_bits"
echo
echo "== Checked mode, which compares the calls of ranks at every collective: a training step with and without it"
"$bench/bench_train" --mode fsdp_checked,tp_checked --hidden 64
echo
echo "== A training step against the same transformer as hand-written SPMD, and against one device"
"$bench/bench_by_hand" --ranks 2 --one-device
if command -v mpirun > /dev/null; then mpirun -n 2 "$bench/bench_by_hand"; fi
echo
echo "== Against PyTorch's DTensor"
python3 bench/side_by_side.py "$bench"
