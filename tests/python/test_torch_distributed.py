"""``torch.distributed`` with DTensors: collectives refuse them; state dictionary helpers and checkpoints accept them."""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn

import dtensor
from dtensor import Partial, Replicate, Shard

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_distributed_program.py")


def gloo():
    return dist.is_available() and dist.is_gloo_available()


def collectives():
    """(name, call with a DTensor and regular tensors)"""
    import torch.distributed._functional_collectives as functional

    regular, world = torch.ones(4), dist.group.WORLD
    yield "all_reduce", lambda d: dist.all_reduce(d)
    yield "all_reduce async", lambda d: dist.all_reduce(d, async_op=True)
    yield "all_reduce_coalesced", lambda d: dist.all_reduce_coalesced([regular, d])
    yield "reduce", lambda d: dist.reduce(d, 0)
    yield "broadcast", lambda d: dist.broadcast(d, 0)
    yield "all_gather", lambda d: dist.all_gather([torch.empty(4)], d)
    yield "all_gather into", lambda d: dist.all_gather([d], regular)
    yield "all_gather_into_tensor", lambda d: dist.all_gather_into_tensor(torch.empty(4), d)
    yield "all_gather_coalesced", lambda d: dist.all_gather_coalesced([[torch.empty(4)]], [d])
    yield "reduce_scatter", lambda d: dist.reduce_scatter(torch.empty(4), [d])
    yield "reduce_scatter_tensor", lambda d: dist.reduce_scatter_tensor(torch.empty(4), d)
    yield "gather", lambda d: dist.gather(d, [torch.empty(4)], 0)
    yield "scatter", lambda d: dist.scatter(torch.empty(4), [d], 0)
    yield "scatter into", lambda d: dist.scatter(d, [regular], 0)
    yield "all_to_all", lambda d: dist.all_to_all([torch.empty(4)], [d])
    yield "all_to_all_single", lambda d: dist.all_to_all_single(torch.empty(4), d)
    yield "send", lambda d: world.send([d], 0, 0)
    yield "recv", lambda d: world.recv([d], 0, 0)
    yield "recv from any", lambda d: world.recv_anysource([d], 0)
    yield "broadcast of many", lambda d: dist._broadcast_coalesced(world, [d], 1 << 20, 0)
    yield "functional all_reduce", lambda d: functional.all_reduce(d, "sum", world)
    yield "functional all_gather", lambda d: functional.all_gather_tensor(d, 0, world)
    yield "functional reduce_scatter", lambda d: functional.reduce_scatter_tensor(d, "sum", 0, world)
    yield "functional all_to_all", lambda d: functional.all_to_all_single(d, None, None, world)
    yield "functional broadcast", lambda d: functional.broadcast(d, 0, world)
    yield "functional coalesced", lambda d: functional.all_reduce_coalesced([d], "sum", world)
    yield "wait_tensor", lambda d: functional.wait_tensor(d)
    yield "differentiable all_reduce", lambda d: dist.nn.functional.all_reduce(d)


@unittest.skipUnless(gloo(), "this torch has no gloo")
class OneProcess(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import torch.distributed.nn  # noqa: F401

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        cls.addClassCleanup(dist.destroy_process_group)

    def test_collectives_refuse_dtensors(self):
        calls = list(collectives())

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            for name, call in calls:
                for placement in (Shard(0), Replicate(), Partial()):
                    tensor = dtensor.DTensor.from_local(torch.ones(2 if placement == Shard(0) else 4), mesh, [placement])
                    with self.assertRaisesRegex(RuntimeError, r"full_tensor\(\)", msg=name):
                        call(tensor)
                    self.assertEqual(tensor.to_local().sum().item(), tensor.to_local().numel(), name)

        dtensor.run(2, on_rank)

    def test_collectives_refuse_parameters(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            weight = nn.Parameter(dtensor.ones(4, device_mesh=mesh, placements=[Shard(0)]))
            with self.assertRaisesRegex(RuntimeError, r"full_tensor\(\)"):
                dist.all_reduce(weight)
            with torch.inference_mode(), self.assertRaisesRegex(RuntimeError, r"full_tensor\(\)"):
                dist.all_reduce(weight * 2)

        dtensor.run(2, on_rank)

    def test_regular_tensors_and_objects_are_accepted(self):
        tensor, objects = torch.tensor(1.5), [None]
        dist.all_reduce(tensor)
        dist.all_gather_object(objects, {"loss": tensor})
        dist.broadcast_object_list(objects, 0)
        self.assertEqual((tensor.item(), objects), (1.5, [{"loss": tensor}]))

    def test_ddp_refuses_dtensors(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            model[1].weight = nn.Parameter(dtensor.distribute_tensor(model[1].weight.detach(), mesh, [Shard(0)]))
            with self.assertRaisesRegex(ValueError, "'1.weight' is a DTensor.*without DistributedDataParallel"):
                nn.parallel.DistributedDataParallel(model)
            with self.assertRaisesRegex(ValueError, "'weight' is a DTensor"):
                nn.parallel.DistributedDataParallel(module=model[1], broadcast_buffers=False)

        dtensor.run(2, on_rank)
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        model(torch.ones(1, 4)).sum().backward()
        self.assertEqual(model.module.weight.grad.sum().item(), 16)


@unittest.skipUnless(dist.is_available(), "this torch has no torch.distributed")
class Threads(unittest.TestCase):
    def test_full_state_dicts_need_no_process_group(self):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        regular = nn.Linear(3, 5)

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,))
            model = nn.Linear(3, 5)
            for name, tensor in list(regular.named_parameters()):
                setattr(model, name, nn.Parameter(dtensor.distribute_tensor(tensor.detach(), mesh, [Shard(0)])))
            state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
            for name, tensor in regular.named_parameters():
                self.assertFalse(isinstance(state[name], dtensor.DTensor))
                self.assertTrue(torch.equal(state[name], tensor))

        dtensor.run(2, on_rank)


@unittest.skipUnless(gloo(), "this torch has no gloo")
class Processes(unittest.TestCase):
    def launch(self, case, ranks):
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
            free.close()
            world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = {**os.environ, **world, "OMP_NUM_THREADS": "1"}
            started = [
                subprocess.Popen(
                    [sys.executable, PROGRAM, case, folder], env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                for rank in range(ranks)
            ]  # fmt: skip
            for process in started:
                self.assertIn(f"{case} done", process.communicate(timeout=300)[0])

    def test_full_state_dicts_are_gathered(self):
        self.launch("gather", 2)
        self.launch("gather", 4)

    def test_full_state_dicts_are_distributed(self):
        self.launch("scatter", 2)
        self.launch("scatter", 4)

    def test_models_on_meta_are_loaded(self):
        self.launch("on_meta", 2)

    def test_optimizer_states_are_gathered_and_distributed(self):
        self.launch("optimizers", 2)

    def test_distributed_checkpoints_of_any_layout(self):
        self.launch("checkpoints", 2)
        self.launch("checkpoints", 4)


if __name__ == "__main__":
    unittest.main()
