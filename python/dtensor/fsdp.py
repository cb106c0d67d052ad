"""Fully sharded data parallelism by the names of ``torch.distributed.fsdp``."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from . import _C
from ._api import as_parameter
from ._C import DeviceMesh, Placement, reduce_gradients
from ._fsdp_call import Slot, Slots, Unit, calls_under_way, close_calls, put_parameter

__all__ = [
    "fully_shard", "FSDPModule", "UnshardHandle", "MixedPrecisionPolicy", "OffloadPolicy", "CPUOffloadPolicy",
    "register_fsdp_forward_method", "share_comm_ctx", "reduce_gradients",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of the computation; parameters, gradients and optimizer states keep the parameters' own.

    ``param_dtype``: parameters are gathered and computed with in it. ``reduce_dtype``: gradients are summed over ranks in
    it (None: the parameter's own). ``output_dtype``: of the module's floating-point outputs. ``cast_forward_inputs``:
    floating-point inputs are brought to ``param_dtype``.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


@dataclasses.dataclass
class OffloadPolicy:
    """No offloading."""


@dataclasses.dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Parameters, gradients and optimizer states are kept in host memory."""

    pin_memory: bool = True


class UnshardHandle:
    """Of :meth:`FSDPModule.unshard`."""

    def wait(self) -> None:
        """Nothing is under way."""


class FSDPModule:
    """What ``fully_shard`` adds to a module's class."""

    _fsdp_units: list[Unit]  # one, or those of several calls

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A new module of such a class (a slice of an ``nn.Sequential``) is no unit: it gets the class before."""
        original = cls.__mro__[2]
        module = original.__new__(original)
        module.__init__(*args, **kwargs)
        return module

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers this unit's parameters now, and keeps them until :meth:`reshard`. Collective.

        ``async_op``: returns a handle to be waited for; they are gathered when it is there.
        """
        for handle in self._handles(recurse=False):
            handle.unshard()
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Drops the gathered copy."""
        for handle in self._handles(recurse=False):
            handle.reshard()

    def _handles(self, recurse: bool) -> list[_C.FsdpUnit]:
        """Units of this module, and of those below it."""
        modules = self.modules() if recurse else [self]  # type: ignore[attr-defined]
        return [h for m in modules if isinstance(m, FSDPModule) for unit in m._fsdp_units for h in unit.handles()]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError(
            "a module under fully_shard cannot be copied, since its parameters are gathered by schedules of their own: "
            "copy it before fully_shard, or load its state_dict() into another; its parameters alone can be copied"
        )

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """A call that raises leaves nothing open."""
        before = calls_under_way()
        try:
            return super()._call_impl(*args, **kwargs)  # type: ignore[misc]
        finally:
            close_calls(before)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """What makes new data like the old (``to_empty``) says nothing of gathering: the parameters stay the unit's."""
        former = [(p, p.placements) for p in self.parameters(recurse) if _C.is_dtensor(p)]  # type: ignore[attr-defined]
        result = super()._apply(fn, recurse)  # type: ignore[misc]
        for parameter, own in former:
            lost = [p.is_storage for p in parameter.placements] != [p.is_storage for p in own]
            if lost and parameter.placements == own:
                with torch.no_grad():
                    parameter.redistribute_(own)
        return result

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward passes reduce gradients over ranks, of this module's unit and (``recurse``) those below it.

        Gradients left unreduced join those of the next pass that reduces.
        """
        for handle in self._handles(recurse):
            handle.set_requires_gradient_sync(requires_gradient_sync)
            handle.set_requires_all_reduce(requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """The same for the sum over replicas alone (HSDP): gradients are still split over the ranks that shard."""
        for handle in self._handles(recurse):
            handle.set_requires_all_reduce(requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether gathered parameters are dropped after forward, and gathered again in backward."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}")
        for handle in self._handles(recurse):
            handle.set_reshard_after_forward(reshard_after_forward)
        for module in self.modules() if recurse else [self]:  # type: ignore[attr-defined]
            for unit in getattr(module, "_fsdp_units", ()):
                unit.keeps_outermost = False

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether gathered parameters are dropped after backward; they are gathered again where parameters changed."""
        for handle in self._handles(recurse):
            handle.set_reshard_after_backward(reshard_after_backward)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """What gradients of regular tensors are divided by, in the place of the number of data-parallel ranks."""
        for handle in self._handles(recurse=False):
            handle.set_gradient_divide_factor(factor)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Checks its argument. What is gathered ahead is recorded from the step before, in forward and in backward."""
        _check_units(modules)

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """As :meth:`set_modules_to_forward_prefetch`."""
        _check_units(modules)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Nothing to do: every pass finishes its own reductions."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Nothing to do: a unit that backward does not compute with costs a gather, never a wrong number."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Nothing to do: averages are sums that are divided."""

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Nothing to do: buffers are the communicator's anyway."""

    def set_post_optim_event(self, event: Any) -> None:
        """Has the current stream wait for ``event``, recorded after the optimizer's step."""
        event.wait()

    def fsdp_stats(self) -> dict[str, int]:
        """Collectives and bytes since the model's first unit was made, on this rank, over all its units."""
        return self._fsdp_units[0].handle.stats()


