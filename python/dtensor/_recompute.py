"""``torch.utils.checkpoint``: a function that runs again in backward sees the library's scopes of its forward pass.

Both of its variants store the function in an object of a class that is adapted here, so that it does not matter by which
name ``checkpoint`` was imported.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch.utils.checkpoint

from . import _C


def _in_current_scopes(function: Callable[..., Any]) -> Callable[..., Any]:
    scopes = _C.ScopeSnapshot()

    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with scopes.restore():
            return function(*args, **kwargs)

    return call


def install() -> None:
    reentrant, frame = torch.utils.checkpoint.CheckpointFunction, torch.utils.checkpoint._CheckpointFrame
    forward, init = reentrant.forward, frame.__init__

    def forward_in_scopes(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
        return forward(ctx, _in_current_scopes(run_function), *args)

    def init_in_scopes(self: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        init(self, _in_current_scopes(recompute_fn), *args, **kwargs)

    reentrant.forward = staticmethod(forward_in_scopes)
    frame.__init__ = init_in_scopes
