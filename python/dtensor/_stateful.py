"""Stateful objects (modules, optimizers, schedulers, scalers) in checkpoints.

An optimizer before its first step has no state to load into: it gets empty tensors for the state in the checkpoint.
"""

from __future__ import annotations

import array
import math
from typing import Any, Callable, Iterable

import torch

from . import _C
from .optim import _Optimizer
from .placement_types import Replicate, Shard

Index = dict[str, dict[str, Any]]  # the result of read_index


def is_stateful(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


class PerRank:
    """A value of a checkpoint that each rank saves separately: a generator's state, a loader's position.

    ``value``: tensors, numbers, strings, bytes, dictionaries, lists and tuples of these, or an object that has a
    ``state_dict`` and a ``load_state_dict``. A load sets ``value``, or the object's state, to what the rank with the same
    number saved. Loading on another number of ranks than saved it is a ValueError.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        world = _C.world()
        return {"ranks": world.size, f"rank{world.rank}": self.value.state_dict() if is_stateful(self.value) else self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        read = state[f"rank{_C.world().rank}"]
        if is_stateful(self.value):
            self.value.load_state_dict(read)
        else:
            self.value = read

    def __repr__(self) -> str:
        return f"PerRank({self.value!r})"


def _has_objects(state: Any) -> bool:
    return isinstance(state, dict) and any(is_stateful(value) or _has_objects(value) for value in state.values())


def expand_stateful(state: Any, index: Index | None = None, prefix: str = "") -> Any:
    """``state`` with objects replaced by their ``state_dict()``; states of optimizers are completed from ``index``."""
    if not _has_objects(state):
        return state
    return {
        key: (_state_of if is_stateful(value) else expand_stateful)(value, index=index, prefix=f"{prefix}{key}.")
        for key, value in state.items()
    }


def load_stateful(state: Any, read: Any) -> None:
    """Loads the states of objects from ``read``, and copies numbers and strings into ``state``."""
    for key, value in list(state.items()) if isinstance(state, dict) else ():
        if is_stateful(value):
            value.load_state_dict(read[key])
        elif _has_objects(value):
            load_stateful(value, read[key])
        else:
            state[key] = read[key]


def _needs_index(state: Any) -> bool:
    """Whether there are optimizer states to complete, or per-rank values whose number of ranks must be checked."""
    if isinstance(state, (torch.optim.Optimizer, PerRank)):
        return True
    return isinstance(state, dict) and any(map(_needs_index, state.values()))


def index_for(state: Any, read: Callable[[], Index]) -> Index | None:
    """The checkpoint's index if it is needed and readable, otherwise None. Equal on all ranks. Collective if needed."""
    if not _needs_index(state):
        return None
    index, readable = None, array.array("q", [0])
    try:
        index, readable[0] = read(), 1
    except (RuntimeError, ValueError, OSError):  # load() fails in the same way and reports it on every rank
        pass
    _C.world().all_reduce(torch.frombuffer(readable, dtype=torch.int64), "min")
    return index if readable[0] else None


def _check_ranks(saved: int, prefix: str) -> None:
    if saved != _C.world().size:
        raise ValueError(
            f"{prefix[:-1]!r} was saved by each of {saved} ranks, but {_C.world().size} ranks load it: use as many ranks, "
            "or leave it out and load with allow_unexpected=True"
        )


def _state_of(value: Any, prefix: str, index: Index | None) -> Any:
    if index is not None and isinstance(value, PerRank):
        _check_ranks(index["values"].get(f"{prefix}ranks", _C.world().size), prefix)
    state = value.state_dict()
    if index is None or not isinstance(value, torch.optim.Optimizer):
        return state
    own = {kind: {n[len(prefix) :]: v for n, v in index[kind].items() if n.startswith(prefix)} for kind in ("tensors", "values")}
    (_fill_dtensor_state if isinstance(value, _Optimizer) else _fill_torch_state)(value, state, own)
    for number, group in enumerate(state.get("param_groups", ())):
        for name, saved in _below(own["values"], f"param_groups.{number}."):
            group.setdefault(name, saved)  # entries that schedulers add
    return state


def _below(entries: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    named = [(name[len(prefix) :], entry) for name, entry in entries.items() if name.startswith(prefix)]
    return [(name, entry) for name, entry in named if "." not in name]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _empty_state_like(like: torch.Tensor, sizes: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros placed like ``like`` if it has these sizes, otherwise split evenly over its ranks."""
    sizes = tuple(sizes)
    if like.dtype == torch.complex128 and sizes == (*like.shape, 2):  # the file format stores pairs of float64
        return torch.zeros_like(like, requires_grad=False)
    if sizes == tuple(like.shape):
        return torch.zeros_like(like, dtype=dtype, requires_grad=False)
    if not _C.is_dtensor(like):
        return torch.zeros(sizes, dtype=dtype)
    placement = Shard(0) if sizes else Replicate()
    return _C.zeros(list(sizes), like.device_mesh, [placement] * like.device_mesh.ndim, dtype, False)


def _fill_dtensor_state(optimizer: Any, state: dict[str, Any], own: Index) -> None:
    names = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    parameters = _parameters(optimizer)
    by_name = dict(zip(names or map(str, range(len(parameters))), parameters))
    for path, (sizes, dtype) in own["tensors"].items():
        _, _, name = path.partition(".")
        parts = name.split(".")
        owner = next((".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in by_name), None)
        if path.startswith("tensors.") and name not in state["tensors"] and owner is not None:
            state["tensors"][name] = _empty_state_like(by_name[owner], sizes, dtype)
    for path, value in own["values"].items():
        if path.startswith("scalars."):
            state["scalars"].setdefault(path.partition(".")[2], value)
    if not any(path.startswith("param_groups.") for path in own["values"]):  # the checkpoint has learning rates only
        del state["param_groups"]


def _fill_torch_state(optimizer: torch.optim.Optimizer, state: dict[str, Any], own: Index) -> None:
    for number, parameter in enumerate(_parameters(optimizer)):
        saved_state = dict(_below(own["values"], f"state.{number}."))
        for name, (sizes, dtype) in _below(own["tensors"], f"state.{number}."):
            counts = name == "step" or math.prod(sizes) <= 1 and tuple(sizes) != tuple(parameter.shape)  # not sharded
            saved_state[name] = torch.zeros(sizes, dtype=dtype) if counts else _empty_state_like(parameter, sizes, dtype)
        if saved_state:
            state["state"][number] = {**saved_state, **state["state"].get(number, {})}
