"""Checkpoints with the names of ``torch.distributed.checkpoint``: a folder of standard safetensors files.

All ranks write from any layout and read into any other, also into one process. Saves are atomic and have checksums. In a
dry run, which has no values, nothing is saved or loaded.
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
    """Names joined by dots, with their values; None is skipped."""
    for key, value in _items(state):
        name = f"{prefix}{key}"
        if _is_nested(value):
            yield from _flat(value, name + ".")
        elif value is not None:
            yield name, value


def _open_names(state: Any, prefix: str = "") -> Iterator[str]:
    """Names that accept any value: those of None, and for lists, which may grow, the prefix of the index (``losses.``)."""
    if isinstance(state, list):
        yield prefix
    for key, value in _items(state):
        if _is_nested(value):
            yield from _open_names(value, f"{prefix}{key}.")
        elif value is None:
            yield f"{prefix}{key}"


_BYTES = "data:application/octet-stream;base64,"  # a data URL, since JSON cannot store bytes


def _as_value(name: str, value: Any) -> bool | int | float | str:
    """A value as checkpoint.json stores it."""
    if isinstance(value, (bytes, bytearray)):
        return _BYTES + base64.b64encode(value).decode()
    if isinstance(value, str) and value.startswith(_BYTES):
        raise ValueError(f"strings that begin with {_BYTES!r} are reserved for bytes; {name!r} is such a string: pass bytes")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"expected an integer that fits in 64 bits for {name!r}, got {value} (save it as a string)")
    if isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"expected a tensor, number, string or bytes for {name!r}, got {type(value).__name__}")


def _of_value(value: Any) -> Any:
    is_bytes = isinstance(value, str) and value.startswith(_BYTES)
    return base64.b64decode(value[len(_BYTES) :]) if is_bytes else value


def _storable_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory; complex128, for which the format has no name, as pairs of float64."""
    return torch.view_as_real(tensor.detach()) if tensor.dtype == torch.complex128 else tensor.detach()


def _parts(state: Any) -> tuple[list[tuple[str, torch.Tensor]], dict[str, Any]]:
    tensors, values, seen = [], {}, set()
    for name, value in _flat(state):
        if name in seen:
            raise ValueError(f"expected unique names in a checkpoint, got {name!r} twice: nested keys are joined by dots")
        seen.add(name)
        if isinstance(value, torch.Tensor):
            tensors.append((name, _storable_tensor(value)))
        else:
            values[name] = _as_value(name, value)
    return tensors, values


class _LoadTargets(NamedTuple):
    """What a load fills, and where it puts the values."""

    state: Any
    tensors: list[tuple[str, torch.Tensor]]
    values: dict[str, Any]
    open_names: set[str]

    @classmethod
    def of(cls, state_dict: Any, index: Any) -> _LoadTargets:
        state = expand_stateful(state_dict, index)
        return cls(state, *_parts(state), set(_open_names(state)))

    def put(self, values: dict[str, Any]) -> None:
        replaced = _lists_for_tuples(self.state)
        keys_of: dict[int, dict[str, Any]] = {}
        for name in sorted(values, key=lambda name: (len(name), name)):  # by length first, so that lists grow 9, 10
            _put(self.state, name, _of_value(values[name]), keys_of)
        for state, key, former in reversed(replaced):
            changed = any(old is not new for old, new in zip(former, state[key]))
            state[key] = _like(former, state[key]) if changed else former


Prepared = TypeVar("Prepared")


def _raise_on_all_ranks(prepare: Callable[[], Prepared]) -> Prepared:
    """The result of ``prepare``. An error on one rank is raised on all, since the others would wait in later collectives."""
    error, result = None, None
    try:
        result = prepare()
    except Exception as raised:
        error = raised
    world = _C.world()
    first = array.array("q", [world.size if error is None else world.rank])
    world.all_reduce(torch.frombuffer(first, dtype=torch.int64), "min")  # frombuffer is regular inside a MeshScope, too
    if first[0] < world.size:
        text = _broadcast_text(world, first[0], f"{type(error).__name__}: {error}")
        raise error or RuntimeError(f"rank {first[0]} failed: {text}")
    return result  # type: ignore[return-value]


