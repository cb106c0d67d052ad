"""fully_shard called with regular tensors: local semantics, and gradients are means over the ranks.

The reference applies FSDP2's semantics on one device: a regular copy for each rank's inputs, and the mean of the gradients.
"""

import copy
import random
import unittest

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtensor
from dtensor import DTensor, Replicate, Shard
from dtensor.fsdp import MixedPrecisionPolicy, fully_shard
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


    def test_parameters_outside_the_plan(self):
        """With DTensors, or equal activations on all ranks, their gradients are right. Local shards of a sequence are an error."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down, self.norm, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 8)

            def forward(self, x):
                return self.head(self.norm(self.down(torch.tanh(self.up(x)))))

        regular = Net().double()
        data = [torch.randn(n, 4, 8).double() for n in (2, 3)]
        (sum(regular(x).square().sum() for x in data) / 2).backward()

        def on_rank(layout, local):
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            net = copy.deepcopy(regular)
            net.zero_grad()
            rowwise = RowwiseParallel(output_layouts=layout, use_local_output=local)
            parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": rowwise})
            for part in (net.up, net.down, net.norm, net):
                fully_shard(part, mesh=mesh["dp"])
            y = net(data[mesh.get_local_rank("dp")])
            y.square().sum().backward()
            for (name, p), q in zip(net.named_parameters(), regular.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=name)

        for layout, local in ((Replicate(), True), (Replicate(), False), (Shard(1), False)):
            dtensor.run(4, on_rank, layout, local)
        with self.assertRaisesRegex(RuntimeError, "expected equal gradients of parameter '.*' on the ranks of .*SequenceParallel"):
            dtensor.run(4, on_rank, Shard(1), True)


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


if __name__ == "__main__":
    unittest.main()
