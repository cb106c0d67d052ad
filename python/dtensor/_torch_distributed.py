"""Adapts Python code of ``torch.distributed`` to DTensors: DistributedDataParallel and PyTorch's checkpoints.

Operators on DTensors refuse its collectives. The state dictionary helpers of ``torch.distributed.checkpoint`` support only PyTorch's
DTensor: functions of this module convert DTensors before these gather, broadcast or distribute. Importing the helpers is
slower than importing this package, so an import hook adapts them when the program imports them.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import itertools
import sys
from types import ModuleType
from typing import Any, Callable, Iterator, NamedTuple

import torch

from . import _C
from ._tensor import _method, add_attribute

State = dict[str, Any]


def refuse_ddp(init: Callable[..., None]) -> Callable[..., None]:
    """``DistributedDataParallel.__init__`` that refuses modules with DTensors."""

    @functools.wraps(init)
    def checked(ddp: Any, module: torch.nn.Module, *args: Any, **options: Any) -> None:
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
            if name not in ignored and _C.is_dtensor(tensor):
                raise ValueError(
                    f"DistributedDataParallel got a module whose {name!r} is a DTensor: its mesh already reduces gradients. "
                    "Train the module itself, without DistributedDataParallel (accelerate, Trainer and Lightning add it: "
                    "see docs/guide/libraries.md)"
                )
        init(ddp, module, *args, **options)

    return checked


def _any_dtensor(value: Any) -> bool:
    return any(map(_any_dtensor, value)) if isinstance(value, (list, tuple)) else _C.is_dtensor(value)


def _refuse_nested(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ProcessGroup that refuses DTensors in nested lists, which the dispatcher does not inspect."""

    @functools.wraps(call)
    def checked(group: Any, *args: Any, **options: Any) -> Any:
        if any(map(_any_dtensor, args)) or any(map(_any_dtensor, options.values())):
            raise NotImplementedError(
                f"ProcessGroup.{name} of torch.distributed got a DTensor, which is one tensor on all ranks of its mesh: "
                "use item() or full_tensor() for its value, redistribute() to move or reduce it, and to_local() to "
                "communicate this rank's shard as a regular tensor"
            )
        return call(group, *args, **options)

    return checked


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``then(module)`` once ``name`` has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._followed(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _followed(self, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def both(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        return both


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


def _replace(module: ModuleType, name: str, wrap: Callable[[Any], Any]) -> None:
    """Wraps a function of ``module``, also in modules that have imported it."""
    original = getattr(module, name)
    replaced = functools.wraps(original)(wrap(original))
    for other in [module, *sys.modules.values()]:
        if getattr(other, "__dict__", {}).get(name) is original:
            setattr(other, name, replaced)


def _full(value: Any, keep: bool) -> Any:
    """``value`` with full tensors for DTensors; None for them if ``keep`` is False. Collective."""
    if _C.is_dtensor(value):
        full = value.detach().full_tensor()
        return full if keep else None
    if isinstance(value, dict):
        return {key: _full(entry, keep) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        entries = [_full(entry, keep) for entry in value]
        return tuple(entries) if isinstance(value, tuple) else entries
    return value


def _gathering(gather: Callable[..., State]) -> Callable[..., State]:
    def gather_full(state_dict: State, *, ranks_only: tuple[int, ...] = (), **options: Any) -> State:
        keep = not ranks_only or torch.distributed.get_rank(options.get("pg")) in ranks_only
        return gather(_full(state_dict, keep), ranks_only=ranks_only, **options)

    return gather_full


def _placed(target: torch.Tensor, full: Any) -> Any:
    """Copies ``full`` into ``target``; a target on meta is replaced by a DTensor with its placements."""
    if not isinstance(full, torch.Tensor) or full.dim() == 0:
        return full
    if target.is_meta:
        return _C.distribute_tensor(full, target.device_mesh, list(target.placements), None)
    with torch.no_grad():
        return target.copy_(full)


def _placing(fill: Callable[..., None]) -> Callable[..., None]:
    """``fill(full_state_dict, local_state_dict, ...)`` that restores DTensors which it replaced with full tensors."""

    def fill_and_place(full_state_dict: State, local_state_dict: State, *args: Any, **options: Any) -> None:
        before = {key: value for key, value in local_state_dict.items() if _C.is_dtensor(value)}
        fill(full_state_dict, local_state_dict, *args, **options)
        for key, target in before.items():
            if local_state_dict[key] is not target:
                local_state_dict[key] = _placed(target, local_state_dict[key])

    return fill_and_place


def _iterating(iterate: Callable[..., Any]) -> Callable[..., Any]:
    """Allocates the copy of a DTensor (of ``dcp.async_save``) as a DTensor."""

    def iterate_over(item: Any, sharded: Any, of_dtensors: Callable[..., Any], of_tensors: Any, **options: Any) -> Any:
        allocates_copy = of_dtensors.__name__ != "_identity_func" and options.get("companion_obj") is None
        if allocates_copy and _C.is_dtensor(item):
            return torch.empty_like(item, requires_grad=False)
        return iterate(item, sharded, of_dtensors, of_tensors, **options)

    return iterate_over


def _refusing_own_optimizers(verify: Callable[..., Any]) -> Callable[..., Any]:
    """The first step of ``get_state_dict`` and its relatives, which read the states of ``torch.optim`` optimizers."""

    def verify_options(model: Any, optims: Any, *args: Any, **options: Any) -> Any:
        from .optim import _Optimizer

        for optimizer in optims:
            if isinstance(optimizer, _Optimizer):
                raise TypeError(
                    f"torch.distributed.checkpoint.state_dict: expected an optimizer of torch.optim, got "
                    f"dtensor.optim.{type(optimizer).__name__}, whose state has another form; save it with dtensor.save and load"
                )
        return verify(model, optims, *args, **options)

    return verify_options


def _adapt_state_dict_functions(module: ModuleType) -> None:
    _replace(module, "_verify_options", _refusing_own_optimizers)


def _adapt_state_dict_helpers(module: ModuleType) -> None:
    _replace(module, "_iterate_state_dict", _iterating)
    _replace(module, "_gather_state_dict", _gathering)
    _replace(module, "_distribute_state_dict", _placing)
    _replace(module, "_broadcast_tensors", _placing)


def _adapt_stager(module: ModuleType) -> None:
    """``dcp.async_save`` copies memory to write it in the background; a DTensor, which has none, is cloned instead."""
    offload = module.StateDictStager._offload_tensor

    @functools.wraps(offload)
    def copied(stager: Any, tensor: torch.Tensor, memo: dict[int, Any], non_blocking: bool = False) -> torch.Tensor:
        if not _C.is_dtensor(tensor):
            return offload(stager, tensor, memo, non_blocking)
        return memo.setdefault(id(tensor), tensor.detach().clone())

    module.StateDictStager._offload_tensor = copied


def _with_process_group(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """``resolve(group, tag)`` of the functional collectives, which also takes a mesh of this package, or (mesh, dimension)."""

    def resolve_group(group: Any, *rest: Any, **options: Any) -> Any:
        mesh, dim = group if isinstance(group, tuple) and len(group) == 2 else (group, None)
        if isinstance(mesh, _C.DeviceMesh):
            group = mesh.get_group(dim)
            if not isinstance(group, torch.distributed.ProcessGroup):
                raise RuntimeError(
                    f"a functional collective over {mesh} needs torch.distributed over the same processes: call "
                    "torch.distributed.init_process_group first, or use mesh.communicator()"
                )
        return resolve(group, *rest, **options)

    return resolve_group


def _adapt_functional_collectives(module: ModuleType) -> None:
    for name in ("_resolve_group", "_resolve_group_name", "_expand_group"):
        if hasattr(module, name):
            _replace(module, name, _with_process_group)


class _Chunk(NamedTuple):
    """A box of the global tensor that this rank stores."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    elements: torch.Tensor


def _chunks(tensor: torch.Tensor) -> Iterator[_Chunk]:
    """Chunks of this rank. Empty chunks occur only if the tensor has no elements."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(f"torch.distributed.checkpoint got a DTensor placed as {tensor.placements}: redistribute Partial first")
    segments = _C.local_segments(tensor)
    local = None if segments is None else tensor.detach().to_local()
    for box in [] if segments is None else itertools.product(*map(_with_starts, segments)):
        elements: Any = local
        for dim, (_, size, start) in enumerate(box):
            elements = elements.narrow(dim, start, size)
        if elements.numel() or not tensor.numel():
            yield _Chunk(tuple(offset for offset, _, _ in box), tuple(size for _, size, _ in box), elements)


def _with_starts(segments: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(global offset, size, local offset) of each segment."""
    starts = itertools.accumulate([0] + [size for _, size in segments])
    return [(offset, size, start) for (offset, size), start in zip(segments, starts)]


def chunk_list(tensor: torch.Tensor) -> list[Any]:
    """``__create_chunk_list__`` of ``torch.distributed._checkpointable``."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in _chunks(tensor)]


def write_items(tensor: torch.Tensor, fqn: str, _: object = None) -> list[Any]:
    """``__create_write_items__``."""
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    properties = TensorProperties(dtype=tensor.dtype)
    return [
        WriteItem(
            MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk, properties, torch.Size(tensor.shape)),
        )
        for chunk in chunk_list(tensor)
    ]  # fmt: skip


def tensor_shard(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """``__get_tensor_shard__``; the result shares the DTensor's memory."""
    for chunk in _chunks(tensor):
        if index.offset is None or chunk.offsets == tuple(index.offset):
            return chunk.elements
    raise ValueError(f"this rank stores no part of {index.fqn!r} that begins at {index.offset}")


_NESTED = ("allgather", "allgather_coalesced", "gather", "reduce_scatter", "scatter")
_CHECKPOINTABLE = {
    "__create_chunk_list__": chunk_list,
    "__create_write_items__": write_items,
    "__get_tensor_shard__": tensor_shard,
}


def install() -> None:
    """Installs the adapters. Called once, on import."""
    if not torch.distributed.is_available():
        return
    for name, method in _CHECKPOINTABLE.items():
        add_attribute(name, _method(method))
    group = torch.distributed.ProcessGroup
    for name in _NESTED:
        setattr(group, name, _refuse_nested(name, getattr(group, name)))
    ddp = torch.nn.parallel.DistributedDataParallel
    ddp.__init__ = refuse_ddp(ddp.__init__)  # type: ignore[method-assign]
    after_import("torch.distributed._functional_collectives", _adapt_functional_collectives)
    after_import("torch.distributed._state_dict_utils", _adapt_state_dict_helpers)
    after_import("torch.distributed.checkpoint._state_dict_stager", _adapt_stager)
    after_import("torch.distributed.checkpoint.state_dict", _adapt_state_dict_functions)
