"""The public C++ interface stays small: at most MOST_HEADERS headers and MOST_NAMES names.

A name is a type, function, constant, alias or enumeration that a header of include/dtensor declares in a namespace; overloads
count once. Not counted: names of namespaces `detail`, forward declarations of types that no header defines, members, aliases
below a comment "The old name of", and the C interface (include/dtensor/c), which is one header.

    python3 tests/style/public_names.py [--list]     # --list: the names of each header
"""

import re
import sys
from pathlib import Path

MOST_HEADERS = 45
MOST_NAMES = 300

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include" / "dtensor"

IDENTIFIER = r"[A-Za-z_]\w*"
TYPE = re.compile(rf"^(?:template\s*<.*?>\s*)?(?:class|struct|enum class|enum)\s+(?:DTENSOR_API\s+)?({IDENTIFIER})\s*(?:final\s*)?(?::[^:].*)?\{{")
ALIAS = re.compile(rf"^(?:template\s*<.*?>\s*)?using\s+({IDENTIFIER})\s*=")
CONSTANT = re.compile(rf"^(?:inline\s+)?constexpr\s+[\w:]+\s+({IDENTIFIER})\s*=")
FUNCTION = re.compile(rf"({IDENTIFIER})\s*\(")
NOT_FUNCTIONS = {"requires", "decltype", "alignas", "__attribute__", "operator"}


def without_comments(text: str) -> str:
    """The text without old names, comments, strings and preprocessor lines."""
    text = re.sub(r"^// The old name of [^\n]*\nusing [^;]*;", "", text, flags=re.M)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"^\s*#.*?(?<!\\)$", "", text, flags=re.M | re.S)


def declarations(text: str):
    """Each declaration at namespace scope, up to its semicolon or opening brace, outside of namespaces `detail` and `std`."""
    scopes, depth, start = [], 0, 0  # scopes: whether each open namespace is counted
    for i, char in enumerate(text):
        if depth > 0:  # inside of a body or an initializer
            depth += {"{": 1, "}": -1}.get(char, 0)
            if depth == 0:
                start = i + 1 if re.match(r"\s*[;A-Za-z}]|\s*$", text[i + 1 : i + 40]) else start
        elif char == "{":
            head = " ".join(text[start:i].split())
            if namespace := re.match(rf"(?:inline )?namespace\s*([\w:]*)$", head):
                scopes.append(not re.search(r"\b(detail|std|torch)\b", namespace[1]))
                start = i + 1
            else:
                if scopes and all(scopes):
                    yield head + " {"
                depth = 1
        elif char == "}":
            scopes.pop()
            start = i + 1
        elif char == ";":
            head = " ".join(text[start:i].split())
            if head and scopes and all(scopes):
                yield head + ";"
            start = i + 1


def name_of(declaration: str) -> str | None:
    """The name that a declaration gives, or None: a forward declaration, an operator, a specialization."""
    for pattern in (TYPE, ALIAS, CONSTANT):
        if match := pattern.match(declaration):
            return match[1]
    while (shorter := re.sub(r"<[^<>]*>", "", declaration)) != declaration:  # template arguments
        declaration = shorter
    if re.match(r"(?:template\s*<.*?>\s*)?(?:class|struct|enum)\b", declaration) or "operator" in declaration:
        return None
    if re.search(rf"{IDENTIFIER}::{IDENTIFIER}\s*\(", declaration.split("(")[0] + "("):
        return None  # a member that is defined outside of its class
    names = [name for name in FUNCTION.findall(re.sub(r"^requires\s*\(.*?\)\)\s*", "", declaration)) if name not in NOT_FUNCTIONS]
    return names[0] if names else None


def names_of(path: Path) -> set[str]:
    return {name for text in declarations(without_comments(path.read_text())) if (name := name_of(text))}


def public_names() -> dict[str, set[str]]:
    headers = sorted(path for path in INCLUDE.rglob("*.h") if path.parent != INCLUDE / "c")
    return {str(path.relative_to(INCLUDE)): names_of(path) for path in headers}


def main(arguments: list[str]) -> int:
    names = public_names()
    if "--list" in arguments:
        for header, found in names.items():
            print(f"{header} ({len(found)}): {' '.join(sorted(found))}")
    headers, total = len(list(INCLUDE.rglob("*.h"))), len(set().union(*names.values()))
    print(f"{headers} public headers (at most {MOST_HEADERS}), {total} public names (at most {MOST_NAMES})")
    return int(headers > MOST_HEADERS or total > MOST_NAMES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
