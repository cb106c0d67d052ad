"""Gradients of fully_shard: accumulation, replicas, divide factors, and parameters that only some ranks use."""

import copy
import random
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Partial, Shard
from dtensor.fsdp import fully_shard
from layouts import ranks_of

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


def summed_loss(net, rows):
    return net(rows).square().sum()


class DivideFactor(unittest.TestCase):
    """The sum over ranks of gradients of regular tensors, divided by the factor once, however it is reduced."""

    FACTOR = 8.0

    def check(self, shape, backward, global_too=False):
        ranks = ranks_of(shape)
        one = copy.deepcopy(NET)
        parts = [summed_loss(one, rows) / self.FACTOR for rows in ROWS.chunk(ranks)]
        torch.autograd.backward(parts + ([summed_loss(one, ROWS)] if global_too else []))

        def on_rank():
            net, mesh = copy.deepcopy(NET), dtensor.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "fsdp")[-len(shape) :])
            for part in (*net, net):
                fully_shard(part, mesh=mesh).set_gradient_divide_factor(self.FACTOR)
            backward(net, ROWS.chunk(ranks)[dtensor.rank()], dtensor.distribute_tensor(ROWS, mesh, [Shard(0)] * len(shape)))
            for p, q in zip(net.parameters(), one.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)

        dtensor.run(ranks, on_rank)

    def test_however_gradients_are_reduced(self):
        def captured(net, mine, rows):
            for p, grad in zip(net.parameters(), torch.autograd.grad(summed_loss(net, mine), list(net.parameters()))):
                p.grad = grad

        ways = {
            "at once": lambda net, mine, rows: summed_loss(net, mine).backward(),
            "with a graph": lambda net, mine, rows: summed_loss(net, mine).backward(create_graph=True),
            "by autograd.grad": captured,
        }
        for shape in ((1,), (2,), (2, 2)):
            for name, backward in ways.items():
                with self.subTest(name, shape=shape):
                    self.check(shape, backward)

    def test_deferred(self):
        def in_halves(set_sync):
            def backward(net, mine, rows):
                for sync in (False, True):
                    set_sync(net, sync)
                    (summed_loss(net, mine) / 2).backward()

            return backward

        for shape in ((1,), (2,), (2, 2)):
            self.check(shape, in_halves(lambda net, sync: net.set_requires_gradient_sync(sync)))
            self.check(shape, in_halves(lambda net, sync: net.set_requires_all_reduce(sync)))

    def test_beside_gradients_of_dtensors(self):
        def one_backward(net, mine, rows):
            torch.autograd.backward([summed_loss(net, mine), summed_loss(net, rows)])

        def after(first, set_sync):
            def backward(net, mine, rows):
                for sync, x in zip((False, True), (mine, rows) if first == "regular" else (rows, mine)):
                    set_sync(net, sync)
                    summed_loss(net, x).backward()

            return backward

        for shape in ((2,), (2, 2)):
            self.check(shape, one_backward, global_too=True)
            for first in ("regular", "dtensors"):
                self.check(shape, after(first, lambda net, sync: net.set_requires_gradient_sync(sync)), global_too=True)
                self.check(shape, after(first, lambda net, sync: net.set_requires_all_reduce(sync)), global_too=True)

    def test_a_new_factor_applies_to_unreduced_gradients(self):
        def backward(net, mine, rows):
            for sync, factor in ((False, 2.0), (True, self.FACTOR)):
                net.set_requires_gradient_sync(sync)
                for part in (*net, net):
                    part.set_gradient_divide_factor(factor)
                (summed_loss(net, mine) / 2).backward()

        for shape in ((1,), (2,), (2, 2)):
            self.check(shape, backward)

        def mixed(net, mine, rows):
            net.set_requires_gradient_sync(False)
            torch.autograd.backward([summed_loss(net, mine), summed_loss(net, rows)])
            net[0].set_gradient_divide_factor(3)

        with self.assertRaisesRegex(RuntimeError, "set the factor before the first backward pass"):
            self.check((2,), mixed)

        def after_gradients_of_dtensors_went(net, mine, rows):
            net.set_requires_all_reduce(False)
            summed_loss(net, rows).backward()
            net.zero_grad()
            backward(net, mine, rows)

        for shape in ((2,), (2, 2)):
            self.check(shape, after_gradients_of_dtensors_went)


