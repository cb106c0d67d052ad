#!/usr/bin/env bash
# Starts a program's processes on this host as torchrun does, without MPI or Python: processes.sh N program arguments... Ends with
# the first status that is not 0.
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
