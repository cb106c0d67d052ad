#!/usr/bin/env bash
# The docs site: docs.sh BUILD_FOLDER writes BUILD_FOLDER/docs/html/index.html. Needs doxygen, Sphinx, Breathe, MyST and Furo, which Debian
# packages (doxygen python3-sphinx python3-breathe python3-myst-parser furo). A warning is an error, and so is a public name without a description.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "$1")/docs
for program in doxygen sphinx-build; do
  command -v $program > /dev/null || { echo "docs: no $program: apt-get install doxygen python3-sphinx python3-breathe python3-myst-parser furo" >&2; exit 1; }
done
rm -rf "$out" && mkdir -p "$out/source/reference"
cp -r docs/. "$out/source" && cp CHANGELOG.md "$out/source/changelog.md"
# A fence's first line says more than the lexer's name; links to what the site has elsewhere, or not at all.
sed -i -E 's/^```cpp global$/```cpp/; s#\((\.\./)+CHANGELOG\.md\)#(/changelog.md)#; s#\[([^]]*)\]\((\.\./)+(examples|include|packaging|scripts|src|tests|tools)/[^)]*\)#\1#g' "$out"/source/*.md "$out"/source/*/*.md

chmod +x docs/site/comments.py
{ cat docs/site/Doxyfile
  echo "INPUT = include/dtensor"
  echo "STRIP_FROM_PATH = include"
  echo "INPUT_FILTER = \"python3 docs/site/comments.py\""
  echo "OUTPUT_DIRECTORY = $out"; } > "$out/Doxyfile"
# Constructors, assignment and comparison say what they are; every other public name has a description.
doxygen "$out/Doxyfile" 2>&1 | { grep 'is not documented' || true; } | { grep -vE "Member (operator|~)|Member ([A-Za-z0-9]+)\(.*(class|struct) ([A-Za-z0-9]+::)*\2 is not" || true; } | sort -u > "$out/doxygen.log"

# A page for each header.
pages=$out/source/reference
printf '# Public headers\n\n```{toctree}\n:maxdepth: 1\n\n' > "$pages/index.md"
(cd include/dtensor && find . -name '*.h' | sed 's#^\./##' | sort) | while read -r header; do
  grep -q 'DTENSOR_API\|struct \|class ' "include/dtensor/$header" || continue
  name=${header%.h}
  echo "${name//\//_}" >> "$pages/index.md"
  printf '# dtensor/%s\n\n```{doxygenfile} dtensor/%s\n```\n' "$header" "$header" > "$pages/${name//\//_}.md"
done
printf '```\n' >> "$pages/index.md"
DTENSOR_DOXYGEN_XML="$out/xml" sphinx-build -q -b html -c docs/site "$out/source" "$out/html" 2>&1 | { grep -v "^Declaration is\|Duplicate C++ declaration" || true; } > "$out/sphinx.log"  # a namespace is on every page
cat "$out/sphinx.log" "$out/doxygen.log"
echo "docs: $out/html/index.html"
[ ! -s "$out/sphinx.log" ] && [ ! -s "$out/doxygen.log" ]
