#!/usr/bin/env python3
"""Pages of the Python package: python_reference.py PACKAGE FOLDER writes FOLDER/index.rst and a page for each public module of PACKAGE.
It parses the sources without importing them, so torch is not needed. Public names without a docstring are printed as errors."""
import ast
import copy
import pathlib
import sys

MODULES = ["dtensor", "fsdp", "parallel", "optim", "moe", "pipeline", "checkpoint", "debug", "experimental"]
HEAD = "Python reference\n================\n\nAll names of the package ``dtensor``, generated from its sources; :doc:`/python` is the introduction.\n\n"


def docstring(node):
    """The docstring without the indentation of its node. inspect.cleandoc would also remove that of an example below the first line."""
    text = ast.get_docstring(node, clean=False)
    if text is None:
        return None
    margin = getattr(node.body[0], "col_offset", 0)
    first, *rest = text.split("\n")
    return "\n".join([first.strip()] + [line[margin:].rstrip() for line in rest]).rstrip()


class Package:
    def __init__(self, root):
        self.root, self.trees, self.undocumented = root, {}, []

    def tree(self, module):
        if module not in self.trees:
            path = next(p for p in (self.root / f"{module}.py", self.root / f"{module}.pyi") if p.exists())
            self.trees[module] = ast.parse(path.read_text())
        return self.trees[module]

    def find(self, module, name):
        """The definitions of a name (several if it is overloaded), resolved through imports from this package."""
        found = []
        for node in self.tree(module).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                found.append(node)
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name and isinstance(node.value, ast.Call):
                found += self.made(module, name, node.value)
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        found += self.find(node.module, alias.name)
        return found

    def made(self, module, name, call):
        """For `name = make(..., "docstring")`: the function that `make` returns, under that name."""
        texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        inner = [n for make in self.find(module, getattr(call.func, "id", "")) for n in make.body if isinstance(n, ast.FunctionDef)]
        for function in inner[:1]:
            return [ast.FunctionDef(name, function.args, [ast.Expr(ast.Constant(t)) for t in texts[-1:]], [], function.returns)]
        return []

    def public_names(self, module):
        body = self.tree(module).body
        for node in body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__" and isinstance(node.value, ast.List):
                return [item.value for item in node.value.elts]
        imports = [n for n in body if isinstance(n, ast.ImportFrom) and n.level == 1 and (n.module or "") != ""]
        names = [a.asname or a.name for n in imports for a in n.names] if module == "__init__" else []
        names += [n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def signature(node, method=False):
    arguments = copy.deepcopy(node.args)
    static = any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
    if method and not static:
        (arguments.posonlyargs or arguments.args)[:1] = []
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(arguments)}){returns}"


def indented(text, depth):
    return "".join(" " * depth + line + "\n" if line else "\n" for line in text.split("\n"))


def directive(kind, signatures, node, depth, options=()):
    lines = f".. py:{kind}:: " + ("\n" + " " * (len(kind) + 9)).join(signatures) + "\n" + "".join(f"   :{o}\n" for o in options)
    text = docstring(node) if node is not None else None
    return indented(lines.rstrip("\n"), depth) + "\n" + (indented(text, depth + 3) + "\n" if text else "")


def members(node):
    text, methods = "", {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            methods.setdefault(item.name, []).append(item)
        if isinstance(item, ast.AnnAssign) and not getattr(item.target, "id", "_").startswith("_"):
            text += directive("attribute", [item.target.id], None, 3, [f"type: {ast.unparse(item.annotation)}"])
    for name, items in methods.items():
        decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in items[0].decorator_list}
        if decorators & {"property", "cached_property"}:
            kind = [f"type: {ast.unparse(items[0].returns)}"] if items[0].returns else []
            text += directive("property", [name], items[0], 3, kind)
        else:
            options = [f"{o}:" for o in ("staticmethod", "classmethod") if o in decorators]
            text += directive("method", [signature(i, method=True) for i in items], items[0], 3, options)
    return text


def class_text(node):
    init = next((i for i in node.body if isinstance(i, ast.FunctionDef) and i.name == "__init__"), None)
    arguments = signature(init, method=True)[len("__init__"):].replace(" -> None", "") if init else ""
    bases = [base for base in map(ast.unparse, node.bases) if not base.startswith("_")]
    text = directive("class", [node.name + arguments], node, 0)
    return text + (indented("Bases: " + ", ".join(f"``{b}``" for b in bases), 3) + "\n" if bases else "") + members(node)


def page(package, module):
    source = "__init__" if module == "dtensor" else module
    full = "dtensor" if module == "dtensor" else f"dtensor.{module}"
    text = f"{full}\n{'=' * len(full)}\n\n.. default-domain:: py\n.. py:module:: {full}\n\n"
    text += (docstring(package.tree(source)) or "") + "\n\n"
    for name in package.public_names(source):
        nodes = package.find(source, name)
        if not nodes:
            continue  # a submodule or a value
        if not docstring(nodes[0]):
            package.undocumented.append(f"{full}.{name}")
        is_class = isinstance(nodes[0], ast.ClassDef)
        text += class_text(nodes[0]) if is_class else directive("function", [signature(n) for n in nodes], nodes[0], 0)
    return text


def main(root, folder):
    package = Package(pathlib.Path(root))
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        (out / f"{module}.rst").write_text(page(package, module))
    (out / "index.rst").write_text(HEAD + ".. toctree::\n   :maxdepth: 1\n\n" + "".join(f"   {m}\n" for m in MODULES))
    for name in package.undocumented:
        print(f"python: {name} has no docstring")


main(*sys.argv[1:])
