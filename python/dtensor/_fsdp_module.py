"""The methods that ``fully_shard`` adds to modules."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Sequence

import torch
from torch import nn

from . import _C
from ._fsdp_call import Unit, open_call_count, close_calls


class UnshardHandle:
    """The result of :meth:`FSDPModule.unshard` with ``async_op=True``."""

    def wait(self) -> None:
        """Returns at once: the gather is complete when the handle is created."""


class FSDPModule:
    """Base class that ``fully_shard`` adds to a module's class."""

    _fsdp_units: list[Unit]  # one for each call of fully_shard

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A new module of such a class (a slice of an ``nn.Sequential``) is not a unit: it has the original class."""
        original = cls.__mro__[2]
        module = original.__new__(original)
        module.__init__(*args, **kwargs)
        return module

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers this unit's parameters now, until :meth:`reshard`. Collective.

        ``async_op``: returns a handle to wait for; the gather is complete when this function returns.
        """
        for unit in self._fsdp_units:
            unit.look_up_gather_hooks()
        for handle in self._handles(recurse=False):
            handle.unshard()
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Frees the gathered parameters."""
        for handle in self._handles(recurse=False):
            handle.reshard()

    def _handles(self, recurse: bool) -> list[_C.FsdpUnit]:
        """Units of this module, and with ``recurse`` of its submodules."""
        modules = self.modules() if recurse else [self]  # type: ignore[attr-defined]
        return [h for m in modules if isinstance(m, FSDPModule) for unit in m._fsdp_units for h in unit.handles()]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError(
            "a module under fully_shard cannot be copied, since schedules gather its parameters: copy it before "
            "fully_shard, or load its state_dict() into another module; the parameters alone can be copied"
        )

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Closes the calls that a raising call left open."""
        before = open_call_count()
        try:
            return super()._call_impl(*args, **kwargs)  # type: ignore[misc]
        finally:
            close_calls(before)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles ``forward``, with the options of ``torch.compile``. The unit gathers and reduces outside of it."""
        self.forward = torch.compile(self.forward, *args, **kwargs)  # type: ignore[method-assign,attr-defined]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Restores placements that ``fn`` lost: new data (``to_empty``) has no storage shards."""
        former = [(p, p.placements) for p in self.parameters(recurse) if _C.is_dtensor(p)]  # type: ignore[attr-defined]
        result = super()._apply(fn, recurse)  # type: ignore[misc]
        for parameter, own in former:
            lost = [p.is_storage for p in parameter.placements] != [p.is_storage for p in own]
            if lost and parameter.placements == own:
                with torch.no_grad():
                    parameter.redistribute_(own)
        return result

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward passes reduce the gradients of this module's unit and, with ``recurse``, of units below it.

        The next pass that reduces adds gradients that were left unreduced.
        """
        for handle in self._handles(recurse):
            handle.set_requires_gradient_sync(requires_gradient_sync)
            handle.set_requires_all_reduce(requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Whether backward passes all-reduce over replicas (HSDP). Gradients are reduce-scattered in any case."""
        for handle in self._handles(recurse):
            handle.set_requires_all_reduce(requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether gathered parameters are freed after forward, and gathered again in backward."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}")
        for handle in self._handles(recurse):
            handle.set_reshard_after_forward(reshard_after_forward)
        for module in self.modules() if recurse else [self]:  # type: ignore[attr-defined]
            for unit in getattr(module, "_fsdp_units", ()):
                unit.keep_outermost_unsharded = False

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether gathered parameters are freed after backward. If kept, they are gathered again after they change."""
        for handle in self._handles(recurse):
            handle.set_reshard_after_backward(reshard_after_backward)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divisor of gradients of regular tensors, instead of the number of data-parallel ranks."""
        for handle in self._handles(recurse=False):
            handle.set_gradient_divide_factor(factor)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """Whether each pass reduces every parameter that requires a gradient, with zeros where this rank has none.

        Set it on every rank if the ranks' data decides which parameters of a unit they use.
        """
        for handle in self._handles(recurse):
            handle.set_reduce_scatter_unused_params(reduce_scatter_unused_params)

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Checks its argument only. Units prefetch in the order recorded in the step before, in forward and backward."""
        _check_units(modules)

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Like :meth:`set_modules_to_forward_prefetch`."""
        _check_units(modules)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """No effect: every backward pass finishes its own reductions."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """No effect: a unit that backward does not use costs one gather and changes no result."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """No effect: averages are always sums that are divided."""

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """No effect: the communicator always provides the buffers."""

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """No effect: the communicator always provides the buffers."""

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """No effect: where collectives run in the background, gathers always have a separate communicator."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """Checks its argument only. During backward one reduce-scatter and the previous unit's all-reduce are in flight."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers must be an int, got {type(max_input_buffers).__name__}")
        if max_input_buffers < 1:
            raise ValueError(f"max_input_buffers must be a positive int, got {max_input_buffers}")

    def reset_iter_state(self) -> None:
        """No effect: the next pass discards the state of a pass that raised."""

    def set_post_optim_event(self, event: Any) -> None:
        """Makes the current stream wait for ``event``, recorded after the optimizer's step; None on the CPU."""
        if event is not None:
            event.wait()

    def fsdp_stats(self) -> dict[str, int]:
        """Collectives and bytes on this rank over all units, since the model's first unit was made."""
        return self._fsdp_units[0].handle.stats()


def _not_supported(name: str, instead: str) -> Callable[..., None]:
    def method(self: FSDPModule, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{name} is not supported: {instead}")

    method.__name__ = name
    method.__doc__ = f"Not supported: {instead}."
    return method


for _name, _instead in {
    "set_all_reduce_hook": "use a replicate axis (HSDP), or Tensor.register_post_accumulate_grad_hook",
    "set_custom_all_gather": "the mesh's communicators implement collectives; dtensor/comm_backend.h adds one",
    "set_custom_reduce_scatter": "the mesh's communicators implement collectives; dtensor/comm_backend.h adds one",
    "set_keep_unsharded_storage": "use set_reshard_after_forward(False) and set_reshard_after_backward(False)",
    "set_manual_backward_finalization": "every backward pass reduces; defer it with set_requires_gradient_sync(False)",
    "finalize_backward": "every backward pass reduces; defer it with set_requires_gradient_sync(False)",
}.items():
    setattr(FSDPModule, _name, _not_supported(_name, _instead))


def _check_units(modules: Sequence[Any]) -> None:
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"Expects FSDPModule but got {type(module)}: {module}")


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Makes a method of a unit's module gather the unit's parameters, as ``forward`` does.

    Does nothing for a module that is not a unit.
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
            if inspect.isgenerator(outputs):
                raise TypeError(
                    f"register_fsdp_forward_method: {method_name!r} is a generator, whose body runs after the unit is resharded; "
                    "return a list"
                )
            for unit in self._fsdp_units:
                outputs = unit.leave(self, outputs)
            return outputs
        finally:
            close_calls(before)

    setattr(module, method_name, forward.__get__(module, type(module)))


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Checks its argument only. All units of a rank share streams and buffers."""
    _check_units(modules)
