#!/usr/bin/env bash
# Builds the docs site: docs.sh BUILD_FOLDER writes BUILD_FOLDER/docs/html/index.html. Needs doxygen, Sphinx, Breathe,
# MyST and Furo (Debian packages). Warnings and public names without a description are errors. Exit status 77 (skipped)
# if a program is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "$1")/docs
skip() { echo "docs: $1: apt-get install doxygen python3-sphinx python3-breathe python3-myst-parser furo" >&2; exit 77; }
for program in doxygen sphinx-build; do
  command -v $program > /dev/null || skip "no $program"
done
python=$(sed -n '1s/^#! *//p' "$(command -v sphinx-build)")  # the one that Sphinx runs in
for module in breathe myst_parser furo; do
  $python -c "import $module" 2> /dev/null || skip "$python has no module $module"
done
rm -rf "$out" && mkdir -p "$out/source"
cp -r docs/. "$out/source" && cp CHANGELOG.md "$out/source/changelog.md" && cp README.md "$out/source/readme.md"
# Adapts the pages: reduces code fences to the lexer's name, and replaces links to files that the site has elsewhere or
# lacks.
sed -i -E 's/^```cpp global$/```cpp/; s#\((\.\./)+CHANGELOG\.md\)#(/changelog.md)#; s#\]\(docs/#](#g; s#\[([^]]*)\]\((\.\./)+(apps|examples|include|packaging|scripts|src|tests|tools)/[^)]*\)#\1#g' "$out"/source/*.md "$out"/source/*/*.md "$out"/source/*/*/*.md

chmod +x docs/site/comments.py
{ cat docs/site/Doxyfile
  echo "INPUT = include/dtensor"
  echo "STRIP_FROM_PATH = include"
  echo "INPUT_FILTER = \"python3 docs/site/comments.py\""
  echo "OUTPUT_DIRECTORY = $out"; } > "$out/Doxyfile"
# Every public name needs a description, except constructors, assignments and comparisons.
doxygen "$out/Doxyfile" 2>&1 | { grep 'is not documented' || true; } | { grep -vE "Member (operator|~)|Member ([A-Za-z0-9]+)\(.*(class|struct) ([A-Za-z0-9]+::)*\2 is not" || true; } | sort -u > "$out/errors.log"
python3 docs/site/cpp_reference.py include/dtensor "$out/source/reference" >> "$out/errors.log"
python3 docs/site/python_reference.py python/dtensor "$out/source/python_reference" >> "$out/errors.log"
DTENSOR_DOXYGEN_XML="$out/xml" sphinx-build -q -b html -c docs/site "$out/source" "$out/html" 2>&1 |
  { grep -v "^Declaration is\|Duplicate C++ declaration" || true; } >> "$out/errors.log" ||
  echo "docs: sphinx-build failed" >> "$out/errors.log"  # namespaces occur on every page
cat "$out/errors.log"
echo "docs: $out/html/index.html"
[ ! -s "$out/errors.log" ]
