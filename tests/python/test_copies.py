"""Copies of meshes, of tensors with attributes, and of tensors that are created like others."""

import copy
import io
import itertools
import pickle
import unittest

import torch
from torch import nn

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard
from layouts import mesh_of


class Meshes(unittest.TestCase):
    """A mesh is a value: modules that refer to one can be copied and saved."""

    def test_copies_and_pickles(self):
        def on_rank():
            mesh = mesh_of((2, 2))
            for one in [mesh, mesh["b"], mesh_of((4,)), dtensor.init_device_mesh("cpu", (4,))]:
                file = io.BytesIO()
                torch.save(one, file)
                file.seek(0)
                again = [copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one)), torch.load(file)]
                self.assertEqual(again, [one] * 4)
                self.assertEqual({getattr(m, "_root", None) for m in again}, {getattr(one, "_root", None)})
            module = nn.Linear(4, 4)
            module.mesh = mesh["a"]
            self.assertEqual(copy.deepcopy(module).mesh, mesh["a"])

        dtensor.run(4, on_rank)


class Values(unittest.TestCase):
    def test_schedules(self):
        for name in dtensor.pipeline.schedule_names():
            schedule = dtensor.pipeline.make_schedule(name, 2, 4)
            for one in (schedule, dtensor.pipeline.with_communication(schedule)):
                for twin in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
                    self.assertEqual(twin, one)

    def test_modules_with_a_communicator(self):
        def on_rank():
            module = nn.Linear(2, 2)
            module.ranks = dtensor.world()
            return copy.deepcopy(module).ranks.rank, copy.copy(module.ranks).size

        self.assertEqual(dtensor.run(2, on_rank), [(0, 2), (1, 2)])

    def test_modules_under_fully_shard_are_refused(self):
        module = dtensor.fully_shard(nn.Linear(2, 2))
        with self.assertRaisesRegex(TypeError, "copy it before fully_shard"):
            copy.deepcopy(nn.Sequential(module))


class OutsideTheMesh(unittest.TestCase):
    def test_tensors_of_a_mesh_without_this_rank(self):
        """Like the states of other stages of a pipeline."""

        def on_rank():
            mesh = dtensor.DeviceMesh("cpu", [1])
            for t in [dtensor.ones(4, device_mesh=mesh), nn.Parameter(dtensor.zeros(3, 2, device_mesh=mesh, placements=[Shard(0)]))]:
                for again in [pickle.loads(pickle.dumps(t)), copy.copy(t), copy.deepcopy(t)]:
                    self.assertEqual((again.shape, again.placements, again.dtype), (t.shape, t.placements, t.dtype))
                    self.assertEqual((type(again), again.requires_grad, again.device_mesh), (type(t), t.requires_grad, mesh))
                    self.assertTrue(dtensor.rank() == 0 or torch.equal(again, t))

        dtensor.run(2, on_rank)


