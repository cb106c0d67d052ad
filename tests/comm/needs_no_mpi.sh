#!/usr/bin/env bash
# libdtensor.so needs no MPI, itself or by others: programs that were not started by mpirun never load it.
#   needs_no_mpi.sh LIBRARY
set -euo pipefail
if ldd "$1" | grep -E 'libmpi|libopen-(rte|pal)|libpmix'; then
  echo "$1 needs MPI"
  exit 1
fi
