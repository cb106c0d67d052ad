"""Watching a program: what it communicates, and why an operator does what it does."""

from __future__ import annotations

from typing import Any, Callable

from . import _C
from ._C import Checked, ExplicitRedistribution, MemoryTimeline, Strict, cache_stats, clear_cache  # noqa: F401
from ._C import empty_memory_pool, memory_pool_stats, set_memory_pool_limit

__all__ = [
    "CommDebugMode", "explain", "Strict", "Checked", "ExplicitRedistribution", "EventListener", "MemoryTimeline",
    "empty_memory_pool", "memory_pool_stats", "set_memory_pool_limit",
]  # fmt: skip


class CommDebugMode:
    """Counts the collectives of this rank while it is open, backward passes included::

        with CommDebugMode() as comm:
            model(x).sum().backward()
        comm.get_total_counts(); print(comm.table())
    """

    def __init__(self) -> None:
        self._counts = _C.CommCounts()

    def __enter__(self) -> "CommDebugMode":
        self._counts.enter()
        return self

    def __exit__(self, *error: Any) -> None:
        self._counts.leave()

    def rows(self) -> list[tuple[str, str, str, str, int, int]]:
        """(kind, mesh axes, module, "forward" or "backward", calls, bytes that this rank received), one for each kind."""
        return self._counts.rows()

    def get_comm_counts(self, kind: str | None = None, axis: str | None = None) -> dict[str, int]:
        """Calls of each kind of collective (all_gather, all_reduce, reduce_scatter, all_to_all, broadcast, ...)."""
        result: dict[str, int] = {}
        for row_kind, row_axis, _, _, calls, _ in self.rows():
            if kind in (None, row_kind) and axis in (None, row_axis):
                result[row_kind] = result.get(row_kind, 0) + calls
        return result

    def get_total_counts(self) -> int:
        """Calls of all kinds."""
        return sum(self.get_comm_counts().values())

    def get_total_bytes(self, kind: str | None = None, axis: str | None = None) -> int:
        """Bytes that this rank received from others."""
        rows = self.rows()
        return sum(row[5] for row in rows if kind in (None, row[0]) and axis in (None, row[1]))

    def table(self) -> str:
        """All counts as a text table."""
        return self._counts.table()


class EventListener:
    """While open, ``fn(kind, name, axis, bytes, seconds)`` is called for each event of this rank."""

    def __init__(self, fn: Callable[[str, str, str, int, float], object]) -> None:
        if not callable(fn):
            raise TypeError(f"EventListener(fn): fn must be callable, not {fn!r}")
        self._fn = fn  # what C++ keeps no garbage collector sees, and this may belong to who keeps the listener
        self._scope: Any = None

    def __enter__(self) -> "EventListener":
        if self._scope is not None:
            raise RuntimeError("this EventListener is open already")
        self._scope = _C.EventListener(self._fn).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__()


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Runs ``fn``; for every operator that it calls on DTensors: the candidates, their prices and the choice."""
    return _C.explain(fn, *args, **kwargs)
