"""Names of ``torch.distributed.tensor.experimental``."""

from __future__ import annotations

import contextlib
from typing import Iterator

from ._context_parallel import context_parallel, context_parallel_unshard
from ._local_map import local_map
from ._register_sharding import register_sharding

__all__ = ["context_parallel", "context_parallel_unshard", "implicit_replication", "local_map", "register_sharding"]


@contextlib.contextmanager
def implicit_replication() -> Iterator[None]:
    """No effect: a regular tensor among DTensors always counts as replicated (unless ``Strict`` is open)."""
    yield
