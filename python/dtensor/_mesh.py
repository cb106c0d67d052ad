"""``DeviceMesh`` with the names of ``torch.distributed.device_mesh``: slices, flattening, process groups, current mesh."""

from __future__ import annotations

import functools
import math
import sys
import threading
from typing import Any, Sequence

import torch

from . import _C
from ._C import Communicator, DeviceMesh

__all__ = ["as_mesh"]

_current = threading.local()  # `meshes`: meshes of the open ``with`` blocks of this thread


def as_mesh(mesh: Any = None) -> DeviceMesh:
    """``mesh``, which may be one of PyTorch's; None: the mesh of the innermost ``with mesh:``, else all ranks."""
    mesh = _innermost() if mesh is None else mesh
    if mesh is None:
        return _C.init_device_mesh("cpu", [_C.world().size])
    if isinstance(mesh, DeviceMesh):
        return mesh
    result = DeviceMesh(mesh)
    root = mesh._get_root_mesh()
    if root is not mesh:
        result._root = DeviceMesh(root)
    return result


def _innermost() -> Any:
    theirs = sys.modules.get("torch.distributed.device_mesh")
    for stack in (getattr(_current, "meshes", []), theirs._mesh_resources.mesh_stack if theirs else []):
        if stack:
            return stack[-1]
    return None


def _enter(mesh: DeviceMesh) -> DeviceMesh:
    _current.meshes = [*getattr(_current, "meshes", []), mesh]
    return mesh


def _exit(mesh: DeviceMesh, *error: Any) -> None:
    _current.meshes = _current.meshes[:-1]


_slice, _make_flat = DeviceMesh.__getitem__, DeviceMesh._flatten


def _flattened(mesh: DeviceMesh) -> dict[str, DeviceMesh]:
    """Meshes that ``_flatten`` made of slices of this mesh, by name."""
    return mesh.__dict__.get("_flattened", {})


def _axes_of(mesh: DeviceMesh, name: str) -> tuple[str, ...]:
    """The dimensions of ``mesh`` that a name stands for; several if it is the name of a flattened dimension."""
    return _flattened(mesh)[name]._axes if name in _flattened(mesh) else (name,)


@functools.wraps(_slice)
def _getitem(mesh: DeviceMesh, mesh_dim_names: str | Sequence[str]) -> DeviceMesh:
    if not mesh.mesh_dim_names:
        raise RuntimeError(f"Cannot slice a DeviceMesh without mesh_dim_names! It is {mesh}")
    names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
    valid = [*mesh.mesh_dim_names, *_flattened(mesh)]
    if not names or not set(names) <= set(valid):
        raise KeyError(f"Invalid mesh_dim_names {names} specified. Valid mesh_dim_names are {valid}.")
    if len(names) == 1 and names[0] in _flattened(mesh):
        return _flattened(mesh)[names[0]]
    axes = [_axes_of(mesh, name) for name in names]
    every = [axis for several in axes for axis in several]
    if len(set(every)) < len(every):
        raise RuntimeError(f"Slicing overlapping dim_names {names} is not allowed: they stand for {axes} of {mesh}")
    part = _slice(mesh, every)
    if len(every) == len(names):
        return part
    result = part.view([math.prod(mesh.size(axis) for axis in several) for several in axes], names)
    result._root = part._root
    return result


@functools.wraps(_make_flat)
def _flatten(mesh: DeviceMesh, mesh_dim_name: str | None = None) -> DeviceMesh:
    root = getattr(mesh, "_root", mesh)
    name = mesh_dim_name or "_".join(mesh.mesh_dim_names or ())
    if mesh.ndim == 1 and (name,) == mesh.mesh_dim_names:
        return mesh
    if name in (root.mesh_dim_names or ()):
        raise ValueError(f"{name} already exists for submesh of the {root}: specify another valid mesh_dim_name")
    flat = _make_flat(mesh, name)
    if name:
        flat._axes = tuple(axis for own in mesh.mesh_dim_names or () for axis in _axes_of(root, own))
        if name in _flattened(root) and _flattened(root)[name]._axes != flat._axes:
            raise ValueError(f"Flatten mesh with mesh_dim_name {name} has been created before, of {_axes_of(root, name)}")
        root.__dict__.setdefault("_flattened", {})[name] = flat
    return flat


_groups: dict[tuple[int, ...], Any] = {}  # process groups by their ranks, for the current world of torch.distributed
_groups_world: Any = None


def _known_groups() -> dict[tuple[int, ...], Any]:
    global _groups_world
    world = torch.distributed.group.WORLD
    if _groups_world is not world:  # destroyed and initialized again
        _groups.clear()
        _groups_world = world
    return _groups


def _has_process_groups(mesh: DeviceMesh) -> bool:
    """Whether the ranks of torch.distributed are the ranks of this program: processes, and equal world sizes."""
    distributed = torch.distributed
    initialized = distributed.is_available() and distributed.is_initialized()
    return initialized and not _C.is_thread_rank() and distributed.get_world_size() == _C.world().size


