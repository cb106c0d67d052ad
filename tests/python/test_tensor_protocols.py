"""Python protocols of tensors on DTensors: copying, pickling, printing, saving, hooks, contexts."""

import copy
import io
import pickle
import time
import unittest
import warnings

import torch
from torch import nn

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard
from layouts import mesh_of


# Created once, before ranks run, since threads share torch's generator.
torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.GELU(), nn.Linear(10, 3)).double()
MATRIX = nn.Linear(6, 4, bias=False)
DATA = torch.randn(7, 6).double(), torch.randint(0, 3, (7,))


def model(dtype=torch.float64):
    return copy.deepcopy(MODEL).to(dtype)


def on_mesh(module, mesh, placement=Shard(0)):
    def split(name, m, on):
        for key, parameter in m._parameters.items():
            if parameter is not None:
                m._parameters[key] = nn.Parameter(dtensor.distribute_tensor(parameter.detach(), on, [placement]))

    return dtensor.distribute_module(module, mesh, split)


def data(dtype=torch.float64):
    return DATA[0].to(dtype), DATA[1].clone()


class Ranks(unittest.TestCase):
    ranks = 2

    def everywhere(self, check):
        return dtensor.run(self.ranks, lambda: check(mesh_of((self.ranks,))))


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


class Modules(Ranks):
    def test_state_dict(self):
        def check(mesh):
            module, reference = on_mesh(model(), mesh), model()
            state = module.state_dict()
            self.assertTrue(all(isinstance(t, DTensor) for t in state.values()))
            with torch.no_grad():
                for p in module.parameters():
                    p.zero_()
            self.assertEqual(str(module.load_state_dict(reference.state_dict())), "<All keys matched successfully>")
            for (name, p), q in zip(module.named_parameters(), reference.parameters()):
                self.assertEqual(p.placements, (Shard(0),), name)
                self.assertTrue(torch.equal(p.full_tensor(), q), name)
            other = on_mesh(model(), mesh, Replicate())
            other.load_state_dict(module.state_dict())
            self.assertTrue(torch.equal(other[0].weight, module[0].weight))
            other.load_state_dict(module.state_dict(), assign=True)
            self.assertEqual(other[0].weight.placements, (Shard(0),))
            with self.assertRaisesRegex(RuntimeError, "size mismatch"):
                module.load_state_dict({**reference.state_dict(), "0.bias": torch.ones(3)})

        self.everywhere(check)

    def run_both(self, run, mesh, tolerance=1e-12, placement=Shard(0), dtype=torch.float64):
        """`run(module, x, y)` returns a loss; its value and gradients equal those of one device."""
        (x, y), reference, module = data(dtype), model(dtype), on_mesh(model(dtype), mesh, placement)
        losses = [run(reference, x, y)]
        losses.append(run(module, *[dtensor.distribute_tensor(t, mesh, [Shard(0)]) for t in (x, y)]))
        self.assertAlmostEqual(losses[0].item(), losses[1].item(), delta=tolerance)
        for (name, p), q in zip(module.named_parameters(), reference.named_parameters()):
            self.assertTrue(torch.allclose(p.grad.full_tensor(), q[1].grad, rtol=tolerance, atol=tolerance), name)

    def loss(self, module, x, y):
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        return loss

    def test_training(self):
        self.everywhere(lambda mesh: self.run_both(self.loss, mesh))

    def test_activation_checkpointing(self):
        def run(module, x, y, reentrant):
            hidden = torch.utils.checkpoint.checkpoint(module[:3], x, use_reentrant=reentrant)
            loss = nn.functional.cross_entropy(module[3](hidden), y)
            loss.backward()
            return loss

        self.everywhere(lambda mesh: self.run_both(lambda m, x, y: run(m, x, y, False), mesh))
        self.everywhere(lambda mesh: self.run_both(lambda m, x, y: run(m, x.requires_grad_(), y, True), mesh))

    def test_functional_call(self):
        def run(module, x, y):
            twice = {name: p * 2 for name, p in module.named_parameters()}
            loss = nn.functional.cross_entropy(torch.func.functional_call(module, twice, (x,)), y)
            loss.backward()
            return loss

        self.everywhere(lambda mesh: self.run_both(run, mesh))

    def test_autocast(self):
        def run(module, x, y):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = module(x)
                assert out.dtype == torch.bfloat16, out.dtype
                loss = nn.functional.cross_entropy(out, y)
            loss.backward()
            return loss

        self.everywhere(lambda mesh: self.run_both(run, mesh, tolerance=3e-2, dtype=torch.float32))

    def test_grad_scaler(self):
        def run(module, x, y):
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            loss = nn.functional.cross_entropy(module(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == 8.0
            return loss

        self.everywhere(lambda mesh: self.run_both(run, mesh))

    def test_hooks(self):
        def check(mesh):
            def run(module, x, y):
                calls = []
                for name, m in module.named_modules():
                    m.register_forward_hook(lambda m, a, out, name=name: calls.append(("forward", name)))
                    m.register_full_backward_hook(lambda m, a, b, name=name: calls.append(("backward", name)))
                module[0].weight.register_hook(lambda g: g * 2)
                loss = nn.functional.cross_entropy(module(x), y)
                module[3].bias.register_hook(lambda g: g * 3)  # registered between forward and backward
                module[3].weight.register_post_accumulate_grad_hook(lambda p: calls.append(tuple(p.grad.shape)))
                loss.backward()
                calls_of.append(calls)
                return loss

            calls_of = []
            self.run_both(run, mesh)
            self.assertEqual(calls_of[0], calls_of[1])
            self.assertIn((3, 10), calls_of[1])

        self.everywhere(check)

    def test_gradient_norms(self):
        def run(module, x, y):
            loss = self.loss(module, x, y)
            norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), 0.1)))
            return loss

        norms = []
        self.everywhere(lambda mesh: self.run_both(run, mesh))
        self.assertAlmostEqual(min(norms), max(norms), delta=1e-12)

    def test_autograd_functions_and_double_backward(self):
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx, grad):
                return 3 * grad * ctx.saved_tensors[0] ** 2

        def check(mesh):
            x = torch.arange(1.0, 5.0).double()
            results = []
            for t in [x.clone(), dtensor.distribute_tensor(x, mesh, [Shard(0)])]:
                t.requires_grad_()
                (first,) = torch.autograd.grad(Cube.apply(t).sum(), t, create_graph=True)
                (second,) = torch.autograd.grad(first.sum(), t)
                results.append((first.tolist(), second.tolist()))
            self.assertEqual(*results)

        self.everywhere(check)

    def test_data_loader(self):
        def check(mesh):
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(8.0)), batch_size=4)
            sums = [dtensor.distribute_tensor(x, mesh, [Shard(0)]).sum().item() for (x,) in loader]
            self.assertEqual(sums, [6, 22])

        self.everywhere(check)


