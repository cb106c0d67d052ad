"""Parallel styles: how the parameters of one module are sharded, and how its inputs and outputs are placed.

A regular input tensor is each rank's local tensor. Outputs are regular tensors if ``use_local_output`` is True, whatever
the inputs were. With ``use_local_output=False`` outputs are DTensors, and the model between parallel layers computes with
global semantics.
"""

from __future__ import annotations

import abc
import inspect
from functools import partial
from typing import Any, Mapping, Sequence

import torch
from torch import nn

from . import _C
from ._api import distribute_tensor, replace_tensors
from ._C import DeviceMesh, Placement
from ._signatures import keywords_from
from .placement_types import Replicate, Shard, as_placement

__all__ = [
    "ParallelStyle", "ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput", "PrepareModuleOutput",
    "PrepareModuleInputOutput",
]  # fmt: skip

Layouts = Placement | Sequence[Placement | None] | None
Pair = tuple[Placement | None, Placement | None]  # placement of a regular tensor; desired placement of every tensor


class ParallelStyle(abc.ABC):
    """How one module is parallelized. A custom style implements ``_apply``."""

    src_data_rank: int | None = 0  # the rank whose values all ranks use; parallelize_module() sets it

    @abc.abstractmethod
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Parallelizes ``module`` and returns it or its replacement."""

    def __repr__(self) -> str:
        options = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)}' for name in options)})"


def _layouts(layouts: Layouts) -> tuple[Placement | None, ...]:
    several = (layouts,) if layouts is None or hasattr(layouts, "is_shard") else tuple(layouts)  # type: ignore[arg-type]
    return tuple(None if layout is None else as_placement(layout) for layout in several)


def _placements_on(tensor: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> list[Placement]:
    """The tensor's placements with this one on the axis of ``mesh``, which is the tensor's mesh or a slice of it."""
    if tensor.device_mesh == mesh:
        return [placement]
    names, mine = tensor.device_mesh.mesh_dim_names, mesh.mesh_dim_names
    if not names or not mine or mine[0] not in names:
        raise ValueError(f"got an activation on {tensor.device_mesh} in a module that is parallel over {mesh}")
    wanted = list(tensor.placements)
    wanted[names.index(mine[0])] = placement
    return wanted


def _from_local(value: torch.Tensor, mesh: DeviceMesh, layout: Placement) -> torch.Tensor:
    """Shards may be uneven, so ranks communicate the sizes of sharded tensors; nothing else is communicated."""
    if layout.is_shard():
        return _C.from_local(value, mesh, [layout], None, None)
    value = value.contiguous()
    return _C.from_local(value, mesh, [layout], list(value.shape), list(value.stride()))


def _prepared(value: Any, mesh: DeviceMesh, pair: Pair, local: bool = False, is_input: bool = False) -> Any:
    """Places a tensor; returns ``value`` itself without a layout or for non-tensors. ``local``: returns the local tensor."""
    layout, desired = pair
    if layout is None or not isinstance(value, torch.Tensor):
        return value
    if not _C.is_dtensor(value):
        value = _from_local(value, mesh, layout)
    if desired is not None:
        wanted = _placements_on(value, mesh, desired)
        value = _C.gather_activation(value, wanted) if is_input else value.redistribute(placements=wanted)
    return _local(value, mesh) if local else value


def _local(value: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The local tensor of a DTensor on ``mesh``. On a larger mesh (global semantics under ``fully_shard``) a DTensor is
    returned as it is, since its local tensor would be a shard of the other axes, too.
    """
    return value.to_local() if value.device_mesh == mesh else value


def _parameter_names(fn: Any) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # functions of C have no parameter names
        return []


# Hooks are module-level functions with bound arguments, so that modules can be pickled.
def _input_hook(
    mesh: DeviceMesh, pairs: Sequence[Pair], named: Mapping[str, Pair], local: bool, module: nn.Module, args: Any, kwargs: Any
) -> Any:
    every = [*pairs, *[(None, None)] * (len(args) - len(pairs))]
    own = tuple(_prepared(value, mesh, pair, local, True) for value, pair in zip(args, every))
    return own, {key: _prepared(v, mesh, named.get(key, (None, None)), local, True) for key, v in kwargs.items()}


def _prepare_inputs(
    module: nn.Module, mesh: DeviceMesh, pairs: Sequence[Pair], named: Mapping[str, Pair] = {}, local: bool = False
) -> None:
    """Places the first inputs, positional or by name, and the keyword arguments in ``named``."""
    by_name = {**dict(zip(_parameter_names(module.forward), pairs)), **named}
    module.register_forward_pre_hook(partial(_input_hook, mesh, pairs, by_name, local), with_kwargs=True)


