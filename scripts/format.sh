#!/usr/bin/env bash
# Formats the C++ files of the project, or with --check only lists unformatted files. Requires the clang-format version
# of Debian 12, since versions format differently. Exit status 77 (skipped) if it is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$program" ] || ! "$program" --version | grep -q 'version 14\.'; then
  echo "clang-format 14 is not installed (apt-get install clang-format-14)" >&2
  exit 77
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
if [ "${1:-}" = --check ]; then
  if ! complaints=$("$program" --dry-run -Werror "${files[@]}" 2>&1); then
    echo "not formatted (run make format):"
    grep -oE '^[^ :]+\.(cpp|h|cu)' <<< "$complaints" | sort -u
    exit 1
  fi
else
  "$program" -i "${files[@]}"
fi
