"""Fully sharded data parallelism by the names of ``torch.distributed.fsdp``."""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from . import _C
from ._api import as_parameter
from ._border import LocalBatches, map_tensors
from ._C import DeviceMesh, Placement, reduce_gradients

__all__ = ["fully_shard", "FSDPModule", "UnshardHandle", "MixedPrecisionPolicy", "OffloadPolicy", "CPUOffloadPolicy", "reduce_gradients"]


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


_of_thread = threading.local()  # the scopes that set_requires_gradient_sync(False) and its like opened, whichever module's


def _hold_open(name: str, scope: Any) -> None:
    """In the place of the one of that name that this thread has open; None: none."""
    former = _of_thread.__dict__.pop(name, None)
    if former is not None:
        former.__exit__()
    if scope is not None:
        setattr(_of_thread, name, scope.__enter__())


class FSDPModule:
    """What ``fully_shard`` adds to a module's class."""

    _fsdp_units: list[Any]  # one, or those of several calls
    _fsdp_casts: set[tuple[int, str]]  # where casts stand while forward runs: the module's id and the parameter's key
    _fsdp_calls: list[list[Any]]  # what calls that are under way have opened, the innermost last

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers this unit's parameters now, and keeps them until :meth:`reshard`. Collective.

        ``async_op``: returns a handle to be waited for; they are gathered when it is there.
        """
        for unit in self._fsdp_units:
            unit.unshard()
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Drops the gathered copy."""
        for unit in self._fsdp_units:
            unit.reshard()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError(
            "a module under fully_shard cannot be copied, since its parameters are gathered by schedules of their own: "
            "copy it before fully_shard, or load its state_dict() into another; its parameters alone can be copied"
        )

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """A call that raises leaves nothing open: calls of a module within itself would take it for theirs."""
        before = [len(calls) for calls in self._fsdp_calls]
        try:
            return super()._call_impl(*args, **kwargs)  # type: ignore[misc]
        finally:
            for calls, count in zip(self._fsdp_calls, before):
                while len(calls) > count:
                    calls.pop().close()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """What makes new data like the old (``to_empty``) says nothing of gathering: the parameters stay the unit's."""
        former = [(p, p.placements) for p in self.parameters(recurse) if _C.is_dtensor(p)]  # type: ignore[attr-defined]
        result = super()._apply(fn, recurse)  # type: ignore[misc]
        for parameter, own in former:
            if parameter.placements == tuple(p.as_storage(False) for p in own) != own:
                with torch.no_grad():
                    parameter.redistribute_(own)
        return result

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward passes that start from now on, on this thread, reduce gradients over ranks.

        Gradients left unreduced join those of the next pass that does. It counts for all modules: ``recurse`` is taken
        for true.
        """
        _hold_open("no_gradient_sync", None if requires_gradient_sync else _C.NoGradientSync())

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """The same for the sum over replicas alone (HSDP): gradients are still split over the ranks that shard."""
        _hold_open("no_replica_sync", None if requires_all_reduce else _C.NoReplicaSync())

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Nothing to do: every pass finishes its own reductions."""

    def fsdp_stats(self) -> dict[str, int]:
        """Collectives and bytes since the model's first unit was made, on this rank, over all its units."""
        return self._fsdp_units[0].stats()


# What stands for a parameter that a unit took, for other modules that have it, too: they meet fully_shard later.
_taken = WeakTensorKeyDictionary()


def _tie_again(slots: list[tuple[str, nn.Module, str]]) -> None:
    for _, module, key in slots:
        module._parameters[key] = _taken.get(module._parameters[key], module._parameters[key])


def _slots(modules: Sequence[nn.Module], ignored: set[Any]) -> list[tuple[str, nn.Module, str]]:
    """Full names, and where each parameter hangs; a tied one under each of its names."""
    slots = []
    for number, root in enumerate(modules):
        for path, module in root.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None and parameter not in ignored:
                    name = ".".join(filter(None, [path, key]))
                    slots.append((name if len(modules) == 1 else f"{number}.{name}", module, key))
    return slots