def _not_supported(name: str, instead: str) -> Callable[..., None]:
    def method(self: FSDPModule, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{name} is not supported: {instead}")

    method.__name__ = name
    method.__doc__ = f"Not supported: {instead}."
    return method


for _name, _instead in {
    "set_all_reduce_hook": "a further axis of the mesh replicates (HSDP), and Tensor.register_post_accumulate_grad_hook sees reduced gradients",
    "set_custom_all_gather": "collectives are those of the mesh's communicators (dtensor/comm_backend.h is where one is added)",
    "set_custom_reduce_scatter": "collectives are those of the mesh's communicators (dtensor/comm_backend.h is where one is added)",
}.items():
    setattr(FSDPModule, _name, _not_supported(_name, _instead))


def _check_units(modules: Sequence[Any]) -> None:
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"Expects FSDPModule but got {type(module)}: {module}")


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Makes a method of a unit's module one that computes, as ``forward`` does: parameters are gathered for it.

    A module that is no unit is left as it is.
    """
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module)} does not have a method {method_name}")
    method = getattr(module, method_name)

    @functools.wraps(method)
    def forward(self: FSDPModule, *args: Any, **kwargs: Any) -> Any:
        before = calls_under_way()
        try:
            for unit in reversed(self._fsdp_units):
                args, kwargs = unit.enter(self, args, kwargs)
            outputs = method(*args, **kwargs)
            for unit in self._fsdp_units:
                outputs = unit.leave(self, outputs)
            return outputs
        finally:
            close_calls(before)

    setattr(module, method_name, forward.__get__(module, type(module)))


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Checks its argument. Streams and buffers are shared by all units of a rank."""
    _check_units(modules)


# What stands for a parameter that a unit took, for other modules that have it, too: they meet fully_shard later.
_taken = WeakTensorKeyDictionary()


def _tie_again(slots: list[Slot]) -> None:
    for _, module, key in slots:
        module._parameters[key] = _taken.get(module._parameters[key], module._parameters[key])


def _slots(modules: Sequence[nn.Module], ignored: set[Any]) -> list[Slot]:
    """Full names, and where each parameter hangs; a tied one under each of its names."""
    slots = []
    for number, root in enumerate(modules):
        for path, module in root.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None and parameter not in ignored:
                    name = ".".join(filter(None, [path, key]))
                    slots.append((name if len(modules) == 1 else f"{number}.{name}", module, key))
    return slots


def _whole_mesh(mesh: DeviceMesh, slots: list[Slot]) -> DeviceMesh:
    """``mesh``, or with the axes on which parameters are placed already: part of the mesh that it is a slice of."""
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
    """``root``, with those of its axes in one that are one in ``mesh`` (``_flatten``)."""
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
    raise ValueError(f"fully_shard: {flat} is not neighbouring axes of {root}, on which parameters are placed, in one")