def _broadcast_text(world: Any, rank: int, own: str) -> str:
    """The string of one rank, on all ranks. Collective."""
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
    """Writes the folder ``checkpoint_id``. It replaces a checkpoint of that name when all data is written. Collective.

    ``state_dict``: nested dictionaries and lists of DTensors; of regular tensors, numbers, strings and bytes that are equal
    on all ranks that have that name (None and empty containers are not saved); and of modules, optimizers and other objects
    that have a ``state_dict`` and a ``load_state_dict``. Wrap values that differ between ranks in :class:`PerRank`. Tensors
    of complex128, for which the format has no name, are saved as pairs of float64.
    ``sync``: wait until the data is on disk. ``keep_foreign``: keep other files in the folder (a ``config.json``, a
    tokenizer); by default they are an error. An error on one rank is an error on every rank, and the former checkpoint
    stays.
    """
    tensors, values = _raise_on_all_ranks(lambda: _parts(expand_stateful(state_dict)))
    _C.save_state(os.fspath(checkpoint_id), tensors, values, sync, keep_foreign)


def async_save(
    state_dict: dict[str, Any], checkpoint_id: str | os.PathLike[str], *, sync: bool = True, keep_foreign: bool = False
) -> PendingSave:
    """:func:`save` in the background: tensors may be modified at once. ``wait()`` completes it. Both are collective."""
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
    """Fills the tensors of ``state_dict`` in place, and replaces its numbers and strings by the saved ones. Collective.

    None accepts any saved number or string, and a list any number of them. Objects as in :func:`save` load their states.
    An optimizer before its first step has no state to fill, so pass the optimizer, not its ``state_dict()``.

    The number of ranks and the placements may differ from those of the save; each rank reads its own shards.
    ``checkpoint_id``: a folder of :func:`save`, one in HuggingFace's layout, or a ``.safetensors`` file. Mismatches are
    reported in one ValueError before anything is written.

    ``verify``: compare checksums, if the checkpoint has them. ``allow_missing``: entries that the checkpoint lacks stay
    unchanged. ``allow_unexpected``: other entries of the checkpoint are ignored. ``allow_cast``: other dtypes are converted.
    """
    path = os.fspath(checkpoint_id)
    if _C.is_dry_run():
        return
    index = index_for(state_dict, lambda: read_index(path))
    wanted = _raise_on_all_ranks(lambda: _LoadTargets.of(state_dict, index))
    with torch.no_grad():
        found = _C.load_state(path, *wanted[1:], verify, allow_missing, allow_unexpected, allow_cast)
    wanted.put(found)
    load_stateful(state_dict, wanted.state)


def _lists_for_tuples(state: Any) -> list[tuple[Any, Any, tuple[Any, ...]]]:
    """Replaces the tuples in ``state`` by lists, which can be filled. Returns where they were, outer ones first."""
    replaced = []
    for key, value in list(_items(state)):
        if isinstance(value, tuple):
            replaced.append((state, key, value))
            state[key] = list(value)
        if _is_nested(value):
            replaced += _lists_for_tuples(state[key])
    return replaced


def _put(state: Any, name: str, value: Any, keys_of: dict[int, dict[str, Any]]) -> None:
    """Sets the entry that :func:`_flat` calls ``name``; a list grows as needed. ``keys_of`` has the keys of known dictionaries
    by their texts, so that the time does not depend on the number of entries."""
    if isinstance(state, list):
        if name.isdecimal():
            state.extend([None] * (int(name) + 1 - len(state)))
    elif id(state) not in keys_of:
        keys_of[id(state)] = {str(key): key for key in state.keys()}

    def key(text: str) -> Any:
        if not isinstance(state, list):
            return keys_of[id(state)].get(text, _NO_KEY)
        return int(text) if text.isdecimal() and int(text) < len(state) else _NO_KEY

    if (found := key(name)) is not _NO_KEY:
        state[found] = value
        return
    for dot in (i for i, character in enumerate(name) if character == "."):
        if (found := key(name[:dot])) is not _NO_KEY and _is_nested(state[found]):
            _put(state[found], name[dot + 1 :], value, keys_of)


_NO_KEY = object()  # None may be a key


