"""Tracers and compilers refuse DTensors with the reason."""

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


def install() -> None:
    """Changes the tracers of torch. Called once, on import."""
    _refuse_to_trace(MetaTensorDescriber)
    torch.cond = _with_short_error(torch.cond)
