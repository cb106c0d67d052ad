#!/usr/bin/env python3
"""Checks examples/wandb/log_to_wandb.py with a module `wandb` that records its calls: a log that grows, in pieces that end
within a line, arrives complete and in order; a log that is none is one error."""
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples/wandb/log_to_wandb.py"
FAKE = '''import json
class Run:
    def log(self, values, step):
        with open("calls", "a") as file: file.write(json.dumps([step, values]) + "\\n")
    def finish(self): self.log("finish", -1)
def init(project, name):
    run = Run()
    run.log({"project": project, "name": name}, 0)
    return run
'''


def start(folder, follow):
    return subprocess.Popen([sys.executable, SCRIPT, "log.csv", "--project", "heat", "--follow", str(follow)], cwd=folder,
                            env={"PYTHONPATH": folder}, stderr=subprocess.PIPE, text=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "wandb.py").write_text(FAKE)
        log = Path(folder, "log.csv")
        pieces = ["step,loss,", "learning_rate\n  1, 0.5,1e-2\n2,0.", "25,5.0E-003\n", "3,0.125,0.001\n"]
        log.write_text("")
        running = start(folder, 3)
        for piece in pieces:
            time.sleep(0.3)
            with open(log, "a") as file:
                file.write(piece)
        errors = running.communicate(timeout=60)[1]
        assert running.returncode == 0, errors
        calls = [json.loads(line) for line in Path(folder, "calls").read_text().splitlines()]
        assert calls == [[0, {"project": "heat", "name": None}], [1, {"loss": 0.5, "learning_rate": 0.01}],
                         [2, {"loss": 0.25, "learning_rate": 0.005}], [3, {"loss": 0.125, "learning_rate": 0.001}],
                         [-1, "finish"]], calls  # fmt: skip
        for text, expected in [("loss\n1\n", "names with `step`"), ("step,loss\n1,2\n2\n", "line 3: expected 2 numbers"),
                               ("step,loss\n1,x\n", "got '1,x'"), ("", "names with `step`")]:  # fmt: skip
            log.write_text(text)
            failed = start(folder, 0)
            errors = failed.communicate(timeout=60)[1]
            assert failed.returncode == 1 and expected in errors and "Traceback" not in errors, errors


main()
