"""Modules with DTensor parameters in PyTorch's module features: meta device, conversion, parametrization, copies."""

import copy
import io
import pickle
import unittest

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard
from dtensor.parallel import ColwiseParallel, PrepareModuleInput, PrepareModuleOutput, RowwiseParallel, parallelize_module

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


def made():
    return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 4), nn.BatchNorm1d(4)).double()


torch.manual_seed(0)
NET = made()


def net():
    return copy.deepcopy(NET)


def parallel(module, mesh):
    return parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def distributed(module, mesh):
    return dtensor.distribute_module(module, mesh)


def everywhere(check, *args, ranks=2):
    dtensor.run(ranks, lambda: check(dtensor.init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",)), *args))


class OnMeta(unittest.TestCase):
    def test_tensors(self):
        def check(mesh):
            meta = torch.empty(5, 4, device="meta", requires_grad=True)
            for placements in ([Shard(0)], [Shard(1)], [Replicate()], [Partial()]):
                for source in (0, 1, None):
                    t = dtensor.distribute_tensor(meta, mesh, placements, src_data_rank=source)
                    expected = dtensor.distribute_tensor(torch.zeros(5, 4), mesh, placements)
                    self.assertTrue(t.is_meta and t.requires_grad and nn.Parameter(t).is_meta and t.detach().is_meta)
                    self.assertEqual((t.shape, t.placements, t.device.type), ((5, 4), tuple(placements), "meta"))
                    self.assertEqual(t.to_local().shape, expected.to_local().shape)
                    filled = torch.empty_like(t, device="cpu")
                    self.assertEqual((filled.is_meta, filled.device.type, filled.placements[0].is_shard()),
                                     (False, "cpu", placements[0].is_shard()))  # fmt: skip
                    nn.init.constant_(filled, 1.5)
                    torch.testing.assert_close(filled.detach().full_tensor(), torch.full((5, 4), 1.5))
            self.assertTrue(DTensor.from_local(torch.empty(2, 4, device="meta"), mesh, [Shard(0)]).is_meta)
            with self.assertRaisesRegex(RuntimeError, "meta"):
                dtensor.distribute_tensor(torch.empty(2, device="meta"), mesh, [Shard(0)]).full_tensor()
            mixed = torch.empty(4, device="meta" if dtensor.rank() else "cpu")
            with self.assertRaisesRegex(RuntimeError, "got one without values"):
                dtensor.distribute_tensor(mixed, mesh, [Shard(0)])

        everywhere(check)

    def test_modules_are_materialized_and_train(self):
        def check(mesh, place):
            with torch.device("meta"):
                module = made()
            place(module, mesh)
            self.assertTrue(module[0].weight.is_meta)
            module.to_empty(device="cpu")
            module.load_state_dict(net().state_dict())
            reference = net()
            torch.testing.assert_close(module[0].weight.full_tensor(), reference[0].weight)
            y, expected = module(X), reference(X)
            torch.testing.assert_close(y.full_tensor() if isinstance(y, DTensor) else y, expected)
            y.square().sum().backward()
            expected.square().sum().backward()
            for part in (0, 2):
                torch.testing.assert_close(module[part].weight.grad.full_tensor(), reference[part].weight.grad)

        for place in (parallel, distributed):
            for ranks in (1, 2, 3):
                everywhere(check, place, ranks=ranks)


class Converted(unittest.TestCase):
    def test_units_compute_in_the_converted_dtype(self):
        def check(mesh):
            reference, module = net().float(), dtensor.fully_shard(net(), mesh=mesh).float()
            x = X.float() * (dtensor.rank() + 1)
            y, expected = module(x), reference(x)
            torch.testing.assert_close(y, expected)
            y.pow(3).sum().backward()
            (sum(reference(X.float() * (rank + 1)).pow(3).sum() for rank in range(mesh.size())) / mesh.size()).backward()
            for p, q in zip(module.parameters(), reference.parameters()):
                self.assertEqual((p.dtype, p.grad.dtype), (torch.float32, torch.float32))
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)

        everywhere(check)

    def test_with_swapped_parameters(self):
        """set_swap_module_params_on_conversion: the parameters stay the same objects, for optimizers and hooks."""
        torch.__future__.set_swap_module_params_on_conversion(True)
        self.addCleanup(torch.__future__.set_swap_module_params_on_conversion, False)

        def check(mesh, place):
            module = place(net(), mesh)
            former = list(module.parameters())
            placements = [p.placements for p in former if isinstance(p, DTensor)]
            optimizer = torch.optim.Adam(former, lr=1e-2)
            module.to(torch.float32)
            self.assertTrue(all(a is b for a, b in zip(former, module.parameters())))
            self.assertEqual([p.placements for p in former if isinstance(p, DTensor)], placements)
            self.assertEqual({p.dtype for p in former}, {torch.float32})
            before = former[0].detach().full_tensor().clone()
            module(X.float()).pow(3).sum().backward()
            optimizer.step()
            self.assertEqual(former[0].to_local().dtype, torch.float32)
            self.assertFalse(torch.equal(former[0].detach().full_tensor(), before))
            first, second = (nn.Parameter(dtensor.ones(4, device_mesh=mesh) * i, requires_grad=i == 1) for i in (1, 2))
            first.note = "of the first"
            torch.utils.swap_tensors(first, second)
            self.assertEqual((first.tolist(), second.tolist()), ([2] * 4, [1] * 4))
            self.assertEqual((first.requires_grad, second.requires_grad, second.note), (False, True, "of the first"))
            self.assertFalse(hasattr(first, "note"))

        for place in (parallel, distributed, lambda module, mesh: dtensor.fully_shard(module, mesh=mesh)):
            everywhere(check, place)


class Parametrized(unittest.TestCase):
    def test_placed_parameters(self):
        class Symmetric(nn.Module):
            def forward(self, x):
                return x + x.T

            def right_inverse(self, x):
                return x / 2

        def check(mesh):
            reference, module = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
            module.load_state_dict(reference.state_dict())
            dtensor.distribute_module(module, mesh)
            for linear in (reference, module):
                parametrize.register_parametrization(linear, "weight", Symmetric())
                parametrizations.weight_norm(linear, "bias", dim=None)
                linear(X).square().sum().backward()
            torch.testing.assert_close(module(X).full_tensor(), reference(X))
            for (name, p), q in zip(module.named_parameters(), reference.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, msg=name)

        torch.manual_seed(0)
        everywhere(check, ranks=1)

    def test_set_takes_the_data_of_a_dtensor(self):
        def check(mesh):
            t, other = dtensor.ones(4, 3, device_mesh=mesh), dtensor.zeros(5, device_mesh=mesh, placements=[Shard(0)])
            self.assertIs(t.set_(other), t)
            self.assertEqual((t.shape, t.placements, t.tolist()), ((5,), (Shard(0),), [0] * 5))
            for source in (torch.ones(3), None):
                with self.assertRaises((NotImplementedError, TypeError)):
                    t.set_(source)

        everywhere(check)


class Copied(unittest.TestCase):
    def test_by_deepcopy_and_pickle(self):
        def check(mesh, place):
            module = place(net(), mesh)
            saved = io.BytesIO()
            torch.save(module, saved)
            saved.seek(0)
            copies = copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(saved, weights_only=False)
            y = module(X)
            for other in copies:
                z = other(X)
                self.assertEqual(isinstance(z, DTensor), isinstance(y, DTensor))
                torch.testing.assert_close(z.to_local() if isinstance(z, DTensor) else z, y.to_local() if isinstance(y, DTensor) else y)
                self.assertEqual(other[0].weight.placements, module[0].weight.placements)
            self.assertEqual([type(part) for part in module[1:]], [nn.ReLU, nn.Linear, nn.BatchNorm1d])

        def prepared(module, mesh):
            layouts = {"input_layouts": Replicate(), "desired_input_layouts": Replicate()}
            parallelize_module(module, mesh, PrepareModuleInput(**layouts))
            layouts = {"output_layouts": Replicate(), "desired_output_layouts": Replicate()}
            return parallel(parallelize_module(module, mesh, PrepareModuleOutput(**layouts)), mesh)

        def hooked(module, mesh):
            return dtensor.distribute_module(module, mesh, None, _double, _double_of_two)

        for place in (parallel, distributed, prepared, hooked):
            everywhere(check, place)


def _double(module, values, mesh):
    return tuple(2 * value for value in values)


def _double_of_two(values, mesh):
    return 2 * values


if __name__ == "__main__":
    unittest.main()