class Branches(nn.Module):
    """Which layers a rank uses depends on its data."""

    def __init__(self):
        super().__init__()
        self.always, self.a, self.b = (nn.Linear(4, 4).double() for _ in range(3))

    def forward(self, x, used):
        y = torch.tanh(self.always(x))
        for name in used:
            y = y + torch.tanh(getattr(self, name)(x))
        return y


torch.manual_seed(1)
BRANCHES = Branches()


class RanksUseDifferentParameters(unittest.TestCase):
    def gradients(self, passes, units=(), unused=False, shape=(2,), **backward):
        """Gradients after passes that list what each rank uses, and those of one device. All passes but the last wait."""
        ranks = ranks_of(shape)
        one, rows = copy.deepcopy(BRANCHES), ROWS.chunk(ranks)
        for used in passes:
            (sum(one(x, own).square().sum() for x, own in zip(rows, used)) / ranks).backward()

        def on_rank():
            net = copy.deepcopy(BRANCHES)
            mesh = dtensor.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "fsdp")[-len(shape) :])
            for name in units:
                fully_shard(net.get_submodule(name), mesh=mesh)
            fully_shard(net, mesh=mesh)
            net.set_reduce_scatter_unused_params(unused)
            for number, used in enumerate(passes):
                net.set_requires_gradient_sync(number == len(passes) - 1)
                net(rows[dtensor.rank()], used[dtensor.rank()]).square().sum().backward(**backward)
            return [None if p.grad is None else p.grad.full_tensor().detach() for p in net.parameters()]

        return dtensor.run(ranks, on_rank)[0], [p.grad for p in one.parameters()]

    def test_are_an_error_that_names_them(self):
        for shape, used in (((2,), ["a", "b"]), ((2,), ["ab", "a"]), ((1, 2), ["a", "b"]), ((2, 1), ["a", "b"]), ((2, 2), ["a", "b", "a", "a"])):
            with self.subTest(shape=shape, used=used), self.assertRaisesRegex(RuntimeError, "the reduction of unit 1 .* without 'b.weight'"):
                self.gradients([used], shape=shape)

    def test_are_an_error_with_a_graph(self):
        with self.assertRaisesRegex(RuntimeError, "the reduction of 'a.(weight|bias)'.*the reduction of 'b.(weight|bias)'"):
            self.gradients([["a", "b"]], create_graph=True)

    def test_units_of_equal_sizes_do_not_meet(self):
        with self.assertRaisesRegex(RuntimeError, "the gather of unit 1 .*the gather of unit 2"):
            self.gradients([["a", "b"]], units=("a", "b"))

    def test_unused_parameters_are_reduced_as_zeros(self):
        cases = [[["a", "b"]], [["ab", ""]], [["", ""]], [["a", "b"], ["b", ""]], [["", "b"], ["", ""]]]
        for passes in cases:
            for shape in ((2,), (2, 1)):
                with self.subTest(passes=passes, shape=shape):
                    got, want = self.gradients(passes, unused=True, shape=shape)
                    for mine, one in zip(got, want):
                        torch.testing.assert_close(mine, torch.zeros_like(mine) if one is None else one)

    def test_accumulated_and_then_unused_on_some_ranks(self):
        for passes in ([["ab", "ab"], ["ab", "a"]], [["ab", "ab"], ["b", "a"]], [["ab", "ab"], ["", ""]], [["a", "b"], ["ab", "ab"]]):
            for shape in ((2,), (2, 1), (1, 2)):
                with self.subTest(passes=passes, shape=shape):
                    torch.testing.assert_close(*self.gradients(passes, shape=shape))

    def test_accumulated_over_replicas_and_then_unused_on_some_ranks(self):
        rows, one = ROWS.chunk(4), copy.deepcopy(BRANCHES)
        passes = [["ab"] * 4, ["ab", "a", "b", ""]]
        for used in passes:
            (sum(one(x, own).square().sum() for x, own in zip(rows, used)) / 4).backward()

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fsdp"))
            net = fully_shard(copy.deepcopy(BRANCHES), mesh=mesh)
            for number, used in enumerate(passes):
                net.set_requires_all_reduce(number == 1)
                net(rows[dtensor.rank()], used[dtensor.rank()]).square().sum().backward()
            for p, q in zip(net.parameters(), one.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)

        dtensor.run(4, on_rank)


if __name__ == "__main__":
    unittest.main()
