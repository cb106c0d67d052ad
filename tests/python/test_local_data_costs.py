"""Collectives and memory of fully_shard called with regular tensors."""

import unittest

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtensor
from dtensor.fsdp import fully_shard


class Costs(unittest.TestCase):
    """Collectives and memory equal formulas: each layer is a unit, and the root has no parameters."""

    LAYERS = 4

    def measure(self, reshard, recompute=None, steps=3):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(self.LAYERS)))
            for layer in net:
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
            fully_shard(net, mesh=mesh, reshard_after_forward=reshard)
            found = []
            for _ in range(steps):
                before = net.fsdp_stats()
                x = torch.randn(3, 16, requires_grad=True)
                y = net(x) if recompute is None else checkpoint(net, x, use_reentrant=recompute)
                y.square().mean().backward()
                after = net.fsdp_stats()
                found.append([after[kind] - before[kind] for kind in ("all_gathers", "reduce_scatters")])
                self.assertEqual((after["gathered_bytes"], after["unreduced_bytes"]), (0, 0))
            return found, after["peak_gathered_bytes"] / (16 * 17 * 4)

        return dtensor.run(2, on_rank)[0]

    def test_one_gather_in_forward_and_one_in_backward(self):
        counts, peak = self.measure(True)
        # From the second step on it is known which unit backward begins with, so that unit stays gathered.
        self.assertEqual(counts, [[2 * self.LAYERS, self.LAYERS], *[[2 * self.LAYERS - 1, self.LAYERS]] * 2])
        self.assertLessEqual(peak, 2)

    def test_without_reshard_after_forward_units_are_gathered_once(self):
        counts, peak = self.measure(False)
        self.assertEqual(counts, [[self.LAYERS, self.LAYERS]] * 3)
        self.assertEqual(peak, self.LAYERS)

    def test_without_reshard_after_backward_units_stay_gathered(self):
        layer = 16 * 17 * 4

        def on_rank(reshard_after_forward, dtensors):
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(self.LAYERS)))
            for part in (*net, net):
                fully_shard(part, mesh=mesh, reshard_after_forward=reshard_after_forward)
            net.set_reshard_after_backward(False)
            net.set_requires_gradient_sync(False)
            x = torch.ones(4, 16)
            x = dtensor.distribute_tensor(x, mesh, [dtensor.Shard(0)]) if dtensors else x
            gathers, held = [], []
            for number in range(5):
                if number == 3:  # the gathered copies are outdated
                    with torch.no_grad():
                        net[0].weight.mul_(2), net[0].bias.mul_(2)
                net.set_reshard_after_backward(number == 4)
                before = net.fsdp_stats()["all_gathers"]
                net(x).square().sum().backward()
                gathers.append(net.fsdp_stats()["all_gathers"] - before)
                held.append(net.fsdp_stats()["gathered_bytes"] // layer)
            return gathers, held

        for dtensors in (False, True):
            gathers, held = dtensor.run(2, on_rank, False, dtensors)[0]
            self.assertEqual(gathers, [self.LAYERS, 0, 0, 1, 0])
            self.assertEqual(held, [self.LAYERS] * 4 + [0])
        gathers, held = dtensor.run(2, on_rank, True, False)[0]  # freed after forward, so gathered in each backward
        self.assertEqual(gathers[2], self.LAYERS - 1)
        self.assertEqual(held, [self.LAYERS] * 4 + [0])

    def test_recomputed_modules(self):
        for reentrant in (False, True):
            counts, peak = self.measure(True, reentrant)
            self.assertLessEqual(counts[-1][0], 3 * self.LAYERS)
            self.assertEqual(counts[-1][1], self.LAYERS)
            self.assertLessEqual(peak, 2)

    def test_inference_frees_gathered_parameters(self):
        def on_rank():
            net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            for part in (*net, net):
                fully_shard(part)
            for context in (torch.no_grad(), torch.inference_mode()):
                with context:
                    net(torch.ones(2, 4))
                self.assertEqual(net.fsdp_stats()["gathered_bytes"], 0)
            net(torch.ones(2, 4)).sum().backward()

        dtensor.run(2, on_rank)


class Layers(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        x = torch.tanh(x)
        for layer in self.layers:
            y = layer(x)
            kept, y = y if isinstance(y, tuple) else (0, y)
            x = kept + torch.tanh(y)
        return x


class Peak(unittest.TestCase):
    """Backward frees units one after the other, whichever tensors require gradients."""

    def peak(self, make, run):
        def on_rank():
            net = Layers([make() for _ in range(6)])
            for layer in net.layers:
                fully_shard(layer)
            fully_shard(net)
            run(net, torch.randn(3, 8, requires_grad=True))
            return net.fsdp_stats()["peak_gathered_bytes"] / (8 * 8 * 4 + 64)  # a unit, aligned

        return dtensor.run(2, on_rank)[0]

    def test_frozen_units(self):
        make = lambda: nn.Linear(8, 8).requires_grad_(False)  # noqa: E731
        self.assertLessEqual(self.peak(make, lambda net, x: net(x).sum().backward()), 2)

    def test_gradients_of_inputs_only(self):
        run = lambda net, x: torch.autograd.grad(net(x).sum(), x)  # noqa: E731
        self.assertLessEqual(self.peak(lambda: nn.Linear(8, 8), run), 2)

    def test_modules_that_return_their_input_and_a_result(self):
        class Both(nn.Linear):
            def forward(self, x):
                return x, super().forward(x)

        self.assertLessEqual(self.peak(lambda: Both(8, 8), lambda net, x: net(x).sum().backward()), 2)


if __name__ == "__main__":
    unittest.main()