class LikeTorch(unittest.TestCase):
    """Behavior of torch with a regular tensor."""

    def test_deepcopy_copies_attributes(self):
        def on_rank():
            tensors = [torch.ones(2), dtensor.ones(2, device_mesh=mesh_of((2,)))]
            for t in tensors:
                t.tag = ["a"]
                twin = copy.deepcopy(t)
                self.assertEqual((twin.tag, twin.tag is t.tag), (["a"], False))

        dtensor.run(2, on_rank)

    def test_full_accepts_numbers_of_any_kind(self):
        numbers = [True, 3, 1.5, 2j, torch.tensor(2.5), torch.tensor(3), torch.tensor(True)]
        try:
            import numpy

            numbers += [numpy.float32(1.5), numpy.float64(1.5), numpy.int32(3), numpy.bool_(True), numpy.complex64(2j)]
        except ImportError:
            pass
        mesh = mesh_of((1,))
        for number in numbers:
            full = dtensor.full((2,), number, device_mesh=mesh).to_local()
            python_number = number.item() if hasattr(number, "item") else number
            self.assertEqual((full.dtype, full.tolist()), (torch.full((2,), python_number).dtype, [number] * 2), repr(number))
        self.assertEqual(dtensor.arange(torch.tensor(2.0), device_mesh=mesh).to_local().dtype, torch.float32)
        with self.assertRaises(OverflowError):
            dtensor.full((2,), 2**63, device_mesh=mesh)

    def test_new_tensor_with_none_uses_the_tensors_options(self):
        t = dtensor.ones(2, device_mesh=mesh_of((1,)), dtype=torch.float64)
        self.assertEqual(t.new_tensor([1, 2], dtype=None, device=None).dtype, torch.float64)

    def test_a_regular_gradient_is_a_full_gradient(self):
        def on_rank():
            found = []
            for placement in [Replicate(), Shard(0), Partial()]:
                for options in [{}, {"grad_placements": [placement]}, {"grad_placements": [Replicate()]}]:
                    local = torch.ones(2, requires_grad=True)
                    full = DTensor.from_local(local, mesh_of((2,)), [placement], **options)
                    full.backward(torch.arange(float(full.numel())))
                    found.append(local.grad.tolist())
            return found

        for rank, found in enumerate(dtensor.run(2, on_rank)):
            self.assertEqual(found, [[0, 1]] * 3 + [[2 * rank, 2 * rank + 1]] * 3 + [[0, 1]] * 3)

    def test_partial_gradients_with_partial_grad_placements(self):
        def on_rank():
            mesh, own, found = mesh_of((2,)), float(dtensor.rank() + 1), []
            for placement, wanted in itertools.product([Replicate(), Partial()], [None, [Replicate()], [Partial()]]):
                local = torch.ones(3, requires_grad=True)
                full = DTensor.from_local(local, mesh, [placement], grad_placements=wanted) * 2
                full.backward(DTensor.from_local(torch.full((3,), own), mesh, [Partial()]))
                found.append(local.grad.tolist())
            uneven = torch.ones(3 - dtensor.rank(), requires_grad=True)
            rows = DTensor.from_local(uneven, mesh, [Shard(0)], grad_placements=[Partial()])
            rows.backward(torch.arange(5.0))
            return found, uneven.grad.tolist()

        for rank, (found, rows) in enumerate(dtensor.run(2, on_rank)):
            self.assertEqual(found, [[6] * 3, [6] * 3, [2 * (rank + 1)] * 3] * 2)
            self.assertEqual(rows, [[0, 1, 2], [3, 4]][rank])

    def test_pickles_include_attributes(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            for kind in (lambda t: t, nn.Parameter):
                tensor = kind(dtensor.distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
                tensor.note = ["kept"]
                file = io.BytesIO()
                torch.save(tensor, file)
                file.seek(0)
                copies = [copy.copy(tensor), pickle.loads(pickle.dumps(tensor)), torch.load(file)]
                self.assertEqual([c.note for c in copies], [["kept"]] * 3)

        dtensor.run(2, on_rank)


class InsideMeshScopes(unittest.TestCase):
    """Copies of regular tensors stay regular, and copying is local: one rank may do it alone."""

    def test_copies_and_pickles_of_regular_tensors(self):
        batch_norm = nn.BatchNorm1d(3)
        for key, buffer in batch_norm.named_buffers():
            buffer.note = key

        def saved(module):
            file = io.BytesIO()
            torch.save(module.state_dict(), file)
            file.seek(0)
            twin = nn.BatchNorm1d(3)
            twin.load_state_dict(torch.load(file))
            return twin

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            for copied in [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved]:
                with dtensor.MeshScope(mesh, [Shard(0)]):
                    twin = copied(batch_norm)
                if copied is not saved:
                    self.assertFalse(any(isinstance(t, DTensor) for t in twin.state_dict().values()))
                for a, b in zip(twin.state_dict().values(), batch_norm.state_dict().values()):
                    self.assertTrue(torch.equal(a, b))
            tensor = dtensor.distribute_tensor(torch.arange(4), mesh, [Shard(0)])
            with dtensor.MeshScope(mesh, [Shard(0)]):
                twin = pickle.loads(pickle.dumps(tensor))
            self.assertEqual((twin.tolist(), twin.placements), ([0, 1, 2, 3], tensor.placements))

        dtensor.run(2, on_rank)

    def test_reading_ranks_of_a_mesh_is_local(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
            with dtensor.MeshScope(mesh, [Shard(0), Shard(1)]):
                if dtensor.rank() == 1:
                    self.assertFalse(isinstance(mesh.mesh, DTensor))
                    self.assertEqual(mesh.mesh.tolist(), [[0], [1]])
                    self.assertEqual(pickle.loads(pickle.dumps(mesh)), mesh)

        dtensor.run(2, on_rank, timeout=20)


if __name__ == "__main__":
    unittest.main()
