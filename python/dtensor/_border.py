"""Between programs that hand each rank its own plain tensors and modules whose parameters are DTensors.

``fully_shard`` and ``parallelize_module`` of PyTorch take and give local tensors. Where the first tensor that comes into
a module is plain, it is wrapped on the way in and unwrapped on the way out; where it is a DTensor, nothing is done.
"""

from __future__ import annotations

import array
from typing import Any, Callable, NamedTuple

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


def _everywhere(flags: list[bool], mesh: DeviceMesh) -> list[bool]:
    """What is so on every rank of ``mesh``. Collective."""
    numbers = array.array("q", flags)
    view = torch.frombuffer(numbers, dtype=torch.int64)  # plain within a MeshScope, too
    mesh.get_group().all_reduce(view, "min")
    return [bool(number) for number in numbers]


class _Call(NamedTuple):
    """A call of the module that is under way; calls of a module within itself have one each."""

    wrapped: bool = False  # inputs came plain
    rows: int = -1  # of all ranks together
    around: DeviceMesh | None = None  # the mesh of activations, of which that of the parameters is a slice

    def close(self) -> None:
        """Nothing to put back."""


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
        self.calls: list[_Call] = []

    def enter(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        tensors = tensors_in((args, kwargs))
        meshes = [t.device_mesh for t in tensors if _C.is_dtensor(t)]
        around = next(filter(self._is_within, meshes), None)
        if around is not None:
            inputs, call = map_tensors(lambda t: self._lower(t, around), (args, kwargs)), _Call(around=around)
        elif tensors and not meshes:
            inputs, rows = self._wrap(args, kwargs, [t for t in tensors if t.dim() > 0])
            call = _Call(wrapped=True, rows=rows)
        else:
            inputs, call = (args, kwargs), _Call()
        self.calls.append(call)
        return inputs

    def _wrap(self, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> tuple[Any, int]:
        """Inputs with as many rows as the first has, on every rank, and the rows of all ranks together."""
        rows = [t.shape[0] == tensors[0].shape[0] for t in tensors]
        if len(rows) > 1 and self.mesh.is_member():  # a rank's number may be that of something else's by chance
            rows = _everywhere(rows, self.mesh)
        own, total = {id(t) for t, is_rows in zip(tensors, rows) if is_rows}, -1

        def wrap(t: torch.Tensor) -> torch.Tensor:
            nonlocal total
            if id(t) not in own:
                return t
            local = _hooked(t, lambda grad: grad * self.parts)
            whole = _C.from_local(local, self.mesh, self.placements, None, None)
            total = whole.shape[0]
            return whole

        return map_tensors(wrap, (args, kwargs)), total

    def _is_within(self, mesh: DeviceMesh) -> bool:
        names, mine = mesh.mesh_dim_names or (), self.mesh.mesh_dim_names
        return bool(mine) and mesh.ndim > self.mesh.ndim and set(mine) <= set(names) and mesh[list(mine)] == self.mesh

    def _lower(self, t: torch.Tensor, around: DeviceMesh) -> torch.Tensor:
        """Of activations that other modules share out over further axes: whole on those, where this one knows none."""
        if not _C.is_dtensor(t) or t.device_mesh != around:
            return t
        names = around.mesh_dim_names
        own = [names.index(name) for name in self.mesh.mesh_dim_names]
        whole = [p if axis in own else Placement.replicate() for axis, p in enumerate(t.placements)]
        local = t.redistribute(placements=whole).to_local()
        return _C.from_local(local, self.mesh, [whole[axis] for axis in own], list(t.shape), list(t.stride()))

    def _lift(self, t: torch.Tensor, around: DeviceMesh) -> torch.Tensor:
        if not _C.is_dtensor(t) or t.device_mesh != self.mesh:
            return t
        of = dict(zip(self.mesh.mesh_dim_names, t.placements))
        placements = [of.get(name, Placement.replicate()) for name in around.mesh_dim_names]
        return _C.from_local(t.to_local(), around, placements, list(t.shape), list(t.stride()))

    def leave(self, outputs: Any) -> Any:
        call = self.calls.pop()
        if call.around is not None:
            return map_tensors(lambda t: self._lift(t, call.around), outputs)
        return map_tensors(lambda t: self._unwrap(t, call.rows), outputs) if call.wrapped else outputs

    def _unwrap(self, t: torch.Tensor, rows: int) -> torch.Tensor:
        if not _C.is_dtensor(t):
            return t
        dim = self._dim_of_rows(t, rows) if t.device_mesh == self.mesh else None
        if dim is None:
            return t.full_tensor()
        apart = self._apart(t, dim, rows)
        if apart is None:
            return self._own(t, dim)
        before, each = apart
        return self._own(t.unflatten(dim, (before, rows, each)), dim + 1).flatten(dim, dim + 2)

    def _own(self, t: torch.Tensor, dim: int) -> torch.Tensor:
        placements = [Placement.shard(dim) if q.is_shard() else q for q in self.placements]
        return _hooked(t.redistribute(placements=placements).to_local(), lambda grad: grad / self.parts)

    def _apart(self, t: torch.Tensor, dim: int, rows: int) -> tuple[int, int] | None:
        """Of an output with several entries a row: how many stand before all rows, and how many with each of them.

        Chunks of such a dimension are the ranks' rows only where rows lie evenly and one after the other. Where they do
        not, the split tells: operators leave rows where they are if these lie evenly, or split their entries.
        """
        entries, rest = divmod(t.shape[dim], rows) if rows > 0 else (0, 1)
        split = next(p for p, q in zip(t.placements, self.placements) if q.is_shard())
        before = split.split_factor if split.is_strided() and split.dim == dim else 1
        even = rows % self.parts == 0
        if rest or entries < 2 or (even and before == 1):
            return None
        if not even and before % rows == 0:
            before //= rows
        return (before, entries // before) if entries % before == 0 else (1, entries)

    def _dim_of_rows(self, t: torch.Tensor, rows: int) -> int | None:
        """Where an output has rows: where it is split, behind the first dimension if the sizes say so, too."""
        dims = {p.dim for p, q in zip(t.placements, self.placements) if p.is_shard() and q.is_shard()}
        split = next(iter(dims)) if len(dims) == 1 else None
        if split == 0 or (split is not None and t.shape[split] == rows):
            return split
        if t.dim() > 0 and t.shape[0] == rows:  # operators may have moved them: an index, a sort
            return 0
        if not dims or rows <= 0:
            return None
        if rows % self.parts == 0:
            return split if split is not None and t.shape[split] % rows == 0 else None
        return 0 if t.shape[0] % rows == 0 else None  # tokens of rows that cannot be split evenly
