"""The examples run: the fine-tuning script has one loss on every mesh, the notebook's cells run one after the other."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import unittest

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
