"""FlopCounterMode counts one rank's share: the count of one device, divided by the ranks that share the operator. Like every
dispatch mode it receives operators with global sizes."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.utils import _pytree

from . import _C


def _dtensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and _C.is_dtensor(t)]


def _splits(tensors: list[torch.Tensor], axis: int) -> bool:
    return any(t.placements[axis].is_shard() and not t.placements[axis].is_storage for t in tensors)


def ranks_sharing(operands: Any, results: Any) -> int:
    """Number of ranks that share the work: the product of the axes that shard a result, or that shard operands and make a
    result Partial. Storage shards do not count, since they are gathered before the computation."""
    given, found = _dtensors(operands), _dtensors(results)
    if not found:
        return 1
    mesh, ranks = found[0].device_mesh, 1
    given = [t for t in given if t.device_mesh == mesh]
    for axis in range(mesh.ndim):
        summed = any(t.placements[axis].is_partial() for t in found) and _splits(given, axis)
        if summed or _splits(found, axis):
            ranks *= mesh.size(axis)
    return ranks


def _flop_counter_mode() -> Any:
    log = logging.getLogger("torch.utils.flop_counter")
    level = log.level
    log.setLevel(logging.ERROR)  # without triton the import warns about kernels that may never be counted
    try:
        from torch.utils.flop_counter import FlopCounterMode
    finally:
        log.setLevel(level)
    return FlopCounterMode


def install() -> None:
    """Makes every FlopCounterMode divide the counts of operators on DTensors."""
    mode = _flop_counter_mode()
    count = mode._count_flops

    def count_of_a_rank(self: Any, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        ranks = ranks_sharing((args, kwargs), out)
        formula = self.flop_registry.get(func_packet)
        if ranks == 1 or formula is None:
            return count(self, func_packet, out, args, kwargs)
        self.flop_registry[func_packet] = lambda *args, **kwargs: formula(*args, **kwargs) // ranks
        try:
            return count(self, func_packet, out, args, kwargs)
        finally:
            self.flop_registry[func_packet] = formula

    mode._count_flops = count_of_a_rank
