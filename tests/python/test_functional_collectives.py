"""Functional collectives of ``torch.distributed`` take this package's meshes."""

import unittest

import torch
import torch.distributed as dist

import dtensor
from processes import run_processes
from test_torch_distributed import gloo


def results():
    """Sums over the group of each way to name it, for 4 processes in 2 rows of 2."""
    import torch.distributed._functional_collectives as functional

    mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    mine = torch.tensor([1.0 + dist.get_rank()])
    groups = [dtensor.init_device_mesh("cpu", (4,)), mesh["a"], mesh["b"], (mesh, 0), (mesh, 1)]
    sums = [functional.all_reduce(mine, "sum", group).item() for group in groups]
    gathered = functional.all_gather_tensor(mine, 0, mesh["b"]).tolist()
    scattered = functional.reduce_scatter_tensor(mine.expand(2).contiguous(), "sum", 0, (mesh, 1)).item()
    try:
        functional.all_reduce(mine, "sum", mesh)
    except RuntimeError as error:
        return sums, gathered, scattered, str(error)


class FunctionalCollectives(unittest.TestCase):
    @unittest.skipUnless(gloo(), "gloo is not available")
    def test_meshes_as_groups(self):
        for rank, (sums, gathered, scattered, refused) in enumerate(run_processes(4, results)):
            row, column = [1 + rank // 2 * 2, 2 + rank // 2 * 2], [1 + rank % 2, 3 + rank % 2]
            self.assertEqual(sums, [10, sum(column), sum(row), sum(column), sum(row)])
            self.assertEqual((gathered, scattered), (row, sum(row)))
            self.assertIn("mesh_dim", refused)

    def test_without_torch_distributed(self):
        import torch.distributed._functional_collectives as functional

        def on_rank():
            functional.all_reduce(torch.ones(1), "sum", dtensor.init_device_mesh("cpu", (2,)))

        with self.assertRaisesRegex(RuntimeError, "init_process_group first, or use mesh.communicator"):
            dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
