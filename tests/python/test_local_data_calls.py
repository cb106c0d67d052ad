"""Calls of fully_shard units with regular tensors: where parameters may be used, what calls return, errors."""

import copy
import dataclasses
import unittest

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtensor
from dtensor import DTensor, Shard
from dtensor.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from test_local_data import reference


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


class Boundary(unittest.TestCase):
    def test_a_weight_used_outside_its_units_call_is_refused(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                return self.layer(x) @ self.layer.weight

        def on_rank(rows):
            net = Net()
            fully_shard(net.layer)
            fully_shard(net)
            net(torch.ones(rows[dtensor.rank()], 4))

        for rows in ([2, 2], [2, 3]):  # equal data, too
            with self.assertRaisesRegex(RuntimeError, "gathered only during the call of its unit's module"):
                dtensor.run(2, on_rank, rows)

    def test_local_parameters_are_nn_parameters(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
                self.two.weight = self.one.weight

            def forward(self, x):
                self.seen = (self.one.weight is self.two.weight, isinstance(self.one.weight, nn.Parameter), len(list(self.parameters())))
                return self.two(self.one(x))

        def on_rank():
            net = fully_shard(Tied())
            net(torch.ones(2, 4)).sum().backward()
            return net.seen

        self.assertEqual(dtensor.run(2, on_rank)[0], (True, True, 1))

    def test_gradients_inside_a_call_under_no_grad(self):
        """Fast weights: a module that is called under no_grad computes gradients itself."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.eye(3))

            def forward(self, x):
                with torch.enable_grad():
                    return torch.autograd.grad((x @ self.weight).square().sum(), self.weight)[0]

        def on_rank():
            net = fully_shard(Net())
            with torch.no_grad():
                return net(torch.full((2, 3), 1.0 + dtensor.rank()))

        regular = Net()
        for rank, found in enumerate(dtensor.run(2, on_rank)):
            torch.testing.assert_close(found, regular(torch.full((2, 3), 1.0 + rank)))

    def test_gradients_of_an_inner_unit_inside_a_call_are_refused(self):
        """Code inside a call computes with this rank's values, but gradients of an inner unit are means over ranks."""

        class InBackward(torch.autograd.Function):
            @staticmethod
            def forward(ctx, layer, graph_of_forward, x, *parameters):
                ctx.layer, ctx.parameters = layer, parameters
                ctx.save_for_backward(x)
                with torch.enable_grad():
                    ctx.y = layer(x) if graph_of_forward else None
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                with torch.enable_grad():
                    y = ctx.layer(*ctx.saved_tensors) if ctx.y is None else ctx.y
                return None, None, grad, *torch.autograd.grad(y, ctx.parameters, grad)

        class Net(nn.Module):
            def __init__(self, way):
                super().__init__()
                self.layer, self.way = nn.Linear(3, 3), way

            def forward(self, x):
                if self.way == "in forward":
                    return torch.autograd.grad(self.layer(x).square().sum(), list(self.layer.parameters()), create_graph=True)[0]
                return InBackward.apply(self.layer, self.way == "in backward", x, *self.layer.parameters())

        def on_rank(way, inner):
            net = Net(way)
            if inner:
                fully_shard(net.layer)
            fully_shard(net)
            net(torch.ones(2, 3)).sum().backward()
            return net.layer.weight.grad is not None

        for way in ("in forward", "in backward", "in a recomputation in backward"):
            with self.subTest(way):
                self.assertEqual(dtensor.run(1, on_rank, way, True) + dtensor.run(2, on_rank, way, False), [True] * 3)
                with self.assertRaisesRegex(RuntimeError, "'weight' of an inner unit of fully_shard.*mean over ranks"):
                    dtensor.run(2, on_rank, way, True)

    def test_parameters_that_backward_needs_must_not_change(self):
        """The errors of one device, for the tensors that autograd saved only."""

        def on_rank(change, reshard, saved):
            net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
            for part in (*net, net):
                fully_shard(part, reshard_after_forward=reshard)
            y = net(torch.ones(2, 3))
            with torch.no_grad():
                getattr(net[1], saved).add_(change)
            y.sum().backward()

        for reshard in (True, False):
            for ranks in (1, 2):
                with self.assertRaisesRegex(RuntimeError, "modified (by an )?inplace"):
                    dtensor.run(ranks, on_rank, 1, reshard, "weight")
                dtensor.run(ranks, on_rank, 1, reshard, "bias")

    def test_containers_that_are_not_pytree_nodes(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, batch):
                return Batch(self.layer(batch.x))

        def on_rank():
            net = nn.Sequential(Net(), Net())
            for part in (*net, net):
                fully_shard(part)
            net(Batch(torch.ones(2 + dtensor.rank(), 4))).x.sum().backward()
            return all(p.grad is not None for p in net.parameters())

        self.assertEqual(dtensor.run(2, on_rank), [True, True])

    def test_a_returned_parameter_keeps_its_memory(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.arange(8.0).view(4, 2))

            def forward(self, x):
                return x @ self.weight.T, self.weight[1:]

        def on_rank():
            net = fully_shard(Net())
            for _ in range(2):
                y, rows = net(torch.ones(3, 2))
                torch.testing.assert_close(rows.detach(), torch.arange(8.0).view(4, 2)[1:])
                (y.sum() + rows.sum()).backward()
            return net.weight.grad.full_tensor()

        torch.testing.assert_close(dtensor.run(2, on_rank)[0], 2 * torch.tensor([[3.0, 3.0]] + [[4.0, 4.0]] * 3))

    def test_backward_from_a_tensor_that_was_not_returned_is_an_error(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                self.hidden = torch.tanh(self.layer(torch.tanh(self.layer(x))))
                return x

        def on_rank():
            net = fully_shard(Net(), reshard_after_forward=True)
            net(torch.ones(2, 4))
            net.hidden.sum().backward()

        with self.assertRaisesRegex(RuntimeError, "return the tensors from which backward starts"):
            dtensor.run(2, on_rank)

    def test_dtensor_inputs_select_global_semantics(self):
        net, x = nn.Sequential(nn.Linear(4, 4), nn.Softmax(0)).double(), torch.randn(6, 4).double()

        def on_rank():
            mine, mesh = copy.deepcopy(net), dtensor.init_device_mesh("cpu", (2,))
            fully_shard(mine[0], mesh=mesh)
            fully_shard(mine, mesh=mesh)
            own = mine(x.chunk(2)[dtensor.rank()])
            torch.testing.assert_close(own, net(x.chunk(2)[dtensor.rank()]))
            torch.testing.assert_close(mine(dtensor.distribute_tensor(x, mesh, [Shard(0)])).full_tensor(), net(x))

        dtensor.run(2, on_rank)

    def test_recomputation_uses_the_semantics_of_its_forward(self):
        """Even after a later call, such as an evaluation, with other semantics."""
        net, x = nn.Sequential(nn.Linear(4, 4), nn.Softmax(0)).double(), torch.randn(6, 4).double()
        expected = reference(net, x.chunk(2), steps=1)[0][0][1]

        def on_rank(reentrant):
            mine, mesh = copy.deepcopy(net), dtensor.init_device_mesh("cpu", (2,))
            fully_shard(mine, mesh=mesh)
            own = x.chunk(2)[dtensor.rank()].requires_grad_()
            y = checkpoint(mine, own, use_reentrant=reentrant)
            with torch.no_grad():
                mine(dtensor.distribute_tensor(x, mesh, [Shard(0)]))
            y.square().mean().backward()
            return [p.grad.full_tensor() for p in mine.parameters()]

        for reentrant in (False, True):
            torch.testing.assert_close(dtensor.run(2, on_rank, reentrant)[0], expected)

    def test_registered_forward_methods(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def encode(self, x):
                return self.layer(x) @ self.layer.weight

            def rows(self, x):
                yield from self.layer(x)

        def on_rank():
            net = fully_shard(copy.deepcopy(regular))
            register_fsdp_forward_method(net, "encode")
            register_fsdp_forward_method(net, "rows")
            with self.assertRaisesRegex(TypeError, "'rows' is a generator, whose body runs after the unit is resharded"):
                net.rows(torch.ones(2, 4))
            y = net.encode(torch.ones(2 + dtensor.rank(), 4))
            torch.testing.assert_close(y, regular.encode(torch.ones(2 + dtensor.rank(), 4)))
            y.sum().backward()
            return net.layer.weight.grad.placements

        regular = Net()
        self.assertEqual(dtensor.run(2, on_rank), [(Shard(0),)] * 2)

    def test_an_uninitialized_meta_parameter_is_named(self):
        def on_rank(own):
            with torch.device("meta"):
                net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            mesh = dtensor.init_device_mesh("cpu", (2,))
            fully_shard(net, mesh=mesh)
            nn.init.ones_(net[0].weight), nn.init.zeros_(net[0].bias), nn.init.zeros_(net[1].bias)
            x = torch.ones(2, 4)
            net(x if own else dtensor.distribute_tensor(x, mesh, [Shard(0)]))

        for own in (True, False):
            with self.assertRaisesRegex(RuntimeError, "parameter '1.weight' was created on the meta device"):
                dtensor.run(2, on_rank, own)

    def test_a_module_that_raises_restores_its_parameters(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.fails = nn.Linear(4, 4), True

            def forward(self, x):
                y = self.layer(x)
                if self.fails:
                    raise ValueError("on purpose")
                return y

        def on_rank():
            net = fully_shard(Net())
            with self.assertRaises(ValueError):
                net(torch.ones(2, 4))
            self.assertIsInstance(net.layer.weight, DTensor)
            net.fails = False
            y = net(torch.ones(2, 4))
            y.register_hook(lambda grad: 1 / 0)
            with self.assertRaises(ZeroDivisionError):
                y.sum().backward()
            net(torch.ones(2, 4)).sum().backward()
            self.assertIsInstance(net.layer.weight, DTensor)
            return net.layer.bias.grad.full_tensor()

        torch.testing.assert_close(dtensor.run(2, on_rank)[0], torch.full((4,), 2.0))


class Groups(unittest.TestCase):
    def test_several_modules_in_one_unit(self):
        def on_rank(last):
            layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            fully_shard([layers[0], layers[1]])
            fully_shard(layers[2])
            x = torch.ones(2 + dtensor.rank(), 4)
            for _ in range(2):
                before = layers[0].fsdp_stats()
                y = layers[0](x)
                y = layers[1](y) if last else y
                y.sum().backward()
                after = layers[0].fsdp_stats()
            return [after[kind] - before[kind] for kind in ("all_gathers", "reduce_scatters")]

        for last in (True, False):
            self.assertEqual(dtensor.run(2, on_rank, last)[0][1], 1)


    def test_modules_of_a_unit_with_and_without_gradients(self):
        def on_rank():
            layers = nn.ModuleList([copy.deepcopy(one), copy.deepcopy(two)])
            fully_shard([layers[0], layers[1]])
            x = torch.ones(2 + dtensor.rank(), 4)
            with torch.no_grad():
                y = layers[0](x)
            layers[1](y).sum().backward()
            return layers[1].weight.grad.full_tensor(), layers[0].weight.grad

        one, two = nn.Linear(4, 4), nn.Linear(4, 4)
        regular = copy.deepcopy(two)
        (sum(regular(one(torch.ones(n, 4)).detach()).sum() for n in (2, 3)) / 2).backward()
        found, none = dtensor.run(2, on_rank)[0]
        torch.testing.assert_close(found, regular.weight.grad)
        self.assertIsNone(none)


class Slices(unittest.TestCase):
    def test_a_slice_of_a_unit_is_not_a_unit(self):
        def on_rank():
            net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
            for part in (*net, net):
                fully_shard(part)
            part = net[:2]
            return type(part), isinstance(part[0], FSDPModule), part(torch.ones(1, 4)).shape

        self.assertEqual(dtensor.run(2, on_rank)[0], (nn.Sequential, True, (1, 4)))


if __name__ == "__main__":
    unittest.main()
