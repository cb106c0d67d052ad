#!/usr/bin/env python3
"""What texts refer to exists: links and anchors of pages, paths of files and folders, C++ tests (`Suite.Name`).

    python3 tests/style/references.py [PATH ...]     # all tracked files, or those under PATH

Reads pages and Python files entirely, of other files the comments. A path is a word with a slash that begins with a folder of the
repository; words in capitals (NAME) are placeholders.
"""

import functools
import re
import subprocess
import sys
from pathlib import Path

COMMENTS = {".cpp": "//", ".h": "//", ".cu": "//", ".sh": "#", ".cmake": "#", ".txt": "#", ".f90": "!"}
GENERATED = re.compile(r"^(docs/(reference|python_reference|readme\.md|changelog)|build/|python/dtensor/(_C|_version))")
LINK = re.compile(r"\]\(([^)\s]+)\)")
SUITE = re.compile(r"`(?:test_\w+ )?([A-Z]\w+\.[A-Z][\w*]*|[A-Z]\w+\.\*)`")
TEST = re.compile(r"\b(?:TEST|TEST_F|TEST_P|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP|TYPED_TEST)\(\s*(\w+)\s*,\s*(\w+)")


@functools.cache
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=True, text=True)
    return [name for name in listed.stdout.split("\0") if name and Path(name).exists()]


@functools.cache
def folders() -> set[str]:
    return {str(parent) for name in tracked() for parent in Path(name).parents if str(parent) != "."}


@functools.cache
def top_folders() -> set[str]:
    return {name.split("/")[0] for name in folders()}


@functools.cache
def test_names() -> set[str]:
    sources = [name for name in tracked() if name.startswith("tests/") and name.endswith((".cpp", ".h"))]
    return {".".join(found) for name in sources for found in TEST.findall(Path(name).read_text())}


@functools.cache
def anchors(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", Path(page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def link_problem(page: str, target: str) -> str:
    path, _, anchor = target.partition("#")
    if re.match(r"\w+:", target):
        return ""
    full = str(Path(page).parent / path) if path else page
    full = str(Path(full).resolve().relative_to(Path.cwd()))
    if full not in tracked() and full not in folders():
        return "" if GENERATED.match(full) else f"no file {full}"
    return f"no heading #{anchor} in {full}" if anchor and full.endswith(".md") and anchor not in anchors(full) else ""


def path_problem(word: str, here: str) -> str:
    word = re.sub(r":\d+$", "", word.rstrip(".,:;/"))
    if word.split("/")[0] not in top_folders() or GENERATED.match(word) or re.search(r"[*<>{}$%\\]|[A-Z]{4,}", word):
        return ""
    # Library paths in comments of src are relative to src, those of tests to tests.
    candidates = [word, f"src/{word}", f"tests/{word}", f"include/{word}", str(Path(here).parent / word)]
    known = any(c in folders() or c in tracked() for c in candidates)
    known = known or any(name.startswith(word + ".") for name in tracked())  # without the suffix
    return "" if known else f"no file {word}"


def texts(name: str) -> list[tuple[int, str]]:
    lines = Path(name).read_text(errors="replace").splitlines()
    if name.endswith((".md", ".py")):
        return list(enumerate(lines, 1))
    mark = COMMENTS.get(Path(name).suffix)
    return [(i, line.split(mark, 1)[1]) for i, line in enumerate(lines, 1) if mark in line] if mark else []


def problems(name: str) -> list[str]:
    found = []
    for number, text in texts(name):
        where = f"{name}:{number}: "
        if name.endswith(".md"):
            found += [where + problem for target in LINK.findall(text) if (problem := link_problem(name, target))]
            for test in SUITE.findall(text):
                pattern = re.compile(test.replace(".", r"\.").replace("*", r"\w*"))
                if not any(pattern.fullmatch(known) for known in test_names()):
                    found.append(f"{where}no test {test}")
            text = LINK.sub("]", text)
        for word in re.findall(r"(?<![\w/.:\-\]])(?:[\w.]+/)+[\w.*<>{}-]*", re.sub(r"\w+://\S+", "", text)):
            if problem := path_problem(word, name):
                found.append(where + problem)
    return found


def main(paths: list[str]) -> int:
    found = [p for name in tracked() if name.startswith(tuple(paths) or "") for p in problems(name)]
    print(*found, f"{len(found)} references to what does not exist", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
