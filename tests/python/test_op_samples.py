"""A random sample of torch's op_db at random placements; a manual run of op_samples.py covers all of it."""

import random
import unittest
import warnings

import op_samples
from layouts import trials


class OpSamples(unittest.TestCase):
    def test_a_sample_of_operators(self):
        warnings.simplefilter("ignore")
        try:
            ops = op_samples.draws()
        except ImportError as error:  # torch's own tests need additional packages
            self.skipTest(str(error))
        counts = {"equal": 0, "refused": 0}
        for op in random.Random(0).sample(ops, min(trials(40), len(ops))):
            for verdict, text in op_samples.check(op, (2,), 0, 1):
                self.assertIn(verdict, counts, f"{op.name} {op.variant_test_name}: {text}")
                counts[verdict] += 1
        self.assertGreater(counts["equal"], 9 * counts["refused"])

    def judge_draw(self, count, seed, check, *also, refused=False):
        """Number of equal cases; any other verdict fails the test."""
        ops = [op for op in op_samples.draws() if not refused or op.error_inputs_func is not None]
        drawn = random.Random(seed).sample(ops, min(trials(count), len(ops))) + [op for op in ops if op.name in also]
        equal = 0
        for op in drawn:
            for verdict, text in check(op):
                self.assertEqual(verdict, "equal", f"{op.name} {op.variant_test_name}: {text}")
                equal += 1
        return equal

    def test_a_sample_of_complex_inputs(self):
        self.assertGreater(self.judge_draw(20, 1, lambda op: op_samples.check(op, (2,), 0, 1, complex_numbers=True)), 10)

    def test_errors_equal_those_of_torch(self):
        # For ormqr the sharding rule needs sizes that the erroneous call lacks.
        equal = self.judge_draw(30, 2, lambda op: op_samples.check_errors(op, (2,), 0, 3), "ormqr", "gather", refused=True)
        self.assertGreater(equal, 30)

    def test_a_missing_error_is_reported(self):
        op = next(op for op in op_samples.draws() if op.name == "ormqr")

        class Silent:
            def __getattr__(self, name):
                return getattr(op, name)

            def __call__(self, *args, **kwargs):
                return args[0] if isinstance(args[0], op_samples.DTensor) else op(*args, **kwargs)

        self.assertEqual({verdict for verdict, _ in op_samples.check_errors(Silent(), (2,), 0, 3)}, {"wrong"})

    def test_wrong_results_are_reported(self):
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
