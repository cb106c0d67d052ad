"""Gradient accumulation under fully_shard: set_requires_gradient_sync and set_requires_all_reduce."""

import copy
import random
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Partial, Shard
from dtensor.fsdp import fully_shard

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
ROWS = torch.randn(4, 4).double()


def units():
    net = copy.deepcopy(NET)
    for part in (*net, net):
        fully_shard(part, mesh=dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    return net


reference = copy.deepcopy(NET)
reference(ROWS).square().mean().backward()
EXPECTED = reference[0].weight.grad


class PerUnit(unittest.TestCase):
    """set_requires_gradient_sync is a flag of each unit; its next reduction includes gradients that were left unreduced."""

    def test_each_unit_follows_its_own_flag(self):
        draw = random.Random(0)
        calls = [(draw.randrange(3), draw.random() < 0.5, draw.random() < 0.5) for _ in range(16)]

        def on_rank():
            net, other = units(), units()
            other.set_requires_gradient_sync(False)
            syncs, count, expected = [True, True], 0, [(Partial("avg"),)] * 2
            for index, sync, recurse in calls:
                [*net, net][index].set_requires_gradient_sync(sync, recurse=recurse)
                for k in [0, 1] if index == 2 and recurse else [index] if index < 2 else []:
                    syncs[k] = sync
                net(ROWS.chunk(2)[dtensor.rank()]).square().mean().backward()
                count += 1
                placements = [{p.grad.placements for p in part.parameters()} for part in net]
                expected = [(Shard(0),) if on else kept for on, kept in zip(syncs, expected)]
                self.assertEqual(placements, [{one} for one in expected])
                torch.testing.assert_close(net[0].weight.grad.full_tensor(), count * EXPECTED)

        dtensor.run(2, on_rank)


class Replicas(unittest.TestCase):
    """set_requires_all_reduce: gradients stay sharded over the shard axis, and the last pass sums them over replicas."""

    def test_only_the_last_pass_reduces_over_replicas(self):
        def on_rank():
            net, mesh = copy.deepcopy(NET), dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            for part in (*net, net):
                fully_shard(part, mesh=mesh)
            counts = []
            for last in [False, False, True]:
                net.set_requires_all_reduce(last)
                before = net.fsdp_stats()
                net(ROWS.chunk(4)[dtensor.rank()]).square().mean().backward()
                after = net.fsdp_stats()
                counts.append([after[kind] - before[kind] for kind in ("reduce_scatters", "all_reduces")])
            torch.testing.assert_close(net[0].weight.grad.full_tensor(), 3 * EXPECTED)
            return counts

        self.assertEqual(dtensor.run(4, on_rank), [[[2, 0], [2, 0], [2, 2]]] * 4)


if __name__ == "__main__":
    unittest.main()
