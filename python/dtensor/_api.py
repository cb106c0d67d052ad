"""``DTensor`` and the functions that create one, with the names and signatures of ``torch.distributed.tensor``.

A DTensor is a ``torch.Tensor`` whose C++ implementation, below the dispatcher, has a mesh and placements. Its Python class
is ``torch.Tensor`` (or ``torch.nn.Parameter``), so code that takes tensors accepts it. ``isinstance(t, DTensor)`` tests
the implementation.
"""

from __future__ import annotations

import functools
import inspect
import operator
import warnings
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _C, _tensor
from ._C import DeviceMesh, Placement
from ._mesh import as_mesh
from .placement_types import Replicate, as_placements

__all__ = ["DTensor", "distribute_tensor", "distribute_module", "redistribute"]

Placements = Sequence[Placement] | Placement | str | None


class _DTensorMeta(type(torch.Tensor)):
    def __instancecheck__(cls, value: object) -> bool:
        return _C.is_dtensor(value)


class DTensor(torch.Tensor, metaclass=_DTensorMeta):
    """A tensor on a mesh. Its shape, strides and dtype are the global ones."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "DTensor":
        raise TypeError("cannot construct a DTensor: call distribute_tensor, DTensor.from_local or a factory of dtensor")

    @staticmethod
    def from_local(
        local_tensor: torch.Tensor,
        device_mesh: DeviceMesh | None = None,
        placements: Placements = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        grad_placements: Placements = None,
    ) -> "DTensor":
        """The DTensor whose shards are the ranks' local tensors.

        ``local_tensor``: this rank's shard, of any shape that the placements allow. ``shape``, ``stride``: the global ones;
        without them the ranks agree on them (collective), and shards that are not the chunks of one tensor are an error
        on every rank. ``run_check``: overwrites replicas with the values of the mesh's first rank. Differentiable.
        ``grad_placements``: the placements of the gradient that reaches ``local_tensor``. Partial on an axis where the
        tensor is not sharded leaves a partial gradient unreduced, and each rank receives its own summand.
        """
        mesh = as_mesh(device_mesh)
        wanted = as_placements(placements)
        local = _tensor.wait_if_async(local_tensor)
        if local.device.type != mesh.device_type and not local.is_meta:
            local = local.to(mesh.device_type)
        grad = as_placements(grad_placements)
        if grad is None:
            result = _C.from_local(local, mesh, wanted, _ints(shape), _ints(stride))
        else:
            result = _FromLocal.apply(local, mesh, wanted, _ints(shape), _ints(stride), grad)
        if run_check:
            _check_replicas(result)
        return result

    # On the class, for ``DTensor.to_local(t)``; instances have them as attributes, see _tensor.py.
    device_mesh = property(_C.mesh_of)
    placements = property(_C.placements_of)
    to_local = _tensor.to_local
    full_tensor = _tensor.full_tensor
    redistribute = _tensor.redistribute


def _ints(sizes: Sequence[int] | None) -> list[int] | None:
    return None if sizes is None else [operator.index(n) for n in sizes]


def _check_replicas(tensor: torch.Tensor) -> None:
    local = tensor.to_local()
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate() and tensor.device_mesh.get_coordinate() is not None:
            with torch.no_grad():
                tensor.device_mesh.communicator(axis).broadcast(local.detach(), 0)


class _FromLocal(torch.autograd.Function):
    """``from_local`` with ``grad_placements``."""

    @staticmethod
    def forward(
        ctx: Any, local: torch.Tensor, mesh: DeviceMesh, placements: Any, shape: Any, stride: Any, grad: list[Placement]
    ) -> torch.Tensor:
        result = _C.from_local(local, mesh, placements, shape, stride)
        ctx.mesh, ctx.placements, ctx.grad_placements = mesh, result.placements, grad
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None, None]:
        gradient = _tensor.as_dtensor(gradients[0], ctx.mesh)
        wanted = [_of_gradient(*axis) for axis in zip(ctx.placements, ctx.grad_placements, gradient.placements)]
        local = gradient.redistribute(placements=wanted).to_local(grad_placements=wanted)
        return local, None, None, None, None, None


def _of_gradient(forward: Placement, wanted: Placement, gradient: Placement) -> Placement:
    """Placement of a gradient on one axis, such that its local tensor has the sizes of the forward one."""
    if not (forward.is_replicate() or forward.is_partial()):
        return forward
    return gradient if wanted.is_partial() and gradient.is_partial() else Replicate()


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor:
    """Distributes a full tensor that every rank has; each rank keeps a copy of its shard.

    Every rank uses the values of ``src_data_rank``, an index into the mesh's ranks in row-major order. Shapes or dtypes
    that differ between ranks are an error on every rank. With ``src_data_rank=None`` each rank keeps its shard of its own
    values, without communication.
    Collective unless ``src_data_rank`` is None. Differentiable, but a leaf that requires a gradient returns a leaf, as in
    ``torch.distributed.tensor``.
    """
    if is_traceable_wrapper_subclass(tensor):
        raise TypeError(
            f"distribute_tensor: a {type(tensor).__name__} wraps other tensors ({', '.join(tensor.__tensor_flatten__()[0])}): "
            "distribute those, or distribute a regular tensor and convert it"
        )
    wanted = as_placements(placements)
    leaf = tensor.is_leaf and tensor.requires_grad and not _C.is_dtensor(tensor)
    mesh = as_mesh(device_mesh)
    given = tensor.detach() if leaf else tensor
    if src_data_rank is None and not (given.is_meta or _C.is_dtensor(given)):
        result = _part_of_own(given, mesh, wanted)
    else:
        source = _world_rank(mesh, src_data_rank) if src_data_rank else None
        result = _C.distribute_tensor(given, mesh, wanted, source)
    return result.requires_grad_() if leaf else result


def _part_of_own(tensor: torch.Tensor, mesh: DeviceMesh, placements: list[Placement] | None) -> torch.Tensor:
    """A copy of this rank's shard of its own values. No communication."""
    full = _C.from_local(tensor.to(mesh.device_type), mesh, None, list(tensor.shape), list(tensor.stride()))
    part = full.redistribute(placements=placements or [Replicate()] * mesh.ndim)
    shares = part.to_local().untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    return part.clone() if shares else part


