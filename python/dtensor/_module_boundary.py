"""Values that cross a module boundary: finding their tensors, and moving activations between a mesh and its slice."""

from __future__ import annotations

import types
from typing import Any, Callable, Iterator

import torch
from torch import nn
from torch.utils import _pytree

from . import _C
from ._C import DeviceMesh, Placement

_OPAQUE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, nn.Module, type)
_OPAQUE += (types.FunctionType, types.MethodType, types.ModuleType, DeviceMesh, Placement)  # type: ignore[assignment]
_DEPTH = 4  # nesting depth of searched objects


def map_tensors(fn: Callable[[torch.Tensor], torch.Tensor], values: Any) -> Any:
    """Applies ``fn`` to every tensor in nested lists, tuples, dictionaries and registered pytree nodes."""
    return _pytree.tree_map_only(torch.Tensor, fn, values)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers, also in data classes and other objects that are not pytree nodes."""
    if isinstance(values, torch.Tensor):
        return [values]
    return list(_tensors_in(values, set(), _DEPTH))


def _tensors_in(values: Any, seen: set[int], depth: int) -> Iterator[torch.Tensor]:
    for leaf in _pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth > 0 and not isinstance(leaf, _OPAQUE) and id(leaf) not in seen:
            seen.add(id(leaf))
            names = [name for cls in type(leaf).__mro__ for name in getattr(cls, "__slots__", ())]
            slots = [getattr(leaf, name, None) for name in names if isinstance(name, str)]
            yield from _tensors_in([*getattr(leaf, "__dict__", {}).values(), *slots], seen, depth - 1)


class SubmeshBoundary:
    """Moves activations of a larger mesh to a module whose parameters are on ``mesh``, a slice of it.

    When one block is sharded, it is not known whether the model has parameters on the larger mesh. Replicating parameters
    over every axis of a larger mesh would be wrong (pipeline stages). So activations move to the slice, replicated on the
    other axes, and outputs move back to the larger mesh.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def enter(self, values: Any) -> tuple[Any, DeviceMesh | None]:
        """``values`` on the module's mesh, and the larger mesh; None if no value was on one."""
        meshes = [t.device_mesh for t in tensors_in(values) if _C.is_dtensor(t)]
        outer_mesh = next(filter(self._is_submesh_of, meshes), None)
        return (values if outer_mesh is None else map_tensors(lambda t: self._to_submesh(t, outer_mesh), values)), outer_mesh

    def leave(self, outputs: Any, outer_mesh: DeviceMesh | None) -> Any:
        return outputs if outer_mesh is None else map_tensors(lambda t: self._to_outer_mesh(t, outer_mesh), outputs)

    def _is_submesh_of(self, mesh: DeviceMesh) -> bool:
        names, mine = mesh.mesh_dim_names or (), self.mesh.mesh_dim_names
        return bool(mine) and mesh.ndim > self.mesh.ndim and set(mine) <= set(names) and mesh[list(mine)] == self.mesh

    def _to_submesh(self, t: torch.Tensor, outer_mesh: DeviceMesh) -> torch.Tensor:
        if not _C.is_dtensor(t) or t.device_mesh != outer_mesh:
            return t
        names = outer_mesh.mesh_dim_names
        own = [names.index(name) for name in self.mesh.mesh_dim_names]
        full = [p if axis in own else Placement.replicate() for axis, p in enumerate(t.placements)]
        local = t.redistribute(placements=full).to_local()
        return _C.from_local(local, self.mesh, [full[axis] for axis in own], list(t.shape), list(t.stride()))

    def _to_outer_mesh(self, t: torch.Tensor, outer_mesh: DeviceMesh) -> torch.Tensor:
        if not _C.is_dtensor(t) or t.device_mesh != self.mesh:
            return t
        of = dict(zip(self.mesh.mesh_dim_names, t.placements))
        placements = [of.get(name, Placement.replicate()) for name in outer_mesh.mesh_dim_names]
        return _C.from_local(t.to_local(), outer_mesh, placements, list(t.shape), list(t.stride()))
