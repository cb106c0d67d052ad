"""DTensors in Python: attributes, conversions, factories, local_map and distribute_module."""

import unittest

import torch

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard
from layouts import mesh_of


class Wrapper(torch.Tensor):
    """A wrapper subclass, like quantized tensors."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        take = lambda t: t.inner if isinstance(t, Wrapper) else t
        result = func(*torch.utils._pytree.tree_map(take, args), **torch.utils._pytree.tree_map(take, kwargs or {}))
        return torch.utils._pytree.tree_map(lambda t: Wrapper(t) if isinstance(t, torch.Tensor) else t, result)


class Tensors(unittest.TestCase):
    def test_class_and_attributes(self):
        def check():
            mesh = mesh_of((2,))
            t = dtensor.distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
            self.assertIsInstance(t, DTensor)
            self.assertIsInstance(t, torch.Tensor)
            self.assertIsInstance(torch.nn.Parameter(t), DTensor)
            self.assertNotIsInstance(torch.ones(1), DTensor)
            self.assertEqual((t.placements, t.device_mesh, tuple(t.shape)), ((Shard(0),), mesh, (6,)))
            for name in ["placements", "device_mesh", "to_local", "full_tensor", "redistribute"]:
                self.assertTrue(hasattr(t, name))
                self.assertFalse(hasattr(torch.ones(1), name), name)
            with self.assertRaisesRegex(TypeError, "from_local"):
                DTensor(torch.ones(1))

        dtensor.run(2, check)

    def test_conversions(self):
        full = torch.arange(10.0)

        def check():
            mesh, rank = mesh_of((2,)), dtensor.rank()
            t = dtensor.distribute_tensor(full, mesh, [Shard(0)])
            self.assertTrue(torch.equal(t.to_local(), full.chunk(2)[rank]))
            self.assertTrue(torch.equal(t.full_tensor(), full))
            r = t.redistribute(mesh, [Replicate()])
            self.assertEqual(r.placements, (Replicate(),))
            self.assertTrue(torch.equal(r.to_local(), full))
            again = DTensor.from_local(t.to_local(), mesh, [Shard(0)])
            self.assertEqual(tuple(again.shape), (10,))
            uneven = DTensor.from_local(torch.ones(2 - rank), mesh, [Shard(0)], shape=(3,), stride=(1,))
            self.assertEqual(uneven.sum().item(), 3)
            checked = DTensor.from_local(torch.full((2,), float(rank)), mesh, [Replicate()], run_check=True)
            self.assertEqual(checked.to_local().tolist(), [0, 0])
            with self.assertRaisesRegex(RuntimeError, "chunk"):
                DTensor.from_local(torch.ones(2 + 3 * rank), mesh, [Shard(0)])
            with self.assertRaisesRegex(TypeError, "expected a placement, got"):
                dtensor.distribute_tensor(full, mesh, ["S(0)"])
            a, b = dtensor.redistribute([t, t * 2], [[Replicate()], [Replicate()]])
            self.assertTrue(torch.equal(b.to_local(), 2 * a.to_local()))

        dtensor.run(2, check)

    def test_methods_on_the_class(self):
        def check():
            t = dtensor.distribute_tensor(torch.arange(4.0), mesh_of((2,)), [Shard(0)])
            self.assertEqual(DTensor.full_tensor(t).tolist(), [0, 1, 2, 3])
            self.assertEqual(DTensor.to_local(t).tolist(), t.to_local().tolist())
            self.assertEqual(DTensor.redistribute(t, placements=[Replicate()]).placements, (Replicate(),))
            self.assertEqual(DTensor.placements.fget(t), (Shard(0),))

        dtensor.run(2, check)

    def test_redistribute_dtypes(self):
        """Values and gradients are cast before the communication; gradients return in the tensor's dtype."""
        x = torch.linspace(-3, 3, 20, dtype=torch.float64).reshape(5, 4)
        scale = torch.linspace(1, 2, 20, dtype=torch.float64).reshape(5, 4)
        low, single, double = torch.bfloat16, torch.float32, torch.float64

        def check(ranks):
            mesh = mesh_of((ranks,))
            for source in ([Shard(0)], [Shard(1)], [Replicate()]):
                for to in ([Replicate()], [Shard(0)], [Shard(1)]):
                    for forward, backward in ((low, None), (low, low), (None, single), (single, low), (None, None)):
                        t = dtensor.distribute_tensor(x, mesh, source).requires_grad_()
                        with dtensor.CommDebugMode() as comm:
                            y = t.redistribute(placements=to, forward_dtype=forward, backward_dtype=backward, async_op=True)
                        moved = comm.get_total_bytes()
                        self.assertEqual(y.dtype, forward or double)
                        self.assertIn(y.placements, [tuple(to)] + [(Replicate(),)] * (ranks == 1))
                        torch.testing.assert_close(y.detach().full_tensor(), x.to(forward or double), rtol=0, atol=0)
                        (y * scale.to(y.dtype)).sum().backward()
                        self.assertEqual(t.grad.dtype, double)
                        self.assertIn(t.grad.placements, [tuple(source)] + [(Replicate(),)] * (ranks == 1))
                        expected = scale.to(y.dtype).to(backward or double).double()
                        torch.testing.assert_close(t.grad.full_tensor(), expected, rtol=0, atol=0)
                        with dtensor.CommDebugMode() as comm:
                            x_ = dtensor.distribute_tensor(x.to(forward or double), mesh, source)
                            comm_before = comm.get_total_bytes()
                            x_.redistribute(placements=to)
                        self.assertEqual(moved, comm.get_total_bytes() - comm_before)
            share = DTensor.from_local(x * (mesh.get_local_rank() + 1), mesh, [Partial()])
            with dtensor.CommDebugMode() as comm:
                y = share.redistribute(placements=[Shard(0)], forward_dtype=single)
            self.assertEqual((y.dtype, comm.get_total_counts()), (single, int(ranks > 1)))
            torch.testing.assert_close(y.full_tensor(), (x * ranks * (ranks + 1) / 2).float())

        for ranks in (1, 2, 3):
            dtensor.run(ranks, check, ranks)

    def test_wrapper_subclasses_are_refused_where_memory_is_read(self):
        def check():
            mesh, wrapped = mesh_of((2,)), Wrapper(torch.ones(4, 4))
            with self.assertRaisesRegex(TypeError, "distribute_tensor: a Wrapper wraps other tensors \\(inner\\)"):
                dtensor.distribute_tensor(wrapped, mesh, [Shard(0)])
            with self.assertRaisesRegex(RuntimeError, "from_local: expected a wrapper subclass that requires no grad"):
                DTensor.from_local(Wrapper(torch.ones(4, 4)).requires_grad_(), mesh, [Shard(0)])
            with self.assertRaisesRegex(NotImplementedError, "expected a local tensor with memory, got a wrapper subclass"):
                DTensor.from_local(wrapped, mesh, [Shard(0)]).full_tensor()
            linear = torch.nn.Linear(4, 4, bias=False)
            linear.weight = torch.nn.Parameter(wrapped)
            with self.assertRaisesRegex(TypeError, "a Wrapper wraps other tensors"):
                dtensor.parallelize_module(linear, mesh, dtensor.parallel.ColwiseParallel())

        dtensor.run(2, check)

    def test_gradients_of_from_local_and_to_local(self):
        def check():
            mesh = mesh_of((2,))
            local = torch.ones(3, requires_grad=True)
            (DTensor.from_local(local, mesh, [Shard(0)]) * 3).sum().backward()
            self.assertEqual(local.grad.tolist(), [3, 3, 3])
            leaf = dtensor.distribute_tensor(torch.ones(4, requires_grad=True), mesh, [Shard(0)])
            self.assertTrue(leaf.is_leaf and leaf.requires_grad)
            leaf.to_local().sum().backward()
            self.assertEqual(leaf.grad.placements, (Shard(0),))
            self.assertEqual(leaf.grad.tolist(), [1, 1, 1, 1])

        dtensor.run(2, check)

    def test_factories(self):
        def check():
            mesh = mesh_of((2,))
            at = {"device_mesh": mesh, "placements": [Shard(0)]}
            self.assertEqual(dtensor.zeros(3, 2, **at).tolist(), [[0, 0]] * 3)
            self.assertEqual(dtensor.ones((3,), dtype=torch.int64, **at).dtype, torch.int64)
            self.assertEqual(dtensor.full((2,), 7.5, **at).tolist(), [7.5, 7.5])
            self.assertEqual(dtensor.ones(2, device_mesh=mesh, placements=[Partial()]).tolist(), [1, 1])
            self.assertEqual(dtensor.arange(4, **at).tolist(), [0, 1, 2, 3])
            self.assertTrue(dtensor.empty(3, requires_grad=True, **at).requires_grad)
            dtensor.manual_seed(3)
            a = dtensor.randn(5, 3, **at).tolist()
            dtensor.manual_seed(3)
            self.assertEqual(dtensor.randn(5, 3, device_mesh=mesh).tolist(), a)
            for size in ((2.7,), ([2, 3.0],), (torch.tensor(2.7),)):  # not integers
                with self.assertRaises(TypeError):
                    dtensor.zeros(*size, **at)
            self.assertEqual(dtensor.zeros(torch.tensor(3), torch.Size([2])[0], **at).shape, (3, 2))
            with self.assertRaises(TypeError):
                DTensor.from_local(torch.ones(1), mesh, [Shard(0)], shape=[2.7], stride=[1])
            for make in (lambda **at: dtensor.ones(3, **at), lambda **at: dtensor.full((3,), 1, **at)):
                with self.assertRaisesRegex(NotImplementedError, "sparse"):
                    make(layout=torch.sparse_coo, device_mesh=mesh)
            for placements in ([Shard(0)], [Replicate()], [Partial()], None):
                on = {"device_mesh": mesh, "placements": placements, "dtype": torch.float64, "requires_grad": True}
                for made, full in [
                    (dtensor.linspace(-1, 2, 5, **on), torch.linspace(-1, 2, 5, dtype=torch.float64)),
                    (dtensor.logspace(0, 2, 5, **on), torch.logspace(0, 2, 5, dtype=torch.float64)),
                    (dtensor.logspace(0, 4, 5, 2.0, **on), torch.logspace(0, 4, 5, 2.0, dtype=torch.float64)),
                ]:
                    self.assertEqual((made.placements, made.requires_grad), (tuple(placements or [Replicate()]), True))
                    torch.testing.assert_close(made.detach().full_tensor(), full)
            with dtensor.MeshScope(mesh, [Shard(0)]):
                self.assertEqual(torch.nn.Linear(4, 6).weight.placements, (Shard(0),))
            self.assertNotIsInstance(torch.ones(2), DTensor)

        dtensor.run(2, check)

    def test_local_map_and_distribute_module(self):
        def check():
            mesh = mesh_of((2,))
            t = dtensor.distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
            double = dtensor.local_map(lambda x: x * 2, [[Shard(0)]])
            self.assertEqual(double(t).tolist(), [0, 2, 4, 6, 8, 10])
            torch.manual_seed(1)
            module = torch.nn.Linear(3, 4)
            weight = module.weight.detach().clone()
            dtensor.distribute_module(
                module, mesh, lambda name, m, on: m.register_parameter(
                    "weight", torch.nn.Parameter(dtensor.distribute_tensor(m.weight.detach(), on, [Shard(0)]))),
                output_fn=lambda m, y, on: y.redistribute(on, [Replicate()]),
            )  # fmt: skip
            self.assertEqual((module.weight.placements, module.bias.placements), ((Shard(0),), (Replicate(),)))
            y = module(torch.ones(2, 3))
            self.assertEqual(y.placements, (Replicate(),))
            self.assertEqual(weight.shape, (4, 3))
            with self.assertRaisesRegex(RuntimeError, "should only be called once on a module"):
                dtensor.distribute_module(module, mesh)
            with self.assertRaisesRegex(ValueError, "input_fn should take in 3 arguments, but got 1 arguments!"):
                dtensor.distribute_module(torch.nn.Linear(3, 4), mesh, input_fn=lambda inputs: inputs)

        dtensor.run(2, check)

    def test_input_and_output_functions_without_the_module(self):
        def check():
            mesh = mesh_of((1,))
            two = {"input_fn": lambda inputs, on: (2 * inputs[0],), "output_fn": lambda y, on: y.full_tensor()}
            for name, fn in two.items():
                with self.assertWarnsRegex(FutureWarning, f"Deprecating {name} that takes two arguments"):
                    linear = dtensor.distribute_module(torch.nn.Linear(3, 4, bias=False), mesh, **{name: fn})
                y = linear(torch.ones(2, 3))
                self.assertEqual(isinstance(y, DTensor), name == "input_fn")
                weight = linear.weight.detach().full_tensor()
                full = y.full_tensor() if isinstance(y, DTensor) else y
                torch.testing.assert_close(full, (2 if name == "input_fn" else 1) * torch.ones(2, 3) @ weight.T)

        dtensor.run(1, check)


if __name__ == "__main__":
    unittest.main()
