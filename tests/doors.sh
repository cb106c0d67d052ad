#!/usr/bin/env bash
# Doors open one way: which room of src/ may include which. A room may always include itself and the public headers. Fails
# with each include that the table does not allow, and with each room that the table does not know.
#   doors.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"

# Pure side: placement -> redistribute/plan -> sharding_prop. Acting side: comm, mesh, tensor/impl -> redistribute/execute
# -> ops -> tensor/api -> parallel, optim. Entries are rooms, or files of one (folder/stem).
declare -A allowed=(
  [placement]=""
  [redistribute/pure]="placement"
  [sharding_prop]="placement redistribute/pure"
  [comm]="placement"
  [mesh]="placement redistribute/pure comm"
  [tensor/impl]="placement redistribute/pure comm mesh"
  [redistribute/acting]="placement redistribute/pure comm mesh tensor/impl"
  [random]="placement redistribute/pure comm mesh tensor/impl redistribute/acting sharding_prop"
  [ops]="placement redistribute/pure sharding_prop comm mesh tensor/impl redistribute/acting random"
  [tensor/api]="placement redistribute/pure sharding_prop comm mesh tensor/impl redistribute/acting random ops"
  [debug]="placement"
  [nn]=""
  [parallel/names]=""
  [parallel]="parallel/names"
  [optim]=""
  [moe]=""
  [checkpoint]="parallel/names"
)

# Rooms with two sides: the names of the files on the low side.
side() {
  case "$1" in
    redistribute/execute* | redistribute/buffers* | redistribute/region* | redistribute/edges/*) echo redistribute/acting ;;
    redistribute/*) echo redistribute/pure ;;
    tensor/impl*) echo tensor/impl ;;
    tensor/*) echo tensor/api ;;
    parallel/names*) echo parallel/names ;;
    *) echo "${1%%/*}" ;;
  esac
}

status=0
rooms=" $(cd src && ls -d */ | tr -d /  | tr '\n' ' ')"
while IFS=: read -r file line text; do
  target=$(sed -E 's/.*#include +"([^"]+)".*/\1/' <<< "$text")
  room=${target%%/*}
  [ "$room" != dtensor ] || continue
  from=$(side "${file#src/}")
  if [[ "$rooms" != *" $room "* ]]; then
    echo "$file:$line: \"$target\" is not written from src/: say \"room/file.h\""
    status=1
    continue
  fi
  to=$(side "$target")
  [ "$from" = "$to" ] && continue
  if [ -z "${allowed[$from]+known}" ]; then
    echo "$file: the room $from is not in the table of $0"
    status=1
  elif [[ " ${allowed[$from]} " != *" $to "* ]]; then
    echo "$file:$line: $from must not include $target ($to)"
    status=1
  fi
done < <(grep -rnE '^ *#include +"' src --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh')

# The pure side knows no communicator and no tensor implementation, the public headers no backend.
forbid() {
  local what=$1 pattern=$2
  shift 2
  local hits
  hits=$(grep -rnE "^ *#include +[<\"]($pattern)" "$@" --include='*.h' --include='*.cpp' || true)
  [ -z "$hits" ] || { echo "$what:"; echo "$hits"; status=1; }
}
pure=(src/placement src/sharding_prop)
while read -r file; do
  [ "$(side "${file#src/}")" != redistribute/pure ] || pure+=("$file")
done < <(find src/redistribute -type f)
forbid "the pure side knows no communicators, meshes or tensor implementations" \
  'dtensor/(comm|comm_backend|mesh|tensor|factories|launch)\.h|c10/core/TensorImpl\.h' "${pure[@]}"
forbid "public headers know no backend and no TensorImpl" 'mpi\.h|nccl\.h|cuda[^"]*\.h|c10/core/TensorImpl\.h|ATen/core/dispatch' include
forbid "the library needs nothing of torch::nn, torch::optim, JIT or c10d" 'torch/torch\.h|torch/nn|torch/optim|torch/csrc/jit|torch/csrc/distributed' src include
exit $status
