"""Meshes on a GPU, whose thread ranks share it. Skipped without a GPU, or where the package was built for another PyTorch."""

import copy
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