def _world_rank(mesh: DeviceMesh, index: int) -> int:
    ranks = mesh.mesh.flatten().tolist()
    if not 0 <= index < len(ranks):
        raise ValueError(f"src_data_rank={index} is out of range for the {len(ranks)} ranks of {mesh}")
    return ranks[index]


def redistribute(
    tensors: Sequence[torch.Tensor], placements: Sequence[Placements], device_mesh: DeviceMesh | None = None
) -> list[DTensor]:
    """Redistributes several DTensors, in as few collectives as their meshes and dtypes allow."""
    return _C.redistribute_list(list(tensors), [as_placements(p) for p in placements], device_mesh)


def distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[[nn.Module, Any, DeviceMesh], Any] | None = None,
    output_fn: Callable[[nn.Module, Any, DeviceMesh], Any] | None = None,
) -> nn.Module:
    """Makes every parameter and buffer of ``module`` a DTensor on ``device_mesh``, in place, and returns ``module``.

    ``partition_fn(name, submodule, mesh)`` may replace parameters of a submodule; regular tensors that remain are
    replicated. Tied parameters stay tied: a replacement under one name applies to all names.
    ``input_fn(module, inputs, mesh)`` and ``output_fn(module, outputs, mesh)`` run before and after ``forward``. Functions
    of two arguments, without the module, are accepted with a warning, as in PyTorch.
    """
    if getattr(module, "_distribute_module_applied", False):
        raise RuntimeError(
            "distribute_module should only be called once on a module, but it has already been called on this "
            f"{type(module).__name__}!"
        )
    before, after = _with_module("input_fn", input_fn), _with_module("output_fn", output_fn)
    mesh, shared, former = as_mesh(device_mesh), SharedParameters(module), list(module.parameters())
    for name, submodule in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
    shared.restore()
    for submodule in module.modules():
        replace_tensors(submodule, lambda _, t: t if _C.is_dtensor(t) else distribute_tensor(t.detach(), mesh))
    shared.restore()
    record_parameter_swap(former, module)
    if before is not None:
        module.register_forward_pre_hook(functools.partial(_call_with_mesh, before, mesh))
    if after is not None:
        module.register_forward_hook(functools.partial(_call_with_mesh, after, mesh))
    module._distribute_module_applied = True
    return module


