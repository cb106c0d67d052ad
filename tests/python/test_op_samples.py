"""A draw from torch's op_db at random placements; op_samples.py by hand runs all of it."""

import random
import unittest
import warnings

import op_samples
from layouts import trials


class OpSamples(unittest.TestCase):
    def test_a_draw_of_operators(self):
        warnings.simplefilter("ignore")
        try:
            ops = op_samples.draws()
        except ImportError as error:  # torch's own tests need small packages of theirs
            self.skipTest(str(error))
        counts = {"equal": 0, "refused": 0}
        for op in random.Random(0).sample(ops, min(trials(40), len(ops))):
            for verdict, text in op_samples.check(op, (2,), 0, 1):
                self.assertIn(verdict, counts, f"{op.name} {op.variant_test_name}: {text}")
                counts[verdict] += 1
        self.assertGreater(counts["equal"], 9 * counts["refused"])

    def test_wrong_results_are_seen(self):
        op = next(op for op in op_samples.draws() if op.name == "mul")

        class Wrong:
            def __getattr__(self, name):
                return getattr(op, name)

            def __call__(self, *args, **kwargs):
                result = op(*args, **kwargs)
                return result + 1 if isinstance(result, op_samples.DTensor) else result

        found = [text for _, text in op_samples.check(Wrong(), (2,), 0, 3)]
        self.assertIn("wrong: first order", found)
        self.assertNotIn("first order", " ".join(text for text in found if not text.startswith("wrong")))


if __name__ == "__main__":
    unittest.main()
