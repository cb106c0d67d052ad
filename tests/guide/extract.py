#!/usr/bin/env python3
"""The C++ blocks of a page of docs/guide as a test: extract.py PAGE.md OUT.cpp. Their only header besides those that the page
includes is dtensor/dtensor.h. Blocks that name a file (`// first.cpp`) are left to run_page.py.

Blocks follow one another in the body of one function, which runs on four thread ranks. A block marked ```cpp global stands before it, and one with
a main() is a program of its own, which is run with --ranks 4. #line makes the compiler's messages point into the page."""
import os
import re
import sys

HEAD = """#include <dtensor/dtensor.h>

namespace {
using namespace dtensor;
"""


def blocks(text):
    for match in re.finditer(r"^```(cpp[^\n]*)\n(.*?)^```$", text, re.M | re.S):
        if not re.match(r"// \S+\.cpp\n", match[2]):
            yield match[1], text.count("\n", 0, match.start(2)) + 1, match[2]


def main(page, out):
    name = re.sub(r"\W", "_", os.path.splitext(os.path.basename(page))[0])
    before, body, programs = [], [], []
    for kind, line, code in blocks(open(page).read()):
        code = f'#line {line} "{page}"\n{code}'
        if re.search(r"^int main\(", code, re.M):
            programs.append(re.sub(r"^int main\(", f"int main_{len(programs)}(", code, flags=re.M))
        elif kind == "cpp global" or re.search(r"^#include", code, re.M):
            before.append(code)
        else:
            body.append(code)
    includes = [b for b in before if "#include" in b]
    others = [b for b in before if "#include" not in b]
    text = "".join(includes) + HEAD + "".join(others) + "".join(programs)
    text += "void page([[maybe_unused]] const Communicator& world, [[maybe_unused]] const std::string& folder) {\n"
    text += "".join(body) + "}\n}  // namespace\n"
    text += "#include <gtest/gtest.h>\n#include <unistd.h>\n\n#include <filesystem>\n" + f"""
TEST(Guide, {name}) {{
  const std::string folder = ::testing::TempDir() + "guide_{name}_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  run_local(4, [&](const Communicator& world) {{ page(world, folder); }});
  std::filesystem::remove_all(folder);
"""
    for i in range(len(programs)):
        text += f"""  {{
    std::string words[] = {{"program", "--ranks", "4"}};
    char* argv[] = {{words[0].data(), words[1].data(), words[2].data(), nullptr}};
    EXPECT_EQ(main_{i}(3, argv), 0);
  }}
"""
    with open(out, "w") as file:
        file.write(text + "}\n")


main(*sys.argv[1:])
