"""Importing dtensor does not change torch's behavior with regular tensors and modules."""

import importlib.util
import os
import tempfile
import unittest

import torch
import torch.fx
from torch import nn

import dtensor


class RegularTensors(unittest.TestCase):
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

    def test_programs_may_set_attributes_with_dtensor_names(self):
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

    def test_data_ptr_of_regular_tensors(self):
        for tensor in (torch.ones(3), torch.nn.Parameter(torch.ones(3)), torch.ones(3, 2)[1]):
            self.assertEqual(tensor.data_ptr(), tensor.untyped_storage().data_ptr() + 4 * tensor.storage_offset())
        self.assertEqual(torch.empty(0).data_ptr(), 0)


class Memory(unittest.TestCase):
    """Accessing the memory of a DTensor raises an error with instructions, however the tensor was created."""

    def made(self, mesh):
        tensor = dtensor.distribute_tensor(torch.ones(4, 4), mesh, [dtensor.Shard(0)])
        weight = nn.Parameter(tensor)
        for _ in range(3):  # cached calls
            yield from (tensor, weight, tensor.detach(), tensor + 1, tensor[1:], weight.t(), weight.data)

    def test_data_ptr_and_storage_raise(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            for tensor in self.made(mesh):
                with self.assertRaisesRegex(RuntimeError, r"full_tensor\(\), or use dtensor.save"):
                    tensor.data_ptr()
                with self.assertRaisesRegex(RuntimeError, r"full_tensor\(\).*dtensor.save"):
                    tensor.untyped_storage()

        dtensor.run(2, on_rank)

    @unittest.skipUnless(importlib.util.find_spec("safetensors"), "safetensors is not installed")
    def test_safetensors_raises(self):
        import safetensors.torch

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            for tensor in filter(torch.Tensor.is_contiguous, self.made(mesh)):
                with self.assertRaisesRegex(RuntimeError, r"full_tensor\(\).*dtensor.save"):
                    safetensors.torch.save_file({"w": tensor}, os.path.join(folder, f"{dtensor.rank()}"))

        with tempfile.TemporaryDirectory() as folder:
            dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
