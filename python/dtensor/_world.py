"""Where ranks come from: threads of this process (:func:`run`), or the processes that a launcher started."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
import threading
import traceback
from typing import Any, Callable

from . import _C
from ._C import Communicator

__all__ = ["run", "world", "rank", "world_size", "barrier", "is_thread_rank", "set_timeout"]


def run(ranks: int, fn: Callable[..., Any], *args: Any, timeout: float = 300.0, **kwargs: Any) -> list[Any]:
    """Runs ``fn(*args, **kwargs)`` on ``ranks`` threads of this process, each of which is a rank.

    Returns what the ranks return, in their order. The first exception of a rank ends the others where they wait and is
    raised here, with a note that says which rank's it is. ``timeout``: seconds that a collective waits for a rank;
    infinity is none.

    Real numbers, one process: for notebooks, tests and debuggers. What ``fn`` must not do: wait for another rank with
    Python's own means while it holds a lock that the other needs; change what the process has once for all its threads
    (``torch.set_default_dtype``, ``os.chdir``); put one tensor or module that it changes into the hands of several ranks.
    Threads that it starts are no ranks: give them the rank's number, mesh or tensors.
    """
    _unlock_cached_properties()
    _serialize_fx_tracing()
    if not callable(fn):
        raise TypeError(f"run({ranks}, fn): fn must be callable, not {fn!r}")
    return _C.run(ranks, functools.partial(fn, *args, **kwargs), timeout)


def _unlock_cached_properties() -> None:
    """Before Python 3.12 a ``functools.cached_property`` held one lock for all its instances while it computed: a rank that
    communicates in one would wait for ranks that wait for the lock. From 3.12 on it has none, and here neither.
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
    """``torch.fx`` traces by putting functions of its own in the place of the process's ``nn.Module.__call__`` and
    ``__getattr__``. Of ranks that trace at once the last would put back another's: they take turns, and what stands there
    meanwhile serves the thread that traces only. A rank that waits for others while it traces would keep them waiting.
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
    """All ranks that this program runs on: those of :func:`run`, of the launcher, or this process alone."""
    return _C.world()


def set_timeout(seconds: float) -> None:
    """How long processes that a launcher started wait for each other, 300 seconds unless told; infinity is no limit.

    To be called on all before the first mesh or :func:`world`. For a part of a program: ``with dtensor.NoTimeout():``.
    """
    _C.set_timeout(seconds)


def rank() -> int:
    """This rank's number in the world, from 0."""
    return _C.world().rank


def world_size() -> int:
    """How many ranks there are."""
    return _C.world().size


def barrier() -> None:
    """Waits until every rank has come here."""
    _C.world().barrier()


def is_thread_rank() -> bool:
    """Whether the caller runs within :func:`run`."""
    return _C.is_thread_rank()


_former_excepthook = sys.excepthook


def _end_other_ranks(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An exception that ends this process ends the whole job: the others would wait for it."""
    _former_excepthook(kind, error, trace)
    if hasattr(sys, "ps1") or sys.flags.inspect:  # a prompt comes next, of a process that is a rank still
        return
    text = "".join(traceback.format_exception_only(kind, error)).strip()
    _close_world(text or kind.__name__)


def _close_world(failure: str) -> None:
    """Where a rank has failed, its own or another, this ends the process: what it has printed is written before."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # None, closed, or a pipe that nobody reads
            stream.flush()
    _C.close_world(failure)


sys.excepthook = _end_other_ranks
atexit.register(_close_world, "")
