"""A model with its data for one device and for a mesh, and a test case that runs on two ranks."""

import copy
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Shard
from layouts import mesh_of

# Created once, before ranks run, since threads share torch's generator.
torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.GELU(), nn.Linear(10, 3)).double()
MATRIX = nn.Linear(6, 4, bias=False)
DATA = torch.randn(7, 6).double(), torch.randint(0, 3, (7,))


def model(dtype=torch.float64):
    return copy.deepcopy(MODEL).to(dtype)


def on_mesh(module, mesh, placement=Shard(0)):
    def split(name, m, on):
        for key, parameter in m._parameters.items():
            if parameter is not None:
                m._parameters[key] = nn.Parameter(dtensor.distribute_tensor(parameter.detach(), on, [placement]))

    return dtensor.distribute_module(module, mesh, split)


def data(dtype=torch.float64):
    return DATA[0].to(dtype), DATA[1].clone()


class Ranks(unittest.TestCase):
    ranks = 2

    def everywhere(self, check):
        return dtensor.run(self.ranks, lambda: check(mesh_of((self.ranks,))))
