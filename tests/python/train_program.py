"""Run by mpirun, by torchrun or alone: a training program whose losses and parameters equal one device. With an argument,
rank 1 fails on purpose."""

import copy
import sys

import torch
from torch import nn

import dtensor
from dtensor import Replicate, Shard

torch.manual_seed(0)
mesh = dtensor.init_device_mesh("cpu", (dtensor.world_size(),), mesh_dim_names=("dp",))
reference = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)).double()
module = copy.deepcopy(reference)


def split(name, m, on):
    for key, parameter in m._parameters.items():
        m._parameters[key] = nn.Parameter(dtensor.distribute_tensor(parameter.detach(), on, [Shard(0)]))


dtensor.distribute_module(module, mesh, split)
optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (reference, module)]
for step in range(3):
    x, y = torch.randn(10, 8).double(), torch.randint(0, 3, (10,))
    losses = []
    for m, optimizer, place in zip((reference, module), optimizers, (lambda t: t, lambda t: dtensor.distribute_tensor(t, mesh, [Shard(0)]))):
        loss = nn.functional.cross_entropy(m(place(x)), place(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) < 1e-12, losses
if len(sys.argv) > 1 and dtensor.rank() == 1:
    raise KeyError("on purpose")
for p, q in zip(module.parameters(), reference.parameters()):
    assert torch.allclose(p.full_tensor(), q, rtol=1e-9, atol=1e-12)
assert module[0].weight.redistribute(mesh, [Replicate()]).to_local().shape == (16, 8)
dtensor.barrier()
print(f"rank {dtensor.rank()} of {dtensor.world_size()}: equal")