def _like(former: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of the former's class; supports named tuples."""
    make = getattr(type(former), "_make", type(former))
    return make(items)


def broadcast_state(full: Mapping[str, Any], target: torch.nn.Module | Mapping[str, Any], source: int = 0) -> None:
    """Fills the tensors of ``target`` in place from a state that only rank ``source`` has. Collective.

    ``full``: full regular tensors by name, read on rank ``source`` only; other ranks may pass ``{}``. ``target``: a module,
    or a dictionary of tensors or DTensors with the same names, sizes and dtypes. Each rank receives pieces of at most
    4 MiB and keeps its own shards, so that no other rank allocates a full tensor. A mismatch is a ValueError on every rank,
    before anything is written.
    """
    targets = target.state_dict() if isinstance(target, torch.nn.Module) else target
    wanted = _raise_on_all_ranks(lambda: (_parts(full)[0], _parts(targets)[0]))
    with torch.no_grad():
        _C.broadcast_state(*wanted, source)


class LoadedCheckpoint(NamedTuple):
    """The folder that was loaded, empty if there was none; newer checkpoints that are damaged, each with the reason."""

    path: str
    skipped_checkpoints: list[str]


def _load_newest(state_dict: dict[str, Any], root: str, load_parts: Callable[..., Any], allow_cast: bool) -> LoadedCheckpoint:
    if _C.is_dry_run():
        return LoadedCheckpoint("", [])
    index = index_for(state_dict, lambda: _newest_index(root))
    wanted = _raise_on_all_ranks(lambda: _LoadTargets.of(state_dict, index))
    with torch.no_grad():
        path, skipped_checkpoints, values = load_parts(*wanted[1:], allow_cast)
    if path:
        wanted.put(values)
        load_stateful(state_dict, wanted.state)
    return LoadedCheckpoint(path, skipped_checkpoints)


def _newest_index(root: str) -> dict[str, Any]:
    """The newest readable index. Its tensors may still be damaged, but have the names of those in the checkpoint before."""
    for folder in [*(os.path.join(root, f"step-{step:08d}") for step in steps(root)), root]:
        try:
            return read_index(folder)
        except RuntimeError:
            pass
    return {"tensors": {}, "values": {}}


class CheckpointSeries:
    """The checkpoints of one run: the newest ``keep`` folders ``root/step-00000050`` and so on, and ``root/latest``.

    Only one program at a time may use a folder. All methods are collective; an error on one rank is an error on all.
    """

    def __init__(self, root: str | os.PathLike[str], *, keep: int = 3) -> None:
        self._root = os.fspath(root)
        self._series = _C.CheckpointSeries(self._root, keep)

    def load_newest(self, state_dict: dict[str, Any], *, allow_cast: bool = False) -> LoadedCheckpoint:
        """Fills ``state_dict`` as :func:`load` from the newest intact checkpoint; without one it stays unchanged."""
        return _load_newest(state_dict, self._root, self._series.load_newest, allow_cast)

    def save(self, state_dict: dict[str, Any], step: int, *, sync: bool = True) -> None:
        """Like :func:`save`. Then ``latest`` refers to ``step``, and checkpoints beyond the newest ``keep`` are removed."""
        self._series.save(*_raise_on_all_ranks(lambda: _parts(expand_stateful(state_dict))), step, sync, False)

    def async_save(self, state_dict: dict[str, Any], step: int, *, sync: bool = True) -> None:
        """Like :meth:`save`, in the background; a later save or :meth:`finish` completes it."""
        self._series.save(*_raise_on_all_ranks(lambda: _parts(expand_stateful(state_dict))), step, sync, True)

    def finish(self) -> None:
        """Completes the save in progress."""
        self._series.finish()


def load_newest(
    state_dict: dict[str, Any], root: str | os.PathLike[str], *, allow_cast: bool = False
) -> LoadedCheckpoint:
    """Loads the newest intact checkpoint below ``root``, or ``root`` itself if it is one, as :func:`load`. Collective."""
    root = os.fspath(root)
    return _load_newest(state_dict, root, lambda *parts: _C.load_newest(root, *parts), allow_cast)


def steps(root: str | os.PathLike[str]) -> list[int]:
    """Steps of the checkpoint folders in ``root``, newest first. Not collective."""
    return _C.checkpoint_steps(os.fspath(root))


def read_index(checkpoint_id: str | os.PathLike[str]) -> dict[str, Any]:
    """``{"tensors": {name: (sizes, dtype)}, "values": {name: value}}`` without reading tensors. Not collective."""
    return _C.read_checkpoint_index(os.fspath(checkpoint_id))


def load_safetensors(module: torch.nn.Module, path: str | os.PathLike[str], **options: Any) -> None:
    """Fills parameters and buffers of ``module`` from safetensors files; each rank reads only its shards. Collective.

    A tied tensor is loaded under its first name. ``options``: as for :func:`load`; ``allow_cast`` is True by default.
    """
    options.setdefault("allow_cast", True)
    seen, state = set(), {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            state[name] = tensor
    load(state, path, **options)
