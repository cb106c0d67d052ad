"""Context parallelism of programs with regular tensors: each rank has its shard of the sequence.

Shards are placed as ``ZigzagShard``, which balances the work of a causal mask over the ranks.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Iterator, Sequence

import torch

from . import _C
from ._C import DeviceMesh, Placement
from ._mesh import as_mesh

__all__ = ["context_parallel", "context_parallel_unshard"]

SEQUENCE = 2  # the dimension of query, key and value: [batch, heads, sequence, features]
_scope = threading.local()  # `at`: mesh and sequence length of this thread's innermost context_parallel


def _part(buffer: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    full = _C.from_local(buffer, mesh, None, list(buffer.shape), list(buffer.contiguous().stride()))
    return _C.to_local(_C.redistribute(full, None, [Placement.zigzag_shard(dim % buffer.dim())]), []).clone()


def _replace(buffer: torch.Tensor, content: torch.Tensor) -> None:
    buffer.resize_(content.shape)
    buffer.copy_(content)


def _on_mesh(tensor: torch.Tensor, mesh: DeviceMesh, length: int) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[SEQUENCE] = length
    stride = list(torch.empty(shape, device="meta").stride())
    return _C.from_local(tensor, mesh, [Placement.zigzag_shard(SEQUENCE)], shape, stride)


def _patch() -> None:
    """Patches ``scaled_dot_product_attention``: inside a scope, regular tensors are shards of the full sequence."""
    original = torch.nn.functional.scaled_dot_product_attention
    if hasattr(original, "_is_context_parallel"):
        return

    @functools.wraps(original)
    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        at = getattr(_scope, "at", None)
        if at is None or any(_C.is_dtensor(t) for t in (query, key, value)):
            return original(query, key, value, *args, **kwargs)
        result = original(*(_on_mesh(t, *at) for t in (query, key, value)), *args, **kwargs)
        return result.redistribute(placements=[Placement.zigzag_shard(SEQUENCE)]).to_local()

    attention._is_context_parallel = True  # type: ignore[attr-defined]
    torch.nn.functional.scaled_dot_product_attention = attention


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
    in place along ``buffer_seq_dims`` and restored on exit, except ``no_restore_buffers``. Attention is
    ``torch.nn.functional.scaled_dot_product_attention`` of [batch, heads, sequence, features]; see ``attention_strategy``.
    """
    mesh, buffers, dims = as_mesh(mesh), buffers or [], buffer_seq_dims or []
    if not buffers or len(buffers) != len(dims):
        raise ValueError(
            f"`seq_dims` must have the same number of elements as `buffers`, at least one: {len(dims)} for {len(buffers)}"
        )
    kept = {id(buffer) for buffer in no_restore_buffers or ()}
    if not kept <= {id(buffer) for buffer in buffers}:
        raise ValueError("`no_restore_buffers` must be a subset of `buffers`.")
    originals = [None if id(buffer) in kept else buffer.clone() for buffer in buffers]
    outer, length = getattr(_scope, "at", None), buffers[0].shape[dims[0]]
    with torch.no_grad():
        for buffer, dim in zip(buffers, dims):
            _replace(buffer, _part(buffer, mesh, dim))
    _patch()
    _scope.at = mesh, length
    try:
        yield
    finally:
        _scope.at = outer
        with torch.no_grad():
            for buffer, original in zip(buffers, originals):
                if original is not None:
                    _replace(buffer, original)


def context_parallel_unshard(
    mesh: DeviceMesh, buffers: Sequence[torch.Tensor], seq_dims: Sequence[int]
) -> list[torch.Tensor]:
    """The full tensors of which each rank has a shard, in sequence order. Collective."""
    placed = [Placement.zigzag_shard(dim % buffer.dim()) for buffer, dim in zip(buffers, seq_dims)]
    with torch.no_grad():
        return [_C.full_tensor(_C.from_local(b, as_mesh(mesh), [p], None, None), []) for b, p in zip(buffers, placed)]
