#!/usr/bin/env bash
# scripts/reproduced_experiments.sh [BUILD]: runs every command of docs/reproduced_experiments.md
# and checks that every test that it names exists.
set -uo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${1:-build/release}")
export PATH=$build/apps:$build/examples:$build/tests:$PATH
page=$PWD/docs/reproduced_experiments.md
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && cd "$work" || exit 2
failed=0 commands=0 tests=0
fail() { echo "reproduced_experiments: $1"; failed=1; }

# The table's cells: | experiment | `command` | `test_x Suite.Name`, ... | figure |
while IFS='|' read -r _ experiment command names _; do
  case $command in *'`'*) ;; *) continue ;; esac
  line=$(sed 's/^ *`//; s/` *$//' <<< "$command")
  read -r -a words <<< "$line"
  commands=$((commands + 1))
  "${words[@]}" > out 2> errors
  status=$?
  if [ $status -ne 0 ]; then
    tail -n 5 out && tail -n 20 errors
    fail "$line: status $status"
  elif [[ $line == *--gtest_filter=* ]] && ! grep -q '  PASSED  . [1-9]' out; then
    fail "$line runs no test"
  fi
  while read -r program name; do
    tests=$((tests + 1))
    "$program" "--gtest_filter=$name" --gtest_list_tests 2> /dev/null | grep -q '^  ' || fail "no test $program $name ($experiment)"
  done < <(grep -o '`[^`]*`' <<< "$names" | tr -d '`')
done < "$page"
echo "reproduced_experiments: $commands commands, $tests tests"
[ "$commands" -gt 30 ] || fail "commands are missing"
exit $failed
