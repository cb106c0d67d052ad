"""Methods of ``torch.Tensor`` that read memory without the dispatcher: printing, copying, pickling, conversion to lists.

They are redirected for DTensors and unchanged for regular tensors.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _C


def _repr(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
    grad = ", requires_grad=True" if tensor.requires_grad and tensor.is_leaf else ""
    if tensor.grad_fn is not None:
        grad = f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    if tensor.device_mesh.is_member():
        part = tensor._local_tensor  # type: ignore[attr-defined]
        local = repr(part) if is_traceable_wrapper_subclass(part) else torch._tensor_str._str(part)
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


def install() -> None:
    """Redirects the methods. Called once, on import."""
    _C.install_data_ptr()
    torch.Tensor.__deepcopy__ = _without_mesh_scope(torch.Tensor.__deepcopy__)  # type: ignore[method-assign]
    torch._utils._rebuild_tensor = _without_mesh_scope(torch._utils._rebuild_tensor)  # used by every unpickling
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
    torch.serialization.add_safe_globals([_rebuild, _rebuild_mesh, _schedule, _C.DeviceMesh, _C.Placement])
