"""The words of the project are those of PyTorch, MPI, NCCL and the C++ standard.

A list of private words and what the field calls the same thing. The test reads every tracked text file, comments, names and
documentation alike, splits identifiers at capitals and underscores, and fails with the place and the term to use.

    python3 tests/style/word_list.py [PATH ...]     # all tracked files, or those under PATH
"""

import re
import subprocess
import sys
from pathlib import Path

# Pattern over lower-case words -> (what to write, an example that must be found).
WORDS = {
    r"rooms?": ("module, space, capacity", "the room of a mesh"),
    r"doors?": ("layer, dependency, bindings", "the Python door"),
    r"parted|ranks part": ("diverged", "ranks part here"),
    r"told": ("reported", "every rank is told"),
    r"hears?": ("receives", "a rank hears of it"),
    r"dear|dearer|dearest": ("expensive, most expensive", "the dearest step"),
    r"in force": ("current", "the scope in force"),
    r"by hand": ("manual, hand-written SPMD", "written by hand"),
    r"wholes?|wholly": ("full, unsharded, replicated, entire", "the whole tensor"),
    r"plain(?! (aten|text|c\b))": ("regular (no DTensor), ordinary", "plainTensor"),
    r"(spatial|split|the|its|their|of|over) places": ("spatial dimensions, positions", "a split of the places"),
    r"write through": ("aliasing view", "write-through"),
    r"borders?": ("boundary, local/global boundary", "at the border"),
    r"taken up": ("resumed", "a run that is taken up again"),
    r"lets? go|letting go": ("unpin, release", "lets go of it"),
    r"pictures?": ("plot, diagram, visualization", "PicturesOfLayouts"),
    r"obligations?": ("reproduced experiments", "an obligation"),
    r"nobody|whoever|somebody|anybody": ("no rank, no caller, the rank that", "nobody waits"),
    r"own data": ("local semantics, local data", "on its own data"),
    r"gives? (itself|themselves) out|give out for": ("report", "it gives itself out for one"),
    r"(behavi|col|fav|flav|hum|neighb|vap)our\w*": ("American spelling: -or", "the neighbouring rank"),
    r"\w*(label|model|travel|cancel|signal|level)l(ed|ing)": ("American spelling: one l", "isLabelled"),
    r"(cent|fib|met)re[ds]?": ("American spelling: -er", "centred"),
    r"\w*((normal|initial|quant|synchron|minim|maxim|vector|util|recogn|parametr|optim|serial|organ|final)is)(e|ed|es|er|ers|ing|ation)":
    ("American spelling: -ize", "an unsynchronised step"),
    r"learnt|towards|whilst|amongst|artefacts?|catalogues?|analogues?": ("American spelling", "learnt"),
}

# What keeps such a word, and why.
EXCEPT_PATHS = ("tests/style/",)  # this list
EXCEPT_TEXT = re.compile(
    r"(bench_)?by[_-]hand"  # the benchmark against hand-written SPMD, whose name others run
    r'|"plain"|--parallel plain|\bplain: '  # a value of train's --parallel
    r"|comp_plain_value\w*"  # an overload of ATen
)

TEXT = {".cpp", ".h", ".cu", ".cuh", ".py", ".pyi", ".ipynb", ".f90", ".c", ".inc", ".md", ".txt", ".cmake", ".sh", ".yml", ".toml", ".in"}
SEARCH = re.compile("|".join(rf"\b(?P<w{i}>(?:{pattern}))\b" for i, pattern in enumerate(WORDS)))


def words_of(line: str) -> str:
    """The words of a line in lower case; identifiers are split at capitals, digits and underscores."""
    line = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", line)
    return re.sub(r"[_\-\s]+", " ", line).lower()


def private_words(line: str) -> list[tuple[str, str]]:
    """Each private word of a line, with what to write instead."""
    words = words_of(EXCEPT_TEXT.sub(" ", line))
    advice = [use for use, _ in WORDS.values()]
    return [(match.group(), advice[int(match.lastgroup[1:])]) for match in SEARCH.finditer(words)]


def tracked(paths: list[str]) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z", *paths], capture_output=True, check=True, text=True).stdout.split("\0")
    return [Path(name) for name in names if Path(name).suffix in TEXT and not name.startswith(EXCEPT_PATHS) and Path(name).exists()]


def main(paths: list[str]) -> int:
    for use, example in WORDS.values():
        if not private_words(example):
            sys.exit(f"word_list.py does not find its own example: {example!r} ({use})")
    found = 0
    for path in tracked(paths):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for word, use in private_words(line):
                print(f"{path}:{number}: '{word}', write: {use}\n    {line.strip()[:160]}")
                found += 1
    print(f"{found} private words")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
