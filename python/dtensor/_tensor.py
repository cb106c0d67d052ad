"""Methods of ``torch.Tensor`` for DTensors.

A DTensor's Python class is ``torch.Tensor``. This module adds methods to that class that only DTensors have. It redirects
torch methods that read memory without the dispatcher (printing, copying, pickling, conversion to lists); they are
unchanged for regular tensors.
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch._subclasses.meta_utils import MetaTensorDescriber

from . import _C, _mesh
from ._C import Placement
from .placement_types import as_placements


class _DTensorAttribute:
    """An attribute that only DTensors have; ``hasattr(regular_tensor, name)`` stays false.

    It can be set and deleted, as ``torch.overrides`` and ``torch.fx`` require of non-methods. A value that a program sets is
    stored in the tensor's ``__dict__``.
    """

    def __init__(self, get: Callable[[torch.Tensor], Any]) -> None:
        self._get = get

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is None:
            return self
        if self._name in tensor.__dict__:
            return tensor.__dict__[self._name]
        if not _C.is_dtensor(tensor):
            raise AttributeError(f"{type(tensor).__name__!r} object has no attribute {self._name!r}: it is not a DTensor")
        return self._get(tensor)

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        tensor.__dict__[self._name] = value

    def __delete__(self, tensor: torch.Tensor) -> None:
        if tensor.__dict__.pop(self._name, self) is self:
            raise AttributeError(self._name)


def _method(fn: Callable[..., Any]) -> _DTensorAttribute:
    return _DTensorAttribute(lambda tensor: functools.partial(fn, tensor))


def to_local(self: torch.Tensor, *, grad_placements: Any = None) -> torch.Tensor:
    """This rank's local tensor, which shares the DTensor's memory. No communication. Differentiable.

    ``grad_placements``: placements of the gradient of the local tensor; by default those of this tensor, with Partial
    replaced by Replicate.
    """
    return _C.to_local(self, as_placements(grad_placements) or [])


def full_tensor(self: torch.Tensor, *, grad_placements: Any = None) -> torch.Tensor:
    """The full tensor as a regular tensor, on every rank. Collective. Differentiable."""
    return _C.full_tensor(self, as_placements(grad_placements) or [])


class _CastRedistribute(torch.autograd.Function):
    """Redistributes values and gradients in given dtypes."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, tensor: torch.Tensor, mesh: Any, placements: Any, forward_dtype: Any, backward_dtype: Any
    ) -> torch.Tensor:
        ctx.spec = tensor.device_mesh, _reduced(tensor.placements), tensor.dtype
        ctx.backward_dtype = backward_dtype or tensor.dtype
        return _C.redistribute(_cast(tensor, forward_dtype or tensor.dtype), mesh, placements)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        mesh, placements, dtype = ctx.spec
        gradient = as_dtensor(gradients[0], mesh)
        return _cast(_C.redistribute(_cast(gradient, ctx.backward_dtype), mesh, placements), dtype), None, None, None, None


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Casts local tensors to ``dtype`` and keeps the placements, Partial included."""
    if tensor.dtype == dtype or not tensor.device_mesh.is_member():
        return tensor.to(dtype)
    local = _C.to_local(tensor, list(tensor.placements)).to(dtype)
    return _C.from_local(local, tensor.device_mesh, tensor.placements, list(tensor.shape), list(tensor.stride()))


def _reduced(placements: Any) -> list[Any]:
    return [Placement.replicate() if p.is_partial() else p.as_storage(False) for p in placements]


def wait_if_async(tensor: torch.Tensor) -> torch.Tensor:
    """Waits for a tensor that a collective of ``torch.distributed._functional_collectives`` returned."""
    theirs = sys.modules.get("torch.distributed._functional_collectives")
    return tensor.wait() if theirs and isinstance(tensor, theirs.AsyncCollectiveTensor) else tensor


def as_dtensor(gradient: torch.Tensor, mesh: Any) -> torch.Tensor:
    """A gradient as a DTensor; a regular tensor is the full gradient on every rank."""
    if _C.is_dtensor(gradient):
        return gradient
    return _C.from_local(gradient, mesh, None, list(gradient.shape), list(gradient.stride()))


def redistribute(
    self: torch.Tensor,
    device_mesh: Any = None,
    placements: Any = None,
    *,
    async_op: bool = False,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The same values with other placements, possibly on another mesh. Collective. Differentiable.

    ``forward_dtype``: the dtype of the communication and of the result. ``backward_dtype``: the dtype in which the gradient
    is communicated, by default this tensor's; the gradient has this tensor's dtype. ``async_op``: accepted for
    compatibility with PyTorch; the result is always complete.
    """
    if isinstance(device_mesh, (list, tuple, str)) and placements is None:
        device_mesh, placements = None, device_mesh
    wanted = as_placements(placements)
    if forward_dtype is None and backward_dtype is None:
        return _C.redistribute(self, device_mesh, wanted)
    return _CastRedistribute.apply(self, device_mesh, wanted, forward_dtype, backward_dtype)


