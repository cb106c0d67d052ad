#!/usr/bin/env python3
"""Pages of the public headers, grouped by topic: cpp_reference.py INCLUDE FOLDER writes FOLDER/index.md and a page for each topic and
header of INCLUDE. Headers without a topic, and headers of a topic that do not exist, are printed as errors."""
import pathlib
import re
import sys

TOPICS = {
    "Tensors and placements": "tensor placement",
    "C and Fortran": "c/dtensor",
    "Ranks and meshes": "launch mpi mesh comm",
    "Parallel modules": "parallelize fully_shard loss attention checkpoint_activations hooks nn nn/module nn/float8",
    "Mixture of experts": "moe moe/layer moe/router moe/experts moe/dispatch",
    "Pipelines": "pipeline pipeline_schedule",
    "Distributed graphs and grids": "halo",
    "Language models": "nn/decoder",
    "Optimizers": "optim optim/optimizer optim/shampoo optim/clip grad_scaler torch_optimizer",
    "Random numbers, data and checkpoints": "random bit_identical data checkpoint",
    "Debugging and estimates": "dry_run estimate debug inspect events",
    "Operators and backends of your own": "rule comm_backend",
}
NO_PAGE = {"dtensor", "export"}  # one includes the others, one defines a macro


def summary(path):
    """The first sentence of a header's opening comment."""
    lines = []
    for line in path.read_text().split("\n"):
        if not line.startswith("//"):
            break
        lines.append(line[2:].strip())
    text = re.match(r".*?(?:[.:](?= [A-Z`])|\.$|$)", " ".join(lines))[0]
    return re.sub(r":$", ".", text).replace("|", "\\|").replace("<", "&lt;")


def page_of(header):
    return header.replace("/", "_")


def topic_page(title, headers, include):
    text = f"# {title}\n\n| header | content |\n|---|---|\n"
    for header in headers:
        text += f"| [dtensor/{header}.h]({page_of(header)}.md) | {summary(include / f'{header}.h')} |\n"
    pages = "".join(f"dtensor/{header}.h <{page_of(header)}>\n" for header in headers)
    return text + f"\n```{{toctree}}\n:hidden:\n\n{pages}```\n"


def declares(path):
    return re.search(r"DTENSOR_API|struct |class ", path.read_text()) is not None


def main(include, folder):
    include, folder = pathlib.Path(include), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    there = {str(p.relative_to(include))[:-2] for p in include.rglob("*.h")} - NO_PAGE
    index = "# C++ reference\n\nThe public headers by topic; `#include <dtensor/dtensor.h>` includes what most programs need.\n\n"
    index += "```{toctree}\n:maxdepth: 2\n\n"
    for title, names in TOPICS.items():
        headers = [name for name in names.split() if name in there]
        for name in set(names.split()) - there:
            print(f"docs/site/cpp_reference.py: topic {title!r} lists include/dtensor/{name}.h, which does not exist")
        topic = "topic_" + title.lower().replace(" ", "_").replace(",", "")
        index += topic + "\n"
        (folder / f"{topic}.md").write_text(topic_page(title, headers, include))
        there -= set(headers)
        for header in headers:
            path = include / f"{header}.h"
            body = f"```{{doxygenfile}} dtensor/{header}.h\n```\n" if declares(path) else summary(path) + " It includes the other headers of its topic.\n"
            (folder / f"{page_of(header)}.md").write_text(f"# dtensor/{header}.h\n\n{body}")
    for header in sorted(there):
        print(f"docs/site/cpp_reference.py: include/dtensor/{header}.h is in no topic; add it to TOPICS")
    (folder / "index.md").write_text(index + "```\n")


main(*sys.argv[1:])
