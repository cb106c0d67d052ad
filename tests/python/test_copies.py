"""Copies of meshes and of tensors with attributes, and tensors made like others."""

import copy
import io
import pickle
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Shard
from layouts import mesh_of


class Meshes(unittest.TestCase):
    """A mesh is a value: a module that keeps one is copied and saved."""

    def test_copies_and_pickles(self):
        def on_rank():
            mesh = mesh_of((2, 2))
            for one in [mesh, mesh["b"], mesh_of((4,)), dtensor.init_device_mesh("cpu", (4,))]:
                file = io.BytesIO()
                torch.save(one, file)
                file.seek(0)
                again = [copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one)), torch.load(file)]
                self.assertEqual(again, [one] * 4)
                self.assertEqual({getattr(m, "_root", None) for m in again}, {getattr(one, "_root", None)})
            module = nn.Linear(4, 4)
            module.mesh = mesh["a"]
            self.assertEqual(copy.deepcopy(module).mesh, mesh["a"])

        dtensor.run(4, on_rank)


if __name__ == "__main__":
    unittest.main()
