"""Flattened mesh axes (``_flatten``): access by name, and as the axis of fully_shard together with tensor parallelism."""

import copy
import pickle
import unittest

import torch
from torch import nn

import dtensor
from dtensor.fsdp import fully_shard
from dtensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

torch.manual_seed(0)
NET = nn.ModuleDict({"norm": nn.LayerNorm(8), "up": nn.Linear(8, 8), "down": nn.Linear(8, 8)}).double()
ROWS = torch.randn(8, 8).double()
NAMES = ("dp", "cp", "tp")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = copy.deepcopy(NET)

    def forward(self, x):
        return x + self.parts["down"](torch.tanh(self.parts["up"](self.parts["norm"](x))))

UP, DOWN = ColwiseParallel(use_local_output=False), RowwiseParallel(use_local_output=False)


class Flattened(unittest.TestCase):
    def test_access_by_name(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=NAMES)
            with self.assertRaisesRegex(KeyError, "dp_cp"):
                mesh["dp_cp"]
            flat = mesh["dp", "cp"]._flatten("dp_cp")
            for one in (mesh, pickle.loads(pickle.dumps(mesh))):
                self.assertEqual((one["dp_cp"], one["dp_cp"].mesh_dim_names), (flat, ("dp_cp",)))
            self.assertEqual(mesh["dp"].mesh_dim_names, ("dp",))

        dtensor.run(4, on_rank)

    def check(self, shape, axes, plan):
        reference = Net()
        y = reference(ROWS)
        y.square().mean().backward()

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", shape, mesh_dim_names=NAMES)
            module, flat = Net(), mesh[axes]._flatten("all")
            parallelize_module(module, mesh["tp"], plan)
            for part in (*module.parts.values(), module):
                fully_shard(part, mesh=flat)
            own = ROWS.chunk(flat.size())[flat.get_local_rank()]
            found = module(own)
            torch.testing.assert_close(found, reference(own))
            found.square().mean().backward()
            for (name, p), q in zip(module.named_parameters(), reference.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=name)

        dtensor.run(4, on_rank)

    def test_with_tensor_parallelism(self):
        both = {"parts.up": ColwiseParallel(), "parts.down": RowwiseParallel()}
        half = {"parts.up": ColwiseParallel(output_layouts=dtensor.Replicate())}
        self.check((2, 2, 1), ("dp", "cp"), both)
        self.check((2, 1, 2), ("dp", "cp"), both)
        self.check((1, 2, 2), ("dp", "cp"), half)
        self.check((2, 2, 1), ("dp", "cp"), {})

    def test_axes_that_are_not_adjacent_are_refused(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "tp", "cp"))
            module = parallelize_module(Net(), mesh["tp"], {"parts.up": ColwiseParallel()})
            with self.assertRaisesRegex(ValueError, "must flatten neighboring axes"):
                fully_shard(module, mesh=mesh["dp", "cp"]._flatten("all"))

        dtensor.run(8, on_rank)


if __name__ == "__main__":
    unittest.main()
