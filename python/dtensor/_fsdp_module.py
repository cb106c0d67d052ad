"""What ``fully_shard`` adds to modules."""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import torch
from torch import nn

from . import _C
from ._fsdp_call import Unit, open_call_count, close_calls


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
        before = open_call_count()
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
                unit.keep_outermost_unsharded = False

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

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Nothing to do: buffers are the communicator's anyway."""

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Nothing to do: where collectives run in the background, gathers have a communicator of their own anyway."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """Checks its argument. One reduction is under way while backward goes on, and the sum over replicas before it."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers must be an int, got {type(max_input_buffers).__name__}")
        if max_input_buffers < 1:
            raise ValueError(f"max_input_buffers must be a positive int, got {max_input_buffers}")

    def reset_iter_state(self) -> None:
        """Nothing to do: a pass that raised is forgotten when the next one begins."""

    def set_post_optim_event(self, event: Any) -> None:
        """Has the current stream wait for ``event``, recorded after the optimizer's step; None on the CPU, which has none."""
        if event is not None:
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
    "set_keep_unsharded_storage": "set_reshard_after_forward(False) and set_reshard_after_backward(False) keep it gathered",
    "set_manual_backward_finalization": "every backward pass finishes its reductions; set_requires_gradient_sync(False) defers them",
    "finalize_backward": "every backward pass finishes its reductions; set_requires_gradient_sync(False) defers them",
    "set_reduce_scatter_unused_params": "parameters must be used on all ranks alike; add a zero multiple of those that a rank does not use",
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
        before = open_call_count()
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