def _call_with_mesh(fn: Callable[..., Any], mesh: DeviceMesh, module: nn.Module, *values: Any) -> Any:
    """A forward hook or pre-hook that calls ``fn`` on the outputs or inputs. It can be pickled if ``fn`` can."""
    return fn(module, values[-1], mesh)


def _call_without_module(fn: Callable[..., Any], module: nn.Module, values: Any, mesh: DeviceMesh) -> Any:
    return fn(values, mesh)


def _with_module(name: str, fn: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """``fn`` as a function of (module, values, mesh); adapts one that takes no module."""
    if fn is None:
        return None
    count = len(inspect.signature(fn).parameters)
    if count == 3:
        return fn
    if count != 2:
        raise ValueError(f"{name} should take in 3 arguments, but got {count} arguments!")
    warnings.warn(
        f"Deprecating {name} that takes two arguments (values, device_mesh), please use {name} that takes in (module, "
        "values, device_mesh) instead!",
        FutureWarning,
        stacklevel=3,
    )
    return functools.partial(_call_without_module, fn)


def replace_tensors(module: nn.Module, make: Callable[[str, torch.Tensor], torch.Tensor], buffers: bool = True) -> None:
    """Replaces each of the module's own parameters and buffers with ``make(name, tensor)``."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            made = make(name, parameter)
            if made is not parameter:
                module._parameters[name] = replacement(made, parameter)
    for name, buffer in module._buffers.items() if buffers else ():
        if buffer is not None:
            module._buffers[name] = make(name, buffer)


def record_parameter_swap(former: Iterable[torch.Tensor], module: nn.Module) -> None:
    """Marks the former parameters of ``module`` as replaced: library optimizers that hold them raise in their next step."""
    kept = {id(parameter) for parameter in module.parameters()}
    for parameter in former:
        if id(parameter) not in kept:
            _C.record_parameter_swap(parameter)


class SharedParameters:
    """Parameters and buffers of a module that are tied under several names, to tie their replacements again."""

    def __init__(self, module: nn.Module) -> None:
        places: dict[int, list[tuple[str, dict[str, Any], str]]] = {}
        for path, submodule in module.named_modules():
            for tensors in (submodule._parameters, submodule._buffers):
                for key, tensor in tensors.items():
                    if tensor is not None:
                        places.setdefault(id(tensor), []).append((".".join(filter(None, [path, key])), tensors, key))
        self._former = [(slots[0][1][slots[0][2]], slots) for slots in places.values() if len(slots) > 1]

    def restore(self) -> None:
        """Applies a replacement under one name to all names; placements that differ are a ValueError."""
        for former, slots in self._former:
            now = [(name, tensors.get(key)) for name, tensors, key in slots]
            fresh = [(name, tensor) for name, tensor in now if tensor is not None and tensor is not former]
            for name, tensor in fresh[1:]:
                self._check(*fresh[0], name, tensor)
            for _, tensors, key in slots if fresh else ():
                tensors[key] = fresh[0][1]

    @staticmethod
    def _check(name: str, tensor: torch.Tensor, other: str, its: torch.Tensor) -> None:
        known = _C.is_dtensor(tensor) and _C.is_dtensor(its)
        if known and (tensor.device_mesh, tensor.placements) != (its.device_mesh, its.placements):
            raise ValueError(
                f"{name!r} and {other!r} are one tensor, but would be {tensor.placements} on "
                f"{tensor.device_mesh} and {its.placements} on {its.device_mesh}: place both alike, or untie them first"
            )


def replacement(tensor: torch.Tensor, former: torch.Tensor) -> nn.Parameter:
    """``tensor`` as the parameter that replaces ``former``, with the attributes that a program has set on it."""
    parameter = as_parameter(tensor, former.requires_grad)
    if tensor is not former:
        inner = former.__tensor_flatten__()[0] if is_traceable_wrapper_subclass(former) else ()
        parameter.__dict__.update({key: value for key, value in former.__dict__.items() if key not in inner})
    return parameter


def as_parameter(tensor: torch.Tensor, requires_grad: bool = True) -> nn.Parameter:
    """``tensor`` itself as a parameter, if it is a leaf: hooks on it stay.

    ``torch.nn.Parameter(tensor)`` would be another tensor that shares its data.
    """
    if not tensor.is_leaf:
        tensor = tensor.detach()
    tensor.__class__ = nn.Parameter
    return tensor.requires_grad_(requires_grad)  # type: ignore[return-value]
