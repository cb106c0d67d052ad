"""Runs the examples: the fine-tuning script has the same loss on every mesh, each library that of DistributedDataParallel,
and all cells of the notebook run.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import torch

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "python")


class Examples(unittest.TestCase):
    def losses(self, *flags):
        out = subprocess.run([sys.executable, os.path.join(EXAMPLES, "finetune.py"), "--steps", "3", *flags],
                             capture_output=True, text=True)  # fmt: skip
        self.assertEqual(out.returncode, 0, out.stderr)
        return re.findall(r"loss ([0-9.]+)", out.stdout)

    def test_finetune(self):
        try:
            import transformers  # noqa: F401
        except ImportError:
            self.skipTest("transformers is not installed")
        one = self.losses()
        self.assertEqual(len(one), 3)
        for threads, mesh in (("4", "dp=2,tp=2"), ("2", "tp=2"), ("2", "dp=2")):
            self.assertEqual(self.losses("--threads", threads, "--mesh", mesh), one)

    def with_libraries(self, *flags):
        """The losses of two processes under torchrun."""
        program = os.path.join(EXAMPLES, "with_libraries.py")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        with tempfile.TemporaryDirectory() as folder:  # the trainer creates files in the working directory
            out = subprocess.run([*launcher, program, *flags], capture_output=True, text=True, cwd=folder,
                                 env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
        self.assertEqual(out.returncode, 0, out.stderr)
        return [float(loss) for loss in re.search("losses (.*)", out.stdout)[1].split()]

    def check_library(self, use, *packages):
        for package in (*packages, "transformers"):
            if importlib.util.find_spec(package) is None:
                self.skipTest(f"{package} is not installed")
        losses, replicated = self.with_libraries("--use", use), self.with_libraries("--use", use, "--ddp")
        self.assertEqual(len(losses), 4)
        torch.testing.assert_close(losses, replicated, rtol=0, atol=1e-4)

    def test_accelerate(self):
        self.check_library("accelerate", "accelerate")

    def test_trainer(self):
        self.check_library("trainer", "accelerate")

    def test_fabric(self):
        self.check_library("fabric", "lightning")

    def test_peft(self):
        self.check_library("peft", "accelerate", "peft")

    def test_full_state_dict_is_saved(self):
        for package in ("accelerate", "transformers"):
            if importlib.util.find_spec(package) is None:
                self.skipTest(f"{package} is not installed")
        import transformers

        with tempfile.TemporaryDirectory() as folder:
            losses = self.with_libraries("--save", folder)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
            torch.manual_seed(0)
            fresh = transformers.LlamaForCausalLM(model.config)
        self.assertEqual(len(losses), 4)
        for (name, trained), before in zip(model.named_parameters(), fresh.parameters()):
            self.assertGreater((trained - before).abs().max().item(), 1e-3, name)

    def test_notebook(self):
        with open(os.path.join(EXAMPLES, "placements.ipynb")) as file:
            cells = [cell for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
        names, printed = {}, io.StringIO()
        with contextlib.redirect_stdout(printed):
            for cell in cells:
                exec("".join(cell["source"]), names)
        for word in ["reduce_scatter", "P(sum)", "dp", "ranks"]:
            self.assertIn(word, printed.getvalue())


if __name__ == "__main__":
    unittest.main()
