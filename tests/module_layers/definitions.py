#!/usr/bin/env python3
"""Checks that what include/dtensor/NAME.h declares is defined in one module, that of its name: definitions.py INCLUDE OBJECTS.

INCLUDE is include/dtensor, OBJECTS a file with lines `module object_file`. Only exported symbols count: inline functions
and exported names of src/internal have no public header that defines their module.
"""

import pathlib
import re
import subprocess
import sys

# Headers of modules with another name. Others are named like their module, or are in a folder of that name (optim/sgd.h).
MODULES = {
    "bit_identical": "scope",
    "checkpoint_activations": "parallel",
    "comm_backend": "comm",
    "events": "comm",
    "fully_shard": "parallel",
    "grad_scaler": "parallel",
    "hooks": "autograd",
    "inspect": "ops",
    "launch": "comm",
    "loss": "parallel",
    "mpi": "comm",
    "nn/decoder": "decoder",
    "nn/float8": "nn",
    "parallelize": "parallel",
    "pipeline_schedule": "pipeline/schedule",
    "rule": "sharding_prop",
}

# Names that another module defines, and why.
EXCEPTIONS = {
    "attention": ("ops", "attention() and ATen's operator share one entry: autocast, explain, recomputation"),
    "BitIdentical": ("tensor", "content_hash() gathers DTensors; other members are in scope"),
    "Checked": ("scope", "launch() and run_local() open one on each rank, and communicators read it"),
    "ModuleScope": ("scope", "errors of communicators name the module"),
    "DTensor": ("autograd", "gradients and operators create and redistribute DTensors; members that need factories are in tensor"),
    "is_dtensor": ("autograd", "the same"),
    "redistribute": ("autograd", "the same"),
    "verify_rule": ("verify", "it runs operators, which rules do not know"),
    "verify_rule_on_mesh": ("verify", "the same"),
}


def defines(module: str, header: str) -> bool:
    expected = MODULES.get(header, header.split("/")[0])
    return module == expected or module.startswith(expected + "/")


def without_templates(text: str) -> str:
    """Removes template arguments, so that the first parenthesis of a declaration is that of its parameters."""
    text = re.sub(r"operator\s*(<=>|<<|<=|<|->|>>|>=|>)", "operator_", text)
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return text


def declared_names(text: str) -> set[str]:
    """Classes of a header, and its exported functions."""
    text = re.sub(r"//[^\n]*", "", text)
    classes = re.findall(r"\b(?:class|struct|enum class)\s+(?:DTENSOR_API\s+)?(\w+)[^;{()]*\{", text)
    functions = re.findall(r"\bDTENSOR_\w*API\b[^;{}()]*?\b(\w+)\(", without_templates(text))
    return {*classes, *functions}


def exported_symbols(path: str) -> set[str]:
    lines = subprocess.run(["readelf", "-sWC", path], capture_output=True, check=True, text=True).stdout.splitlines()
    fields = [line.split(None, 7) for line in lines if " GLOBAL " in line and " DEFAULT " in line and " UND " not in line]
    return {field[7] for field in fields if len(field) == 8}


def outer_name(symbol: str, namespaces: set[str]) -> str:
    """The class or function of a symbol: `Mesh` of `dtensor::Mesh::size() const`."""
    symbol = re.sub(r"^(vtable|typeinfo|typeinfo name|VTT|guard variable) for |^(non-virtual|virtual) thunk to ", "", symbol)
    symbol = without_templates(re.sub(r"\[abi:\w+\]", "", symbol))
    path = re.split(r"::", re.match(r"[^(]*", symbol)[0].split(" ")[-1])
    while len(path) > 1 and path[0] in namespaces:
        path = path[1:]
    return path[0]


def public_names(include: pathlib.Path) -> tuple[dict[str, list[str]], set[str]]:
    """The headers that declare each name, and all namespaces."""
    headers: dict[str, list[str]] = {}
    namespaces = {"dtensor"}
    for path in sorted(include.rglob("*.h")):
        text = path.read_text()
        for name in declared_names(text):
            headers.setdefault(name, []).append(str(path.relative_to(include))[:-2])
        for nested in re.findall(r"^namespace ([\w:]+) \{", text, re.MULTILINE):
            namespaces.update(nested.split("::"))
    return headers, namespaces


def main(include: str, objects: str) -> int:
    headers, namespaces = public_names(pathlib.Path(include))
    defined = set()
    for line in pathlib.Path(objects).read_text().splitlines():
        module, path = line.split(" ", 1)
        names = {outer_name(symbol, namespaces) for symbol in exported_symbols(path)}
        defined |= {(name, module) for name in names if name in headers}
    wrong, unused = [], set(EXCEPTIONS)
    for name, module in sorted(defined):
        if EXCEPTIONS.get(name, ("",))[0] == module:
            unused.discard(name)
        elif not any(defines(module, header) for header in headers[name]):
            wrong.append(f"{name}: declared in {', '.join(headers[name])}, defined in module {module}")
    wrong += [f"{name}: the exception is not needed" for name in sorted(unused)]
    print(*wrong, f"{len(defined)} public names, {len(wrong)} errors", sep="\n")
    return 1 if wrong or not defined else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
