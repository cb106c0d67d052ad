"""Tracing with torch.fx works on all ranks at once; compilers refuse DTensors with instructions."""

import time
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Shard
from layouts import mesh_of
from small_model import on_mesh


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
