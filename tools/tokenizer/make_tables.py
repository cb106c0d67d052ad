#!/usr/bin/env python3
"""Writes examples/tokenizer/unicode_*.inl from Python's copy of the Unicode data: general categories, canonical
decompositions and combining classes.

    tools/tokenizer/make_tables.py
"""
import pathlib
import sys
import unicodedata

OUT = pathlib.Path(__file__).resolve().parents[2] / "examples/tokenizer"
# As examples/tokenizer/unicode.h has them.
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()


def categories():
    last = None
    for code in range(sys.maxunicode + 1):
        own = CATEGORIES.index(unicodedata.category(chr(code)))
        if own != last:
            yield f"{{{code},{own}}},"
        last = own


def decompositions():
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if not parts or parts[0].startswith("<"):
            continue
        composes = len(parts) == 2 and unicodedata.normalize("NFC", chr(code)) == chr(code)
        first, second = (parts + ["0"])[:2]
        yield f"{{{code},{int(first, 16)},{int(second, 16)},{int(composes)}}},"


def combining():
    first, last = None, 0
    for code in range(sys.maxunicode + 2):
        own = unicodedata.combining(chr(code)) if code <= sys.maxunicode else 0
        if own != last:
            if last:
                yield f"{{{first},{code - 1},{last}}},"
            first, last = code, own


def table(kind, name, items):
    text, line = f"constexpr {kind} {name}[] = {{\n", ""
    for item in items:
        if len(line) + len(item) > 139:
            text, line = text + line + "\n", ""
        line += item
    return text + line + "\n};\n"


for file, tables in (("categories", (("Run", "kCategoryRuns", categories()),)),
                     ("decompositions", (("Decomposition", "kDecompositions", decompositions()),
                                         ("CombiningRun", "kCombiningRuns", combining())))):
    made = f"// Made by tools/tokenizer/make_tables.py from Unicode {unicodedata.unidata_version}.\n"
    (OUT / f"unicode_{file}.inl").write_text(made + "".join(table(*t) for t in tables))
