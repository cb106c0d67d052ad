"""Placements, meshes and process groups of torch.distributed are accepted in place of this library's."""

import os
import unittest

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import torch
import torch.distributed.tensor as theirs
from torch import nn
from torch.distributed.tensor.placement_types import _StridedShard

import dtensor
from dtensor import DTensor, Partial, Replicate, Shard, StridedShard
from dtensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from processes import run_processes

X = torch.arange(24.0).reshape(4, 6)
PAIRS = [
    (theirs.Replicate(), Replicate()), (theirs.Shard(0), Shard(0)), (theirs.Shard(-1), Shard(-1)),
    (theirs.Partial(), Partial()), (theirs.Partial("max"), Partial("max")), (_StridedShard(1, split_factor=2), StridedShard(1, 2)),
]  # fmt: skip


class PlacementsOfTorch(unittest.TestCase):
    def test_convert_and_compare(self):
        for their, our in PAIRS:
            converted = dtensor.Placement(their)
            self.assertEqual((converted, repr(converted)), (our, repr(our)))
            self.assertEqual(our, their)
            self.assertEqual((our,), (their,))
        self.assertNotEqual(Shard(0), theirs.Shard(1))
        for value in ("S(0)", 1, None, object()):
            with self.assertRaisesRegex(TypeError, "expected a placement, got"):
                dtensor.Placement(value)

    def test_are_accepted_everywhere(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            t = dtensor.distribute_tensor(X, mesh, [theirs.Shard(0)])
            self.assertEqual(t.placements, (Shard(0),))
            for placements in ([theirs.Replicate()], (theirs.Replicate(),), theirs.Replicate()):
                self.assertEqual(t.redistribute(placements=placements).placements, (Replicate(),))
            self.assertEqual(DTensor.from_local(X, mesh, [theirs.Shard(1)]).shape, (4, 12))
            self.assertEqual(dtensor.zeros(4, device_mesh=mesh, placements=[theirs.Shard(0)]).placements, (Shard(0),))
            with dtensor.MeshScope(mesh, [theirs.Shard(0)]):
                self.assertEqual(torch.ones(4).placements, (Shard(0),))
            doubled = dtensor.local_map(lambda x: 2 * x, [theirs.Shard(0)], ([theirs.Shard(0)],))(t)
            torch.testing.assert_close(doubled.full_tensor(), 2 * X)
            net = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 6))
            plan = {
                "0": ColwiseParallel(input_layouts=theirs.Replicate()),
                "1": RowwiseParallel(output_layouts=theirs.Shard(0)),
                "": PrepareModuleInput(input_layouts=(theirs.Shard(0),), desired_input_layouts=(theirs.Replicate(),)),
            }
            self.assertEqual(parallelize_module(net, mesh, plan)(X[:2]).shape, (2, 6))

        dtensor.run(2, on_rank)


class StorageShards(unittest.TestCase):
    def test_equal_their_shards(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            weight = dtensor.fully_shard(nn.Linear(6, 4), mesh=mesh).weight
            self.assertTrue(weight.placements[0].is_storage)
            self.assertEqual(weight.placements, (Shard(0),))
            self.assertEqual(weight.placements, (theirs.Shard(0),))
            self.assertEqual(hash(weight.placements), hash((Shard(0),)))
            self.assertNotEqual(weight.placements, (Replicate(),))

        dtensor.run(2, on_rank)


def _meshes():
    their = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    t = dtensor.distribute_tensor(X, their, [Shard(0), Replicate()])
    tp = dtensor.distribute_tensor(X, their["tp"], [Shard(1)])
    net = parallelize_module(nn.Linear(6, 4), their["tp"], ColwiseParallel())
    with their["tp"]:
        current = dtensor.distribute_tensor(X, placements=[Shard(0)]).device_mesh
    return (
        t.device_mesh == dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), t.device_mesh == their,
        tp.device_mesh == their["tp"], tuple(tp.to_local().shape), net(X).shape[1], current == their["tp"],
        torch.equal(t.full_tensor(), X),
    )  # fmt: skip


def _groups():
    distributed = torch.distributed
    mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sums = []
    flat = mesh["dp", "tp"]._flatten("all")
    for group in (*mesh.get_all_groups(), mesh["tp"].get_group(), flat.get_group(), mesh.get_group("all")):
        value = torch.tensor(float(dtensor.rank()))
        distributed.all_reduce(value, group=group)
        sums.append((isinstance(group, distributed.ProcessGroup), value.item()))
    again = dtensor.DeviceMesh.from_group(mesh.get_group("tp"), "cpu", mesh_dim_names=("tp",))
    both = dtensor.DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh.mesh, mesh_dim_names=("dp", "tp"))
    same = again == mesh["tp"], again.get_group() is mesh.get_group("tp"), both == mesh
    errors = []
    for call in (
        lambda: mesh.get_group(), lambda: mesh.get_group("ep"), lambda: dtensor.DeviceMesh.from_group([], "cpu"),
        lambda: dtensor.DeviceMesh.from_group(mesh.get_group("tp"), "cpu", [0, 3]),
        lambda: dtensor.DeviceMesh.from_group(mesh.get_all_groups(), "cpu"),
    ):  # fmt: skip
        try:
            call()
        except Exception as error:
            errors.append(type(error).__name__)
    return sums, same, errors


