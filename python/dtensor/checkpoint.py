"""Checkpoints by the names of ``torch.distributed.checkpoint``: a folder of standard safetensors files.

Written by all ranks from any layout, read by all ranks into any other, one process included; atomic, with checksums.
"""

from __future__ import annotations

import array
import base64
import os
from typing import Any, Callable, Iterable, Iterator, Mapping, MutableMapping, NamedTuple, TypeVar

import torch

from . import _C
from ._C import PendingSave
from ._stateful import PerRank, index_for, expand_stateful, load_stateful

__all__ = [
    "save", "async_save", "load", "load_newest", "read_index", "load_safetensors", "CheckpointSeries", "LoadedCheckpoint",
    "PendingSave", "PerRank", "broadcast_state", "steps",
]  # fmt: skip


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, MutableMapping, list, tuple))


def _items(state: Any) -> Iterable[tuple[Any, Any]]:
    return state.items() if isinstance(state, (dict, MutableMapping)) else enumerate(state)


def _flat(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names joined by dots, and what stands there; None is nothing."""
    for key, value in _items(state):
        name = f"{prefix}{key}"
        if _is_nested(value):
            yield from _flat(value, name + ".")
        elif value is not None:
            yield name, value


def _open_names(state: Any, prefix: str = "") -> Iterator[str]:
    """Where any value is taken: the names of None, and of lists, which grow, what precedes the number (``losses.``)."""
    if isinstance(state, list):
        yield prefix
    for key, value in _items(state):
        if _is_nested(value):
            yield from _open_names(value, f"{prefix}{key}.")
        elif value is None:
            yield f"{prefix}{key}"


_BYTES = "data:application/octet-stream;base64,"  # a data URL, since JSON holds no bytes


def _as_value(name: str, value: Any) -> bool | int | float | str:
    """As checkpoint.json holds it."""
    if isinstance(value, (bytes, bytearray)):
        return _BYTES + base64.b64encode(value).decode()
    if isinstance(value, str) and value.startswith(_BYTES):
        raise ValueError(f"a checkpoint holds bytes as texts that begin with {_BYTES!r}, as {name!r} does: give bytes")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"a checkpoint holds integers of 64 bits; {name!r} is {value} (as a text it fits)")
    if isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a checkpoint holds tensors, numbers, texts and bytes; {name!r} is a {type(value).__name__}")


def _of_value(value: Any) -> Any:
    is_bytes = isinstance(value, str) and value.startswith(_BYTES)
    return base64.b64decode(value[len(_BYTES) :]) if is_bytes else value


def _storable_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory; in pairs of numbers where the format has no name for complex ones."""
    return torch.view_as_real(tensor.detach()) if tensor.dtype == torch.complex128 else tensor.detach()


def _parts(state: Any) -> tuple[list[tuple[str, torch.Tensor]], dict[str, Any]]:
    tensors, values, seen = [], {}, set()
    for name, value in _flat(state):
        if name in seen:
            raise ValueError(f"a checkpoint has one entry of a name; {name!r} is there twice, since dots join the keys")
        seen.add(name)
        if isinstance(value, torch.Tensor):
            tensors.append((name, _storable_tensor(value)))
        else:
            values[name] = _as_value(name, value)
    return tensors, values


class _LoadTargets(NamedTuple):
    """What a load is to fill, and where it puts the values."""

    state: Any
    tensors: list[tuple[str, torch.Tensor]]
    values: dict[str, Any]
    open_names: set[str]

    @classmethod
    def of(cls, state_dict: Any, index: Any) -> _LoadTargets:
        state = expand_stateful(state_dict, index)
        return cls(state, *_parts(state), set(_open_names(state)))

    def put(self, values: dict[str, Any]) -> None:
        for name in sorted(values, key=lambda name: (len(name), name)):  # lists grow from 9 to 10
            _put(self.state, name, _of_value(values[name]))


Prepared = TypeVar("Prepared")


def _raise_on_all_ranks(prepare: Callable[[], Prepared]) -> Prepared:
    """What ``prepare`` gives; an error of it on one rank is one on all: others would wait for that one in what follows."""
    error, result = None, None
    try:
        result = prepare()
    except Exception as raised:
        error = raised
    world = _C.world()
    first = array.array("q", [world.size if error is None else world.rank])
    world.all_reduce(torch.frombuffer(first, dtype=torch.int64), "min")  # plain within a MeshScope, too
    if first[0] < world.size:
        text = _broadcast_text(world, first[0], f"{type(error).__name__}: {error}")
        raise error or RuntimeError(f"rank {first[0]} failed: {text}")
    return result  # type: ignore[return-value]


def _broadcast_text(world: Any, rank: int, own: str) -> str:
    """That rank's text, on all. Collective."""
    data = bytearray(own.encode(errors="replace"))
    size = array.array("q", [len(data)])
    world.broadcast(torch.frombuffer(size, dtype=torch.int64), rank)
    if world.rank != rank:
        data = bytearray(size[0])
    world.broadcast(torch.frombuffer(data, dtype=torch.uint8), rank)
    return data.decode(errors="replace")


def save(
    state_dict: dict[str, Any], checkpoint_id: str | os.PathLike[str], *, sync: bool = True, keep_foreign: bool = False
) -> None:
    """Writes the folder ``checkpoint_id``, replacing a checkpoint of that name when all is written. Collective.

    ``state_dict``: nested dictionaries and lists of DTensors, and of plain tensors, numbers, texts and bytes that are equal
    on all ranks that have that name (None and what is empty is not kept); modules, optimizers and whatever else has a
    ``state_dict`` and a ``load_state_dict``. What is each rank's own stands in a :class:`PerRank`. Tensors of complex128,
    for which the format has no name, are pairs of float64 there.
    ``sync``: wait until the disk has it. ``keep_foreign``: files of others in the folder (a ``config.json``, a
    tokenizer) stay; without it they are an error. An error anywhere is an error on every rank, and the former
    checkpoint stands.
    """
    tensors, values = _raise_on_all_ranks(lambda: _parts(expand_stateful(state_dict)))
    _C.save_state(os.fspath(checkpoint_id), tensors, values, sync, keep_foreign)


def async_save(
    state_dict: dict[str, Any], checkpoint_id: str | os.PathLike[str], *, sync: bool = True, keep_foreign: bool = False
) -> PendingSave:
    """The same in the background: tensors may be changed at once; ``wait()`` finishes it. Collective, both."""
    tensors, values = _raise_on_all_ranks(lambda: _parts(expand_stateful(state_dict)))
    return _C.save_state_async(os.fspath(checkpoint_id), tensors, values, sync, keep_foreign)


def load(
    state_dict: dict[str, Any],
    checkpoint_id: str | os.PathLike[str],
    *,
    verify: bool = True,
    allow_missing: bool = False,
    allow_unexpected: bool = False,
    allow_cast: bool = False,
) -> None:
    """Fills the tensors of ``state_dict`` in place, and puts the saved numbers and texts where it has some. Collective.

    None takes whatever number or text was saved there, and a list as many as were saved.
    Objects as in :func:`save` take their states; an optimizer that has not taken a step yet has none to fill, so give
    the optimizer, not its ``state_dict()``.

    Ranks may be neither as many nor placed as those that saved; each reads its own parts. ``checkpoint_id``: such a
    folder, one in the layout of HuggingFace, or a ``.safetensors`` file. What does not fit is one list, a ValueError,
    before anything is written.
    """
    path = os.fspath(checkpoint_id)
    index = index_for(state_dict, lambda: read_index(path))
    wanted = _raise_on_all_ranks(lambda: _LoadTargets.of(state_dict, index))
    with torch.no_grad():
        found = _C.load_state(path, *wanted[1:], verify, allow_missing, allow_unexpected, allow_cast)
    wanted.put(found)
    load_stateful(state_dict, wanted.state)


def _put(state: Any, name: str, value: Any) -> None:
    """Sets what :func:`_flat` calls ``name``; a list becomes as long as that takes."""
    if isinstance(state, list) and name.isdecimal():
        state.extend([None] * (int(name) + 1 - len(state)))
    for key in list(state.keys()) if isinstance(state, (dict, MutableMapping)) else range(len(state)):
        if name == str(key):
            state[key] = value
            return
        child = state[key]
        if name.startswith(f"{key}.") and isinstance(child, (dict, MutableMapping, list, tuple)):
            inner = list(child) if isinstance(child, tuple) else child
            _put(inner, name[len(str(key)) + 1 :], value)
            state[key] = _like(child, inner) if isinstance(child, tuple) else inner


def _like(former: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of the former's class, those with names of their fields included."""
    make = getattr(type(former), "_make", type(former))
    return make(items)


def broadcast_state(full: Mapping[str, Any], target: torch.nn.Module | Mapping[str, Any], source: int = 0) -> None:
    """Fills the tensors of ``target`` in place from a state that rank ``source`` has. Collective.

    ``full``: full regular tensors by name, read on rank ``source`` only; other ranks may give ``{}``. ``target``: a module,
    or a dictionary of tensors or DTensors with the same names, sizes and dtypes. Each rank receives pieces of at most
    4 MiB and keeps its own shards, so that no other rank holds a full tensor. What does not fit is a ValueError on every
    rank, before anything is written.
    """
    targets = target.state_dict() if isinstance(target, torch.nn.Module) else target
    wanted = _raise_on_all_ranks(lambda: (_parts(full)[0], _parts(targets)[0]))
    with torch.no_grad():
        _C.broadcast_state(*wanted, source)


class LoadedCheckpoint(NamedTuple):
    """What was taken up: its folder, empty where there was none; newer ones that are damaged, each with why."""

    path: str
    skipped_checkpoints: list[str]


def _load_newest(state_dict: dict[str, Any], root: str, load_parts: Callable[..., Any], allow_cast: bool) -> LoadedCheckpoint:
    index = index_for(state_dict, lambda: _newest_index(root))
    wanted = _raise_on_all_ranks(lambda: _LoadTargets.of(state_dict, index))
    with torch.no_grad():
        path, skipped_checkpoints, values = load_parts(*wanted[1:], allow_cast)
    if path:
        wanted.put(values)
        load_stateful(state_dict, wanted.state)
    return LoadedCheckpoint(path, skipped_checkpoints)


def _newest_index(root: str) -> dict[str, Any]:
    """Of the newest one that has an index; its tensors may still be damaged, but are called as those of the one before."""
    for folder in [*(os.path.join(root, f"step-{step:08d}") for step in steps(root)), root]:
        try:
            return read_index(folder)
        except RuntimeError:
            pass
    return {"tensors": {}, "values": {}}


class CheckpointSeries:
    """The checkpoints of one run: ``root/step-00000050`` and so on, the newest ``keep`` of them, and ``root/latest``.

    One program at a time has a series in a folder. Everything is collective; an error on one rank is an error on all.
    """

    def __init__(self, root: str | os.PathLike[str], *, keep: int = 3) -> None:
        self._root = os.fspath(root)
        self._series = _C.CheckpointSeries(self._root, keep)

    def load_newest(self, state_dict: dict[str, Any], *, allow_cast: bool = False) -> LoadedCheckpoint:
        """Fills ``state_dict`` from the newest whole one, as :func:`load`; where there is none, it stays as it is."""
        return _load_newest(state_dict, self._root, self._series.load_newest, allow_cast)

    def save(self, state_dict: dict[str, Any], step: int, *, sync: bool = True) -> None:
        """As :func:`save`; then ``latest`` is that of ``step``, and what is more than ``keep`` is removed."""
        self._series.save(*_raise_on_all_ranks(lambda: _parts(expand_stateful(state_dict))), step, sync, False)

    def async_save(self, state_dict: dict[str, Any], step: int, *, sync: bool = True) -> None:
        """The same in the background: a later save or :meth:`finish` does the rest."""
        self._series.save(*_raise_on_all_ranks(lambda: _parts(expand_stateful(state_dict))), step, sync, True)

    def finish(self) -> None:
        """What is being saved is whole afterwards."""
        self._series.finish()


def load_newest(
    state_dict: dict[str, Any], root: str | os.PathLike[str], *, allow_cast: bool = False
) -> LoadedCheckpoint:
    """The newest whole checkpoint below ``root``, or ``root`` itself where it is one, as :func:`load`. Collective."""
    root = os.fspath(root)
    return _load_newest(state_dict, root, lambda *parts: _C.load_newest(root, *parts), allow_cast)


def steps(root: str | os.PathLike[str]) -> list[int]:
    """The steps that ``root`` has folders of, the newest first. Not collective."""
    return _C.checkpoint_steps(os.fspath(root))


def read_index(checkpoint_id: str | os.PathLike[str]) -> dict[str, Any]:
    """``{"tensors": {name: (sizes, dtype)}, "values": {name: value}}`` without reading tensors. Not collective."""
    return _C.read_checkpoint_index(os.fspath(checkpoint_id))


def load_safetensors(module: torch.nn.Module, path: str | os.PathLike[str], **options: Any) -> None:
    """Parameters and buffers of ``module`` from safetensors files; each rank reads only its parts. Collective.

    Tied tensors count once. ``options`` as for :func:`load`; other dtypes are converted unless told otherwise.
    """
    options.setdefault("allow_cast", True)
    seen, state = set(), {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            state[name] = tensor
    load(state, path, **options)
