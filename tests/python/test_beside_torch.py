"""What torch does with plain tensors and modules where dtensor was imported: what it did before."""

import unittest

import torch
import torch.fx
from torch import nn

import dtensor


class Plain(unittest.TestCase):
    def test_modules_are_traced(self):
        module = nn.Linear(3, 3)
        x = torch.randn(2, 3)
        traced = torch.fx.symbolic_trace(module)
        torch.testing.assert_close(traced(x), module(x))
        torch.testing.assert_close(torch.jit.script(module)(x), module(x))
        torch.testing.assert_close(torch.jit.trace(module, x)(x), module(x))

    def test_overridable_functions_are_listed(self):
        self.assertIn(torch.add, torch.overrides.get_overridable_functions()[torch])
        self.assertTrue(torch.overrides.is_tensor_method_or_property(torch.Tensor.add))
        self.assertIn(torch.Tensor.add, torch.overrides.get_testing_overrides())

    def test_attributes_are_the_programs(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            for tensor in (torch.ones(2), dtensor.ones(2, device_mesh=mesh)):
                had = hasattr(tensor, "generation")
                tensor.generation = "mine"
                self.assertEqual(tensor.generation, "mine")
                del tensor.generation
                self.assertEqual(hasattr(tensor, "generation"), had)
                with self.assertRaises(AttributeError):
                    del tensor.generation

        dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
