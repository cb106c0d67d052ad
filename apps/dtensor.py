#!python
"""dtensor PROGRAM [ARGUMENTS]: runs a program of the installed package dtensor, which it does not import."""

import importlib.util
import os
import sys

programs = os.path.join(os.path.dirname(importlib.util.find_spec("dtensor").origin), "libexec", "dtensor")
names = sorted(os.listdir(programs))
name = sys.argv[1] if len(sys.argv) > 1 else ""
if name not in names:
    sys.exit(f"dtensor: expected one of: {' '.join(names)}; got '{name}'. Each has --help.")
os.execv(os.path.join(programs, name), sys.argv[1:])
