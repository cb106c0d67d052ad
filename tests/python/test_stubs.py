"""_C.pyi lists the names of the module; parameters agree in number, in names where they have one, and in defaults."""

import ast
import inspect
import os
import re
import unittest

import dtensor
from dtensor import _C

STUB = os.path.join(os.path.dirname(os.path.realpath(dtensor.__file__)), "_C.pyi")
PYTHONS_OWN = {"__enter__", "__exit__", "__repr__", "__str__", "__eq__", "__ne__", "__hash__", "__init__"}


def public(names):
    return {name for name in names if not name.startswith("_") or name in {"_flatten", "__getitem__"}}


def split(text):
    """Splits at commas outside brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "[(") - (char in "])")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def bound_parameters(doc):
    """(name or None, whether it has a default) as in the first line of pybind11's docstring; None: not in the docstring."""
    line = re.match(r"\w+\((.*)\) -> ", (doc or "").split("\n")[0])
    if not line:
        return None
    found = []
    for part in split(line[1]):
        name = re.match(r"\**(\w+)", part)
        if name and name[1] != "self":
            found.append((None if re.fullmatch(r"arg\d+", name[1]) else name[1], bool(re.search(r"\] = |[\w.\]] = ", part))))
    return found


def stub_parameters(function):
    a = function.args
    positional = a.posonlyargs + a.args
    defaults = [False] * (len(positional) - len(a.defaults)) + [True] * len(a.defaults)
    found = [(p.arg, d) for p, d in zip(positional, defaults)] + [(p.arg, d is not None) for p, d in zip(a.kwonlyargs, a.kw_defaults)]
    found += [(p.arg, False) for p in (a.vararg, a.kwarg) if p]
    return [p for p in found if p[0] != "self"], {p.arg for p in a.posonlyargs}


class Stubs(unittest.TestCase):
    def setUp(self):
        with open(STUB) as file:
            body = ast.parse(file.read()).body
        self.functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        self.classes = {node.name: node for node in body if isinstance(node, ast.ClassDef) and node.name != "_Scope"}
        self.values = {node.target.id for node in body if isinstance(node, ast.AnnAssign)}

    def test_names(self):
        self.assertEqual(public(vars(_C)), set(self.functions) | set(self.classes) | self.values)

    def test_classes(self):
        for name, node in self.classes.items():
            bound, stub = getattr(_C, name), set()
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    stub.add(item.name)
                elif isinstance(item, ast.AnnAssign):
                    stub.add(item.target.id)
            self.assertEqual(public(vars(bound)), public(stub), name)

    def compare(self, name, bound, node):
        bound_names = bound_parameters(bound.__doc__)
        if bound_names is None:
            return 0
        stub, unnamed = stub_parameters(node)
        self.assertEqual(len(bound_names), len(stub), name)
        for (known, has_default), (written, default) in zip(bound_names, stub):
            self.assertEqual(known is None, written in unnamed, f"{name}: {written}")
            if known is not None:
                self.assertEqual((known, has_default), (written, default), name)
        return 1

    def test_parameters(self):
        compared = 0
        for name, node in self.functions.items():
            compared += self.compare(name, getattr(_C, name), node)
        for name, node in self.classes.items():
            for item in node.body:
                bound = getattr(_C, name).__dict__.get(getattr(item, "name", ""))
                if bound is None or inspect.isdatadescriptor(bound) or item.name in PYTHONS_OWN - {"__init__"}:
                    continue
                bound = getattr(bound, "__func__", bound)
                if not (bound.__doc__ or "").startswith("__init__(*args"):
                    compared += self.compare(f"{name}.{item.name}", bound, item)
        self.assertGreater(compared, 100)


if __name__ == "__main__":
    unittest.main()
