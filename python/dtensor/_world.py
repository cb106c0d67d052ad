"""The ranks of a program: threads of this process (:func:`run`), or processes that a launcher started."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import traceback
from typing import Any, Callable

from . import _C
from ._C import Communicator, DryRunReport, HardwareModel
from ._memory_kinds import declared_by_optimizers

__all__ = ["run", "simulate", "begin_step", "is_dry_run", "world", "rank", "world_size", "barrier", "is_thread_rank", "set_timeout"]


def run(ranks: int, fn: Callable[..., Any], *args: Any, timeout: float = 300.0, **kwargs: Any) -> list[Any]:
    """Runs ``fn(*args, **kwargs)`` on ``ranks`` threads of this process, each of which is a rank.

    Returns the ranks' results in rank order. The first exception of a rank ends the others where they wait, and is raised
    here with a note that names the rank. ``timeout``: seconds that a collective waits for a rank; infinity: no limit.

    For notebooks, tests and debuggers. All ranks share one process, so ``fn`` must not: wait for another rank with Python's
    own primitives while it holds a lock that the other needs; change process-wide state (``torch.set_default_dtype``,
    ``os.chdir``); share a tensor or module that it modifies between ranks. Threads that ``fn`` starts are not ranks: pass
    them the rank's number, mesh or tensors.
    """
    try:
        return _C.run(ranks, _prepared("run", ranks, fn, *args, **kwargs), timeout)
    except KeyboardInterrupt as interrupt:
        interrupt._of_ranks = True  # type: ignore[attr-defined]
        raise


def simulate(
    ranks: int,
    fn: Callable[..., Any],
    *args: Any,
    rank: int = 0,
    number: float | None = None,
    hardware: HardwareModel | None = None,
    staging: bool = False,
    **kwargs: Any,
) -> DryRunReport:
    """Dry run: runs ``fn(*args, **kwargs)`` as one rank of ``ranks``, without its peers, memory and arithmetic.

    Returns what that rank needs: the peak of its memory by kind, collectives and operators (``table()``, ``json()``,
    ``fits(bytes)``). Tensors of more than 4096 bytes (integers: 16 MiB) that ``fn`` creates have sizes, but no values.
    Reading them is a ``RuntimeError`` that names the operator. ``number``: the result of such a read of one
    floating-point number, such as a loss for a log. If the rank has a pipeline, ``fn`` also runs as its other ranks.
    ``hardware``: records what ``report.estimate(hardware)`` needs for the time of the step. ``staging``: counts the
    buffers that collectives of processes (MPI, sockets) copy through; those of thread ranks have none.
    """
    with declared_by_optimizers():
        return _C.simulate(ranks, _prepared("simulate", ranks, fn, *args, **kwargs), rank, number, hardware, staging)


def begin_step() -> None:
    """A step begins: the report of :func:`simulate` counts from here. Call it after the first step of training, which
    creates the states of the optimizer. No effect outside a dry run."""
    _C.begin_step()


def is_dry_run() -> bool:
    """Whether this thread runs in :func:`simulate`: then tensors may have no values."""
    return _C.is_dry_run()


def _prepared(name: str, ranks: int, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    _unlock_cached_properties()
    _serialize_fx_tracing()
    if not callable(fn):
        raise TypeError(f"{name}({ranks}, fn): fn must be callable, got {fn!r}")
    return functools.partial(fn, *args, **kwargs)


def _unlock_cached_properties() -> None:
    """Replaces ``functools.cached_property.__get__`` before Python 3.12 with a version without a lock, as in 3.12.

    The original holds one lock for all instances while it computes. A rank that communicates inside would deadlock with
    ranks that wait for the lock.
    """
    if sys.version_info >= (3, 12) or getattr(functools.cached_property, "_without_lock", False):
        return

    def get(self: Any, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        missing = object()
        value = instance.__dict__.get(self.attrname, missing)
        if value is missing:
            value = instance.__dict__[self.attrname] = self.func(instance)
        return value

    functools.cached_property.__get__ = get  # type: ignore[method-assign]
    functools.cached_property._without_lock = True  # type: ignore[attr-defined]


def _serialize_fx_tracing() -> None:
    """Makes thread ranks trace with ``torch.fx`` one after the other.

    Tracing replaces ``nn.Module.__call__`` and ``__getattr__`` of the process. Concurrent traces would restore each other's
    replacements. A replacement applies only to the tracing thread. A rank must not wait for others while it traces.
    """
    from torch.fx import _symbolic_trace as fx

    if getattr(fx, "_is_serialized", False):
        return
    lock, trace, patch_method = threading.RLock(), fx.Tracer.trace, fx._Patcher.patch_method

    @functools.wraps(trace)
    def serialized_trace(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return trace(*args, **kwargs)

    @functools.wraps(patch_method)
    def patch_for_this_thread(self: Any, cls: type, name: str, new_fn: Callable[..., Any], deduplicate: bool = True) -> None:
        original, thread = getattr(cls, name), threading.get_ident()

        @functools.wraps(new_fn)
        def method(*args: Any, **kwargs: Any) -> Any:
            return (new_fn if threading.get_ident() == thread else original)(*args, **kwargs)

        patch_method(self, cls, name, method, deduplicate)

    fx.Tracer.trace, fx._Patcher.patch_method = serialized_trace, patch_for_this_thread  # type: ignore[method-assign]
    fx._is_serialized = True  # type: ignore[attr-defined]


def world() -> Communicator:
    """All ranks of this program: those of :func:`run`, of the launcher, or this process alone."""
    return _C.world()


def set_timeout(seconds: float) -> None:
    """Sets how many seconds processes that a launcher started wait for each other; default 300, infinity: no limit.

    Call it on all ranks before the first mesh or :func:`world`. For a part of a program: ``with dtensor.NoTimeout():``.
    """
    _C.set_timeout(seconds)


def rank() -> int:
    """This rank's number in the world, from 0."""
    return _C.world().rank


def world_size() -> int:
    """The number of ranks."""
    return _C.world().size


def barrier() -> None:
    """Waits until every rank has called it. Collective."""
    _C.world().barrier()


def is_thread_rank() -> bool:
    """Whether the caller runs within :func:`run`."""
    return _C.is_thread_rank()


_former_excepthook = sys.excepthook
_INTERRUPTED = "interrupted"  # the same text on every rank, so that one of them prints it


def _end_other_ranks(kind: type[BaseException], error: BaseException, trace: Any, interrupted: bool) -> None:
    """Ends the entire job when an exception ends this process: the other ranks would wait for it.

    Ctrl-C, here or on a rank for which this one waited, is one line of the job instead of a traceback of each rank.
    """
    interactive = hasattr(sys, "ps1") or sys.flags.inspect  # a prompt follows, and the process is still a rank
    interrupted = interrupted or issubclass(kind, KeyboardInterrupt) or f" failed: {_INTERRUPTED}" in str(error)
    if interrupted and not interactive:
        if _close_world(_INTERRUPTED) != 0:
            return
        if hasattr(error, "_of_ranks"):
            print(_INTERRUPTED, file=sys.stderr)
            return
    _former_excepthook(kind, error, trace)
    if not interactive:
        text = "".join(traceback.format_exception_only(kind, error)).strip()
        _close_world(text or kind.__name__)


def _close_world(failure: str) -> int:
    """Closes the world; 0 if there is none. If any rank failed this ends the process, so streams are flushed first."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # None, closed, or a pipe without a reader
            stream.flush()
    return _C.close_world(failure)


_C.report_interrupt(os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else "python")
sys.excepthook = _C.exception_hook(_end_other_ranks)
atexit.register(_close_world, "")
