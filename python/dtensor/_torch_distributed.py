"""Where Python code of ``torch.distributed`` meets DTensors. Its collectives are refused by the engine; see there."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable

import torch

from . import _C


def refuse_ddp(init: Callable[..., None]) -> Callable[..., None]:
    """``DistributedDataParallel.__init__`` that takes no module with DTensors."""

    @functools.wraps(init)
    def checked(ddp: Any, module: torch.nn.Module, *args: Any, **options: Any) -> None:
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
            if name not in ignored and _C.is_dtensor(tensor):
                raise ValueError(
                    f"DistributedDataParallel got a module whose {name!r} is a DTensor: its mesh reduces gradients already, so "
                    "train the module itself, without DistributedDataParallel (accelerate, Trainer and Lightning add it: "
                    "see docs/guide/libraries.md)"
                )
        init(ddp, module, *args, **options)

    return checked


def _any_dtensor(value: Any) -> bool:
    return any(map(_any_dtensor, value)) if isinstance(value, (list, tuple)) else _C.is_dtensor(value)


def _refuse_nested(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ProcessGroup that takes lists of lists, into which the dispatcher does not look."""

    @functools.wraps(call)
    def checked(group: Any, *args: Any, **options: Any) -> Any:
        if any(map(_any_dtensor, args)) or any(map(_any_dtensor, options.values())):
            raise NotImplementedError(
                f"ProcessGroup.{name}, of torch.distributed, got a DTensor, which is one tensor on all ranks of its mesh "
                "already: take item() or full_tensor() for its value, redistribute() to move or reduce it, and to_local() to "
                "communicate this rank's part as a regular tensor"
            )
        return call(group, *args, **options)

    return checked


_NESTED = ("allgather", "allgather_coalesced", "gather", "reduce_scatter", "scatter")


def install() -> None:
    """Once, on import."""
    if not torch.distributed.is_available():
        return
    group = torch.distributed.ProcessGroup
    for name in _NESTED:
        setattr(group, name, _refuse_nested(name, getattr(group, name)))
    ddp = torch.nn.parallel.DistributedDataParallel
    ddp.__init__ = refuse_ddp(ddp.__init__)  # type: ignore[method-assign]
