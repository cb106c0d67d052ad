"""Attributes and methods that only DTensors have.

A DTensor's Python class is ``torch.Tensor``. This module adds attributes to that class that regular tensors do not have.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import torch

from . import _C
from ._C import Placement
from .placement_types import as_placements


class _DTensorAttribute:
    """An attribute that only DTensors have; ``hasattr(regular_tensor, name)`` stays false.

    It can be set and deleted, as ``torch.overrides`` and ``torch.fx`` require of non-methods. A value that a program sets is
    stored in the tensor's ``__dict__``.
    """

    def __init__(self, get: Callable[[torch.Tensor], Any]) -> None:
        self._get = get

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is None:
            return self
        if self._name in tensor.__dict__:
            return tensor.__dict__[self._name]
        if not _C.is_dtensor(tensor):
            raise AttributeError(f"{type(tensor).__name__!r} object has no attribute {self._name!r}: it is not a DTensor")
        return self._get(tensor)

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        tensor.__dict__[self._name] = value

    def __delete__(self, tensor: torch.Tensor) -> None:
        if tensor.__dict__.pop(self._name, self) is self:
            raise AttributeError(self._name)


def _method(fn: Callable[..., Any]) -> _DTensorAttribute:
    return _DTensorAttribute(lambda tensor: functools.partial(fn, tensor))


def to_local(self: torch.Tensor, *, grad_placements: Any = None) -> torch.Tensor:
    """This rank's local tensor, which shares the DTensor's memory. No communication. Differentiable.

    ``grad_placements``: placements of the gradient of the local tensor; by default those of this tensor, with Partial
    replaced by Replicate.
    """
    return _C.to_local(self, as_placements(grad_placements) or [])


def full_tensor(self: torch.Tensor, *, grad_placements: Any = None) -> torch.Tensor:
    """The full tensor as a regular tensor, on every rank. Collective. Differentiable."""
    return _C.full_tensor(self, as_placements(grad_placements) or [])


class _CastRedistribute(torch.autograd.Function):
    """Redistributes values and gradients in given dtypes."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, tensor: torch.Tensor, mesh: Any, placements: Any, forward_dtype: Any, backward_dtype: Any
    ) -> torch.Tensor:
        ctx.spec = tensor.device_mesh, _reduced(tensor.placements), tensor.dtype
        ctx.backward_dtype = backward_dtype or tensor.dtype
        return _C.redistribute(_cast(tensor, forward_dtype or tensor.dtype), mesh, placements)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        mesh, placements, dtype = ctx.spec
        gradient = as_dtensor(gradients[0], mesh)
        return _cast(_C.redistribute(_cast(gradient, ctx.backward_dtype), mesh, placements), dtype), None, None, None, None


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Casts local tensors to ``dtype`` and keeps the placements, Partial included."""
    if tensor.dtype == dtype or not tensor.device_mesh.is_member():
        return tensor.to(dtype)
    local = _C.to_local(tensor, list(tensor.placements)).to(dtype)
    return _C.from_local(local, tensor.device_mesh, tensor.placements, list(tensor.shape), list(tensor.stride()))


def _reduced(placements: Any) -> list[Any]:
    return [Placement.replicate() if p.is_partial() else p.as_storage(False) for p in placements]


def wait_if_async(tensor: torch.Tensor) -> torch.Tensor:
    """Waits for a tensor that a collective of ``torch.distributed._functional_collectives`` returned."""
    theirs = sys.modules.get("torch.distributed._functional_collectives")
    return tensor.wait() if theirs and isinstance(tensor, theirs.AsyncCollectiveTensor) else tensor


def as_dtensor(gradient: torch.Tensor, mesh: Any) -> torch.Tensor:
    """A gradient as a DTensor; a regular tensor is the full gradient on every rank."""
    if _C.is_dtensor(gradient):
        return gradient
    return _C.from_local(gradient, mesh, None, list(gradient.shape), list(gradient.stride()))


def redistribute(
    self: torch.Tensor,
    device_mesh: Any = None,
    placements: Any = None,
    *,
    async_op: bool = False,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The same values with other placements, possibly on another mesh. Collective. Differentiable.

    ``forward_dtype``: the dtype of the communication and of the result. ``backward_dtype``: the dtype in which the gradient
    is communicated, by default this tensor's; the gradient has this tensor's dtype. ``async_op``: accepted for
    compatibility with PyTorch; the result is always complete.
    """
    if isinstance(device_mesh, (list, tuple, str)) and placements is None:
        device_mesh, placements = None, device_mesh
    wanted = as_placements(placements)
    if forward_dtype is None and backward_dtype is None:
        return _C.redistribute(self, device_mesh, wanted)
    return _CastRedistribute.apply(self, device_mesh, wanted, forward_dtype, backward_dtype)


def redistribute_(tensor: torch.Tensor, placements: Any) -> torch.Tensor:
    """In place, visible through every reference to the tensor. For leaves and tensors without a gradient."""
    _C.redistribute_in_place(tensor, as_placements(placements))
    return tensor


def _local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The local tensor itself, as the attribute of PyTorch's DTensor: attributes that a program sets on it stay."""
    with torch.no_grad():
        return _C.to_local(tensor, [])


_ATTRIBUTES = {
    "device_mesh": _DTensorAttribute(_C.mesh_of),
    "placements": _DTensorAttribute(_C.placements_of),
    "to_local": _method(to_local),
    "full_tensor": _method(full_tensor),
    "redistribute": _method(redistribute),
    "redistribute_": _method(redistribute_),
    "generation": _method(_C.generation_of),
    "_local_tensor": _DTensorAttribute(_local_tensor),
}


def add_attribute(name: str, attribute: _DTensorAttribute) -> None:
    attribute.__set_name__(torch.Tensor, name)
    setattr(torch.Tensor, name, attribute)


def install() -> None:
    """Adds the attributes to torch.Tensor. Called once, on import."""
    for name, attribute in _ATTRIBUTES.items():
        add_attribute(name, attribute)
