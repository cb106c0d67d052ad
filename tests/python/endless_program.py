"""Communicates without end, on the ranks of the launcher or, with the argument `threads`, on two threads. tests/comm/interrupted.py
presses Ctrl-C."""

import sys

import torch

import dtensor
from dtensor import Shard


def communicate():
    mesh = dtensor.init_device_mesh("cpu", (dtensor.world_size(),))
    x = dtensor.distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    if dtensor.rank() == 0:
        print("started", flush=True)
    while True:
        x.sum().item()


if "threads" in sys.argv:
    dtensor.run(2, communicate)
else:
    communicate()
