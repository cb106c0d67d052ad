"""Tracers and compilers refuse DTensors, and forward-mode differentiation refuses thread ranks, with the reason."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch._subclasses.meta_utils import MetaTensorDescriber

from . import _C

_NOT_COMPILED = (
    "torch.compile, torch.export and torch.cond do not support DTensors: call "
    'torch.compiler.set_stance("force_eager") to run what a library compiles as it is written, or compile functions of '
    "to_local() tensors"
)


def _refuse_to_trace(describer: type) -> None:
    """Makes tracers refuse DTensors: they describe a tensor before they create a fake tensor, and pass on the error. Dynamo
    then runs the function eagerly, or raises with the reason (``fullgraph=True``).
    """
    describe = describer.describe_tensor  # type: ignore[attr-defined]

    @functools.wraps(describe)
    def describe_tensor(self: Any, tensor: torch.Tensor, **options: Any) -> Any:
        if _C.is_dtensor(tensor):
            raise UnsupportedFakeTensorException(_NOT_COMPILED)
        return describe(self, tensor, **options)

    describer.describe_tensor = describe_tensor  # type: ignore[attr-defined]


def _with_short_error(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` compiles its arguments: reduces Dynamo's report about a DTensor to the reason."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            if _NOT_COMPILED in str(error):
                raise NotImplementedError(_NOT_COMPILED) from error
            raise

    return call


def _refuse_on_thread_ranks(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` enters forward-mode differentiation, whose level belongs to the process: thread ranks would share it."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _C.is_thread_rank() and _C.world().size > 1:
            raise NotImplementedError(
                "forward-mode differentiation (torch.func.jvp, jacfwd, hessian, forward_ad.dual_level) has one level for "
                "all threads of a process, which ranks of dtensor.run share: use reverse mode (vjp, jacrev), or ranks "
                "that are processes (torchrun, mpirun)"
            )
        return fn(*args, **kwargs)

    return call


def install() -> None:
    """Changes the tracers of torch. Called once, on import."""
    forward_ad, transforms = torch.autograd.forward_ad, torch._functorch.eager_transforms
    forward_ad.enter_dual_level = _refuse_on_thread_ranks(forward_ad.enter_dual_level)
    transforms.jvp_increment_nesting = _refuse_on_thread_ranks(transforms.jvp_increment_nesting)
    _refuse_to_trace(MetaTensorDescriber)
    torch.cond = _with_short_error(torch.cond)
