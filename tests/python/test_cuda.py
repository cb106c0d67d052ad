"""Meshes on GPUs: thread ranks that share one, and processes over NCCL. Without a GPU, the error of such a mesh."""

import copy
import os
import socket
import subprocess
import sys
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Replicate, Shard
from dtensor.fsdp import fully_shard
from dtensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).double()


def one_step(model, x):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, dtensor.DTensor) else tensor).detach().cpu()


def train_over_nccl():
    """One of two processes. The step equals that of one CPU, and tensors move over NCCL."""
    reference, x = network(), torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = copy.deepcopy(reference)
    one_step(reference, x)
    mesh = dtensor.init_device_mesh("cuda", (2,), mesh_dim_names=("dp",))
    assert torch.cuda.current_device() == dtensor.rank() % torch.cuda.device_count()
    assert mesh.communicator().backend == "nccl", mesh.communicator()
    model.cuda()
    fully_shard(model, mesh=mesh)
    one_step(model, dtensor.distribute_tensor(x.cuda(), mesh, [Shard(0)]))
    for name, parameter in model.named_parameters():
        assert parameter.is_cuda
        torch.testing.assert_close(full(parameter), reference.get_parameter(name).detach())


def make_mesh():
    dtensor.init_device_mesh("cuda", (2,), mesh_dim_names=("dp",))


def outcomes(function, **variables):
    """Exit status and output of two processes of a launcher that call a function of this file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(2):
        path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])
        environment = dict(os.environ, DTENSOR_RANK=str(rank), DTENSOR_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port), PYTHONPATH=path, **variables)  # fmt: skip
        started.append(subprocess.Popen([sys.executable, "-c", f"import test_cuda; test_cuda.{function.__name__}()"],
                                        env=environment, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT))  # fmt: skip
    outputs = [process.communicate(timeout=120)[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs)]


class Processes(unittest.TestCase):
    def test_a_mesh_without_a_gpu_is_an_error(self):
        for status, output in outcomes(make_mesh, CUDA_VISIBLE_DEVICES=""):
            self.assertNotEqual(status, 0)
            self.assertRegex(output, "expected a GPU for each rank, but CUDA finds none for rank 0; check nvidia-smi"
                             "|NCCL cannot be loaded: .*; build dtensor with a CUDA toolkit and NCCL")  # fmt: skip

    @unittest.skipUnless(torch.cuda.device_count() > 1 or os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1",
                         "needs two GPUs, or NCCL 2.30")  # fmt: skip
    def test_two_processes_train_over_nccl(self):
        self.assertEqual(outcomes(train_over_nccl), [(0, "")] * 2)


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class Cuda(unittest.TestCase):
    def check_step(self, shard):
        reference, x = network(), torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        models = [copy.deepcopy(reference) for _ in range(2)]
        one_step(reference, x)

        def body():
            model = models[dtensor.rank()].cuda()
            mesh = dtensor.init_device_mesh("cuda", (2,), mesh_dim_names=("dim",))
            one_step(model, shard(model, mesh, x.cuda()))
            for name, parameter in model.named_parameters():
                self.assertTrue(parameter.is_cuda)
                torch.testing.assert_close(full(parameter), reference.get_parameter(name).detach())

        dtensor.run(2, body)

    def test_fully_shard_equals_one_cpu(self):
        def shard(model, mesh, x):
            fully_shard(model, mesh=mesh)
            return dtensor.distribute_tensor(x, mesh, [Shard(0)])

        self.check_step(shard)

    def test_tensor_parallel_equals_one_cpu(self):
        def shard(model, mesh, x):
            parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            return x

        self.check_step(shard)

    def test_operators_and_redistribution_stay_on_the_device(self):
        def body():
            mesh = dtensor.init_device_mesh("cuda", (2,))
            x = dtensor.distribute_tensor(torch.arange(12.0).view(4, 3).cuda(), mesh, [Shard(0)])
            y = (x @ x.t()).redistribute(mesh, [Replicate()])
            self.assertTrue(y.to_local().is_cuda)
            regular = torch.arange(12.0).view(4, 3)
            torch.testing.assert_close(y.to_local().cpu(), regular @ regular.t())

        dtensor.run(2, body)


if __name__ == "__main__":
    unittest.main()
