"""Tensor and sequence parallelism with the names of ``torch.distributed.tensor.parallel``.

A plan maps names of submodules (``*`` matches one part of a name) to parallel styles: how parameters are sharded over a
1-D mesh, and how inputs and outputs are placed. Results are correct without a plan, which only determines the
communication. Operators choose the cheapest placements if only parameters are sharded.
"""

from __future__ import annotations

import contextlib
import fnmatch
import warnings
from typing import Any, Iterator

import torch
from torch import nn

from . import _C
from ._api import SharedParameters, record_parameter_swap
from ._C import DeviceMesh
from ._mesh import as_mesh
from ._styles import (
    ColwiseParallel, ParallelStyle, PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput, RowwiseParallel,
    SequenceParallel,
)  # fmt: skip

__all__ = [
    "parallelize_module", "ParallelStyle", "ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput",
    "PrepareModuleOutput", "PrepareModuleInputOutput", "loss_parallel", "linear_cross_entropy",
]  # fmt: skip


def _matches(pattern: str, name: str) -> bool:
    parts, names = pattern.split("."), name.split(".")
    return len(parts) == len(names) and all(fnmatch.fnmatchcase(n, p) for n, p in zip(names, parts))


def _check_plan(plan: Any) -> None:
    if plan is None:
        warnings.warn("No parallelize_plan is provided: this parallelize_module call will do nothing.", stacklevel=3)
    styles = list(plan.values()) if isinstance(plan, dict) else [plan]
    for style in styles:
        if style is not None and not isinstance(style, ParallelStyle):
            raise TypeError(
                "Expect Union[ParallelStyle, Dict[str, ParallelStyle]] for parallelize_plan, of the styles of "
                f"dtensor.parallel, but {style!r} is found!"
            )


def parallelize_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | dict[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """Applies a style to ``module``, or styles to the submodules that a plan names, over a 1-D ``device_mesh``.

    Parameters are replaced: create the optimizer afterwards. An entry that matches no submodule is a ValueError. All ranks
    use the values of rank ``src_data_rank`` of the mesh. Tied parameters stay tied: an entry for one name applies to all
    names, and conflicting entries are a ValueError.
    """
    _check_plan(parallelize_plan)
    mesh = as_mesh(device_mesh)
    if mesh.ndim != 1:
        raise ValueError(f"parallelize_module: expected a mesh of one dimension, such as mesh['tp'], got {mesh}")
    shared, former, result = SharedParameters(module), list(module.parameters()), module
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan.src_data_rank = src_data_rank
        result, parallelize_plan = parallelize_plan._apply(module, mesh), None
    for pattern, style in (parallelize_plan or {}).items():
        found = [m for name, m in module.named_modules() if _matches(pattern, name)]
        if not found:
            raise ValueError(f"parallelize_module: {pattern!r} matches no submodule of {type(module).__name__}")
        style.src_data_rank = src_data_rank
        for submodule in found:
            style._apply(submodule, mesh)
    shared.restore()
    record_parameter_swap(former, module)
    return result


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """No effect: losses always keep logits sharded by class."""
    yield


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk: int = 1024,
) -> torch.Tensor:
    """Mean cross entropy of ``linear(hidden, weight)``, with the logits of at most ``chunk`` tokens in memory at once.

    ``chunk=0`` keeps all logits for backward, in the dtype of ``hidden``: more memory, one product less.

    ``hidden`` [..., features], ``weight`` [classes, features], ``targets`` int64 [...]; regular tensors or DTensors.
    ``z_loss``: adds z_loss * logsumexp(logits)^2 of each valid token. Other options are those of
    ``torch.nn.functional.cross_entropy``. Differentiable.
    """
    return _C.linear_cross_entropy(hidden, weight, targets, ignore_index, label_smoothing, z_loss, chunk)