class Optimizers(Ranks):
    CASES = {
        "Adadelta": {}, "Adafactor": {}, "Adagrad": {}, "Adam": {"amsgrad": True}, "Adamax": {}, "AdamW": {}, "ASGD": {},
        "LBFGS": {"max_iter": 3}, "NAdam": {}, "RAdam": {}, "RMSprop": {"momentum": 0.9}, "Rprop": {},
        "SGD": {"momentum": 0.9, "nesterov": True},
    }  # fmt: skip
    FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}

    def test_each_equals_one_device(self):
        known = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
        self.assertEqual(known - set(self.CASES), {"Muon", "Optimizer", "SparseAdam"})
        for name, options in self.CASES.items():
            variants = [{}] if name == "LBFGS" or name == "Adafactor" else [{"foreach": False}, {"foreach": True}]
            for variant in variants + ([{"fused": True}] if name in self.FUSED else []):
                with self.subTest(name, **variant):
                    self.everywhere(lambda mesh: self.steps(name, {**options, **variant}, mesh))

    def steps(self, name, options, mesh):
        reference, module = model(), on_mesh(model(), mesh)
        x, y = data()
        for m, args in [(reference, (x, y)), (module, [dtensor.distribute_tensor(t, mesh, [Shard(0)]) for t in (x, y)])]:
            optimizer = getattr(torch.optim, name)(m.parameters(), **options)

            def closure():
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(m(args[0]), args[1])
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
            again = getattr(torch.optim, name)(m.parameters(), **options)
            again.load_state_dict(optimizer.state_dict())
            again.step(closure)
        for p, q in zip(module.parameters(), reference.parameters()):
            self.assertEqual(p.placements, (Shard(0),))
            torch.testing.assert_close(p.detach().full_tensor(), q.detach(), rtol=1e-9, atol=1e-11)

    def test_a_learning_rate_of_one_element(self):
        def check(mesh):
            for name in ("Adam", "AdamW", "SGD", "Adagrad"):
                for rate in (torch.tensor([0.1]), torch.tensor(0.1), torch.tensor([[0.1]])):
                    reference = nn.Parameter(DATA[0].clone())
                    parts = [nn.Parameter(dtensor.distribute_tensor(DATA[0], mesh, [p])) for p in (Shard(0), Shard(1), Replicate())]
                    for group in [[reference], parts]:
                        optimizer = getattr(torch.optim, name)(group, lr=rate.clone(), fused=True)
                        sum(p.square().sum() for p in group).backward()
                        optimizer.step()
                    for p in parts:
                        torch.testing.assert_close(p.detach().full_tensor(), reference.detach(), rtol=1e-9, atol=1e-11)

        self.everywhere(check)

    def test_muon(self):
        def check(mesh):
            reference, module = copy.deepcopy(MATRIX), on_mesh(copy.deepcopy(MATRIX), mesh)
            x = data(torch.float32)[0]
            for m, a in [(reference, x), (module, dtensor.distribute_tensor(x, mesh, [Shard(0)]))]:
                optimizer = torch.optim.Muon(m.parameters(), lr=0.1)
                m(a).square().mean().backward()
                optimizer.step()
            torch.testing.assert_close(module.weight.detach().full_tensor(), reference.weight.detach(), rtol=2e-2, atol=2e-2)

        self.everywhere(check)


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
            with self.assertRaises(IndexError):
                t[7]
            with self.assertRaises(RuntimeError):
                t.view(3, 3)

        self.everywhere(check)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