def _output_hook(
    mesh: DeviceMesh, layout: Placement | None, use_local_output: bool, module: nn.Module, args: Any, outputs: Any
) -> Any:
    def prepared(value: Any, layout: Placement | None) -> Any:
        if not _C.is_dtensor(value):
            return value
        value = value if layout is None else value.redistribute(placements=_placements_on(value, mesh, layout))
        return _local(value, mesh) if use_local_output else value

    if not isinstance(outputs, tuple):
        return prepared(outputs, layout)
    return tuple(prepared(value, None if i else layout) for i, value in enumerate(outputs))


def _prepare_outputs(module: nn.Module, mesh: DeviceMesh, layout: Placement | None, use_local_output: bool) -> None:
    """Places the first output; with ``use_local_output`` the others become their local tensors."""
    module.register_forward_hook(partial(_output_hook, mesh, layout, use_local_output))


def _check_is_here(tensor: torch.Tensor, name: str, mesh: DeviceMesh) -> None:
    """Redistributing a tensor that is sharded over other axes would deadlock: the slices of the mesh would wait for each
    other."""
    names, own = tensor.device_mesh.mesh_dim_names or (), mesh.mesh_dim_names or ()
    if any(axis not in own and not p.is_replicate() for axis, p in zip(names, tensor.placements)):
        raise ValueError(
            f"parallelize_module: {name} is already {tensor.placements} on {tensor.device_mesh}, and the ranks of {mesh} "
            f"have only shards of it; call parallelize_module first, then fully_shard"
        )


def _place_parameters(module: nn.Module, mesh: DeviceMesh, place: dict[str, Placement], source: int | None) -> None:
    def placed_(name: str, t: torch.Tensor) -> torch.Tensor:
        if _C.is_dtensor(t):
            _check_is_here(t, f"{name!r} of {type(module).__name__}", mesh)
        return distribute_tensor(t.detach(), mesh, [place.get(name, Replicate())], src_data_rank=source)

    for submodule in module.modules():
        replace_tensors(submodule, placed_, buffers=False)


class _SplitStyle(ParallelStyle):
    """A style that shards parameters; one input and one output."""

    _default_input_layout: Placement  # default placement of regular inputs
    _default_output_layout: Placement  # default placement of outputs

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = _layouts(input_layouts or self._default_input_layout)
        self.output_layouts = _layouts(output_layouts or self._default_output_layout)
        self.use_local_output = use_local_output

    def _split(self, module: nn.Module) -> dict[str, Placement]:
        """Placements of parameters by name; other parameters are replicated."""
        raise NotImplementedError

    def _desired_input(self, module: nn.Module) -> Placement:
        raise NotImplementedError

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.desired_input_layouts = (self._desired_input(module),)
        _place_parameters(module, device_mesh, self._split(module), self.src_data_rank)
        _prepare_inputs(module, device_mesh, [(self.input_layouts[0], self.desired_input_layouts[0])])
        _prepare_outputs(module, device_mesh, self.output_layouts[0], self.use_local_output)
        return module


class ColwiseParallel(_SplitStyle):
    """Shards ``nn.Linear`` by output features, ``nn.Embedding`` by embedding features."""

    _default_input_layout, _default_output_layout = Replicate(), Shard(-1)

    def _split(self, module: nn.Module) -> dict[str, Placement]:
        return {"weight": Shard(1 if isinstance(module, nn.Embedding) else 0), "bias": Shard(0)}

    def _desired_input(self, module: nn.Module) -> Placement:
        return Replicate()


class RowwiseParallel(_SplitStyle):
    """Shards ``nn.Linear`` by input features, ``nn.Embedding`` by rows; outputs are summed over the ranks."""

    _default_input_layout, _default_output_layout = Shard(-1), Replicate()

    def _split(self, module: nn.Module) -> dict[str, Placement]:
        return {"weight": Shard(0 if isinstance(module, nn.Embedding) else 1)}

    def _desired_input(self, module: nn.Module) -> Placement:
        return Replicate() if isinstance(module, nn.Embedding) else Shard(-1)


