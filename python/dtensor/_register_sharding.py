"""``register_sharding``: acceptable placements of an operator, as a sharding rule.

Each entry lists the placements of results and operands on one mesh dimension. Entries become factors of one rule
(docs/rules.md): dimensions that an entry shards together share a factor, so a dimension can occur in only one entry.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch.utils import _pytree

from . import _C
from ._C import Placement
from .placement_types import as_placement

__all__ = ["register_sharding"]

Entry = tuple[list[Placement | None], list[Placement | None]]


class TensorMeta(NamedTuple):
    """The global shape and dtype of a tensor, as passed to a sharding function."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]


def register_sharding(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for functions that return the acceptable placements of ``op``, an overload or a list of overloads.

    The function takes the operator's arguments, with :class:`TensorMeta` for tensors, and returns a list of entries
    ([placements of the results], [placements of the arguments, None for non-tensors]), each for one mesh dimension. Lists of
    tensors are flattened, a list of numbers is one argument, and the last arguments may be left out if they are no tensors.
    It replaces the operator's rule. All operands replicated is always acceptable. Register before ranks run.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for overload in op if isinstance(op, (list, tuple)) else [op]:
            _register(overload, fn)
        return fn

    return register


def _register(overload: Any, fn: Callable[..., Any]) -> None:
    schema = overload._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    named = [a.name for a in schema.arguments if a.kwarg_only]
    lists = {a.name for a in schema.arguments if _is_tensor_list(a.type)}

    def slots(values: dict[str, Any]) -> list[str]:
        of_list = {n: len(values[n]) for n in lists if isinstance(values.get(n), list)}
        return [n for n in positional + named for _ in range(of_list.get(n, 1))]

    def call(fn_: Callable[..., Any], values: dict[str, Any]) -> Any:
        return fn_(*(values.get(n) for n in positional), **{n: values[n] for n in named if n in values})

    def outputs(operands: list[Any], non_tensors: dict[str, Any]) -> list[Any]:
        values = {**non_tensors, **_tensors(operands, lists)}
        with torch.no_grad():
            on_meta = {n: _pytree.tree_map_only(TensorMeta, _on_meta, v, is_leaf=_is_meta) for n, v in values.items()}
            results = call(overload, on_meta)
        return [(list(t.shape), list(t.stride()), t.dtype) for t in _pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]

    def rule(operands: list[Any], non_tensors: dict[str, Any], ranks: list[int]) -> Any:
        values = {**non_tensors, **_tensors(operands, lists)}
        return _parts(_Factors(name, operands, ranks), operands, slots(values), call(fn, values))

    _C.register_sharding(name, positional + named, rule, outputs)


def _is_meta(value: Any) -> bool:
    return isinstance(value, TensorMeta)


def _on_meta(meta: TensorMeta) -> torch.Tensor:
    return torch.empty(meta.shape, dtype=meta.dtype, device="meta")


def _is_tensor_list(kind: Any) -> bool:
    while isinstance(kind, torch.OptionalType):
        kind = kind.getElementType()
    return isinstance(kind, torch.ListType) and "Tensor" in str(kind.getElementType())


def _tensors(operands: list[Any], lists: set[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for argument, shape, dtype in operands:
        meta = None if shape is None else TensorMeta(tuple(shape), dtype)
        if argument in lists:
            result.setdefault(argument, []).append(meta)
        else:
            result[argument] = meta
    return result


def _placements_of_operands(name: str, operands: list[Any], slots: list[str], given: Any) -> Any:
    """Placements of each tensor operand. ``slots``: the argument of each element of an entry, which may leave out the last."""
    if len(given) > len(slots):
        raise ValueError(f"register_sharding({name}): expected placements for {slots}, got {len(given)}: {given}")
    placed: dict[str, list[Any]] = {}
    for argument, placement in zip(slots, [*given, *[None] * (len(slots) - len(given))]):
        placed.setdefault(argument, []).append(None if placement is None else as_placement(placement))
    result = [placed[argument].pop(0) for argument, _, _ in operands]
    for (argument, shape, _), placement in zip(operands, result):
        if shape is not None and placement is None:
            raise ValueError(f"register_sharding({name}): expected a placement for the tensor `{argument}` of {slots}, got {given}")
    if any(placement is not None for rest in placed.values() for placement in rest):
        raise ValueError(f"register_sharding({name}): expected None for arguments of {slots} that are no tensors, got {given}")
    return result


class _Factors:
    """The factors of one rule, collected from entries."""

    def __init__(self, name: str, operands: list[Any], ranks: list[int]) -> None:
        self.name, self.count = name, 0
        self.ins: list[list[list[int]]] = [[[] for _ in shape or ()] for _, shape, _ in operands]
        self.outs: list[list[list[int]]] = [[[] for _ in range(rank)] for rank in ranks]
        self.linear: list[list[int]] = []

    def refuse(self, entry: Any, why: str) -> None:
        raise NotImplementedError(f"register_sharding({self.name}): {entry} {why}")

    def add(self, outs: list[Placement], ins: list[Placement | None], entry: Any) -> None:
        shards = [p for p in (*outs, *ins) if p is not None and p.is_shard()]
        shares = [i for i, p in enumerate(ins) if p is not None and p.is_partial()]
        if shards:
            self._add_factor(outs, ins, shares, entry)
        elif shares:
            if not all(p.is_partial("sum") for p in outs) or not all(ins[i].is_partial("sum") for i in shares):
                self.refuse(entry, "is not supported: Partial operands need Partial(sum) operands and results")
            self.linear.append(shares)
        elif any(p.is_partial() for p in outs):
            self.refuse(entry, "is not supported: replicated operands cannot give Partial results")

    def _add_factor(self, outs: list[Placement], ins: list[Placement | None], shares: list[int], entry: Any) -> None:
        split_ins = [(self.ins[i], p) for i, p in enumerate(ins) if p is not None and p.is_shard()]
        if not split_ins or shares:
            self.refuse(entry, "is not supported: it shards results without operands, or mixes sharded and Partial operands")
        if any(p.is_replicate() or (p.is_partial() and not p.is_partial("sum")) for p in outs):
            self.refuse(entry, "is not supported: results must be sharded or Partial(sum)")
        for dims, placement in [*split_ins, *((o, p) for o, p in zip(self.outs, outs) if p.is_shard())]:
            if not -len(dims) <= placement.dim < len(dims) or dims[placement.dim]:
                self.refuse(entry, f"shards dimension {placement.dim}, which is missing or already sharded by another entry")
            dims[placement.dim].append(self.count)
        self.count += 1


def _parts(factors: _Factors, operands: list[Any], slots: list[str], entries: Sequence[Any]) -> Any:
    for outs, ins in entries:
        factors.add([as_placement(p) for p in outs], _placements_of_operands(factors.name, operands, slots, ins), (outs, ins))
    return factors.count, factors.ins, factors.outs, factors.linear
