"""Modules, hooks, autocast and optimizers of torch on DTensors equal one device."""

import copy
import unittest

import torch
from torch import nn

import dtensor
from dtensor import DTensor, Replicate, Shard
from small_model import DATA, MATRIX, Ranks, data, model, on_mesh


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


if __name__ == "__main__":
    unittest.main()