def redistribute_(tensor: torch.Tensor, placements: Any) -> torch.Tensor:
    """In place, visible through every reference to the tensor. For leaves and tensors without a gradient."""
    _C.redistribute_in_place(tensor, as_placements(placements))
    return tensor


_ATTRIBUTES = {
    "device_mesh": _DTensorAttribute(_C.mesh_of),
    "placements": _DTensorAttribute(_C.placements_of),
    "to_local": _method(to_local),
    "full_tensor": _method(full_tensor),
    "redistribute": _method(redistribute),
    "redistribute_": _method(redistribute_),
    "generation": _method(_C.generation_of),
}


def _repr(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
    grad = ", requires_grad=True" if tensor.requires_grad and tensor.is_leaf else ""
    if tensor.grad_fn is not None:
        grad = f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    if tensor.device_mesh.is_member():
        local = torch._tensor_str._str(_C.to_local(tensor.detach(), []))
    else:
        local = "none on this rank"
    name = "DTensor" if type(tensor) is torch.Tensor else f"{type(tensor).__name__} containing:\nDTensor"
    return f"{name}({_C.spec_of(tensor)}, local_tensor={local}{grad})"


def _deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError("only DTensors created explicitly by the user (graph leaves) can be deep-copied; detach() first")
    with torch.no_grad():
        result = tensor.detach().clone()
    result.__class__ = type(tensor)
    result.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        result.grad = tensor.grad.detach().clone()
    memo[id(tensor)] = result
    if type(tensor) is not torch.nn.Parameter:  # as in torch, copies of parameters do not copy __dict__
        result.__dict__.update(copy.deepcopy(tensor.__dict__, memo))
    return result


def _mesh_state(mesh: Any) -> tuple[Any, ...]:
    return mesh.device_type, mesh.mesh.tolist(), mesh.mesh_dim_names, mesh.get_coordinate()


def _rebuild_mesh(device_type: str, ranks: Any, names: Any) -> Any:
    return _C.DeviceMesh(device_type, ranks, names)


def _reduce_mesh(mesh: Any) -> Any:
    """Pickles a mesh as a value: world ranks of the program that loads it. A slice keeps its root mesh."""
    return _rebuild_mesh, _mesh_state(mesh)[:3], mesh.__dict__ or None


def _schedule(text: str) -> Any:
    return _C.Schedule.parse(text)


def _rebuild(
    local: torch.Tensor, mesh_state: Any, placements: Any, size: Any, stride: Any, requires_grad: bool,
    attributes: Any = None,
) -> torch.Tensor:  # fmt: skip
    device_type, ranks, names, coordinate = mesh_state
    mesh = _C.DeviceMesh(device_type, ranks, names)
    if mesh.get_coordinate() != coordinate:
        raise RuntimeError(
            f"this DTensor was pickled by the rank at coordinate {coordinate} of its mesh and is loaded by the one at "
            f"{mesh.get_coordinate()}: each rank loads what it saved; to load on another layout use dtensor.save and load"
        )
    result = _C.from_local(local, mesh, list(placements), list(size), list(stride))
    result.__dict__.update(attributes or {})
    return result.requires_grad_(requires_grad)


def _reduce(tensor: torch.Tensor, protocol: int) -> Any:
    if not tensor.is_leaf:
        raise RuntimeError("cannot pickle a DTensor that is not a graph leaf: detach() it, or pickle to_local()")
    local = tensor.detach().to_local() if tensor.device_mesh.is_member() else torch.empty(0, dtype=tensor.dtype)
    spec = _mesh_state(tensor.device_mesh), tensor.placements, tuple(tensor.shape), tensor.stride()
    return _rebuild, (local, *spec, tensor.requires_grad, torch._utils._get_obj_state(tensor) or None)


def _array(tensor: torch.Tensor, dtype: Any = None, **kwargs: Any) -> Any:
    return _ORIGINAL["__array__"](tensor.full_tensor().detach(), dtype, **kwargs)


def _numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
    return _ORIGINAL["numpy"](tensor.full_tensor(), force=force)


def _new_tensor(tensor: torch.Tensor, data: Any, **options: Any) -> torch.Tensor:
    for name in ("dtype", "device"):
        if options.get(name) is None:
            options[name] = getattr(tensor, name)
    return torch.tensor(data, **options)


def _set(tensor: torch.Tensor, source: Any = None, *rest: Any, **named: Any) -> torch.Tensor:
    """Takes the data of another DTensor, as assignment to ``.data`` does."""
    if rest or named or not _C.is_dtensor(source):
        return _ORIGINAL["set_"](tensor, *(() if source is None else (source,)), *rest, **named)  # raises the reason
    with torch.no_grad():
        tensor.data = source.detach()
    return tensor


def _swap_tensors(first: torch.Tensor, second: torch.Tensor) -> None:
    """``torch.utils.swap_tensors`` of DTensors swaps their data: optimizers, hooks and units refer to the Python objects."""
    former, requires_grad, grad = first.data, first.requires_grad, first.grad
    first.grad = None
    first.data = second.data
    first.requires_grad_(second.requires_grad).grad = second.grad
    second.grad = None
    second.data = former
    second.requires_grad_(requires_grad).grad = grad
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__


def _redirect_swap() -> None:
    original = torch.utils.swap_tensors

    @functools.wraps(original)
    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
        both = _C.is_dtensor(t1) and _C.is_dtensor(t2)
        (_swap_tensors if both else original)(t1, t2)

    torch.utils.swap_tensors = swap_tensors


def _new(tensor: torch.Tensor, *args: Any, device: Any = None) -> torch.Tensor:
    """The legacy constructor: ``new_empty`` for sizes, ``new_tensor`` for data; a tensor is returned detached."""
    if len(args) != 1 or isinstance(args[0], (int, torch.SymInt, torch.Size)):
        sizes = args[0] if args and isinstance(args[0], torch.Size) else args
        return tensor.new_empty(sizes or (0,), device=device)
    data = args[0]
    if not isinstance(data, torch.Tensor):
        return tensor.new_tensor(data, device=device)
    if data.dtype != tensor.dtype:
        raise TypeError(f"new(tensor): expected a tensor of {tensor.dtype}, got one of {data.dtype}; convert it with to()")
    return data.detach()


def _register_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
    handle = _ORIGINAL["register_hook"](tensor, hook)
    if tensor.is_leaf:  # torch drops the hook that reduces a leaf's gradient; the next operator installs it again
        with torch.enable_grad():
            tensor.view_as(tensor)
    return handle


_DTENSOR_METHODS: dict[str, Callable[..., Any]] = {
    "__repr__": _repr,
    "__deepcopy__": _deepcopy,
    "__reduce_ex__": _reduce,
    "__array__": _array,
    "numpy": _numpy,
    "tolist": lambda tensor: tensor.full_tensor().tolist(),
    "new": _new,
    "new_tensor": _new_tensor,
    "register_hook": _register_hook,
    "set_": _set,
}
_ORIGINAL: dict[str, Callable[..., Any]] = {}


def _without_mesh_scope(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Runs ``fn`` without MeshScopes: it creates a regular tensor, which then takes another tensor's memory."""
    of_scopes = torch._C.DispatchKeySet(torch._C._parse_dispatch_key("DeferredInit"))

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(of_scopes):
            return fn(*args, **kwargs)

    return call


def _redirect(owner: type, name: str, for_dtensors: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    is_dtensor = _C.is_dtensor

    @functools.wraps(original)
    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_dtensor(tensor):
            return for_dtensors(tensor, *args, **kwargs)
        return original(tensor, *args, **kwargs)

    _ORIGINAL.setdefault(name, original)
    setattr(owner, name, method)


def add_attribute(name: str, attribute: _DTensorAttribute) -> None:
    attribute.__set_name__(torch.Tensor, name)
    setattr(torch.Tensor, name, attribute)


_NOT_COMPILED = (
    "torch.compile, torch.export and torch.cond do not support DTensors: call "
    'torch.compiler.set_stance("force_eager") to run what a library compiles as it is written, or compile functions of '
    "to_local() tensors"
)


def _refuse_to_trace(describer: type) -> None:
    """Makes tracers refuse DTensors: they describe a tensor before they create a fake tensor, and pass on the error. Dynamo
    then runs the function eagerly, or raises with the reason (``fullgraph=True``).
    """
    describe = describer.describe_tensor  # type: ignore[attr-defined]

    @functools.wraps(describe)
    def describe_tensor(self: Any, tensor: torch.Tensor, **options: Any) -> Any:
        if _C.is_dtensor(tensor):
            raise UnsupportedFakeTensorException(_NOT_COMPILED)
        return describe(self, tensor, **options)

    describer.describe_tensor = describe_tensor  # type: ignore[attr-defined]


def _with_short_error(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` compiles its arguments: reduces Dynamo's report about a DTensor to the reason."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            if _NOT_COMPILED in str(error):
                raise NotImplementedError(_NOT_COMPILED) from error
            raise

    return call


def install() -> None:
    """Adds the methods to torch.Tensor. Called once, on import."""
    _C.install_data_ptr()
    _refuse_to_trace(MetaTensorDescriber)
    torch.cond = _with_short_error(torch.cond)
    torch.Tensor.__deepcopy__ = _without_mesh_scope(torch.Tensor.__deepcopy__)  # type: ignore[method-assign]
    torch._utils._rebuild_tensor = _without_mesh_scope(torch._utils._rebuild_tensor)  # used by every unpickling
    for name, attribute in _ATTRIBUTES.items():
        add_attribute(name, attribute)
    for name, for_dtensors in _DTENSOR_METHODS.items():
        _redirect(torch.Tensor, name, for_dtensors)
    _redirect_swap()
    for name in ("__repr__", "__deepcopy__"):
        _redirect(torch.nn.Parameter, name, _DTENSOR_METHODS[name])
    for value in (_C.DeviceMesh, _C.Communicator, _C.Schedule):  # immutable: a copy is the object itself
        value.__copy__ = lambda self: self  # type: ignore[attr-defined]
        value.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    _C.Schedule.__reduce__ = lambda schedule: (_schedule, (str(schedule),))  # type: ignore[assignment,method-assign]
    _C.DeviceMesh.__reduce__ = _reduce_mesh  # type: ignore[assignment,method-assign]
    _mesh.install()
    torch.serialization.add_safe_globals([_rebuild, _rebuild_mesh, _schedule, _C.DeviceMesh, _C.Placement])
