"""fully_shard: results of one device, collectives of a step, names and options of torch.distributed.fsdp."""

import copy
import inspect
import unittest

import torch
import torch.distributed.fsdp as theirs
from torch import nn

import dtensor
from dtensor import DTensor, Shard
from dtensor.fsdp import DataParallelMeshDims, FSDPModule, MixedPrecisionPolicy, fully_shard
from residual_net import IDS, NET, TARGETS, Block, loss_of, reference, rows


class FullyShard(unittest.TestCase):
    def shard(self, mesh, net=NET, blocks=None, **options):
        module = copy.deepcopy(net)
        for block in module.blocks:
            fully_shard(block, mesh=mesh, **(blocks or options))
        return fully_shard(module, mesh=mesh, **options)

    def test_signature_matches_torch(self):
        lacks = set(inspect.signature(theirs.fully_shard).parameters) - set(inspect.signature(fully_shard).parameters)
        self.assertLessEqual(lacks, {"dp_mesh_dims"})

    def train(self, mesh, ids, targets, module, steps=3):
        optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.1), []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(module, ids, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def check_equal(self, module, regular):
        for (name, p), q in zip(module.named_parameters(), regular.parameters()):
            torch.testing.assert_close(p.detach().full_tensor(), q.detach(), rtol=1e-9, atol=1e-12, msg=name)

    def test_dtensor_inputs(self):
        regular, expected = reference()

        def check(shape, names):
            mesh = dtensor.init_device_mesh("cpu", shape, mesh_dim_names=names)
            module = self.shard(mesh)
            self.assertIsInstance(module, FSDPModule)
            self.assertIsInstance(module.blocks[0], (FSDPModule, Block))
            self.assertIs(module.head.weight, module.embed.weight)
            self.assertTrue(module.blocks[0].up.weight.placements[-1].is_storage)
            ids, targets = [dtensor.distribute_tensor(t, mesh, [Shard(0)] * mesh.ndim) for t in (IDS, TARGETS)]
            losses = self.train(mesh, ids, targets, module)
            for a, b in zip(losses, expected):
                self.assertAlmostEqual(a, b, delta=1e-11)
            self.check_equal(module, regular)

        dtensor.run(2, check, (2,), ("dp",))
        dtensor.run(3, check, (3,), ("dp",))
        dtensor.run(4, check, (2, 2), ("replicate", "shard"))

    def test_regular_inputs_are_each_ranks_rows(self):
        regular, expected = reference()

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = self.shard(mesh)
            ids, targets = (rows(t, dtensor.rank(), 2) for t in (IDS, TARGETS))
            self.assertNotIsInstance(module(ids), DTensor)
            losses = self.train(mesh, ids, targets, module)
            self.check_equal(module, regular)
            return losses

        both = dtensor.run(2, check)
        for a, b, one in zip(*both, expected):
            self.assertAlmostEqual((a + b) / 2, one, delta=1e-11)

    def test_collectives_of_a_step(self):
        def check(reshard):
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = self.shard(mesh, reshard_after_forward=reshard)
            ids, targets = [dtensor.distribute_tensor(t, mesh, [Shard(0)]) for t in (IDS, TARGETS)]
            loss_of(module, ids, targets).backward()
            module.zero_grad()
            with dtensor.CommDebugMode() as comm:
                loss = loss_of(module, ids, targets)
                forward = comm.get_comm_counts()
                loss.backward()
            units = 4  # three blocks, and the root, whose tied weight is used at the beginning and at the end
            self.assertEqual(forward.get("all_gather"), units + 1 if reshard else units)
            self.assertEqual(comm.get_comm_counts()["all_gather"], units + 1 + 3 if reshard else units)
            self.assertEqual(comm.get_comm_counts()["reduce_scatter"], units)
            self.assertEqual(module.fsdp_stats()["gathered_bytes"], 0)

        dtensor.run(2, check, False)
        dtensor.run(2, check, True)

    def test_accumulation_without_sync(self):
        regular = copy.deepcopy(NET)
        (loss_of(regular, IDS[:4], TARGETS[:4]) + loss_of(regular, IDS[4:], TARGETS[4:])).backward()

        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            module = self.shard(mesh)
            parts = []
            for sync, half in [(False, slice(0, 4)), (True, slice(4, 8))]:
                ids, targets = [dtensor.distribute_tensor(t[half], mesh, [Shard(0)]) for t in (IDS, TARGETS)]
                module.set_requires_gradient_sync(sync)
                with dtensor.CommDebugMode() as comm:
                    loss_of(module, ids, targets).backward()
                parts.append(comm.get_comm_counts().get("reduce_scatter", 0))
            self.assertEqual(parts, [0, 4])
            for (name, p), q in zip(module.named_parameters(), regular.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad, rtol=1e-9, atol=1e-12, msg=name)

        dtensor.run(2, check)

    def test_mixed_precision(self):
        def check():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
            of_blocks = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
            module = self.shard(mesh, copy.deepcopy(NET).float(), blocks=of_blocks, mp_policy=policy)
            seen = []
            module.blocks[0].up.register_forward_hook(lambda m, a, y: seen.append((m.weight.dtype, y.dtype)))
            ids, targets = [dtensor.distribute_tensor(t, mesh, [Shard(0)]) for t in (IDS, TARGETS)]
            out = module(ids)
            self.assertEqual((seen, out.dtype), ([(torch.bfloat16, torch.bfloat16)], torch.float32))
            loss = nn.functional.cross_entropy(out.flatten(0, 1), targets.flatten())
            loss.backward()
            self.assertIsInstance(module.blocks[0].up.weight, nn.Parameter)
            self.assertEqual({p.grad.dtype for p in module.parameters()}, {torch.float32})
            self.assertAlmostEqual(loss.item(), loss_of(NET, IDS, TARGETS).item(), delta=0.05)

        dtensor.run(2, check)

    def test_bad_arguments(self):
        def check():
            mesh = dtensor.init_device_mesh("cpu", (1, 1, 1))
            with self.assertRaisesRegex(ValueError, "3 dimensions"):
                fully_shard(copy.deepcopy(NET), mesh=mesh)

        dtensor.run(1, check)


class Names(unittest.TestCase):
    def test_all_names_of_torch_exist(self):
        ours = set(dir(FSDPModule))
        self.assertEqual([name for name in dir(theirs.FSDPModule) if not name.startswith("_") and name not in ours], [])
        for ours_, theirs_ in [(fully_shard, theirs.fully_shard), (MixedPrecisionPolicy, theirs.MixedPrecisionPolicy)]:
            lacks = set(inspect.signature(theirs_).parameters) - set(inspect.signature(ours_).parameters)
            self.assertEqual(lacks, set())

    def test_param_dtype_override_fn(self):
        def on_rank():
            net, seen = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), []
            for layer in net:
                layer.register_forward_hook(lambda m, args, y: seen.append(m.weight.dtype))
            keep = set(net[0].parameters())
            override = lambda p: p.dtype if p in keep else None  # noqa: E731
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False, param_dtype_override_fn=override)
            fully_shard(net, mp_policy=policy)
            with torch.autocast("cpu", torch.bfloat16):
                net(torch.ones(2, 4)).sum().backward()
            return seen

        self.assertEqual(dtensor.run(2, on_rank)[0], [torch.float32, torch.bfloat16])

    def test_dp_mesh_dims(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
            dims = DataParallelMeshDims(shard=("dp", "cp"))
            net = fully_shard(nn.Linear(8, 4), mesh=mesh, dp_mesh_dims=dims)
            both = fully_shard(nn.Linear(8, 4), mesh=mesh, dp_mesh_dims=DataParallelMeshDims("cp", "dp"))
            return net.weight.device_mesh.shape, both.weight.device_mesh.mesh_dim_names

        self.assertEqual(dtensor.run(8, on_rank)[0], ((4,), ("dp", "cp")))


if __name__ == "__main__":
    unittest.main()
