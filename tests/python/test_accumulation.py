"""set_requires_gradient_sync: one switch for the backward passes of a thread, whichever module is asked."""

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


def reduces(net):
    """Whether a pass brings gradients to their parameters' placements, and what they come to."""
    net.zero_grad()
    net(ROWS.chunk(2)[dtensor.rank()]).square().mean().backward()
    placements = {p.grad.placements for p in net.parameters()}
    torch.testing.assert_close(net[0].weight.grad.full_tensor(), EXPECTED)
    return placements == {(Shard(0),)} if placements != {(Partial(),)} else False


plain = copy.deepcopy(NET)
plain(ROWS).square().mean().backward()
EXPECTED = plain[0].weight.grad


class Switch(unittest.TestCase):
    def test_the_last_call_counts(self):
        draw = random.Random(0)
        calls = [(draw.randrange(4), draw.random() < 0.5) for _ in range(12)]

        def on_rank():
            net, other = units(), units()
            parts = [*net, net, other]
            for index, sync in calls:
                parts[index].set_requires_gradient_sync(sync)
                self.assertEqual(reduces(net), sync)
            parts[0].set_requires_gradient_sync(False)
            return net  # ends with its rank: not with the module, which may live on

        kept = dtensor.run(2, on_rank)
        self.assertEqual(dtensor.run(2, lambda: reduces(units())), [True, True])
        del kept

    def test_a_module_that_is_gone_leaves_it(self):
        def on_rank():
            net, other = units(), units()
            other.set_requires_gradient_sync(False)
            del other
            return reduces(net)

        self.assertEqual(dtensor.run(2, on_rank), [False, False])


class Replicas(unittest.TestCase):
    """set_requires_all_reduce: gradients stay split over the ranks that shard, and are summed over replicas by the last pass."""

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
