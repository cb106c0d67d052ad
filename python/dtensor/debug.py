"""Debugging: what a program communicates, and why an operator chooses its placements."""

from __future__ import annotations

import json
import threading
from typing import Any, Callable

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from . import _C
from ._C import Placement
from ._C import Checked, ImplicitRedistributionScope, MemoryTimeline, Strict, cache_stats, clear_cache  # noqa: F401
from ._C import empty_memory_pool, memory_pool_stats, set_memory_pool_limit

__all__ = [
    "CommDebugMode", "explain", "Strict", "Checked", "ImplicitRedistributionScope", "EventListener", "MemoryTimeline",
    "empty_memory_pool", "memory_pool_stats", "set_memory_pool_limit", "visualize_sharding",
]  # fmt: skip


class CommCounts(dict[str, int]):
    """Calls of each kind of collective, 0 for kinds without calls; operators of ``torch.ops.c10d_functional`` are keys."""

    def __missing__(self, kind: Any) -> int:
        name = str(kind).replace("_", "")
        return sum(calls for own, calls in self.items() if not isinstance(kind, str) and own.replace("_", "") in name)


class CommDebugMode:
    """Counts the collectives of this rank while it is open, including those of backward passes::

        with CommDebugMode() as comm:
            model(x).sum().backward()
        comm.get_total_counts(); print(comm.table())
    """

    def __init__(self) -> None:
        self._counts = _C.CommCounts()
        self._modules = _CalledModules()

    def __enter__(self) -> "CommDebugMode":
        self._counts.enter()
        self._modules.enter()
        return self

    def __exit__(self, *error: Any) -> None:
        self._modules.leave()
        self._counts.leave()

    def rows(self) -> list[tuple[str, str, str, str, int, int]]:
        """(kind, mesh axes, module, "forward" or "backward", calls, bytes that this rank received) of each kind."""
        return self._counts.rows()

    def get_comm_counts(self, kind: str | None = None, axis: str | None = None) -> CommCounts:
        """Calls of each kind of collective (all_gather, all_reduce, reduce_scatter, all_to_all, broadcast, ...)."""
        result = CommCounts()
        for row_kind, row_axis, _, _, calls, _ in self.rows():
            if kind in (None, row_kind) and axis in (None, row_axis):
                result[row_kind] = result.get(row_kind, 0) + calls
        return result

    @property
    def comm_counts(self) -> CommCounts:
        return self.get_comm_counts()

    def get_total_counts(self) -> int:
        """Calls of all kinds."""
        return sum(self.get_comm_counts().values())

    def get_total_bytes(self, kind: str | None = None, axis: str | None = None) -> int:
        """Bytes that this rank received from other ranks."""
        rows = self.rows()
        return sum(row[5] for row in rows if kind in (None, row[0]) and axis in (None, row[1]))

    def get_parameter_info(self) -> dict[str, dict[str, torch.Tensor]]:
        """Parameters of the modules that were called, by module name and parameter name."""
        return self._modules.parameters

    def get_sharding_info(self) -> dict[str, tuple[Placement, ...]]:
        """Placements of the DTensor parameters of the modules that were called, by full name."""
        return {
            f"{module}.{name}": parameter.placements
            for module, parameters in self._modules.parameters.items()
            for name, parameter in parameters.items()
            if _C.is_dtensor(parameter)
        }

    def table(self) -> str:
        """All counts as a text table."""
        return self._counts.table()

    def generate_comm_debug_tracing_table(self, noise_level: int = 3) -> str:
        """The table; ``noise_level`` has no effect, since the table does not list operators (see ``explain``)."""
        return self.table()

    def log_comm_debug_tracing_table_to_file(
        self, file_name: str = "comm_mode_log.txt", noise_level: int = 3
    ) -> None:
        """Writes the table to a file."""
        with open(file_name, "w") as file:
            file.write(self.table())

    def generate_json_dump(self, file_name: str = "comm_mode_log.json", noise_level: int = 3) -> None:
        """Writes ``rows()`` and ``get_sharding_info()`` to a JSON file."""
        columns = ("kind", "axes", "module", "phase", "calls", "bytes")
        sharding = {name: [str(p) for p in placements] for name, placements in self.get_sharding_info().items()}
        with open(file_name, "w") as file:
            json.dump({"collectives": [dict(zip(columns, row)) for row in self.rows()], "sharding": sharding}, file, indent=4)


class _CalledModules:
    """Parameters of the modules that this thread calls while open; names begin with the outermost module's class."""

    def __init__(self) -> None:
        self.parameters: dict[str, dict[str, torch.Tensor]] = {}
        self._names: dict[int, str] = {}
        self._thread = 0
        self._hook: Any = None

    def enter(self) -> None:
        self._thread = threading.get_ident()
        self._hook = register_module_forward_pre_hook(self._record_module)

    def leave(self) -> None:
        self._hook.remove()
        self._names.clear()

    def _record_module(self, module: torch.nn.Module, inputs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if id(module) not in self._names:
            root = type(module).__name__
            self._names.update({id(m): ".".join(filter(None, [root, path])) for path, m in module.named_modules()})
        self.parameters[self._names[id(module)]] = {name: p.data for name, p in module.named_parameters()}


class EventListener:
    """While open, ``fn(kind, name, axis, bytes, seconds)`` is called for each event of this rank."""

    def __init__(self, fn: Callable[[str, str, str, int, float], object]) -> None:
        if not callable(fn):
            raise TypeError(f"EventListener(fn): fn must be callable, got {fn!r}")
        self._fn = fn  # owned here: the garbage collector cannot break reference cycles through C++ objects
        self._scope: Any = None

    def __enter__(self) -> "EventListener":
        if self._scope is not None:
            raise RuntimeError("this EventListener is already entered")
        self._scope = _C.EventListener(self._fn).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__()


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Runs ``fn`` and reports, for every operator on DTensors, the candidates, their costs and the choice."""
    return _C.explain(fn, *args, **kwargs)


def visualize_sharding(dtensor: torch.Tensor, header: str = "", use_rich: bool = False) -> None:
    """Prints which ranks store each part, on the mesh's first rank, for tensors of one or two dimensions.

    ``use_rich``: accepted for compatibility with PyTorch; has no effect.
    """
    if dtensor.numel() == 0:
        return
    if dtensor.dim() >= 3:
        raise RuntimeError(f"visualize sharding supports only 1D or 2D DTensor, got {_C.spec_of(dtensor)}")
    at = dtensor.device_mesh.get_coordinate()
    if at is not None and not any(at):
        print(header + _C.visualize_sharding_text(list(dtensor.shape), dtensor.device_mesh, list(dtensor.placements)))
