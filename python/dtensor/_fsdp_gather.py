"""``fsdp_pre_all_gather`` and ``fsdp_post_all_gather``: the local tensor of a parameter says what its unit gathers.

See docs/design/fsdp.md, "What a gather carries". The hooks are those of PyTorch's ``fully_shard``.
"""

from __future__ import annotations

import inspect
import math
import weakref
from typing import Any, Sequence

import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from . import _C
from ._C import DeviceMesh

HOOKS = ("fsdp_pre_all_gather", "fsdp_post_all_gather")


def set_gather_hooks(slots: Sequence[tuple[str, nn.Module, str]], mesh: DeviceMesh, policy: Any) -> None:
    """Registers the hooks of the local tensors of a unit's parameters."""
    shard_mesh = _shard_mesh(mesh)
    seen: set[int] = set()
    for name, module, key in slots:
        parameter = module._parameters[key]
        if not _C.is_dtensor(parameter) or id(parameter) in seen or not parameter.device_mesh.is_member():
            continue
        seen.add(id(parameter))
        local = parameter._local_tensor  # type: ignore[union-attr]
        defined = [hook for hook in HOOKS if hasattr(local, hook)]
        if len(defined) == 1:
            raise TypeError(f"fully_shard: expected {HOOKS[0]} and {HOOKS[1]} on parameter {name!r}, got only {defined[0]}")
        if defined:
            hooks = _GatherHooks(name, module, parameter, shard_mesh, policy)
            _C.set_gather_extension(parameter, hooks.contribute, hooks.unshard, hooks.refill)


def _shard_mesh(mesh: DeviceMesh) -> DeviceMesh:
    if mesh.ndim == 1:
        return mesh
    named = mesh if mesh.mesh_dim_names else mesh.view(mesh.shape, ("replicate", "shard"))
    return named[named.mesh_dim_names[-1]]  # type: ignore[index]


class _GatherHooks:
    """Calls the hooks of one parameter, and keeps what the first passes to the second."""

    def __init__(self, name: str, module: nn.Module, parameter: Any, mesh: DeviceMesh, policy: Any) -> None:
        self._name, self._module, self._mesh, self._policy = name, weakref.ref(module), mesh, policy
        self._size = parameter.shape
        self._stride = torch.empty(self._size, device="meta").stride()
        self._local: Any = None
        self._metadata: Any = None

    def contribute(self, local: torch.Tensor) -> list[torch.Tensor]:
        self._local = local
        hook = local.fsdp_pre_all_gather  # type: ignore[attr-defined]
        expected = len(inspect.signature(hook).parameters)
        if expected not in (1, 5):
            raise TypeError(
                f"fully_shard: expected fsdp_pre_all_gather(self, mesh) or (self, mesh, outer_size, outer_stride, module, "
                f"mp_policy) for parameter {self._name!r}, got {inspect.signature(hook)}"
            )
        rest = (self._size, self._stride, self._module(), self._policy) if expected == 5 else ()
        inputs, self._metadata = hook(self._mesh, *rest)
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        padded = (math.ceil(self._size[0] / self._mesh.size()), *self._size[1:])
        got = [tuple(t.shape) for t in inputs]
        if tuple(local.shape) != padded and any(size != padded for size in got):
            raise ValueError(
                f"fully_shard: parameter {self._name!r} of sizes {tuple(self._size)} is unevenly sharded over "
                f"{self._mesh.size()} ranks; expected fsdp_pre_all_gather to return tensors padded to {padded}, got {got}"
            )
        return inputs

    def unshard(self, gathered: list[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
        tensor, made = self._local.fsdp_post_all_gather(tuple(gathered), self._take(), dtype)
        return tensor, list(made)

    def refill(self, gathered: list[torch.Tensor], dtype: torch.dtype, unsharded: torch.Tensor) -> None:
        local, metadata = self._local, self._take()
        with _unsafe_preserve_version_counter(unsharded):  # the values are those that a graph has saved
            local.fsdp_post_all_gather(tuple(gathered), metadata, dtype, out=unsharded)

    def _take(self) -> Any:
        metadata, self._metadata = self._metadata, None
        return metadata
