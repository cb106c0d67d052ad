"""Context parallelism of programs with regular tensors: each rank has its shard of the sequence.

Shards are placed as ``ZigzagShard``, which balances the work of a causal mask over the ranks. ``ContextParallelScope`` in
C++ sees attention operators, whatever name called them; here buffers are sharded, and torch's modules avoid other operators.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, Iterator, Sequence

import torch

from . import _C
from ._C import DeviceMesh, Placement
from ._mesh import as_mesh

__all__ = ["context_parallel", "context_parallel_unshard"]


def _part(buffer: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    """This rank's shard, with memory of its own."""
    full = _C.from_local(buffer, mesh, None, list(buffer.shape), list(torch.empty(buffer.shape, device="meta").stride()))
    return _C.to_local(_C.redistribute(full, None, [Placement.zigzag_shard(dim % buffer.dim())]), []).clone()


def _adapt_modules() -> None:
    """Inside a scope, torch's modules call ``scaled_dot_product_attention``, or refuse what it cannot compute."""
    enabled, forward = torch.backends.mha.get_fastpath_enabled, torch.nn.functional.multi_head_attention_forward
    if hasattr(forward, "_is_context_parallel"):
        return
    signature = inspect.signature(forward)

    def get_fastpath_enabled() -> bool:
        if not torch.jit.is_scripting():  # TorchScript compiles the rest only
            return enabled() and not _C.is_context_parallel()
        return True

    @functools.wraps(forward)
    def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
        if _C.is_context_parallel() and signature.bind(*args, **kwargs).arguments.get("need_weights", True):
            raise ValueError(
                "context_parallel: expected need_weights=False of multi-head attention, got True: the weights of the "
                "full sequence are not computed"
            )
        return forward(*args, **kwargs)

    multi_head_attention_forward._is_context_parallel = True  # type: ignore[attr-defined]
    torch.backends.mha.get_fastpath_enabled = get_fastpath_enabled
    torch.nn.functional.multi_head_attention_forward = multi_head_attention_forward


def _check_buffers(buffers: list[torch.Tensor], dims: list[int], no_restore: set[int]) -> None:
    if not buffers or len(buffers) != len(dims):
        raise ValueError(
            f"`seq_dims` must have the same number of elements as `buffers`, at least one: {len(dims)} for {len(buffers)}"
        )
    known = {id(buffer) for buffer in buffers}
    if not no_restore <= known:
        raise ValueError("`no_restore_buffers` must be a subset of `buffers`.")
    if len(known) < len(buffers):
        raise ValueError(f"context_parallel: expected each buffer once, got {len(buffers)} buffers that are {len(known)} tensors")
    for i, buffer in enumerate(buffers):
        if buffer.requires_grad or _C.is_dtensor(buffer):
            what = "a DTensor" if _C.is_dtensor(buffer) else "one that requires grad"
            raise ValueError(f"context_parallel: expected regular tensors without gradients as buffers, got {what} as buffer {i}")


@contextlib.contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    buffers: list[torch.Tensor] | None = None,
    buffer_seq_dims: list[int] | None = None,
    no_restore_buffers: set[torch.Tensor] | None = None,
) -> Iterator[None]:
    """While open, ``buffers`` hold this rank's shards of the sequence, and attention covers the full sequence.

    ``buffers``: regular tensors with the full sequence on every rank (token ids, labels, position tables). They are sharded
    along ``buffer_seq_dims``, in memory of their own, and have their own memory again on exit, except
    ``no_restore_buffers``. Attention is ``scaled_dot_product_attention`` of [..., sequence, features] by any of its names;
    other attention operators of ATen raise. Keys of another length than the queries' and the buffers' are the same on every
    rank. A function that runs again in backward (``torch.utils.checkpoint``) sees the scope of its forward pass.
    See ``attention_strategy``.
    """
    mesh, buffers, dims = as_mesh(mesh), buffers or [], buffer_seq_dims or []
    kept = {id(buffer) for buffer in no_restore_buffers or ()}
    _check_buffers(buffers, dims, kept)
    originals = [buffer.detach() for buffer in buffers]
    with torch.no_grad():
        for buffer, part in [(b, _part(b, mesh, dim)) for b, dim in zip(buffers, dims)]:
            buffer.set_(part)
    _adapt_modules()
    try:
        with _C.ContextParallelScope(mesh, [t.shape[dim] for t, dim in zip(originals, dims)]):
            yield
    finally:
        with torch.no_grad():
            for buffer, original in zip(buffers, originals):
                if id(buffer) not in kept:
                    buffer.set_(original)


def context_parallel_unshard(
    mesh: DeviceMesh, buffers: Sequence[torch.Tensor], seq_dims: Sequence[int]
) -> list[torch.Tensor]:
    """The full tensors of which each rank has a shard, in sequence order. Collective."""
    placed = [Placement.zigzag_shard(dim % buffer.dim()) for buffer, dim in zip(buffers, seq_dims)]
    with torch.no_grad():
        return [_C.full_tensor(_C.from_local(b, as_mesh(mesh), [p], None, None), []) for b, p in zip(buffers, placed)]
