"""Python protocols of tensors on DTensors: copying, pickling, printing, saving; errors name the operator."""

import copy
import io
import pickle
import unittest

import torch
from torch import nn

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard
from layouts import mesh_of
from small_model import DATA, Ranks, model, on_mesh


class Values(Ranks):
    def test_repr(self):
        def check(mesh):
            t = dtensor.distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
            self.assertIn("f32[4] on [2] [S(0)]", repr(t))
            self.assertIn("tensor([0., 1.])" if dtensor.rank() == 0 else "tensor([2., 3.])", str(t))
            self.assertIn("requires_grad=True", repr(nn.Parameter(t)))
            self.assertTrue(repr(nn.Parameter(t)).startswith("Parameter"))
            self.assertIn("grad_fn=<MulBackward0>", repr(nn.Parameter(t) * 2))
            self.assertEqual(f"{t.sum():.1f}", "6.0")
            self.assertIn("weight", repr(on_mesh(model(), mesh).state_dict()))

        self.everywhere(check)

    def test_the_legacy_constructor(self):
        def check(mesh):
            t = dtensor.distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
            for made, sizes in [(t.new(2, 3), (2, 3)), (t.new(torch.Size([5])), (5,)), (t.new(3), (3,)), (t.new(), (0,))]:
                self.assertEqual((tuple(made.shape), made.dtype), (sizes, torch.float32))
                self.assertEqual(made.placements, t.new_empty(sizes).placements)
            for data in ([1.0, 2.0], (1, 2)):
                self.assertEqual(t.new(data).tolist(), [1.0, 2.0])
            self.assertTrue(torch.equal(t.new(t), t))
            with self.assertRaisesRegex(TypeError, "expected a tensor of torch.float32, got one of torch.int64"):
                t.new(torch.arange(2))
            self.assertEqual(torch.zeros(1).new(2).shape, (2,))
            self.assertIs(t.is_pinned(), False)

        self.everywhere(check)

    def test_distributions_sample_one_tensor(self):
        """The same sample on every rank and layout, with the right shape and in the support of the density."""
        from torch import distributions as ds

        class Shifted(ds.Distribution):
            def __init__(self, by):
                self.by = by
                super().__init__(by.shape, validate_args=False)

            def sample(self, sizes=torch.Size()):
                return self.by + torch.rand(self._extended_shape(sizes), dtype=self.by.dtype)

            def log_prob(self, value):
                return torch.where((value - self.by - 0.5).abs() <= 0.5, 0.0, -torch.inf)

        makes = {
            "Laplace": lambda x: ds.Laplace(x, x.abs() + 1),
            "Cauchy": lambda x: ds.Cauchy(x, x.abs() + 1),
            "Multinomial": lambda x: ds.Multinomial(3, logits=x),
            "Normal": lambda x: ds.Normal(x, x.abs() + 1),
            "Categorical": lambda x: ds.Categorical(logits=x),
            "OneHotCategorical": lambda x: ds.OneHotCategorical(logits=x),
            "Bernoulli": lambda x: ds.Bernoulli(logits=x),
            "Exponential": lambda x: ds.Exponential(x.abs() + 1),
            "Uniform": lambda x: ds.Uniform(x, x + 1),
            "Gumbel": lambda x: ds.Gumbel(x, x.abs() + 1),
            "StudentT": lambda x: ds.StudentT(x.abs() + 1, x),
            "MultivariateNormal": lambda x: ds.MultivariateNormal(x, torch.eye(6, dtype=x.dtype)),
            "a mixture": lambda x: ds.MixtureSameFamily(ds.Categorical(logits=x), ds.StudentT(x.abs() + 1)),
            "a custom class": lambda x: Shifted(x),
        }

        def samples(make, shape, placement):
            mesh = mesh_of(shape)
            dtensor.manual_seed(3)
            found = make(dtensor.distribute_tensor(DATA[0], mesh, [placement])).sample((5,))
            return found.full_tensor() if isinstance(found, DTensor) else found

        for name, make in makes.items():
            wanted = dtensor.run(1, samples, make, (1,), Replicate())[0]
            reference = make(DATA[0])
            self.assertEqual(wanted.shape, reference.sample((5,)).shape, name)
            self.assertTrue(bool(reference.log_prob(wanted).isfinite().all()), name)
            for placement in (Replicate(), Shard(0), Shard(1)):
                for found in dtensor.run(2, samples, make, (2,), placement):
                    self.assertTrue(torch.equal(found, wanted), (name, placement))

    def test_deepcopy(self):
        def check(mesh):
            module = on_mesh(model(), mesh)
            module[0].weight.grad = torch.zeros_like(module[0].weight)
            twin = copy.deepcopy(module)
            for a, b in zip(module.parameters(), twin.parameters()):
                self.assertIsNot(a, b)
                self.assertIsInstance(b, nn.Parameter)
                self.assertEqual((a.placements, a.requires_grad), (b.placements, b.requires_grad))
                self.assertTrue(torch.equal(a, b))
            self.assertIsInstance(twin[0].weight.grad, DTensor)
            with torch.no_grad():
                twin[0].weight.zero_()
            self.assertNotEqual(module[0].weight.abs().sum().item(), 0)
            shared = copy.deepcopy([module[0].weight] * 2)
            self.assertIs(shared[0], shared[1])
            with self.assertRaisesRegex(RuntimeError, "leaves"):
                copy.deepcopy(module[0].weight * 2)
            self.assertEqual(copy.copy(module[0].weight).placements, (Shard(0),))

        self.everywhere(check)

    def test_pickle(self):
        def check(mesh):
            full = torch.arange(10.0).reshape(5, 2)
            for t in [dtensor.distribute_tensor(full, mesh, [Shard(0)]), nn.Parameter(dtensor.ones(3, device_mesh=mesh))]:
                for again in [pickle.loads(pickle.dumps(t)), self.saved(t)]:
                    self.assertIsInstance(again, DTensor)
                    self.assertIs(type(again), type(t))
                    self.assertEqual((again.placements, again.device_mesh), (t.placements, mesh))
                    self.assertTrue(torch.equal(again, t))
                    self.assertEqual(again.requires_grad, t.requires_grad)
            with self.assertRaisesRegex(RuntimeError, "detach"):
                pickle.dumps(nn.Parameter(t) * 2)
            texts = [None, None]
            texts[dtensor.rank()] = pickle.dumps(dtensor.distribute_tensor(full, mesh, [Shard(0)]))
            return texts[dtensor.rank()]

        texts = self.everywhere(check)

        def swapped(mesh):
            with self.assertRaisesRegex(RuntimeError, "dtensor.save"):
                pickle.loads(texts[1 - dtensor.rank()])

        self.everywhere(swapped)

    def saved(self, t):
        file = io.BytesIO()
        torch.save(t, file)
        file.seek(0)
        return torch.load(file)

    def test_reads(self):
        def check(mesh):
            t = dtensor.distribute_tensor(torch.arange(6).reshape(2, 3), mesh, [Shard(1)])
            self.assertEqual(t.tolist(), [[0, 1, 2], [3, 4, 5]])
            self.assertEqual(t.numpy().tolist(), t.tolist())
            self.assertEqual(t.sum().item(), 15)
            self.assertEqual((int(t.max()), float(t[0, 2]), bool(t.any())), (5, 2.0, True))
            with self.assertRaisesRegex(RuntimeError, "ambiguous"):
                bool(t)
            self.assertEqual([5, 6, 7][t[0, 1]], 6)  # __index__
            partial = DTensor.from_local(torch.ones(2), mesh, [Partial()])
            self.assertEqual(partial.tolist(), [2, 2])
            with self.assertRaisesRegex(RuntimeError, "requires grad"):
                t.double().requires_grad_().numpy()

        self.everywhere(check)

    def test_new_tensors(self):
        def check(mesh):
            t = dtensor.distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
            self.assertEqual(t.new_tensor([1, 2]).dtype, torch.float32)
            self.assertEqual(t.new_tensor([1, 2]).tolist(), [1, 2])
            self.assertEqual((t + t.new_tensor(1)).tolist(), [1, 2, 3, 4, 5, 6])
            self.assertEqual((t.new_zeros(2).tolist(), t.new_full((1,), 3).tolist()), ([0, 0], [3]))
            self.assertEqual(torch.zeros_like(t).placements, (Shard(0),))
            self.assertEqual(t.to(torch.float64).dtype, torch.float64)
            self.assertEqual((t.cpu().tolist(), t.device.type, t.is_cuda), (t.tolist(), "cpu", False))
            self.assertEqual(len(list(t.split(2))), 3)
            self.assertFalse(t.is_meta or t.is_sparse or t.is_quantized)
            self.assertIs(t.contiguous(), t)

        self.everywhere(check)


