"""Factories of DTensors: each rank creates only its shard."""

from __future__ import annotations

import operator
from typing import Any, Callable, Sequence

import torch

from . import _C
from ._api import DTensor, Placements
from ._C import DeviceMesh
from ._mesh import as_mesh
from ._signatures import keywords_from
from .placement_types import as_placements

__all__ = ["zeros", "ones", "empty", "full", "rand", "randn", "arange", "linspace", "logspace"]


def _number(value: Any) -> Any:
    """A Python number: pybind11 would convert NumPy scalars and tensors of one element to complex numbers."""
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise OverflowError(f"expected an integer that fits in 64 bits, got {number}")
    return number


def _sizes(size: tuple[Any, ...]) -> list[int]:
    return [operator.index(n) for n in (size[0] if len(size) == 1 and isinstance(size[0], (list, tuple)) else size)]


class _Target:
    """The keyword arguments of a factory."""

    def __init__(
        self,
        factory: str,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout = torch.strided,
        requires_grad: bool = False,
        device_mesh: DeviceMesh | None = None,
        placements: Placements = None,
    ) -> None:
        if layout is not torch.strided:
            raise NotImplementedError(f"dtensor.{factory}: expected layout torch.strided, got {layout}")
        self.mesh, self.placements = as_mesh(device_mesh), as_placements(placements)
        self.dtype, self.requires_grad = dtype, requires_grad


def _factory(name: str, doc: str) -> Callable[..., DTensor]:
    make = getattr(_C, name)

    @keywords_from(_Target)
    def factory(*size: Any, **options: Any) -> DTensor:
        on = _Target(name, **options)
        return make(_sizes(size), on.mesh, on.placements, on.dtype or torch.get_default_dtype(), on.requires_grad)

    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = f"{doc} ``size``: the global one. ``placements``: None replicates. Each rank creates only its shard."
    return factory


zeros = _factory("zeros", "Zeros on a mesh.")
ones = _factory("ones", "Ones on a mesh.")
empty = _factory("empty", "Uninitialized memory on a mesh.")
rand = _factory("rand", "Uniform numbers in [0, 1), the same global tensor on every mesh (see manual_seed).")
randn = _factory("randn", "Normal numbers, the same global tensor on every mesh (see manual_seed).")


@keywords_from(_Target)
def full(size: Sequence[int], fill_value: float | int | bool, **options: Any) -> DTensor:
    """A DTensor of global ``size``, filled with ``fill_value``."""
    on = _Target("full", **options)
    return _C.full(_sizes((size,)), _number(fill_value), on.mesh, on.placements, on.dtype, on.requires_grad)


def arange(
    end: float | int,
    *,
    dtype: torch.dtype | None = None,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
) -> DTensor:
    """0, 1, ..., below ``end``, as a 1-D DTensor."""
    return _C.arange(_number(end), as_mesh(device_mesh), as_placements(placements), dtype)


@keywords_from(_Target)
def linspace(start: float, end: float, steps: int, **options: Any) -> DTensor:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, as a 1-D DTensor."""
    on = _Target("linspace", **options)
    with _C.MeshScope(on.mesh, on.placements):
        return torch.linspace(start, end, steps, dtype=on.dtype, requires_grad=on.requires_grad)


@keywords_from(_Target)
def logspace(start: float, end: float, steps: int, base: float = 10.0, **options: Any) -> DTensor:
    """``base`` to the power of ``linspace(start, end, steps)``."""
    on = _Target("logspace", **options)
    with _C.MeshScope(on.mesh, on.placements):
        return torch.logspace(start, end, steps, base, dtype=on.dtype, requires_grad=on.requires_grad)