def _whole_mesh(mesh: DeviceMesh, slots: list[tuple[str, nn.Module, str]]) -> DeviceMesh:
    """``mesh``, or the mesh that it is a slice of where parameters are placed on other axes of that one."""
    root = getattr(mesh, "_root", None)
    placed = (module._parameters[key] for _, module, key in slots)
    elsewhere = any(_C.is_dtensor(p) and p.device_mesh != mesh for p in placed)
    return _with_axes(root, mesh) if root is not None and elsewhere else mesh


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

    The module takes DTensors, or plain tensors, which are each rank's own rows: then outputs are plain too, and gradients
    are means over ranks, as with PyTorch's ``fully_shard``.
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
        m._parameters[key] = as_parameter(tensor, former.requires_grad)
        if former is not tensor:
            _taken[former] = m._parameters[key]
    for slot_module in {id(slot_module): slot_module for _, slot_module, _ in slots}.values():
        slot_module.register_load_state_dict_pre_hook(_fill_assigned)
    cast = _to_cast(modules, slots)
    for m in modules:
        _add_methods(m, unit)
        _add_border(m, mesh, whole)
        if mp_policy.param_dtype is not None or mp_policy.output_dtype is not None:
            m._fsdp_casts |= {(id(slot_module), key) for _, slot_module, key in cast}
            _add_casts(m, cast, mp_policy)
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


def _shard_dims(fn: Callable[[nn.Parameter], Placement | None], slots: list[tuple[str, nn.Module, str]]) -> dict[str, int]:
    dims = {}
    for name, module, key in slots:
        placement = fn(module._parameters[key])
        if placement is not None:
            if str(placement) != f"S({placement.dim})":
                raise ValueError(f"fully_shard: shard_placement_fn gives {placement!r} for {name!r}; Shard(dim) or None is needed")
            dims[name] = placement.dim
    return dims


def _to_cast(modules: Sequence[nn.Module], slots: list[tuple[str, nn.Module, str]]) -> list[tuple[str, nn.Module, str]]:
    """All but those at which units within see to it themselves: a tied parameter is of one unit, but used at each name."""
    within = [inner for m in modules for inner in m.modules() if isinstance(inner, FSDPModule)]
    seen_to = set().union(*(inner._fsdp_casts for inner in within))
    return [slot for slot in slots if (id(slot[1]), slot[2]) not in seen_to]


def _add_methods(module: nn.Module, unit: Any) -> None:
    cls = type(module)
    if not isinstance(module, FSDPModule):
        module.__class__ = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__module__": cls.__module__})
        module._fsdp_units, module._fsdp_casts, module._fsdp_calls = [], set(), []
    module._fsdp_units.append(unit)


def _add_border(module: nn.Module, mesh: DeviceMesh, whole: DeviceMesh) -> None:
    names = whole.mesh_dim_names or ()
    axes = list(range(mesh.ndim)) if whole == mesh else [names.index(name) for name in mesh.mesh_dim_names]
    border = LocalBatches(whole, axes)
    module._fsdp_calls.append(border.calls)
    module.register_forward_pre_hook(lambda m, args, kwargs: border.enter(args, kwargs), with_kwargs=True)
    module.register_forward_hook(lambda m, args, outputs: border.leave(outputs))


class _OpenCasts:
    """Casts in the places of parameters, until it is closed."""

    def __init__(self, slots: list[tuple[str, nn.Module, str]]) -> None:
        self._slots = slots
        self._kept = [module._parameters[key] for _, module, key in slots]
        self._casts = _C.Casts([(name, tensor) for (name, _, _), tensor in zip(slots, self._kept)])
        self._put(self._casts.tensors())

    def _put(self, tensors: list[Any]) -> None:
        for (_, module, key), tensor in zip(self._slots, tensors):
            module._parameters[key] = tensor

    def close(self) -> None:
        self._put(self._kept)
        self._casts.close()


def _add_casts(module: nn.Module, slots: list[tuple[str, nn.Module, str]], policy: MixedPrecisionPolicy) -> None:
    """While ``forward`` runs, casts stand in the places of the unit's parameters."""
    open_casts: list[_OpenCasts] = []
    module._fsdp_calls.append(open_casts)

    def cast(t: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        return t.to(dtype) if dtype is not None and t.is_floating_point() else t

    def enter(m: nn.Module, args: Any, kwargs: Any) -> Any:
        open_casts.append(_OpenCasts(slots))
        if not policy.cast_forward_inputs:
            return args, kwargs
        return map_tensors(lambda t: cast(t, policy.param_dtype), (args, kwargs))

    def leave(m: nn.Module, args: Any, outputs: Any) -> Any:
        open_casts.pop().close()
        return map_tensors(lambda t: cast(t, policy.output_dtype), outputs)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave)
