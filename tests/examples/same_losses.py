"""same_losses.py PROGRAM RANKS...: a program prints the same lines `step N  loss X` on each number of ranks, and its loss falls."""

import re
import subprocess
import sys


def losses(program, ranks):
    run = subprocess.run([program, "--ranks", ranks], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if run.returncode:
        sys.exit(f"{program} --ranks {ranks}: exit status {run.returncode}\n{run.stdout}{run.stderr}")
    return [float(loss) for loss in re.findall(r"^step +\d+  loss ([\d.]+)", run.stdout, re.M)]


program, *counts = sys.argv[1:]
first = losses(program, counts[0])
assert len(first) >= 2 and first[-1] < 0.7 * first[0], first
for ranks in counts[1:]:
    others = losses(program, ranks)
    if len(others) != len(first) or max(abs(a - b) for a, b in zip(first, others)) > 2e-4:
        sys.exit(f"losses on {counts[0]} ranks: {first}; on {ranks} ranks: {others}")
