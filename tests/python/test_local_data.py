"""fully_shard called with regular tensors: local semantics, and gradients are means over the ranks.

The reference applies FSDP2's semantics on one device: a regular copy for each rank's inputs, and the mean of the gradients.
"""

import copy
import dataclasses
import inspect
import random
import unittest

import torch
import torch.distributed.fsdp as theirs
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtensor
from dtensor import DTensor, Replicate, Shard
from dtensor.fsdp import DataParallelMeshDims, FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from dtensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 6


class Mixes(nn.Module):
    """Layers that mix rows, which no module with global semantics could shard by rows."""

    WAYS = ["rows", "pairs", "softmax", "centered", "count", "sequence", "graph", "constant", "embedding", "tied", "flat"]

    def __init__(self, ways, recompute):
        super().__init__()
        self.ways, self.recompute = ways, recompute
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in ways)
        self.table = nn.Embedding(7, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.rnn = nn.LSTM(WIDTH, WIDTH)

    def one(self, way, layer, x):
        h = layer(x)
        if way == "pairs":
            return h + torch.tanh(h @ h.T) @ x
        if way == "softmax":
            return h.softmax(0)
        if way == "centered":
            return h - h.mean(0)
        if way == "count":
            return h * x.shape[0]
        if way == "sequence":
            return self.rnn(h[:, None])[0][:, 0]
        if way == "graph":
            edges = torch.arange(x.shape[0]), torch.arange(x.shape[0]).roll(1)
            return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
        if way == "constant":
            return h + layer(torch.ones(3, WIDTH, dtype=x.dtype)).sum(0)
        if way == "embedding":
            return h + self.table(torch.arange(4)).sum(0)
        if way == "tied":
            return h @ self.table.weight.T @ self.table.weight
        return h.flatten()[: x.numel()].view(x.shape) * self.scale

    def forward(self, x):
        for way, layer in zip(self.ways, self.layers):
            if self.recompute is None:
                x = self.one(way, layer, x)
            else:
                x = checkpoint(self.one, way, layer, x, use_reentrant=self.recompute)
            x = torch.tanh(self.norm(x))
        return x


def draw_model(draw):
    ways = [draw.choice(Mixes.WAYS) for _ in range(draw.randint(1, 4))]
    torch.manual_seed(draw.randrange(1000))
    model = Mixes(ways, draw.choice([None, None, False, True])).double()
    parts = [*model.layers, model.table, model.norm, model.rnn]
    units = [k for k in range(len(parts)) if draw.random() < 0.5]
    if "tied" in ways:  # a weight of another unit is sharded outside of that unit's calls, as in PyTorch
        units = [k for k in units if parts[k] is not model.table]
    return model, units, draw.choice([None, True, False])


def parts_of(model):
    return [*model.layers, model.table, model.norm, model.rnn]


def reference(model, inputs, steps):
    """Outputs and mean gradients of each step, and the parameters after the last."""
    model, found = copy.deepcopy(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        outputs = [model(x.clone().requires_grad_()) for x in inputs]
        (sum(y.square().mean() for y in outputs) / len(inputs)).backward()
        grads = [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        found.append(([y.detach() for y in outputs], grads))
    return found, [p.detach() for p in model.parameters()]


class AsFsdp2(unittest.TestCase):
    def check(self, draw, ranks, shape, names):
        model, units, reshard = draw_model(draw)
        inputs = [torch.randn(draw.randint(1, 5), WIDTH).double() for _ in range(ranks)]
        expected, parameters = reference(model, inputs, steps=2)

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", shape, mesh_dim_names=names)
            mine = copy.deepcopy(model)
            for index in units:
                fully_shard(parts_of(mine)[index], mesh=mesh, reshard_after_forward=reshard)
            fully_shard(mine, mesh=mesh, reshard_after_forward=reshard)
            optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
            for outputs, grads in expected:
                optimizer.zero_grad()
                y = mine(inputs[dtensor.rank()].clone().requires_grad_())
                self.assertNotIsInstance(y, DTensor)
                torch.testing.assert_close(y.detach(), outputs[dtensor.rank()])
                y.square().mean().backward()
                self.assertTrue(all(isinstance(p, DTensor) for p in mine.parameters()))
                for p, grad in zip(mine.parameters(), grads):
                    self.assertEqual(p.grad is None, grad is None)
                    if grad is not None:
                        torch.testing.assert_close(p.grad.full_tensor(), grad)
                optimizer.step()
            for p, q in zip(mine.parameters(), parameters):
                torch.testing.assert_close(p.full_tensor(), q)
            self.assertEqual(mine.fsdp_stats()["gathered_bytes"], 0)

        dtensor.run(ranks, on_rank)

    def test_modules_that_mix_rows(self):
        draw = random.Random(1)
        meshes = [(1, (1,), None), (2, (2,), ("dp",)), (3, (3,), None), (4, (2, 2), ("replicate", "shard"))]
        for number in range(40):
            with self.subTest(number):
                self.check(draw, *draw.choice(meshes))

    def test_torch_modules(self):
        """Sequence-first modules (the first dimension is not the batch); unbatched input; different lengths on each rank."""
        cases = [
            (nn.LSTM(8, 8), lambda n: (torch.randn(n, 2, 8),)),
            (nn.GRU(8, 8, 2, batch_first=True), lambda n: (torch.randn(n, 3, 8),)),
            (nn.MultiheadAttention(8, 2), lambda n: (torch.randn(n, 2, 8),) * 3),
            (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), lambda n: (torch.randn(n, 2, 8),)),
            (nn.Bilinear(8, 8, 3), lambda n: (torch.randn(n, 8), torch.randn(n, 8))),
            (nn.EmbeddingBag(5, 8), lambda n: (torch.arange(n) % 5, torch.tensor([0, 1]))),
            (nn.Conv1d(8, 4, 3), lambda n: (torch.randn(8, n + 3),)),
        ]
        for module, make in cases:
            inputs = [make(n) for n in (2, 5)]
            regular = copy.deepcopy(module)
            expected = [regular(*args) for args in inputs]
            expected = [y[0] if isinstance(y, tuple) else y for y in expected]
            (sum(y.square().mean() for y in expected) / 2).backward()

            def on_rank():
                mine = fully_shard(copy.deepcopy(module), mesh=dtensor.init_device_mesh("cpu", (2,)))
                y = mine(*inputs[dtensor.rank()])
                y = y[0] if isinstance(y, tuple) else y
                torch.testing.assert_close(y, expected[dtensor.rank()])
                y.square().mean().backward()
                for p, q in zip(mine.parameters(), regular.parameters()):
                    torch.testing.assert_close(p.grad.full_tensor(), q.grad)

            with self.subTest(type(module).__name__):
                dtensor.run(2, on_rank)


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


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


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

        def on_rank():
            net = fully_shard(copy.deepcopy(regular))
            register_fsdp_forward_method(net, "encode")
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


class Precision(unittest.TestCase):
    def test_recomputation_in_a_unit_uses_param_dtype(self):
        """With DTensors and regular tensors, reentrant or not."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.outer, self.seen = nn.Linear(4, 4), nn.Linear(4, 2), []

            def part(self, x):
                self.seen.append(self.inner.weight.dtype)
                return torch.tanh(self.inner(x))

            def forward(self, x, reentrant):
                return self.outer(checkpoint(self.part, x, use_reentrant=reentrant))

        def on_rank(reentrant, own):
            net, mesh = copy.deepcopy(regular), dtensor.init_device_mesh("cpu", (2,))
            fully_shard(net, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
            x = torch.linspace(-1, 1, 16).view(4, 4)
            x = x.chunk(2)[dtensor.rank()] if own else dtensor.distribute_tensor(x, mesh, [Shard(0)])
            net(x.requires_grad_(), reentrant).float().square().mean().backward()
            self.assertEqual(net.seen, [torch.bfloat16] * 2)
            self.assertEqual({p.dtype for p in net.parameters()}, {torch.float32})
            for p, q in zip(net.parameters(), regular.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=0.05, atol=0.02)

        regular = Net()
        regular(torch.linspace(-1, 1, 16).view(4, 4).requires_grad_(), False).square().mean().backward()
        regular.seen.clear()
        for reentrant in (False, True):
            for own in (True, False):
                with self.subTest(reentrant=reentrant, own=own):
                    dtensor.run(2, on_rank, reentrant, own)

    def test_converted_parameters_are_computed_in_param_dtype(self):
        """Also if param_dtype is their former dtype; without param_dtype, in their own dtype."""

        def on_rank(param_dtype, own):
            net, mesh = nn.Linear(4, 4, dtype=torch.bfloat16), dtensor.init_device_mesh("cpu", (2,))
            fully_shard(net, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=param_dtype))
            net.to(torch.float32)
            x = torch.ones(2, 4)
            y = net(x if own else dtensor.distribute_tensor(x, mesh, [Shard(0)]))
            y.float().sum().backward()
            self.assertEqual((y.dtype, net.weight.grad.dtype), (param_dtype or torch.float32, torch.float32))

        for param_dtype in (torch.bfloat16, None):
            for own in (True, False):
                with self.subTest(param_dtype=param_dtype, own=own):
                    dtensor.run(2, on_rank, param_dtype, own)


class Names(unittest.TestCase):
    def test_all_names_of_torch_exist(self):
        ours = set(dir(FSDPModule))
        self.assertEqual([name for name in dir(theirs.FSDPModule) if not name.startswith("_") and name not in ours], [])
        for ours_, theirs_ in [(fully_shard, theirs.fully_shard), (MixedPrecisionPolicy, theirs.MixedPrecisionPolicy)]:
            lacks = set(inspect.signature(theirs_).parameters) - set(inspect.signature(ours_).parameters)
            self.assertEqual(lacks, set())

    def test_param_dtype_override_fn(self):
        def on_rank():
            net, seen = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), []
            for layer in net:
                layer.register_forward_hook(lambda m, args, y: seen.append(m.weight.dtype))
            keep = set(net[0].parameters())
            override = lambda p: p.dtype if p in keep else None  # noqa: E731
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False, param_dtype_override_fn=override)
            fully_shard(net, mp_policy=policy)
            with torch.autocast("cpu", torch.bfloat16):
                net(torch.ones(2, 4)).sum().backward()
            return seen

        self.assertEqual(dtensor.run(2, on_rank)[0], [torch.float32, torch.bfloat16])

    def test_dp_mesh_dims(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
            dims = DataParallelMeshDims(shard=("dp", "cp"))
            net = fully_shard(nn.Linear(8, 4), mesh=mesh, dp_mesh_dims=dims)
            both = fully_shard(nn.Linear(8, 4), mesh=mesh, dp_mesh_dims=DataParallelMeshDims("cp", "dp"))
            return net.weight.device_mesh.shape, both.weight.device_mesh.mesh_dim_names

        self.assertEqual(dtensor.run(8, on_rank)[0], ((4,), ("dp", "cp")))


class WithTensorParallelism(unittest.TestCase):
    """parallelize_module over one axis of a mesh, fully_shard over another, as in torchtitan."""

    def test_data_parallel_ranks_have_different_data(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens, self.positions = nn.Embedding(11, 8), nn.Embedding(9, 8)
                self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

            def forward(self, ids):
                x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
                return x + self.down(torch.tanh(self.up(self.norm(x)))) * ids.shape[0]

        regular = Net().double()
        data = [torch.randint(0, 11, shape) for shape in ((2, 5), (3, 4))]
        expected = [regular(ids) for ids in data]
        (sum(y.square().mean() for y in expected) / 2).backward()
        rowwise = lambda: RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())  # noqa: E731

        def on_rank(shape, names):
            mesh = dtensor.init_device_mesh("cpu", shape, mesh_dim_names=names)
            net = copy.deepcopy(regular)
            net.zero_grad()
            plan = {"tokens": rowwise(), "positions": rowwise(), "up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(net, mesh["tp"], plan)
            for part in (net.up, net.down, net):
                fully_shard(part, mesh=mesh["dp"])
            r = mesh.get_local_rank("dp")
            y = net(data[r])
            torch.testing.assert_close(y, expected[r])
            y.square().mean().backward()
            for (name, p), q in zip(net.named_parameters(), regular.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=name)

        dtensor.run(4, on_rank, (2, 2), ("dp", "tp"))
        dtensor.run(8, on_rank, (2, 2, 2), ("pp", "dp", "tp"))


class DoubleBackward(unittest.TestCase):
    def test_training_on_forces(self):
        """Forward returns the gradient of an energy, which backward differentiates again: message-passing potentials."""

        class Potential(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

            def forward(self, positions):
                energy = self.layers(positions).sum()
                return energy, torch.autograd.grad(energy, positions, create_graph=True)[0]

        regular = Potential().double()
        data = [torch.randn(n, 3).double() for n in (2, 5)]

        def loss(net, x):
            energy, forces = net(x.clone().requires_grad_())
            return energy.square() + forces.square().sum()

        (sum(loss(regular, x) for x in data) / 2).backward()

        def on_rank():
            net = copy.deepcopy(regular)
            net.zero_grad()
            for part in (net.layers[0], net.layers[2], net):
                fully_shard(part)
            for _ in range(2):
                net.zero_grad()
                loss(net, data[dtensor.rank()]).backward()
                for p, q in zip(net.parameters(), regular.parameters()):
                    torch.testing.assert_close(p.grad.full_tensor(), q.grad)
            self.assertEqual(net.fsdp_stats()["gathered_bytes"], 0)

        dtensor.run(2, on_rank)


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
