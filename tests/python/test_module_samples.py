"""A random sample of torch's module_db at random placements; a manual run of module_samples.py covers all of it."""

import random
import unittest
import warnings

import dtensor
import module_samples
from layouts import trials


class ModuleSamples(unittest.TestCase):
    def test_a_sample_of_modules(self):
        warnings.simplefilter("ignore")
        try:
            modules = module_samples.draws()
        except ImportError as error:  # torch's own tests need additional packages
            self.skipTest(str(error))
        equal = 0
        for info in random.Random(0).sample(modules, min(trials(15), len(modules))):
            for verdict, text in module_samples.check(info, (2,), 0, 1):
                self.assertEqual(verdict, "equal", f"{info.name}: {text}")
                equal += 1
        self.assertGreater(equal, 20)

    def test_wrong_buffers_are_reported(self):
        info = next(info for info in module_samples.draws() if info.name == "nn.BatchNorm1d")

        class Wrong(info.module_cls):
            def forward(self, x):
                y = super().forward(x)
                if isinstance(x, dtensor.DTensor) and self.running_mean is not None:
                    self.running_mean += 1
                return y

        class Info:
            module_cls = Wrong

            def __getattr__(self, name):
                return getattr(info, name)

        found = [text for _, text in module_samples.check(Info(), (2,), 0, 3)]
        self.assertIn("wrong: train, second order", found)


if __name__ == "__main__":
    unittest.main()
