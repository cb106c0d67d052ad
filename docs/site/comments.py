#!/usr/bin/env python3
"""Doxygen's input filter: comments.py HEADER. Headers have // comments before or behind a declaration; Doxygen needs /// before it.
A comment also describes the declarations after it that follow without an empty line and have no comment. Private sections are left out;
lines that are indented after an empty comment line are code."""
import re
import sys

NO_DECLARATION = re.compile(r"^\s*(#|\}|public:|private:|protected:|namespace\b|friend\b|using namespace\b|$)")


def statements(lines):
    """Yields groups of lines: a comment, an empty line, or one declaration up to its ; { or }."""
    pending = []
    for line in lines:
        code = re.sub(r"\s*//.*$", "", line).rstrip()
        pending.append(line)
        complete = not code or code.endswith((";", "{", "}", ":", ",", ">")) or code.lstrip().startswith("#")
        depth = sum(re.sub(r"\s*//.*$", "", h).count("(") - re.sub(r"\s*//.*$", "", h).count(")") for h in pending)
        template = code.lstrip().startswith(("template", "requires")) and not code.endswith((";", "{"))
        if complete and depth <= 0 and not template:
            yield pending
            pending = []
    if pending:
        yield pending


def marked(text):
    """Replaces `code` by the markup that Doxygen reads."""
    return re.sub(r"`([^`]+)`", lambda m: "<code>" + m[1].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") + "</code>", text)


def public(lines):
    """The lines outside of private sections, which end with the class or at `public:`."""
    end = None
    for line in lines:
        if end and re.match(end, line):
            end = None
        private = re.match(r"(\s*)private:", line)
        if private:
            end = rf"{private[1]}public:|{private[1][1:]}\}};"
        if not end:
            yield line


def described_by(comment):
    """The lines of a comment in Doxygen's form."""
    code = False
    for before, line in zip([None] + comment, comment):
        if line.startswith("  ") and before == "":
            code = True
            yield "@code{.cpp}"
        elif code and line and not line.startswith("  "):
            code = False
            yield "@endcode"
        yield line if code else marked(line)
    if code:
        yield "@endcode"


def each_declaration(part):
    """Splits `double lr = 1, eps = 2;`, of which Doxygen would describe only the first name."""
    several = re.match(r"^(\s*(?:const |static |constexpr )*[\w:]+(?:<[\w:]+>)?) (\w+(?: = (?:\{\}|(?:[^,;(){}<>]|<<)+))?(?:, \w+(?: = (?:\{\}|(?:[^,;(){}<>]|<<)+))?)+);", part[0])
    if len(part) > 1 or not several:
        return [part]
    return [[f"{several[1]} {name};"] for name in several[2].split(", ")]


def main(path):
    lines = open(path).read().split("\n")
    start = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    out = ["/// @file"] + [f"/// {line}" for line in described_by([line[2:].removeprefix(" ") for line in lines[:start]])]
    comment, fresh = [], False
    for part in statements(list(public(lines[start:]))):
        text = part[0].strip()
        if len(part) == 1 and text.startswith("//"):
            if not fresh:
                comment = []
            comment.append(text[2:].removeprefix(" ").rstrip())
            fresh = True
            continue
        if not text:
            comment, fresh = [], False
        behind = [m[1] for line in part if (m := re.search(r"[;,{})]\s*//\s?(.*)$", line))]
        own = comment + behind if fresh or not behind else behind
        described = own and not NO_DECLARATION.match(part[0])
        for declaration in each_declaration(part):
            if described:
                indent = re.match(r"\s*", part[0])[0]
                out += [f"{indent}/// {line}" for line in described_by(own)]
            out += declaration
        fresh = False
        if part[-1].rstrip().endswith("{"):
            comment = []
    sys.stdout.write("\n".join(out))


main(sys.argv[1])
