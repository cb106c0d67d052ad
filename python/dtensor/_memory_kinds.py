"""What memory of PyTorch's optimizers is used for, in the reports of ``simulate``. Modules of this library declare theirs."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import _C


def _declare(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _C.set_memory_kind(parameter, "parameters")
            if parameter.grad is not None:
                _C.set_memory_kind(parameter.grad, "gradients")
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                _C.set_memory_kind(value, "optimizer states")


@contextlib.contextmanager
def declared_by_optimizers() -> Iterator[None]:
    """While open, each step of an optimizer declares its parameters, their gradients and its states."""
    hooks = register_optimizer_step_pre_hook(_declare), register_optimizer_step_post_hook(_declare)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
