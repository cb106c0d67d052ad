#!/usr/bin/env python3
"""Checks that a test runs every fenced block of docs/guide and docs/python.md, or that UNTESTED says why none does.

    python3 tests/guide/claimed_blocks.py [--list]     # --list: each block and what runs it

cpp: tests/guide/extract.py, python: tests/python/test_guide.py, blocks of pages in FOLLOWED: run_page.py. Other blocks are part
of a file that a test compiles, runs or compares (PRINTED). Only comments and white space may differ."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLLOWED = ["first_cpp", "first_python", "data_parallel"]  # as in tests/guide/CMakeLists.txt

# Files with the blocks of a page, and the test that reads them.
PRINTED = {
    "docs/guide/c_fortran.md": {
        **{f"tests/install/c_fortran/{name}": "install_c_fortran" for name in ("model.c", "model.f90", "CMakeLists.txt", "Makefile", "pkg_config.mk")},
        "tests/c_api/layers.f90": "fortran_layers",
    },
    "docs/guide/mpi_hosts.md": {"tests/mpi_host/guide.cpp": "mpi_host_guide", "tests/mpi_host/CMakeLists.txt": "mpi_host_guide"},
    "docs/guide/install.md": {"tests/install/subproject/CMakeLists.txt": "subproject",
                              "tests/install/subproject/fetch.cmake": "subproject",
                              "tests/install/consumer/CMakeLists.txt": "install"},
}

# (page, text in the block): what shows it instead, or why nothing does.
UNTESTED = {
    ("docs/guide/c_fortran.md", "expected the address of 6 elements"): "c_host compares this text (refusals.c)",
    ("docs/guide/c_fortran.md", "dtensor_autograd_grad(output"): "fortran_procedures compares this list",
    ("docs/guide/first_cpp.md", "make install PREFIX=$HOME/.local"): "install: the test builds from the tree that it installs",
    ("docs/guide/first_python.md", "pip install ."): "builds the library anew, which takes an hour",
    ("docs/python.md", "pip install ."): "builds the library anew, which takes an hour",
    ("docs/guide/install.md", "make setup"): "CI runs make setup and make test; make install is the test install",
    ("docs/guide/same_bits.md", "--bit-identical"): "not run: takes a minute; training_test.cpp of tests/bit_identical trains such a model",
    ("docs/guide/will_it_fit.md", "replicate=8,shard=64,tp=8"): "not run: takes minutes; tests/plan runs smaller meshes",
    ("docs/guide/will_it_fit.md", "--dtensor-simulate"): "not run: names a program of the reader; tests/dry_run has one",
    ("docs/guide/will_it_fit.md", "--model FOLDER"): "names a folder of the reader; llm_train_test.cpp of tests/plan runs such plans",
    ("docs/guide/will_it_fit.md", "plan search"): "not run: takes minutes; tests/plan searches smaller models",
    ("docs/guide/will_it_fit.md", "--plan-"): "not run: measures the machine first; tests/train searches smaller models",
}


def blocks(page):
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.M | re.S):
        yield page.read_text().count("\n", 0, match.start()) + 1, match[1], match[2]


def code_of(text):
    """The lines without comments, indentation and empty lines."""
    lines = (re.sub(r"\s+", " ", re.sub(r"(?:^|\s)(?:!|#|//)\s.*", "", line)).strip() for line in text.splitlines())
    return "\n" + "\n".join(line for line in lines if line) + "\n"


def claim(name, page, kind, text):
    """The test that runs a block; empty if there is none."""
    follows = page.stem in FOLLOWED
    if re.match(r"(?://|#) \S+\.\w+\n", text) or kind == "console":
        return f"guide_{page.stem}" if follows else ""
    if kind.split(" ")[0] == "cpp":
        return "guide"
    if name == "docs/guide/libraries.md" and kind == "python":
        return "python_guide compiles it: it needs accelerate, transformers and Lightning"
    if kind == "python":
        return "python_guide" if f'"{name}"' in (ROOT / "tests/python/test_guide.py").read_text() else ""
    for path, test in PRINTED.get(name, {}).items():
        if code_of(text) in code_of((ROOT / path).read_text()) or text.strip() in (ROOT / path).read_text():
            return test
    return next((why for (at, part), why in UNTESTED.items() if at == name and part in text), "")


def main():
    unclaimed, used = [], set()
    for page in sorted([*(ROOT / "docs/guide").glob("*.md"), ROOT / "docs/python.md"]):
        name = str(page.relative_to(ROOT))
        for line, kind, text in blocks(page):
            found = claim(name, page, kind, text)
            used.add(found)
            if "--list" in sys.argv:
                print(f"{name}:{line}: {kind or 'shell'}: {found or 'NONE'}")
            if not found:
                unclaimed.append(f"{name}:{line}: no test runs this block: {text.splitlines()[0]}")
    unclaimed += [f"{at}: no block has {part!r}, which UNTESTED lists" for (at, part), why in UNTESTED.items() if why not in used]
    if unclaimed:
        sys.exit("\n".join(unclaimed))


main()
