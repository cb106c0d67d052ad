#!/usr/bin/env bash
# Starts N processes of a program on this host like torchrun, without MPI or Python: processes.sh N program arguments...
# Exits with the first non-zero status.
set -u
n=$1
shift
export WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + ($$ * 11) % 40000)) LOCAL_WORLD_SIZE=$n
pids=()
for ((r = 0; r < n; ++r)); do
  RANK=$r LOCAL_RANK=$r "$@" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
  wait "$pid"
  code=$?
  [ $status -eq 0 ] && status=$code
done
exit $status
