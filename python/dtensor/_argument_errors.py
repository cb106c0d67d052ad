"""Texts of the TypeErrors for wrong arguments of bound functions: the argument, what it must be, and what it is."""

from __future__ import annotations

import collections.abc
import re
from typing import Any, NamedTuple

_SHORT = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "collections.abc.": "",
    "dtensor._C.": "",
    "dtensor::": "",
    "torch.": "",
    "typing.": "",
}


class _Parameter(NamedTuple):
    name: str
    type: str
    optional: bool
    keyword_only: bool


def message(text: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """The text for a call with ``args`` and ``keywords``; ``text`` is pybind11's, which lists the signatures."""
    for long, short in _SHORT.items():
        text = text.replace(long, short)
    function = text.partition("(")[0]
    signatures = re.findall(r"^ +\d+\. (\w*)\((.*)\)(?: -> .*)?$", text, re.M)  # a constructor has the name of its class
    problems = [_problem(name or function, bool(name), _parameters(list_), args, keywords) for name, list_ in signatures]
    return "; or ".join(dict.fromkeys(problems)) or text


def _problem(name: str, constructs: bool, parameters: list[_Parameter], args: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    has_self = bool(parameters) and parameters[0].name == "self"
    if has_self:
        parameters = parameters[1:]
    if has_self or constructs:  # the object, which signatures of constructors do not list
        args = args[1:]
    positional = [p for p in parameters if not p.keyword_only]
    if len(args) > len(positional):
        return f"{name}(): expected at most {len(positional)} positional argument(s), got {len(args)}"
    given = {p.name: value for p, value in zip(positional, args)}
    for keyword, value in keywords.items():
        if keyword in given:
            return f"{name}(): got argument '{keyword}' twice"
        if keyword not in [p.name for p in parameters]:
            return f"{name}(): expected arguments {', '.join(p.name for p in parameters)}, got '{keyword}'"
        given[keyword] = value
    for position, p in enumerate(parameters, 1):
        label = f"argument '{p.name}'" + ("" if p.keyword_only else f" (position {position})")
        if re.fullmatch(r"arg\d+", p.name):  # a parameter without a name
            label = f"argument {position}"
        if p.name not in given and not p.optional:
            return f"{name}(): missing {label}, expected {p.type}"
        if p.name in given and not _fits(p.type, given[p.name]):
            return f"{name}(): {label}: expected {p.type}, got {_shown(given[p.name])}"
    expected = ", ".join(f"{p.name}: {p.type}" for p in parameters)
    return f"{name}(): expected ({expected}), got ({', '.join(map(_shown, given.values()))})"


def _split(text: str, separator: str) -> list[str]:
    """The parts of ``text`` between separators outside of brackets and quotes."""
    parts, depth = [""], 0
    for piece in re.split(rf"('[^']*'|[\[\](){{}}<>]|{re.escape(separator)})", text):
        if piece == separator and depth == 0:
            parts.append("")
            continue
        depth += (piece in tuple("[({<")) - (piece in tuple("])}>"))
        parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def _parameters(text: str) -> list[_Parameter]:
    found, keyword_only = [], False
    for part in _split(text, ","):
        if part == "*":
            keyword_only = True
        elif match := re.fullmatch(r"(\w+): (.*?)( = .*)?", part, re.S):
            found.append(_Parameter(match[1], match[2], match[3] is not None, keyword_only))
    return found


def _fits(expected: str, value: Any) -> bool:
    """Whether the value may be of this type. Types that this module does not know fit."""
    options = _split(expected, "|")
    if len(options) != 1:
        return any(_fits(option, value) for option in options)
    kind, _, inner = expected.partition("[")
    if kind in ("Sequence", "Iterable", "list", "tuple"):
        is_list = isinstance(value, collections.abc.Iterable) and not isinstance(value, (str, bytes))
        return is_list and (kind == "tuple" or all(_fits(inner[:-1] or "object", item) for item in value))
    checks = {
        "None": value is None,
        "int": hasattr(value, "__index__"),
        "float": hasattr(value, "__float__") or hasattr(value, "__index__"),
        "str": isinstance(value, (str, bytes)),
        "bool": isinstance(value, bool),
        "Callable": callable(value),
        "Mapping": isinstance(value, collections.abc.Mapping),
        "dict": isinstance(value, dict),
    }
    if kind in checks:
        return checks[kind]
    names = [cls.__name__ for cls in type(value).__mro__]
    known = kind in ("Tensor", "DeviceMesh", "Communicator", "Placement", "HardwareModel")
    return not known or kind in names


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