def _process_group(ranks: tuple[int, ...]) -> Any:
    groups = _known_groups()
    if ranks not in groups:
        everyone = ranks == tuple(range(torch.distributed.get_world_size()))
        groups[ranks] = (
            torch.distributed.group.WORLD
            if everyone
            else torch.distributed.new_group(list(ranks), use_local_synchronization=True)
        )
    return groups[ranks]


def _line(mesh: DeviceMesh, dim: int) -> tuple[int, ...]:
    """The ranks of one mesh dimension that differ from this rank only in that dimension's coordinate."""
    at = mesh.get_coordinate()
    if at is None:
        raise RuntimeError(f"rank {mesh.get_rank()} is not in {mesh} and so has no group there")
    index: list[Any] = list(at)
    index[dim] = slice(None)
    return tuple(mesh.mesh[tuple(index)].tolist())


def _get_group(mesh: DeviceMesh, mesh_dim: int | str | None = None) -> Any:
    """The group of a dimension: a ``ProcessGroup`` if ``torch.distributed`` is initialized, else a communicator.

    A ``ProcessGroup`` of a mesh with several dimensions needs ``mesh_dim``.
    """
    if isinstance(mesh_dim, str) and mesh_dim in _flattened(mesh):
        return _get_group(_flattened(mesh)[mesh_dim])
    if isinstance(mesh_dim, str) and mesh_dim not in (mesh.mesh_dim_names or ()):
        raise KeyError(f"Mesh dimension '{mesh_dim}' does not exist. Available mesh dimensions are: {mesh.mesh_dim_names}")
    if not _has_process_groups(mesh):
        return mesh.communicator(mesh_dim)
    if mesh.ndim > 1 and mesh_dim is None:
        raise RuntimeError(
            f"Found the DeviceMesh have {mesh.ndim} dimensions. Optional kwarg `mesh_dim` needs to be specified when "
            "device_mesh.ndim > 1. To get all ProcessGroups of the DeviceMesh use `get_all_groups()`"
        )
    dim = mesh.mesh_dim_names.index(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
    return _process_group(_line(mesh, dim))


def _get_all_groups(mesh: DeviceMesh) -> list[Any]:
    """The group of each dimension."""
    return [_get_group(mesh, dim) for dim in range(mesh.ndim)]


def _ranks_of(group: Any) -> list[int]:
    return list(group.ranks if isinstance(group, Communicator) else torch.distributed.get_process_group_ranks(group))


def _from_group(
    group: Any, device_type: str, mesh: Any = None, *, mesh_dim_names: Sequence[str] | None = None
) -> DeviceMesh:
    """A mesh of the ranks of one group or communicator. For a list of groups, ``mesh`` gives the arrangement of ranks."""
    single = not isinstance(group, (list, tuple))
    groups = [group] if single else list(group)
    if not groups:
        raise ValueError("Expects at least one ProcessGroup to be passed")
    given, ranks = None if mesh is None else torch.as_tensor(mesh).tolist(), [_ranks_of(one) for one in groups]
    if single and given not in (None, ranks[0]):
        raise ValueError(f"Invalid mesh {mesh} for ProcessGroup with ranks {ranks[0]}")
    if not single:
        _check_several(given, mesh_dim_names)
    result = DeviceMesh(device_type, ranks[0] if single else given, mesh_dim_names)
    _check_lines(result, groups, ranks)
    return result


def _check_several(mesh: Any, names: Any) -> None:
    if mesh is None:
        raise ValueError("Must pass mesh if passing multiple ProcessGroups")
    if names is None:
        raise ValueError("Must pass mesh_dim_names if passing multiple ProcessGroups")


def _check_lines(mesh: DeviceMesh, groups: list[Any], ranks: list[list[int]]) -> None:
    if mesh.ndim != len(groups):
        raise ValueError(
            "Expects mesh with ndim equal to number of ProcessGroups but got "
            f"mesh {mesh.mesh.tolist()} and {len(groups)} ProcessGroups"
        )
    for dim, (group, own) in enumerate(zip(groups, ranks)):
        if mesh.is_member() and _line(mesh, dim) != tuple(own):
            raise ValueError(f"Group {dim} has the ranks {own}, but dimension {dim} of {mesh} has {_line(mesh, dim)}")
        if not isinstance(group, Communicator):
            _known_groups()[tuple(own)] = group


def install() -> None:
    """Adds the methods to DeviceMesh. Called once, on import."""
    methods = {
        "__getitem__": _getitem,
        "__enter__": _enter,
        "__exit__": _exit,
        "_flatten": _flatten,
        "get_group": _get_group,
        "get_all_groups": _get_all_groups,
        "from_group": staticmethod(_from_group),
        "_get_root_mesh": lambda mesh: getattr(mesh, "_root", mesh),
    }
    for name, method in methods.items():
        setattr(DeviceMesh, name, method)
