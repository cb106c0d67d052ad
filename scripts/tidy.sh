#!/usr/bin/env bash
# Runs clang-tidy on the sources of a configured build, or on the given files: tidy.sh BUILD_FOLDER [FILE...]. It is not
# part of the tests, because a file that includes ATen takes about ten seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
command -v clang-tidy > /dev/null || { echo "clang-tidy is not installed (apt-get install clang-tidy)" >&2; exit 77; }
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files 'src/*.cpp')
# clang cannot read gcc's precompiled header: includes its headers instead, and removes gcc's own flags.
database=$(mktemp -d)
trap 'rm -rf "$database"' EXIT
sed -E 's/-Winvalid-pch//g; s/-include [^ ]*cmake_pch\.hxx/-include ATen\/ATen.h -include torch\/library.h/g' \
  "$build/compile_commands.json" > "$database/compile_commands.json"
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$database"
