"""CommDebugMode and visualize_sharding with the names of torch.distributed.tensor.debug."""

import contextlib
import inspect
import io
import json
import os
import tempfile
import unittest

import torch
import torch.distributed.tensor.debug as theirs
from torch import nn

import dtensor
from dtensor import CommDebugMode, Partial, Replicate, Shard
from dtensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Counts(unittest.TestCase):
    def test_keys_are_kinds_and_operators_of_torch(self):
        ops = torch.ops.c10d_functional

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            t = dtensor.distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
            with CommDebugMode() as comm:
                t.redistribute(placements=[Replicate()])
                t.redistribute(placements=[Shard(1)])
                (t @ t.new_ones(4)).redistribute(placements=[Replicate()])
                dtensor.ones(4, device_mesh=mesh, placements=[Partial()]).redistribute(placements=[Shard(0)])
            counts = comm.get_comm_counts()
            self.assertEqual(counts, comm.comm_counts)
            self.assertEqual(sum(counts.values()), comm.get_total_counts())
            for kind, operator in [
                ("all_gather", ops.all_gather_into_tensor), ("all_to_all", ops.all_to_all_single),
                ("all_to_all", torch.ops._dtensor.shard_dim_alltoall), ("reduce_scatter", ops.reduce_scatter_tensor),
                ("reduce_scatter", torch.ops._c10d_functional.reduce_scatter_tensor), ("all_reduce", ops.all_reduce),
                ("broadcast", ops.broadcast),
            ]:  # fmt: skip
                self.assertEqual(counts[operator], counts[kind], kind)
            self.assertGreater(counts[ops.all_gather_into_tensor], 0)
            self.assertEqual((counts["nothing"], counts[ops.all_reduce]), (0, 0))

        dtensor.run(2, check)

    def test_called_modules_and_files(self):
        missing = [n for n in vars(theirs.CommDebugMode) if not n.startswith("_") and not hasattr(CommDebugMode, n)]
        self.assertEqual(missing, [])

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down, self.other = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 4)

            def forward(self, x):
                return self.down(self.up(x))

        def check(folder):
            mesh = dtensor.init_device_mesh("cpu", (2,))
            net = parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
            with CommDebugMode() as comm:
                net(torch.ones(2, 4)).sum().backward()
            self.assertEqual(set(comm.get_parameter_info()), {"Net", "Net.up", "Net.down"})
            self.assertEqual(set(comm.get_parameter_info()["Net.up"]), {"weight", "bias"})
            sharding = comm.get_sharding_info()
            self.assertEqual((sharding["Net.up.weight"], sharding["Net.down.weight"]), ((Shard(0),), (Shard(1),)))
            table = comm.generate_comm_debug_tracing_table(noise_level=0)
            self.assertIn("all_reduce", table)
            path = os.path.join(folder, str(dtensor.rank()))
            comm.log_comm_debug_tracing_table_to_file(path + ".txt")
            comm.generate_json_dump(path + ".json")
            with open(path + ".txt") as file:
                self.assertEqual(file.read(), table)
            with open(path + ".json") as file:
                found = json.load(file)
            self.assertEqual(sum(row["calls"] for row in found["collectives"]), comm.get_total_counts())
            self.assertEqual(found["sharding"]["Net.up.weight"], ["S(0)"])

        with tempfile.TemporaryDirectory() as folder:
            dtensor.run(2, check, folder)


class VisualizeSharding(unittest.TestCase):
    def test_prints_on_the_first_rank(self):
        self.assertEqual(list(inspect.signature(theirs.visualize_sharding).parameters),
                         list(inspect.signature(dtensor.debug.visualize_sharding).parameters))  # fmt: skip

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            dtensor.debug.visualize_sharding(dtensor.ones(4, 2, device_mesh=mesh, placements=[Shard(0)]), header="weight\n")
            dtensor.debug.visualize_sharding(dtensor.ones(0, device_mesh=mesh))
            with self.assertRaisesRegex(RuntimeError, "only 1D or 2D"):
                dtensor.debug.visualize_sharding(dtensor.ones(1, 1, 1, device_mesh=mesh))

        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            dtensor.run(2, check)
        text = dtensor.run(2, lambda: dtensor.visualize_sharding_text([4, 2], dtensor.init_device_mesh("cpu", (2,)), [Shard(0)]))[0]
        self.assertEqual(printed.getvalue(), "weight\n" + text + "\n")


if __name__ == "__main__":
    unittest.main()
