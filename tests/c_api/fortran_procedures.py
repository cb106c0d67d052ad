#!/usr/bin/env python3
"""Checks that the list of procedures in docs/guide/c_fortran.md is that of the Fortran modules.

    python3 tests/c_api/fortran_procedures.py [--print]     # --print: the list

A procedure without the function's name in front is a subroutine. [x] is optional; all have a last argument [status]."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHORT = [
    (r"type\((\w+)\)", r"\1"),
    (r"character\(len=[*:]\)", "text"),
    (r"real\(c_double\)", "real(8)"),
    (r"integer\(c_int64_t\)", "integer(8)"),
    (r"integer\(c_int32_t\)", "integer"),
]


def sources(module):
    text = (ROOT / "fortran" / module).read_text()
    return re.sub(r"^ *include '(\w+\.inc)'", lambda m: (ROOT / "fortran" / m[1]).read_text(), text, flags=re.M)


def joined(text):
    return re.sub(r"&\s*\n\s*", "", re.sub(r"!.*", "", text))


def short(kind):
    for pattern, text in SHORT:
        kind = re.sub(pattern, text, kind)
    return kind


def argument(name, body):
    """'x: real(8)', or '[x: real(8)]' if it is optional."""
    for kind, attributes, names in re.findall(r"^ *(\w+(?:\([^)\n]*\))?)((?:, *\w+(?:\([^)\n]*\))?)*) *:: *(.*)$", body, re.M):
        found = re.search(rf"(?:^|, *){name}(\([:,*]+\))?(?=,|$)", names.strip())
        if found and "intent" in attributes:
            text = f"{name}: {short(kind)}{found[1] or ''}"
            return f"[{text}]" if "optional" in attributes else text
    raise SystemExit(f"no declaration of {name}")


def signature(public, procedure, text):
    match = re.search(rf"^ *(subroutine|function) {procedure}\(([^)]*)\)(.*?)^ *end (?:subroutine|function)", text, re.M | re.S)
    if match is None:
        raise SystemExit(f"no procedure {procedure}")
    names = [name.strip() for name in match[2].split(",") if name.strip() not in ("", "status")]
    return f"{public}({', '.join(argument(name, match[3]) for name in names)})"


def procedures(module):
    text = joined(sources(module))
    everything = text + joined(sources("dtensor_c.f90") + sources("dtensor_arrays.f90"))
    interfaces = {m[1]: re.findall(r"\w+", re.sub(r"module procedure", "", m[2]))
                  for m in re.finditer(r"^ *interface (\w+)(.*?)end interface", text, re.M | re.S)}
    types = re.findall(r"type, public :: (\w+)", text)
    for line in re.findall(r"^ *public :: (.*)$", text, re.M):
        for name in re.findall(r"\w+", line):
            if name in types or name == "dtensor_array" or re.search(rf"\b{name} = \d", everything):
                continue
            if name == "dtensor_view":
                yield "dtensor_view(array)"
                continue
            yield from dict.fromkeys(signature(name, p, everything).replace("comm: integer(8)", "comm: integer") for p in interfaces.get(name, [name]))


def main():
    listed = sorted(line for module in ("dtensor.f90", "dtensor_torchscript.f90") for line in procedures(module))
    block = "```text\n" + "\n".join(listed) + "\n```\n"
    if "--print" in sys.argv:
        print(block, end="")
    elif block not in (ROOT / "docs/guide/c_fortran.md").read_text():
        raise SystemExit("expected this list in docs/guide/c_fortran.md:\n" + block)


main()
