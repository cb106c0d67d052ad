"""Calls of modules under ``fully_shard``.

A call with DTensors computes with global semantics: parameters stay DTensors, and operators gather them. A call with
regular tensors, or without tensors, computes with local semantics: regular tensors replace the parameters while
``forward`` runs. They replace them again while backward is in the module, since backward may recompute a part of it.
The outermost call determines the semantics of the calls inside it. See docs/design/fsdp.md.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Sequence

import torch
from torch import nn

from . import _C
from ._fsdp_gather import set_gather_hooks
from ._module_boundary import SubmeshBoundary, map_tensors, tensors_in
from ._C import DeviceMesh

Slot = tuple[str, nn.Module, str]  # full name; module and key of a parameter


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls: list[Call] = []  # open calls, outermost first
        self.waiting: list[tuple[Unit, _Group]] = []  # groups of which some modules have not run


_thread = _Thread()


class Slots:
    """Parameter slots of modules, which temporarily hold other tensors."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self._owners: list[torch.Tensor] = []
        self._count = 0  # open replacements

    def parameters(self) -> list[torch.Tensor]:
        return self._owners if self._count else [module._parameters[key] for _, module, key in self.slots]

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._count == 0:
            self._owners = self.parameters()
        self._count += 1
        self._write(tensors)

    def restore(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._write(self._owners)
            self._owners = []

    def in_backward(self, tensors: Sequence[torch.Tensor]) -> Callable[[bool], None]:
        """A callback that puts ``tensors`` into the slots when backward enters the module, and restores when it leaves."""
        return lambda inside: self.put(tensors) if inside else self.restore()

    def _write(self, tensors: Sequence[torch.Tensor]) -> None:
        for (_, module, key), tensor in zip(self.slots, tensors):
            put_parameter(module, key, tensor)


def put_parameter(module: nn.Module, key: str, tensor: torch.Tensor) -> None:
    """Sets a parameter of a module, and the second reference that recurrent modules keep."""
    module._parameters[key] = tensor  # type: ignore[assignment]
    flat_names = module.__dict__.get("_flat_weights_names", ())
    if key in flat_names:
        module._flat_weights[flat_names.index(key)] = tensor  # type: ignore[index,union-attr]


class _Group:
    """The parameters of a unit while its modules (usually one) run one after the other with local semantics."""

    def __init__(self, unit: Unit, inputs: Any) -> None:
        self.slots = unit.slots
        self.pending_modules = {id(module) for module in unit.modules}
        self.running: Call | None = None
        local_parameters: list[torch.Tensor] = []
        self._call = _C.FsdpCall(self.slots.parameters(), tensors_in(inputs), self.slots.in_backward(local_parameters))
        local_parameters += self._call.tensors()
        for tensor, owner in zip(local_parameters, self.slots.parameters()):
            if type(tensor) is not torch.Tensor:
                tensor._is_param = True  # type: ignore[attr-defined]  # a wrapper subclass
            elif tensor is not owner:
                tensor.__class__ = nn.Parameter
                tensor.__dict__ = owner.__dict__  # attributes that the module or a library sets on the parameter
        self.slots.put(local_parameters)

    def watch(self, outputs: Any) -> None:
        self._call.watch(tensors_in(outputs))

    def finish(self, outputs: Any, keep: bool) -> None:
        self.slots.restore()
        call, self._call = self._call, None
        call.finish(tensors_in(outputs), keep)


class _Casts:
    """Parameters in the compute dtype, under global semantics: casts of their shards."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._casts = _C.Casts(list(zip((name for name, _, _ in slots.slots), slots.parameters())))
        self._tensors = self._casts.tensors()
        slots.put(self._tensors)

    def close(self, outputs: Any = ()) -> None:
        self._slots.restore()
        self._casts.close()
        call = _C.FsdpCall([], [], self._slots.in_backward(self._tensors))
        call.finish(tensors_in(outputs), False)


class Call:
    """An open call of one module."""

    def __init__(self, unit: Unit, module: nn.Module, on_local_data: bool) -> None:
        self.unit, self.module, self.on_local_data = unit, module, on_local_data
        self.outer_mesh: DeviceMesh | None = None  # see SubmeshBoundary
        self.casts: _Casts | None = None
        self.group: _Group | None = None

    def close(self, outputs: Any = ()) -> None:
        if self.group is not None:
            self.unit.leave_group(self, outputs)
        if self.casts is not None:
            self.casts.close(outputs)


class Unit:
    """The unit that one call of ``fully_shard`` made of its modules."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        slots: Slots,
        meshes: tuple[DeviceMesh, DeviceMesh],
        policy: Any,
        handle: _C.FsdpUnit,
    ) -> None:
        self.modules = list(modules)
        self.slots = slots
        self.handle = handle
        self.mesh, self.full_mesh = meshes  # the mesh given; that mesh plus the axes on which parameters were placed before
        self.policy = policy
        self.keep_outermost_unsharded = True  # the default of reshard_after_forward: the outermost unit stays
        self._boundary = SubmeshBoundary(self.full_mesh)
        self._groups: list[_Group] = []
        self._ranks = set(self.mesh.mesh.flatten().tolist())
        self._on_local_data = True  # semantics of the last call
        self._was_called = False  # with local semantics

    def look_up_gather_hooks(self) -> None:
        """Until the first call has gathered: programs set hooks on local tensors after ``fully_shard`` and ``to_empty``."""
        if not self._was_called:
            set_gather_hooks(self.slots.slots, self.mesh, self.policy)

    def handles(self) -> list[_C.FsdpUnit]:
        """The unit, and the units of parameters on other meshes (experts)."""
        return _C.units_of(self.slots.parameters())

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Runs before ``forward`` of ``module``; returns the arguments of the call."""
        self._on_local_data = self._computes_on_local_data((args, kwargs))
        call = Call(self, module, self._on_local_data)
        _thread.calls.append(call)
        values = (args, kwargs)
        if call.on_local_data:
            self.look_up_gather_hooks()
            self._enter_group(call, values)
            self._was_called = True
        else:
            values, call.outer_mesh = self._boundary.enter(values)
            if self.policy.param_dtype is not None or self.policy.output_dtype is not None:
                call.casts = _Casts(self.slots)
        return self._cast(values, self.policy.param_dtype) if self.policy.cast_forward_inputs else values

    def leave(self, module: nn.Module, outputs: Any) -> Any:
        """Runs after ``forward``; returns the outputs of the call."""
        call = _thread.calls.pop()
        call.close(outputs)
        return self._cast(self._boundary.leave(outputs, call.outer_mesh), self.policy.output_dtype)

    def _computes_on_local_data(self, values: Any) -> bool:
        if _thread.calls:
            return _thread.calls[0].on_local_data
        tensors = tensors_in(values)
        if any(_C.is_dtensor(t) and self._has_ranks_of(t.device_mesh) for t in tensors):
            return False
        if torch._C._current_graph_task_id() != -1 and not any(t.requires_grad for t in tensors):
            return self._on_local_data  # recomputed in backward from constants: use the semantics of the last forward pass
        return True

    def _has_ranks_of(self, mesh: DeviceMesh) -> bool:
        """Whether a tensor on ``mesh`` holds data of several data-parallel ranks, not of one (tensor parallelism alone)."""
        if mesh in (self.mesh, self.full_mesh):
            return True
        return len(self._ranks.intersection(mesh.mesh.flatten().tolist())) > 1

    def _enter_group(self, call: Call, inputs: Any) -> None:
        group = self._groups[-1] if self._groups else None
        if group is not None and group.running is None and id(call.module) not in group.pending_modules:
            self._finish_group(group)  # its other modules were not called
            group = None
        if group is None or group.running is not None:
            group = _Group(self, inputs)
            self._groups.append(group)
        call.group, group.running = group, call

    def leave_group(self, call: Call, outputs: Any) -> None:
        group = call.group
        assert group is not None
        group.running = None
        group.pending_modules.discard(id(call.module))
        if group.pending_modules and _thread.calls:
            group.watch(outputs)
            _thread.waiting.append((self, group))
        else:
            self._finish_group(group, outputs, keep=self.keep_outermost_unsharded and not _thread.calls)
        while not _thread.calls and _thread.waiting:
            unit, left_out = _thread.waiting[-1]
            unit._finish_group(left_out)

    def _finish_group(self, group: _Group, outputs: Any = (), keep: bool = False) -> None:
        self._groups.remove(group)
        _thread.waiting[:] = [entry for entry in _thread.waiting if entry[1] is not group]
        group.finish(outputs, keep)

    @staticmethod
    def _cast(values: Any, dtype: torch.dtype | None) -> Any:
        if dtype is None:
            return values
        return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, values)


def open_call_count() -> int:
    return len(_thread.calls)


def close_calls(count: int) -> None:
    """Closes all but the first ``count`` calls after a module raised, since its forward hooks do not run then."""
    while len(_thread.calls) > count:
        _thread.calls.pop().close()
