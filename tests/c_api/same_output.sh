#!/usr/bin/env bash
# Runs a program on 1, 2 and 4 ranks and expects the same output with the SHA-256 of its results:
# same_output.sh MPIEXEC NUMPROC_FLAG PROGRAM
set -euo pipefail
one=$("$1" "$2" 1 "$3")
[[ $one =~ SHA-256 ]] || { echo "expected a line with SHA-256, got: $one"; exit 1; }
for ranks in 2 4; do
  out=$("$1" "$2" "$ranks" "$3")
  [[ $out == "$one" ]] && continue
  printf 'expected the output of one rank:\n%s\ngot on %s ranks:\n%s\n' "$one" "$ranks" "$out"
  exit 1
done
