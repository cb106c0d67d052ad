"""``local_map``: code of one's own on each rank's part, between DTensors."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from . import _C
from ._api import Placements
from ._C import Placement
from .placement_types import as_placements

__all__ = ["local_map"]


def local_map(
    fn: Callable[..., Any],
    out_placements: Sequence[Placements],
    in_placements: Sequence[Placements] | None = None,
    in_grad_placements: Sequence[Placements] | None = None,
) -> Callable[..., Any]:
    """``fn`` on local tensors as a function of DTensors: inputs are brought to ``in_placements`` first, where given.

    ``fn`` returns a tensor or a tuple of tensors; ``out_placements`` says how each is placed, or how a single one is on
    each dimension of the mesh. None: an input or its gradient as it is, an output that stays what ``fn`` returned.
    Tensors within lists or dictionaries among the arguments reach ``fn`` as they are.
    """
    ins = None if in_placements is None else [as_placements(p) for p in in_placements]
    grads = None if in_grad_placements is None else [as_placements(p) for p in in_grad_placements]

    def call(*args: Any) -> Any:
        at = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        outs, returned = _out_placements(out_placements, args), None

        def on_locals(*locals_: torch.Tensor) -> list[torch.Tensor]:
            nonlocal returned
            given = dict(zip(at, locals_))
            returned = fn(*(given.get(i, arg) for i, arg in enumerate(args)))
            results = _as_tuple(returned)
            if len(results) != len(outs):
                raise RuntimeError(f"local_map: the function returned {len(results)} values for {len(outs)} out_placements")
            placed_ = [(result, p) for result, p in zip(results, outs) if p is not None]
            for result, p in placed_:
                if not isinstance(result, torch.Tensor):
                    raise TypeError(f"local_map: out_placements says {p} of {result!r}, which is no tensor; None keeps it as it is")
            return [result for result, _ in placed_]

        tensors, placed = [args[i] for i in at], [p for p in outs if p is not None]
        wanted, gradients = _of_tensors("in_placements", ins, args), _of_tensors("in_grad_placements", grads, args)
        wanted = [_own(t) if p is None else p for t, p in zip(tensors, wanted)]
        wrapped = iter(_C.local_map(on_locals, tensors, placed, wanted, [p or [] for p in gradients]))
        results = tuple(r if p is None else next(wrapped) for r, p in zip(_as_tuple(returned), outs))
        return results if isinstance(returned, (list, tuple)) else results[0]

    return call


def _as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (list, tuple)) else (values,)


def _own(tensor: torch.Tensor) -> list[Placement]:
    return list(tensor.placements) if _C.is_dtensor(tensor) else []


def _of_tensors(what: str, given: list[Any] | None, args: Sequence[Any]) -> list[Any]:
    """Those of the arguments that are tensors; none where none were given."""
    if given is None:
        return []
    if len(given) != len(args):
        raise RuntimeError(f"local_map: {len(given)} {what} for {len(args)} inputs")
    return [placements for placements, arg in zip(given, args) if isinstance(arg, torch.Tensor)]


def _out_placements(given: Sequence[Placements], args: Sequence[Any]) -> list[list[Placement] | None]:
    """Of each output. On a mesh of several dimensions bare placements are those of one output, one for each dimension."""
    axes = next((arg.device_mesh.ndim for arg in args if _C.is_dtensor(arg)), 1)
    if axes > 1 and all(isinstance(p, Placement) for p in given):
        return [as_placements(given)]
    return [as_placements(p) for p in given]