class Refusals(Ranks):
    def test_errors_name_the_operator(self):
        def check(mesh):
            t = dtensor.ones(4, 4, device_mesh=mesh)
            with self.assertRaisesRegex(RuntimeError, "aten::.*sparse"):
                t.to_sparse()
            with self.assertRaisesRegex(RuntimeError, "no memory of its own|storage"):
                t.untyped_storage()
            with self.assertRaisesRegex(RuntimeError, "no memory of its own|storage"):
                t.data_ptr()
            with dtensor.Strict(), self.assertRaisesRegex(RuntimeError, "aten::add"):
                t + torch.ones(4)
            shard = t.redistribute(placements=[Shard(0)])
            with dtensor.ImplicitRedistributionScope(), self.assertRaisesRegex(RuntimeError, "aten::"):
                shard.sort(dim=0)
            for regular in (torch.zeros(4, 4), torch.nn.Parameter(torch.zeros(4, 4)), torch.empty(0)):
                with self.assertRaisesRegex(RuntimeError, "incompatible tensor type"):
                    regular.data = t
                self.assertNotIsInstance(regular, dtensor.DTensor)
                self.assertFalse(torch._has_compatible_shallow_copy_type(regular, t))
            with self.assertRaises(IndexError):
                t[7]
            with self.assertRaises(RuntimeError):
                t.view(3, 3)

        self.everywhere(check)


if __name__ == "__main__":
    unittest.main()
