#!/usr/bin/env python3
"""Follows a page of the guide as a reader does: run_page.py PAGE.md FOLDER PREFIX [PYTHON PACKAGE]

A block that starts with a comment of a file's name (`// first.cpp`, `# first.py`) is written to that file in a new FOLDER.
A ```console block is a session there: each `$ command` runs, and its standard output must be the lines that follow; `...` stands for
any text. $HOME/.local is PREFIX, where `make install` installed the library; `python` and `torchrun` are those of PYTHON, which
finds the package in the folder PACKAGE. Other blocks are not run. The exit status is 1 at the first difference."""
import os
import pathlib
import re
import shutil
import subprocess
import sys


def blocks(text):
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield match[1], match[2]


def sessions(text):
    """Pairs of a command and the output that a console block shows."""
    command, output = None, []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, output
            command, output = line[2:], []
        else:
            output.append(line)
    yield command, output


def is_shown(output, shown):
    parts = [re.escape(part) for part in "\n".join(shown).strip().split("...")]
    return re.fullmatch(".*".join(parts), output.strip(), re.S) is not None


def home_of(folder, prefix, python, package):
    """A home folder with the library installed, and the environment of its shell."""
    (folder / "bin").mkdir(parents=True)
    (folder / ".local").symlink_to(prefix)
    environment = dict(os.environ, HOME=str(folder), PATH=f"{folder}/bin:{os.environ['PATH']}")
    if python:
        for name, call in (("python", ""), ("torchrun", "-m torch.distributed.run ")):
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {python} {call}"$@"\n')
            (folder / "bin" / name).chmod(0o755)
        environment["PYTHONPATH"] = package
    return environment


def follow(page, folder, environment):
    for kind, text in blocks(page.read_text()):
        name = re.match(r"(?://|#) (\S+\.\w+)\n", text)
        if name:
            (folder / name[1]).write_text(text)
        for command, shown in sessions(text) if kind == "console" else ():
            run = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                 capture_output=True, text=True, timeout=300)
            if run.returncode or not is_shown(run.stdout, shown):
                sys.exit(f"{page}: `{command}` (status {run.returncode}) printed\n{run.stdout}\n{run.stderr}\nThe page shows\n" + "\n".join(shown))
            print(f"{command}: as printed", flush=True)


def main(page, folder, prefix, python=None, package=None):
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = home_of(folder / "home", prefix, python, package)
    work = folder / "work"
    work.mkdir()
    follow(pathlib.Path(page), work, environment)


main(*sys.argv[1:])