class SequenceParallel(ParallelStyle):
    """Replicates parameters and shards activations along ``sequence_dim``: norms and dropout between parallel layers."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_dim = sequence_dim
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _place_parameters(module, device_mesh, {}, self.src_data_rank)
        _prepare_inputs(module, device_mesh, [self.sequence_sharding * 2])
        _prepare_outputs(module, device_mesh, None, self.use_local_output)
        return module


def _check_lengths(what: str, layouts: Sequence[Any] | None, desired: Sequence[Any] | None) -> None:
    if len(layouts or ()) != len(desired or ()):
        raise AssertionError(f"{what}_layouts and desired_{what}_layouts should have same length! {layouts}, {desired}")


class PrepareModuleInput(ParallelStyle):
    """Places inputs: regular tensors have ``input_layouts``; all are redistributed to ``desired_input_layouts``.

    None leaves an input unchanged. ``use_local_output``: the module receives local tensors.
    """

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        desired_input_layouts: Layouts = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts = None if input_layouts is None else _layouts(input_layouts)
        self.desired_input_layouts = None if input_layouts is None else _layouts(desired_input_layouts)
        self.input_kwarg_layouts = input_kwarg_layouts or {}
        self.desired_input_kwarg_layouts = desired_input_kwarg_layouts or {}
        self.use_local_output = use_local_output
        _check_lengths("input", self.input_layouts, self.desired_input_layouts)
        _check_lengths("input_kwarg", self.input_kwarg_layouts, self.desired_input_kwarg_layouts)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        pairs = list(zip(self.input_layouts or (), self.desired_input_layouts or ()))
        wanted, desired = self.input_kwarg_layouts, self.desired_input_kwarg_layouts
        named = {key: (as_placement(layout), _layouts(desired.get(key))[0]) for key, layout in wanted.items()}

        module.register_forward_pre_hook(partial(_check_inputs, len(pairs)), with_kwargs=True)
        _prepare_inputs(module, device_mesh, pairs, named, self.use_local_output)
        return module


def _check_inputs(layouts: int, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    by_name = sum(name in kwargs for name in _parameter_names(module.forward)[:layouts])
    if layouts and len(args) + by_name != layouts:
        raise ValueError(
            f"module inputs and input_layouts should have same length! {len(args)} inputs of {type(module).__name__}, "
            f"{layouts} layouts (use None for an input to leave it unchanged)"
        )


class PrepareModuleOutput(ParallelStyle):
    """Places outputs: regular tensors have ``output_layouts``; all are redistributed to ``desired_output_layouts``.

    None leaves an output unchanged. ``use_local_output``: outputs are local tensors.
    """

    def __init__(
        self, *, output_layouts: Layouts, desired_output_layouts: Layouts, use_local_output: bool = True
    ) -> None:
        self.output_layouts, self.desired_output_layouts = _layouts(output_layouts), _layouts(desired_output_layouts)
        self.use_local_output = use_local_output
        _check_lengths("output", self.output_layouts, self.desired_output_layouts)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        pairs = list(zip(self.output_layouts, self.desired_output_layouts))
        module.register_forward_hook(partial(_all_outputs_hook, device_mesh, pairs, self.use_local_output))
        return module


def _all_outputs_hook(
    mesh: DeviceMesh, pairs: Sequence[Pair], local: bool, module: nn.Module, args: Any, outputs: Any
) -> Any:
    values = outputs if isinstance(outputs, tuple) else (outputs,)
    name = type(module).__name__
    if len(values) != len(pairs):
        raise ValueError(
            f"module outputs and output_layouts should have same length! {len(values)} outputs of {name}, {len(pairs)} "
            "layouts (use None for an output to leave it unchanged)"
        )
    for value, (layout, desired) in zip(values, pairs):
        if layout is not None and not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{name} returns a {type(value).__name__}, which cannot have the layouts {layout} and {desired}: expected a "
                "tensor or a tuple of tensors (use None for an output to leave it unchanged)"
            )
    results = tuple(_prepared(value, mesh, pair, local) for value, pair in zip(values, pairs))
    return results if isinstance(outputs, tuple) else results[0]


class PrepareModuleInputOutput(ParallelStyle):
    """Combines :class:`PrepareModuleInput` and :class:`PrepareModuleOutput`."""

    @keywords_from(PrepareModuleInput)
    def __init__(
        self,
        *,
        use_local_input: bool = False,
        output_layouts: Layouts,
        desired_output_layouts: Layouts,
        use_local_output: bool = True,
        **input_options: Any,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(**input_options, use_local_output=use_local_input)
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts, desired_output_layouts=desired_output_layouts, use_local_output=use_local_output
        )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prepare_module_input}, {self.prepare_module_output})"
