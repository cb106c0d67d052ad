"""``torch.distributions`` with DTensor parameters sample on their mesh: all ranks and layouts have the same sample.

Many distributions call ``torch.rand(sizes)``, which has no tensor argument and so no mesh: each rank would sample alone.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch.distributions import Distribution, Transform

from . import _C
from .placement_types import Replicate


def _mesh_of(distribution: Distribution) -> Any:
    """The mesh of a parameter, also of nested distributions and transforms; None if none is a DTensor."""
    seen: set[int] = set()
    found: list[Any] = [distribution]
    for value in found:  # the loop appends to the list
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor) and _C.is_dtensor(value):
            return _C.mesh_of(value)
        if isinstance(value, (list, tuple)):
            found.extend(value)
        elif isinstance(value, (Distribution, Transform)):
            found.extend(vars(value).values())
    return None


def _on_its_mesh(draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def call(self: Distribution, *args: Any, **kwargs: Any) -> Any:
        mesh = _mesh_of(self)
        if mesh is None:
            return draw(self, *args, **kwargs)
        with _C.MeshScope(mesh, [Replicate()] * mesh.ndim):
            return draw(self, *args, **kwargs)

    return call


def _draw_on_meshes(cls: type) -> None:
    for name in ("sample", "rsample"):
        if name in cls.__dict__:
            setattr(cls, name, _on_its_mesh(cls.__dict__[name]))


def _init_subclass(cls: type, **options: Any) -> None:
    super(Distribution, cls).__init_subclass__(**options)
    _draw_on_meshes(cls)


def install() -> None:
    """Called once, on import. Covers all distributions, also those that programs define later."""
    known = [Distribution]
    for cls in known:
        known.extend(sub for sub in cls.__subclasses__() if sub not in known)
        _draw_on_meshes(cls)
    Distribution.__init_subclass__ = classmethod(_init_subclass)  # type: ignore[assignment]