def _functional_collectives():
    from torch.distributed import _functional_collectives as collectives

    mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    x = dtensor.distribute_tensor(X, mesh, [Shard(0)])

    @dtensor.local_map(out_placements=[Replicate()], in_placements=([Shard(0)],))
    def total(part):
        return collectives.all_reduce(part.sum(), "sum", mesh.get_group("tp"))

    gathered = collectives.all_gather_tensor(x.to_local(), 0, mesh.get_group())
    return total(x).item(), DTensor.from_local(gathered, mesh).sum().item()


class Processes(unittest.TestCase):
    def test_functional_collectives_in_local_map(self):
        self.assertEqual(run_processes(2, _functional_collectives), [(X.sum().item(),) * 2] * 2)

    def test_meshes_of_torch(self):
        for rank, found in enumerate(run_processes(4, _meshes)):
            self.assertEqual(found, (True, True, True, (4, 3), 2, True, True), rank)

    def test_groups_are_process_groups(self):
        for rank, (sums, same, errors) in enumerate(run_processes(4, _groups)):
            tp = 1.0 if rank < 2 else 5.0
            self.assertEqual(sums, [(True, 2.0 if rank % 2 == 0 else 4.0), (True, tp), (True, tp), (True, 6.0), (True, 6.0)])
            self.assertEqual(same, (True, True, True))
            self.assertEqual(errors, ["RuntimeError", "KeyError", "ValueError", "ValueError", "ValueError"])


class Meshes(unittest.TestCase):
    def test_slices_with_flattened_axes(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("r", "s", "c"))
            flat = mesh["s", "c"]._flatten("sc")
            self.assertEqual(mesh["sc"], flat)
            self.assertEqual((mesh["r", "sc"].shape, mesh["r", "sc"].mesh_dim_names), ((2, 4), ("r", "sc")))
            self.assertEqual(mesh["r", "sc"].mesh.tolist(), [[0, 1, 2, 3], [4, 5, 6, 7]])
            self.assertEqual(mesh["r", "sc"]["sc"], flat)
            self.assertEqual(mesh["r"]._get_root_mesh(), mesh)
            self.assertEqual(mesh["s", "c"]._flatten("sc"), flat)
            self.assertIs(flat._flatten("sc"), flat)
            for names in ("x", ("r", "x"), (), ("sc", "x")):
                with self.assertRaisesRegex(KeyError, "Valid mesh_dim_names are"):
                    mesh[names]
            with self.assertRaisesRegex(RuntimeError, "overlapping"):
                mesh["sc", "c"]
            with self.assertRaisesRegex(ValueError, "created before"):
                mesh["r", "s"]._flatten("sc")
            with self.assertRaisesRegex(ValueError, "already exists"):
                mesh["r", "s"]._flatten("c")
            with self.assertRaisesRegex(RuntimeError, "without mesh_dim_names"):
                dtensor.init_device_mesh("cpu", (8,))["x"]
            with self.assertRaisesRegex(RuntimeError, "Optional kwarg `mesh_dim` needs to be specified when device_mesh.ndim > 1"):
                mesh.get_local_rank()

        dtensor.run(8, on_rank)

    def test_groups_are_communicators_without_torch_distributed(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            self.assertEqual([group.size for group in mesh.get_all_groups()], [2, 2])
            self.assertEqual(mesh.get_group().size, 4)
            with self.assertRaises(KeyError):
                mesh.get_group("ep")
            again = dtensor.DeviceMesh.from_group(mesh.get_group("tp"), "cpu", mesh_dim_names=("tp",))
            self.assertEqual(again, mesh["tp"])
            with self.assertRaisesRegex(ValueError, "has the ranks"):
                dtensor.DeviceMesh.from_group(mesh.get_all_groups()[::-1], "cpu", mesh.mesh, mesh_dim_names=("dp", "tp"))

        dtensor.run(4, on_rank)

    def test_ranks_outside_the_mesh_have_empty_local_tensors(self):
        def on_rank():
            mesh, outside = dtensor.DeviceMesh("cpu", [0, 2]), dtensor.rank() in (1, 3)
            t = DTensor.from_local(torch.ones(3, 4), mesh, [Shard(-2)])
            self.assertEqual((t.shape, mesh.get_coordinate()), ((6, 4), None if outside else [dtensor.rank() // 2]))
            for found, expected in [
                (t, (3, 4)), (t + 2, (3, 4)), (t.redistribute(placements=[Replicate()]), (6, 4)), (t.split([2, 2], 1)[0], (3, 2)),
                (dtensor.distribute_tensor(X, mesh, [Shard(0)]), (2, 6)), (dtensor.zeros(4, device_mesh=mesh), (4,)),
            ]:  # fmt: skip
                self.assertEqual((found.to_local().shape, found.to_local().dtype), ((0,) if outside else expected, found.dtype))
            if outside:
                with self.assertRaisesRegex(RuntimeError, "not in"):
                    mesh.get_local_rank()

        dtensor.run(4, on_rank)

    def test_the_innermost_mesh_is_the_default(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            with mesh["dp"]:
                with mesh["tp"] as inner:
                    self.assertEqual(dtensor.distribute_tensor(X).device_mesh, inner)
                    net = parallelize_module(nn.Linear(6, 4), parallelize_plan=ColwiseParallel())
                    self.assertEqual(net.weight.device_mesh, inner)
                self.assertEqual(DTensor.from_local(X).device_mesh, mesh["dp"])
                self.assertEqual(dtensor.ones(3).device_mesh, mesh["dp"])
            self.assertEqual(dtensor.distribute_tensor(X).device_mesh.shape, (4,))

        dtensor.run(4, on_rank)


if __name__ == "__main__":
    unittest.main()
