"""Meshes, random placements and what the tests compare with: the same program on one device, in plain torch."""

from __future__ import annotations

import os
import random

import torch

import dtensor
from dtensor import Partial, Replicate, Shard

SHAPES = [(1,), (2,), (3,), (2, 2)]


def trials(default: int) -> int:
    """How many random cases: DTENSOR_TRIALS says otherwise, for long runs by hand."""
    return int(os.environ.get("DTENSOR_TRIALS", default))


def mesh_of(shape: tuple[int, ...]) -> dtensor.DeviceMesh:
    return dtensor.init_device_mesh("cpu", shape, mesh_dim_names=tuple("abc"[: len(shape)]))


def ranks_of(shape: tuple[int, ...]) -> int:
    ranks = 1
    for size in shape:
        ranks *= size
    return ranks


def random_placements(draw: random.Random, ndim: int, axes: int, partial: bool = False) -> list[dtensor.Placement]:
    kinds = [Replicate()] + [Shard(dim) for dim in range(ndim)] * 2 + ([Partial()] if partial else [])
    return [draw.choice(kinds) for _ in range(axes)]


def spread(tensor: torch.Tensor, mesh: dtensor.DeviceMesh, placements: list[dtensor.Placement]) -> torch.Tensor:
    """distribute_tensor, with shares of a Partial that differ on every rank."""
    whole = dtensor.distribute_tensor(tensor, mesh, placements)
    if not any(p.is_partial("sum") for p in placements) or not tensor.is_floating_point():
        return whole
    local = whole.to_local().clone()
    for axis, placement in enumerate(placements):
        if placement.is_partial("sum"):
            group = mesh.get_group(axis)
            # Whole numbers: shares of what is whole add up to it exactly (a target that is compared with 1).
            noise = torch.arange(local.numel()).remainder(5).add(1).to(local.dtype).reshape(local.shape)
            local += noise * ((-1) ** group.rank * (group.rank + 1))
            total = sum((-1) ** r * (r + 1) for r in range(group.size))
            if group.rank == 0:
                local -= noise * total
    return dtensor.DTensor.from_local(local, mesh, placements, shape=tensor.shape, stride=tensor.stride())
