"""``local_map`` applies a function of local tensors to DTensors."""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import torch
from torch.utils import _pytree

from . import _C
from ._api import Placements
from ._C import DeviceMesh, Placement
from ._mesh import as_mesh
from ._tensor import wait_if_async
from .placement_types import as_placements

__all__ = ["local_map"]

Lists = list[list[Placement] | None]


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Placements | tuple[Placements, ...] = None,
    in_placements: Sequence[Placements] | None = None,
    in_grad_placements: Sequence[Placements] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Callable[..., Any]:
    """Makes ``func``, a function of local tensors, a function of DTensors; without ``func`` returns a decorator.

    Positional arguments and results may be nested in lists, tuples and dictionaries; placements are given for their leaves.
    ``out_placements``: for one result its placements, one for each mesh dimension; for several a tuple with an entry for
    each. None: the result stays what ``func`` returned. ``in_placements``: the required placements of the DTensors (None:
    any). Other placements are an error, or are redistributed with ``redistribute_inputs=True``. ``in_grad_placements``:
    placements of each rank's gradients of local inputs; None: inferred. ``device_mesh``: mesh of the results, by default
    that of the inputs. Keyword arguments are passed to ``func`` unchanged. Without DTensors only ``func`` is called.
    """
    if func is None:
        return lambda fn: local_map(
            fn, out_placements, in_placements, in_grad_placements, device_mesh, redistribute_inputs=redistribute_inputs
        )
    ins, grads = _of_leaves(in_placements), _of_leaves(in_grad_placements)

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = _pytree.tree_flatten(args)
        mesh = next((leaf.device_mesh for leaf in leaves if _C.is_dtensor(leaf)), None)
        if mesh is None:
            return func(*args, **kwargs)
        on = mesh if device_mesh is None else as_mesh(device_mesh)
        wanted = _inputs("in_placements", ins, leaves)
        if not redistribute_inputs:
            _check_placements(leaves, wanted)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        results = _Results(out_placements, on)

        def on_locals(*locals_: torch.Tensor) -> list[torch.Tensor]:
            given = dict(zip(at, locals_))
            own = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
            return results.flatten(func(*_pytree.tree_unflatten(own, tree), **kwargs))

        gradients = _inputs("in_grad_placements", grads, leaves)
        tensors, each = [leaves[i] for i in at], [wanted[i] or _own(leaves[i]) for i in at]
        grad_placements = [] if grads is None else [gradients[i] or [] for i in at]
        if on == mesh:
            return results.unflatten(_C.local_map(on_locals, tensors, results.placements, each, grad_placements))
        locals_ = [_local(*item) for item in zip(tensors, each, grad_placements or [None] * len(at))]
        placed = [_C.from_local(r, on, p, None, None) for r, p in zip(on_locals(*locals_), results.placements)]
        return results.unflatten(placed)

    return call


def _local(tensor: torch.Tensor, placements: list[Placement], gradient: list[Placement] | None) -> torch.Tensor:
    if not _C.is_dtensor(tensor):
        return tensor
    return _C.to_local(_C.redistribute(tensor, None, placements), gradient or [])


class _Results:
    """The function's returned leaves, and which of them become DTensors."""

    def __init__(self, out_placements: Any, mesh: DeviceMesh) -> None:
        self._wanted = _of_results(out_placements, mesh)
        self.placements = [p for p in self._wanted if p is not None]

    def flatten(self, returned: Any) -> list[torch.Tensor]:
        self._leaves, self._tree = _pytree.tree_flatten(returned)
        if len(self._leaves) != len(self._wanted):
            raise RuntimeError(
                f"local_map: func returned {len(self._leaves)} values, expected {len(self._wanted)} as in out_placements"
            )
        for leaf, placements in zip(self._leaves, self._wanted):
            if placements is not None and not isinstance(leaf, torch.Tensor):
                raise TypeError(
                    f"local_map: out_placements has {placements} for {leaf!r}, which is not a tensor; use None to keep it"
                )
        return [wait_if_async(leaf) for leaf, placements in zip(self._leaves, self._wanted) if placements is not None]

    def unflatten(self, placed: list[torch.Tensor]) -> Any:
        tensors = iter(placed)
        leaves = [leaf if p is None else next(tensors) for leaf, p in zip(self._leaves, self._wanted)]
        return _pytree.tree_unflatten(leaves, self._tree)


def _of_leaves(given: Sequence[Placements] | None) -> Lists | None:
    return None if given is None else [as_placements(placements) for placements in given]


def _inputs(what: str, given: Lists | None, leaves: Sequence[Any]) -> Lists:
    """Placements of each leaf; None for unspecified ones."""
    if given is None:
        return [None] * len(leaves)
    if len(given) != len(leaves):
        raise RuntimeError(f"local_map: got {len(given)} {what}, expected one for each of the {len(leaves)} inputs")
    return given


def _own(tensor: torch.Tensor) -> list[Placement]:
    return list(tensor.placements) if _C.is_dtensor(tensor) else []


def _check_placements(leaves: Sequence[Any], wanted: Lists) -> None:
    for leaf, placements in zip(leaves, wanted):
        if placements is None or not _C.is_dtensor(leaf):
            continue
        computed = [Placement.replicate() if p.is_storage else p for p in leaf.placements]
        normalized = [_with_positive_dim(p, leaf.dim()) for p in placements]
        if normalized not in (list(leaf.placements), computed):
            raise ValueError(
                f"local_map: an input {_C.spec_of(leaf)} has a mismatched placements: expected {placements}. If "
                "redistribute_inputs is wanted, set redistribute_inputs=True to local_map."
            )


def _with_positive_dim(placement: Placement, ndim: int) -> Placement:
    return Placement.shard(placement.dim + ndim) if placement.is_shard() and placement.dim < 0 else placement


def _of_results(given: Any, mesh: DeviceMesh) -> Lists:
    """Placements of each result. On a mesh of several dimensions a flat tuple of placements belongs to one result."""
    if given is None:
        return [None]
    if not isinstance(given, (list, tuple)):
        return [as_placements(given)]
    bare = all(hasattr(p, "is_shard") for p in given)
    if bare and (not isinstance(given, tuple) or mesh.ndim > 1):
        return [as_placements(given)]
    return [as_placements(p) for p in given]
