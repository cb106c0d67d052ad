"""Placements with the names of ``torch.distributed.tensor``.

All are one value type, :class:`Placement`; ``Shard``, ``Replicate`` and ``Partial`` create such values and test for them:
``isinstance(t.placements[0], Shard)``.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ._C import Placement

__all__ = ["Placement", "Shard", "Replicate", "Partial", "StridedShard", "RaggedShard", "ZigzagShard", "BlockShard"]


class _Kind(type):
    """A class whose instances are the placements of one kind."""

    _test: Callable[[Placement], bool]

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Placement) and cls._test(value)


class Shard(metaclass=_Kind):
    """Split along tensor dimension ``dim``, as ``torch.chunk`` splits (shards may be uneven or empty)."""

    _test = staticmethod(lambda p: p.is_shard())

    def __new__(cls, dim: int = 0) -> Placement:  # type: ignore[misc]
        return Placement.shard(dim)


class StridedShard(metaclass=_Kind):
    """Split after the mesh dimensions to the right have split ``dim`` into ``split_factor`` pieces (FSDP over TP)."""

    _test = staticmethod(lambda p: p.is_strided())

    def __new__(cls, dim: int, split_factor: int) -> Placement:  # type: ignore[misc]
        return Placement.strided_shard(dim, split_factor)


class RaggedShard(metaclass=_Kind):
    """Split along ``dim`` into parts of the given sizes, one for each rank of the mesh dimension."""

    _test = staticmethod(lambda p: p.is_ragged())

    def __new__(cls, dim: int, sizes: Sequence[int]) -> Placement:  # type: ignore[misc]
        return Placement.ragged_shard(dim, list(sizes))


class ZigzagShard(metaclass=_Kind):
    """Splits ``dim`` into 2 P chunks; rank r of P stores chunks r and 2 P - 1 - r, which balances causal attention."""

    _test = staticmethod(lambda p: p.is_zigzag())

    def __new__(cls, dim: int, split_factor: int = 1) -> Placement:  # type: ignore[misc]
        return Placement.zigzag_shard(dim, split_factor)


class Replicate(metaclass=_Kind):
    """Replicated: every rank of the mesh dimension stores all values."""

    _test = staticmethod(lambda p: p.is_replicate())

    def __new__(cls) -> Placement:  # type: ignore[misc]
        return Placement.replicate()


class Partial(metaclass=_Kind):
    """Each rank stores one operand; the tensor is their reduction by ``sum``, ``avg``, ``max``, ``min`` or ``product``."""

    _test = staticmethod(lambda p: p.is_partial())

    def __new__(cls, reduce_op: str = "sum") -> Placement:  # type: ignore[misc]
        return Placement.partial(reduce_op)


def BlockShard(dim: int, size: int, block: int, ranks: int) -> Placement:
    """Chunks of complete blocks of ``block`` elements: ``size`` elements of ``dim`` over ``ranks`` ranks."""
    return Placement.block_shard(dim, size, block, ranks)


def as_placement(placement: Any) -> Placement:
    """Converts a placement of ``torch.distributed.tensor``; other types are a TypeError."""
    return placement if isinstance(placement, Placement) else Placement(placement)


def as_placements(placements: Any) -> list[Placement] | None:
    """A list from one placement, a sequence of them, or a string like ``"[S(0), R]"``."""
    if placements is None:
        return None
    if isinstance(placements, str):
        return [Placement.parse(part) for part in _split(placements)]
    if isinstance(placements, (list, tuple)) or not hasattr(placements, "is_shard"):
        return [as_placement(placement) for placement in placements]
    return [as_placement(placements)]


def _split(text: str) -> list[str]:
    """The placements in ``[S(0), SS(0, 2)]``: commas inside parentheses separate arguments."""
    parts, depth = [""], 0
    for char in text.strip().removeprefix("[").removesuffix("]"):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]
