#!/usr/bin/env bash
# Fuzzes what sockets receive (tests/fuzz/sockets) with libFuzzer under the address and undefined-behavior sanitizers:
# fuzz_sockets.sh [SECONDS]. The time is divided among the targets; the inputs found so far are kept in build/fuzz.
# Needs clang with its runtime (Debian: clang-14 libclang-rt-14-dev).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
clang=${CLANG:-clang++}
folder=build/fuzz
targets=(frames admission join)
command -v "$clang" > /dev/null || { echo "fuzz_sockets: no $clang; set CLANG" >&2; exit 77; }
torch=$(cmake -P cmake/LocateLibTorch.cmake)
[ -n "$torch" ] || { echo "fuzz_sockets: no LibTorch; run scripts/setup.sh" >&2; exit 1; }
mkdir -p $folder

# The library is compiled once, for all targets, in the modules that the targets reach.
flags=(-std=c++20 -O1 -g1 -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer
  -ffunction-sections -fPIC -Isrc -Iinclude -Itests -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include")
sources=(src/comm/socket/{stream,peer_link,progress_engine,transport}.cpp src/comm/socket/rendezvous/{join,rendezvous,secret}.cpp
  src/comm/socket/rendezvous/admission/*.cpp src/comm/p2p/{call_header,job/job,job/deadlock_detection,job/termination}.cpp
  src/comm/{error_messages,launch/launch_flags,memory/pool/available_memory,memory/pool/buffer_pool,memory/pool/host_memory,record/rank_record,record/caller}.cpp
  tests/fuzz/sockets/{frames,rendezvous}.cpp)
objects=()
for source in "${sources[@]}"; do
  object=$folder/$(echo "${source%.cpp}" | tr / _).o
  objects+=("$object")
  if [ ! -e "$object" ] || [ -n "$(find src/comm tests/fuzz/sockets -newer "$object" -name '*.[ch]*' -print -quit)" ]; then
    "$clang" "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
  fi
done

for target in "${targets[@]}"; do
  "$clang" "${flags[@]}" -fsanitize=fuzzer -DDTENSOR_FUZZ_TARGET=fuzz_"$target" tests/fuzz/sockets/libfuzzer.cpp "${objects[@]}" -o $folder/fuzz_"$target" \
    -fuse-ld=lld -Wl,--gc-sections -L"$torch/lib" -Wl,-rpath,"$torch/lib" -ltorch_cpu -lc10 -ldl
done
for target in "${targets[@]}"; do
  mkdir -p $folder/inputs_"$target"
  echo "fuzz_sockets: $target, $((seconds / ${#targets[@]})) s"
  $folder/fuzz_"$target" $folder/inputs_"$target" -max_total_time=$((seconds / ${#targets[@]})) -max_len=4096 -timeout=25 -rss_limit_mb=4096 \
    -close_fd_mask=2 -artifact_prefix=$folder/ -print_final_stats=1 2>&1 | tail -n 15
done
