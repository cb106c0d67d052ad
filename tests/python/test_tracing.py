"""Tracing with torch.fx works on all ranks at once; compilers refuse DTensors with instructions."""

import copy
import time
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Shard
from layouts import mesh_of
from small_model import on_mesh


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.second(torch.nn.functional.gelu(self.first(self.norm(x))))


class CompiledBlocks(unittest.TestCase):
    """A block of a unit that is called with regular tensors compiles, since its parameters are regular tensors then."""

    def backend(self, name):
        try:
            from torch._dynamo import lookup_backend

            torch.compile(lambda t: t.sin() + 1, backend=name, fullgraph=True)(torch.ones(3))
            return lookup_backend(name)
        except Exception as error:
            self.skipTest(f"backend {name}: {error}")

    def train(self, nets, before=lambda net: None, after=lambda net: None):
        """Results and gradients of two steps on each rank; the functions may compile parts of a net."""

        def on_rank():
            net = copy.deepcopy(nets[dtensor.rank()])
            before(net)
            for block in net:
                dtensor.fully_shard(block)
            dtensor.fully_shard(net)
            after(net)
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(dtensor.rank()))
            for _ in range(2):
                net.zero_grad()
                y = net(x)
                y.square().sum().backward()
            return y.detach(), [p.grad.full_tensor() for p in net.parameters()]

        return dtensor.run(len(nets), on_rank)

    def check(self, name, ranks, **tolerances):
        backend, graphs = self.backend(name), []

        def counting(graph, inputs):
            graphs.append(graph)
            return backend(graph, inputs)

        def layer(net):
            net[0].first.compile(backend=counting, fullgraph=True)

        def wrapped(net):
            for i in range(2):
                net[i] = torch.compile(net[i], backend=counting, fullgraph=True)

        def blocks(net):
            for block in net:
                block.compile(backend=counting, fullgraph=True)

        nets = [nn.Sequential(Block(), Block())]
        nets += [copy.deepcopy(nets[0]) for _ in range(ranks - 1)]
        eager = self.train(nets)
        for compiled in ({"before": layer}, {"before": wrapped}, {"after": blocks}):
            torch._dynamo.reset()
            graphs.clear()
            torch.testing.assert_close(self.train(nets, **compiled), eager, **tolerances)
            self.assertTrue(graphs)

    def test_traced_blocks_are_bit_equal_to_eager(self):
        for name, ranks in (("eager", 2), ("aot_eager", 1)):
            with self.subTest(name):
                self.check(name, ranks, rtol=0, atol=0)

    def test_blocks_of_inductor_equal_eager(self):
        self.check("inductor", 1)


class Tracing(unittest.TestCase):
    def test_ranks_trace_with_fx_concurrently(self):
        called, got = nn.Module.__call__, nn.Module.__getattr__

        class Inner(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

            def forward(self, x):
                for layer in self.layers:
                    time.sleep(0.002)  # lets other ranks run in between
                    x = layer(x).relu()
                return x

        def on_rank():
            module, eager = Inner(), nn.Linear(4, 4)
            for _ in range(5):
                graph = torch.fx.symbolic_trace(module)
                self.assertEqual(sum(node.op == "call_module" for node in graph.graph.nodes), 4)
                torch.testing.assert_close(graph(torch.ones(2, 4)), module(torch.ones(2, 4)))
                eager(torch.ones(2, 4))

        dtensor.run(4, on_rank)
        self.assertIs(nn.Module.__call__, called)
        self.assertIs(nn.Module.__getattr__, got)

    def test_compilers_raise_with_instructions(self):
        try:
            from torch._dynamo import lookup_backend
            from torch.export import export

            lookup_backend("eager")
        except ImportError as error:
            self.skipTest(str(error))

        def on_rank():
            x = dtensor.distribute_tensor(torch.ones(4, 2), mesh_of((2,)), [Shard(0)])
            program = torch.compile(lambda t: t.sin() * 2, backend="eager")
            self.assertEqual(program(x).placements, (Shard(0),))  # runs eagerly
            module = on_mesh(nn.Linear(2, 3), x.device_mesh)
            for refused in [
                lambda: torch.compile(lambda t: t.cos() * 2, backend="eager", fullgraph=True)(x),
                lambda: export(module, (x,)),
            ]:
                with self.assertRaisesRegex(Exception, "do not support DTensors: call torch.compiler.set_stance"):
                    refused()
            with self.assertRaisesRegex(NotImplementedError, "^torch.compile, torch.export and torch.cond do not support DTensors"):
                torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

        dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
