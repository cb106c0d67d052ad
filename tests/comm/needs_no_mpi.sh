#!/usr/bin/env bash
# libdtensor.so does not depend on MPI, directly or indirectly. Programs that mpirun did not start never load it.
# needs_no_mpi.sh LIBRARY
set -euo pipefail
if ldd "$1" | grep -E 'libmpi|libopen-(rte|pal)|libpmix'; then
  echo "$1 needs MPI"
  exit 1
fi
