"""Between programs that hand each rank its own plain tensors and modules whose parameters are DTensors.

``fully_shard`` and ``parallelize_module`` of PyTorch take and give local tensors. Where the first tensor that comes into
a module is plain, it is wrapped on the way in and unwrapped on the way out; where it is a DTensor, nothing is done.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.utils import _pytree

from . import _C
from ._C import DeviceMesh, Placement


Scale = Callable[[torch.Tensor], torch.Tensor]


def map_tensors(fn: Callable[[torch.Tensor], torch.Tensor], values: Any) -> Any:
    """``fn`` of every tensor in nested lists, tuples, dictionaries and what is registered as such."""
    return _pytree.tree_map_only(torch.Tensor, fn, values)


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def placed(tensor: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> torch.Tensor:
    """``tensor`` with this placement on the one axis of ``mesh``, which is the tensor's mesh or a slice of it."""
    if tensor.device_mesh == mesh:
        return tensor.redistribute(placements=[placement])
    names, mine = tensor.device_mesh.mesh_dim_names, mesh.mesh_dim_names
    if not names or not mine or mine[0] not in names:
        raise ValueError(f"an activation on {tensor.device_mesh} came to a module that is parallel over {mesh}")
    wanted = list(tensor.placements)
    wanted[names.index(mine[0])] = placement
    return tensor.redistribute(placements=wanted)


class _Crossed(torch.autograd.Function):
    """``now(gradient)``; what comes back for it, where a gradient has one of its own, is ``then`` of that, and so on in turn."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, now: Scale, then: Scale) -> torch.Tensor:
        ctx.now, ctx.then = now, then
        return now(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return _Crossed.apply(gradients[0], ctx.then, ctx.now), None, None


def _hooked(tensor: torch.Tensor, scale: Scale) -> torch.Tensor:
    """``tensor``, whose gradient is scaled at this point and nowhere else.

    It goes between what is of one rank and what is of all. A gradient of a gradient comes there on its way back, and as
    it is: on one side it is of a mean over ranks, on the other of a rank's own, and the scale is in its value already.
    """
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor
    view = tensor.view_as(tensor)
    view.register_hook(lambda gradient: _Crossed.apply(gradient, scale, torch.clone))
    return view


class LocalBatches:
    """Each rank's plain inputs are its rows of a global batch; outputs with rows are given back as the rank's own.

    Gradients of parameters come out as means over ranks, as PyTorch's data parallelism has them: what comes back for a
    rank's rows is divided by the number of ranks that have rows of their own. What goes on from there to the rank's own
    inputs is multiplied by it again: it is the gradient of that rank's loss, which another module may stand before.
    """

    def __init__(self, mesh: DeviceMesh, axes: list[int]) -> None:
        self.mesh = mesh
        self.placements = [Placement.shard(0) if i in axes else Placement.replicate() for i in range(mesh.ndim)]
        self.parts = 1
        for axis in axes:
            self.parts *= mesh.size(axis)
        self._open = False
        self._rows = -1  # of all ranks together
        self._around: DeviceMesh | None = None  # the mesh of activations, of which that of the parameters is a slice

    def enter(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        tensors = tensors_in((args, kwargs))
        meshes = [t.device_mesh for t in tensors if _C.is_dtensor(t)]
        self._open, self._around = bool(tensors) and not meshes, next(filter(self._is_within, meshes), None)
        if self._around is not None:
            return map_tensors(self._lower, (args, kwargs))
        if not self._open:
            return args, kwargs
        rows, self._rows = next((t.shape[0] for t in tensors if t.dim() > 0), None), -1

        def wrap(t: torch.Tensor) -> torch.Tensor:
            own = t.dim() > 0 and t.shape[0] == rows
            if not own:
                return t
            local = _hooked(t, lambda grad: grad * self.parts)
            whole = _C.from_local(local, self.mesh, self.placements, None, None)
            self._rows = whole.shape[0]
            return whole

        return map_tensors(wrap, (args, kwargs))

    def _is_within(self, mesh: DeviceMesh) -> bool:
        names, mine = mesh.mesh_dim_names or (), self.mesh.mesh_dim_names
        return bool(mine) and mesh.ndim > self.mesh.ndim and set(mine) <= set(names) and mesh[list(mine)] == self.mesh

    def _lower(self, t: torch.Tensor) -> torch.Tensor:
        """Of activations that other modules share out over further axes: whole on those, where this one knows none."""
        if not _C.is_dtensor(t) or t.device_mesh != self._around:
            return t
        names = self._around.mesh_dim_names
        own = [names.index(name) for name in self.mesh.mesh_dim_names]
        whole = [p if axis in own else Placement.replicate() for axis, p in enumerate(t.placements)]
        local = t.redistribute(placements=whole).to_local()
        return _C.from_local(local, self.mesh, [whole[axis] for axis in own], list(t.shape), list(t.stride()))

    def _lift(self, t: torch.Tensor) -> torch.Tensor:
        if not _C.is_dtensor(t) or t.device_mesh != self.mesh:
            return t
        of = dict(zip(self.mesh.mesh_dim_names, t.placements))
        placements = [of.get(name, Placement.replicate()) for name in self._around.mesh_dim_names]
        return _C.from_local(t.to_local(), self._around, placements, list(t.shape), list(t.stride()))

    def leave(self, outputs: Any) -> Any:
        if self._around is not None:
            outputs = map_tensors(self._lift, outputs)
            self._around = None
        if not self._open:
            return outputs
        self._open = False
        return map_tensors(self._unwrap, outputs)

    def _unwrap(self, t: torch.Tensor) -> torch.Tensor:
        if not _C.is_dtensor(t):
            return t
        split = any(p.is_shard(0) and q.is_shard(0) for p, q in zip(t.placements, self.placements))
        as_many = t.dim() > 0 and t.shape[0] == self._rows  # operators may have moved them: an index, a sort
        if t.device_mesh != self.mesh or not (split or as_many):
            return t.full_tensor()
        return _hooked(t.redistribute(placements=self.placements).to_local(), lambda grad: grad / self.parts)
