"""Meshes and random placements for comparisons with the same program on one device."""

from __future__ import annotations

import os
import random

import torch

import dtensor
from dtensor import Partial, RaggedShard, Replicate, Shard, StridedShard, ZigzagShard

SHAPES = [(1,), (2,), (3,), (2, 2)]


def trials(default: int) -> int:
    """Number of random cases; DTENSOR_TRIALS overrides it for long manual runs."""
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


def ragged(draw: random.Random, dim: int, size: int, ranks: int) -> dtensor.Placement:
    """A RaggedShard of random sizes; some ranks may have none."""
    cuts = sorted(draw.randint(0, size) for _ in range(ranks - 1))
    return RaggedShard(dim, [end - begin for begin, end in zip([0, *cuts], [*cuts, size])])


def any_placements(draw: random.Random, sizes: torch.Size, mesh: dtensor.DeviceMesh, partial: bool = False) -> list[dtensor.Placement]:
    """Random placements of all kinds: uneven, ragged, strided and zigzag shards, and each reduction."""
    placements = random_placements(draw, len(sizes), mesh.ndim, partial)
    for axis, placement in enumerate(placements):
        dims = {p.dim for p in placements[:axis] + placements[axis + 1 :] if p.is_shard()}
        if placement.is_shard() and placement.dim not in dims:  # several shards of one dimension stay as they are
            ranks = mesh.size(axis)
            others = [ragged(draw, placement.dim, sizes[placement.dim], ranks), ZigzagShard(placement.dim), StridedShard(placement.dim, 2)]
            placements[axis] = draw.choice([placement, placement, *others])
        elif placement.is_partial():
            placements[axis] = Partial(draw.choice(["sum", "sum", "avg", "max", "min", "product"]))
    return placements


def noise_of(kind: str, like: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """Noise that a rank adds to its operand of a Partial, without changing the reduced value. It is integral, so that
    operands of integer values still reduce to them exactly (a target that is compared with 1)."""
    noise = torch.arange(like.numel()).remainder(5).add(1).to(like.dtype).reshape(like.shape)
    if kind in ("max", "min"):
        return noise * (0 if rank == 0 else -1 if kind == "max" else 1)
    own = (-1) ** rank * (rank + 1)
    return noise * (own - (sum((-1) ** r * (r + 1) for r in range(ranks)) if rank == 0 else 0))


def spread(tensor: torch.Tensor, mesh: dtensor.DeviceMesh, placements: list[dtensor.Placement]) -> torch.Tensor:
    """distribute_tensor with Partial operands that differ on every rank (unless one is a product, with operands x and 1)."""
    full = dtensor.distribute_tensor(tensor, mesh, placements)
    kinds = [next((k for k in ("sum", "avg", "max", "min") if p.is_partial(k)), "") for p in placements]
    if not any(kinds) or not tensor.is_floating_point() or any(p.is_partial("product") for p in placements):
        return full
    local = full.to_local().clone()
    for axis, kind in enumerate(kinds):
        if kind:
            group = mesh.communicator(axis)
            local += noise_of(kind, local, group.rank, group.size)
    return dtensor.DTensor.from_local(local, mesh, placements, shape=tensor.shape, stride=tensor.stride())


def shapes(text: str) -> list[tuple[int, ...]]:
    """Parses mesh shapes of a flag: "2,2x2"."""
    return [tuple(int(n) for n in mesh.split("x")) for mesh in text.split(",")]


def report(subjects, name_of, meshes: str, verdicts) -> int:
    """Prints the results of verdicts(subject, mesh shape), pairs of a verdict and a text, that are not "equal", and
    the count of each verdict. Returns the exit status."""
    counts = {"equal": 0, "refused": 0, "wrong": 0, "alone": 0}
    for subject in subjects:
        for shape in shapes(meshes):
            for verdict, text in verdicts(subject, shape):
                counts[verdict] += 1
                if verdict != "equal":
                    print(f"{verdict} {name_of(subject)} {'x'.join(map(str, shape))}: {text}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in counts.items()), f"of {len(subjects)}")
    return 1 if counts["wrong"] or counts["alone"] else 0