def _options(mesh: DeviceMesh, policy: MixedPrecisionPolicy, reshard: bool | int | None, offload: Any) -> Any:
    options = _C.FsdpOptions()
    names = mesh.mesh_dim_names
    if mesh.ndim > 2:
        raise ValueError(f"fully_shard: mesh has {mesh.ndim} dimensions; one shards, or of two the first replicates")
    if names:
        options.shard_axis = names[-1]
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
) -> Any:
    """Makes one unit of those parameters of ``module`` that are in none yet; call it for each block, then for the model.

    Parameters are stored split over the ranks of ``mesh`` (of two dimensions the first replicates), gathered for use in
    one collective a unit, their gradients reduced in one. A unit's parameters are replaced, a tied one wherever this
    function meets it: make the optimizer afterwards. ``mesh`` may be a slice of a larger mesh on whose other axes parameters are placed already (tensor
    parallelism); units without such parameters lie on the slice, and take activations of the larger mesh. ``reshard_after_forward``: False keeps gathered parameters until backward ends.

    Called with DTensors, a module computes with global semantics. Called with regular tensors, it computes on this
    rank's own data with plain ATen: parameters are gathered to regular tensors (on a tensor-parallel mesh to DTensors of
    that mesh alone), and gradients are averaged over the ranks of ``mesh``, as with PyTorch's ``fully_shard``. The
    outermost call decides for those within it.
    """
    modules = module if isinstance(module, list) else [module]
    slots = _slots(modules, ignored_params or set())
    _tie_again(slots)
    if mesh is None:
        mesh = _C.init_device_mesh("cpu", [_C.world().size], mesh_dim_names=["shard"])
    whole = _whole_mesh(mesh, slots)
    options = _options(mesh, mp_policy, reshard_after_forward, offload_policy)
    if shard_placement_fn is not None:
        options.set_shard_dims(_shard_dims(shard_placement_fn, slots))
    unit, tensors = _C.fully_shard([(name, m._parameters[key]) for name, m, key in slots], whole, options)
    for (_, m, key), tensor in zip(slots, tensors):
        former = m._parameters[key]
        put_parameter(m, key, as_parameter(tensor, former.requires_grad))
        if former is not tensor:
            _taken[former] = m._parameters[key]
    for slot_module in {id(slot_module): slot_module for _, slot_module, _ in slots}.values():
        slot_module.register_load_state_dict_pre_hook(_fill_assigned)
    made = Unit(modules, Slots(_own_slots(modules, slots)), (mesh, whole), mp_policy, unit)
    made.keeps_outermost = reshard_after_forward is None
    for m in modules:
        _add_unit(m, made)
    return module


def _fill_assigned(module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
    """load_state_dict(assign=True) would put tensors of no unit in the places of its parameters: they take the values."""
    if not metadata.get("assign_to_params_buffers", False):
        return
    for key, own in module._parameters.items():
        given = state.get(prefix + key)
        if given is own or not isinstance(given, torch.Tensor) or given.is_meta or not _C.is_dtensor(own):
            continue
        if (given.shape, given.dtype) == (own.shape, own.dtype):
            with torch.no_grad():
                own.copy_(given)
            state[prefix + key] = own  # of the copy of the dictionary that load_state_dict makes


def _shard_dims(fn: Callable[[nn.Parameter], Placement | None], slots: list[Slot]) -> dict[str, int]:
    dims = {}
    for name, module, key in slots:
        placement = fn(module._parameters[key])
        if placement is not None:
            if str(placement) != f"S({placement.dim})":
                raise ValueError(f"fully_shard: shard_placement_fn gives {placement!r} for {name!r}; Shard(dim) or None is needed")
            dims[name] = placement.dim
    return dims


def _own_slots(modules: Sequence[nn.Module], slots: list[Slot]) -> list[Slot]:
    """All but those that units within see to: a tied parameter is of one unit, but used at each name."""
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
