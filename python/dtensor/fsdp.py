"""Fully sharded data parallelism with the names of ``torch.distributed.fsdp``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from . import _C
from ._api import replacement
from ._C import DeviceMesh, Placement, reduce_gradients
from ._fsdp_call import Slot, Slots, Unit, put_parameter
from ._fsdp_module import FSDPModule, UnshardHandle, register_fsdp_forward_method, share_comm_ctx
from ._mesh import as_mesh

__all__ = [
    "fully_shard", "FSDPModule", "UnshardHandle", "MixedPrecisionPolicy", "OffloadPolicy", "CPUOffloadPolicy",
    "DataParallelMeshDims", "register_fsdp_forward_method", "share_comm_ctx", "reduce_gradients",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of the computation; parameters, gradients and optimizer states keep the parameters' dtype.

    ``param_dtype``: dtype in which parameters are gathered and used. ``reduce_dtype``: dtype in which gradients are summed
    over ranks (None: the parameter's). ``output_dtype``: dtype of the module's floating-point outputs.
    ``cast_forward_inputs``: casts floating-point inputs to ``param_dtype``. ``param_dtype_override_fn``: returns the
    dtype for one parameter: its own dtype (not cast), ``param_dtype`` or None.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    param_dtype_override_fn: Callable[[nn.Parameter], torch.dtype | None] | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass
class OffloadPolicy:
    """No offloading."""


@dataclasses.dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Stores parameters, gradients and optimizer states in host memory."""

    pin_memory: bool = True


@dataclasses.dataclass(frozen=True)
class DataParallelMeshDims:
    """Names of the axes that shard and that replicate, for a mesh with more axes; several names count as one axis."""

    shard: str | tuple[str, ...] | None = None
    replicate: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.shard is None and self.replicate is None:
            raise ValueError("At least one of shard or replicate must be set in DataParallelMeshDims")

    def of(self, mesh: DeviceMesh) -> DeviceMesh:
        """The slice of ``mesh`` to shard over; the replicate axis comes first."""
        if self.shard is None:
            raise NotImplementedError("DataParallelMeshDims needs shard; to only replicate parameters use distribute_module")
        names = []
        for axes in (self.replicate, self.shard):
            axes = (axes,) if isinstance(axes, str) else axes or ()
            if len(axes) > 1:
                mesh[tuple(axes)]._flatten("_".join(axes))
            names += ["_".join(axes)] if axes else []
        return mesh[tuple(names)]


# Former parameters of units to their replacements, for modules that share them and reach fully_shard later.
_sharded_parameters = WeakTensorKeyDictionary()


def _retie_shared_parameters(slots: list[Slot]) -> None:
    for _, module, key in slots:
        module._parameters[key] = _sharded_parameters.get(module._parameters[key], module._parameters[key])


def _slots(modules: Sequence[nn.Module], ignored: set[Any]) -> list[Slot]:
    """Full name, module and key of each parameter; a tied parameter occurs under each of its names."""
    slots = []
    for number, root in enumerate(modules):
        for path, module in root.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None and parameter not in ignored:
                    name = ".".join(filter(None, [path, key]))
                    slots.append((name if len(modules) == 1 else f"{number}.{name}", module, key))
    return slots


def _mesh_with_placed_axes(mesh: DeviceMesh, slots: list[Slot]) -> DeviceMesh:
    """``mesh``, or a slice of its root mesh that also has the axes on which parameters are already placed."""
    root = getattr(mesh, "_root", None)
    placed = [m._parameters[key] for _, m, key in slots]
    meshes = {str(p.device_mesh): p.device_mesh for p in placed if _C.is_dtensor(p) and p.device_mesh != mesh}
    if root is None or not meshes:
        return mesh
    root = _with_axes(root, mesh)
    wanted = {name for other in (mesh, *meshes.values()) for name in other.mesh_dim_names or ()}
    names = [name for name in root.mesh_dim_names or () if name in wanted]
    return root if len(names) == root.ndim else root[names]


def _with_axes(root: DeviceMesh, mesh: DeviceMesh) -> DeviceMesh:
    """``root`` with several axes merged where ``mesh`` has them as one (``_flatten``)."""
    for name in mesh.mesh_dim_names or ():
        if name not in (root.mesh_dim_names or ()):
            root = _merged(root, name, mesh[name])
    return root


def _merged(root: DeviceMesh, name: str, flat: DeviceMesh) -> DeviceMesh:
    shape, names = root.shape, root.mesh_dim_names or ("",) * root.ndim
    for count in (*range(2, root.ndim + 1), 1):
        for begin in range(root.ndim - count + 1):
            end = begin + count
            if math.prod(shape[begin:end]) == flat.size():
                view = root.view((*shape[:begin], flat.size(), *shape[end:]), (*names[:begin], name, *names[end:]))
                if view[name] == flat:
                    return view
    raise ValueError(f"fully_shard: {flat} must flatten neighboring axes of {root}, on which parameters are placed")


def _options(mesh: DeviceMesh, policy: MixedPrecisionPolicy, reshard: bool | int | None, offload: Any) -> Any:
    options = _C.FsdpOptions()
    names = mesh.mesh_dim_names
    if mesh.ndim > 2:
        raise ValueError(f"fully_shard: mesh has {mesh.ndim} dimensions; expected one (shard) or two (replicate, shard)")
    if names:
        options.shard_axes = [names[-1]]
        options.replicate_axis = names[0] if mesh.ndim == 2 else "a replicate axis that the mesh lacks"
    options.reshard_after_forward = True if reshard is None else reshard
    precision = _C.MixedPrecision()
    precision.param_dtype, precision.reduce_dtype = policy.param_dtype, policy.reduce_dtype
    options.precision = precision
    options.cpu_offload = isinstance(offload, CPUOffloadPolicy)
    return options


def fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Placement | None] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> Any:
    """Makes one unit of the parameters of ``module`` that are not in a unit yet; call it for each block, then for the model.

    Parameters are stored sharded over the ranks of ``mesh`` (the first of two dimensions replicates). Each unit gathers its
    parameters in one collective and reduces their gradients in one. A unit's parameters are replaced, a tied parameter in
    every module passed to this function: create the optimizer afterwards.

    ``mesh`` may be a slice of a larger mesh on whose other axes parameters are already placed (tensor parallelism). Units
    without such parameters are on the slice and accept activations of the larger mesh. ``reshard_after_forward``: False
    keeps gathered parameters until backward ends.

    Called with DTensors, a module computes with global semantics. Called with regular tensors, it computes with local
    semantics: parameters are gathered to regular tensors (on a tensor-parallel mesh to DTensors of that mesh alone), and
    gradients are averaged over the ranks of ``mesh``, as with PyTorch's ``fully_shard``. The outermost call determines the
    semantics of the calls inside it.
    """
    modules = module if isinstance(module, list) else [module]
    slots = _slots(modules, ignored_params or set())
    _retie_shared_parameters(slots)
    mesh = as_mesh(mesh)
    if dp_mesh_dims is not None:
        mesh = dp_mesh_dims.of(mesh)
    full_mesh = _mesh_with_placed_axes(mesh, slots)
    options = _options(mesh, mp_policy, reshard_after_forward, offload_policy)
    if mp_policy.param_dtype_override_fn is not None:
        options.precision = _with_overrides(options.precision, mp_policy, slots)
    if shard_placement_fn is not None:
        options.set_shard_dims(_shard_dims(shard_placement_fn, slots))
    unit, tensors = _C.fully_shard([(name, m._parameters[key]) for name, m, key in slots], full_mesh, options)
    for (_, m, key), tensor in zip(slots, tensors):
        former = m._parameters[key]
        put_parameter(m, key, replacement(tensor, former))
        if former is not tensor:
            _sharded_parameters[former] = m._parameters[key]
    for slot_module in {id(slot_module): slot_module for _, slot_module, _ in slots}.values():
        slot_module.register_load_state_dict_pre_hook(_fill_assigned)
    made = Unit(modules, Slots(_own_slots(modules, slots)), (mesh, full_mesh), mp_policy, unit)
    made.keep_outermost_unsharded = reshard_after_forward is None
    for m in modules:
        _add_unit(m, made)
    return module


def _fill_assigned(module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
    """load_state_dict(assign=True) would replace a unit's parameters with other tensors; they take the values instead."""
    if not metadata.get("assign_to_params_buffers", False):
        return
    for key, own in module._parameters.items():
        given = state.get(prefix + key)
        if given is own or not isinstance(given, torch.Tensor) or given.is_meta or not _C.is_dtensor(own):
            continue
        if (given.shape, given.dtype) == (own.shape, own.dtype):
            with torch.no_grad():
                own.copy_(given)
            state[prefix + key] = own  # in load_state_dict's copy of the dictionary


def _with_overrides(precision: Any, policy: MixedPrecisionPolicy, slots: list[Slot]) -> Any:
    overrides = []
    for name, module, key in slots:
        parameter = module._parameters[key]
        dtype = policy.param_dtype_override_fn(parameter)  # type: ignore[misc,arg-type]
        if dtype not in (None, policy.param_dtype, parameter.dtype):  # type: ignore[union-attr]
            raise ValueError(
                f"param_dtype_override_fn: expected None, {policy.param_dtype} or the dtype of {name!r}, got {dtype}"
            )
        if dtype is not None:
            overrides.append((name, dtype))
    precision.param_dtype_of = overrides
    return precision


def _shard_dims(fn: Callable[[nn.Parameter], Placement | None], slots: list[Slot]) -> dict[str, int]:
    dims = {}
    for name, module, key in slots:
        placement = fn(module._parameters[key])
        if placement is not None:
            if str(placement) != f"S({placement.dim})":
                raise ValueError(f"fully_shard: shard_placement_fn returned {placement!r} for {name!r}, not Shard or None")
            dims[name] = placement.dim
    return dims


def _own_slots(modules: Sequence[nn.Module], slots: list[Slot]) -> list[Slot]:
    """All slots except those of inner units: a tied parameter belongs to one unit but is used under each of its names."""
    within = {id(inner): inner for m in modules for inner in m.modules() if isinstance(inner, FSDPModule)}
    seen_to = {(id(m), key) for inner in within.values() for u in inner._fsdp_units for _, m, key in u.slots.slots}
    return [slot for slot in slots if (id(slot[1]), slot[2]) not in seen_to]


def _add_unit(module: nn.Module, unit: Unit) -> None:
    cls = type(module)
    if not isinstance(module, FSDPModule):
        module.__class__ = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__module__": cls.__module__})
        module._fsdp_units = []
    module._fsdp_units.append(unit)
    module.register_forward_pre_hook(unit.enter, prepend=True, with_kwargs=True)
    module.register_forward_hook(lambda m, args, outputs: unit.leave(m, outputs))
