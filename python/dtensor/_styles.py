"""Parallel styles: how the parameters of one module are split, and how its inputs and outputs are placed.

Regular tensors that come in are each rank's own part; regular tensors go out where ``use_local_output`` says so, whatever
came in. With ``use_local_output=False`` outputs are DTensors, and the model between parallel layers computes as on one
device.
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
from .placement_types import Replicate, Shard, as_placement

__all__ = [
    "ParallelStyle", "ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput", "PrepareModuleOutput",
    "PrepareModuleInputOutput",
]  # fmt: skip

Layouts = Placement | Sequence[Placement | None] | None
Pair = tuple[Placement | None, Placement | None]  # as which a regular tensor is taken; to what all are brought


class ParallelStyle(abc.ABC):
    """How one module is parallel. A style of one's own implements ``_apply``."""

    src_data_rank: int | None = 0  # whose values count where ranks differ; parallelize_module() sets it

    @abc.abstractmethod
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Makes ``module`` parallel, and returns it or what stands for it."""

    def __repr__(self) -> str:
        options = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)}' for name in options)})"


def _layouts(layouts: Layouts) -> tuple[Placement | None, ...]:
    several = (layouts,) if layouts is None or hasattr(layouts, "is_shard") else tuple(layouts)  # type: ignore[arg-type]
    return tuple(None if layout is None else as_placement(layout) for layout in several)


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


def _from_local(value: torch.Tensor, mesh: DeviceMesh, layout: Placement) -> torch.Tensor:
    """Parts may be uneven, so ranks agree on the sizes of what is split; nothing else is communicated."""
    if layout.is_shard():
        return _C.from_local(value, mesh, [layout], None, None)
    value = value.contiguous()
    return _C.from_local(value, mesh, [layout], list(value.shape), list(value.stride()))


def _prepared(value: Any, mesh: DeviceMesh, pair: Pair, local: bool = False) -> Any:
    """Without a layout, and where it is no tensor, ``value`` itself; ``local``: this rank's part of the result."""
    layout, desired = pair
    if layout is None or not isinstance(value, torch.Tensor):
        return value
    if not _C.is_dtensor(value):
        value = _from_local(value, mesh, layout)
    if desired is not None:
        value = placed(value, mesh, desired)
    return _local(value, mesh) if local else value


def _local(value: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The rank's part of a DTensor on ``mesh``. On a larger mesh (global semantics under ``fully_shard``) a DTensor stays one:
    its part would be one of the other axes' ranks, too.
    """
    return value.to_local() if value.device_mesh == mesh else value


def _parameter_names(fn: Any) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # of C, which has no names
        return []


# Hooks are functions of the module with what they need bound to them, so that modules can be pickled.
def _input_hook(
    mesh: DeviceMesh, pairs: Sequence[Pair], named: Mapping[str, Pair], local: bool, module: nn.Module, args: Any, kwargs: Any
) -> Any:
    every = [*pairs, *[(None, None)] * (len(args) - len(pairs))]
    own = tuple(_prepared(value, mesh, pair, local) for value, pair in zip(args, every))
    return own, {key: _prepared(v, mesh, named.get(key, (None, None)), local) for key, v in kwargs.items()}


def _prepare_inputs(
    module: nn.Module, mesh: DeviceMesh, pairs: Sequence[Pair], named: Mapping[str, Pair] = {}, local: bool = False
) -> None:
    """The first inputs, which may come by their names, too, and those of ``named``."""
    by_name = {**dict(zip(_parameter_names(module.forward), pairs)), **named}
    module.register_forward_pre_hook(partial(_input_hook, mesh, pairs, by_name, local), with_kwargs=True)


def _output_hook(
    mesh: DeviceMesh, layout: Placement | None, use_local_output: bool, module: nn.Module, args: Any, outputs: Any
) -> Any:
    def prepared(value: Any, layout: Placement | None) -> Any:
        if not _C.is_dtensor(value):
            return value
        value = value if layout is None else placed(value, mesh, layout)
        return _local(value, mesh) if use_local_output else value

    if not isinstance(outputs, tuple):
        return prepared(outputs, layout)
    return tuple(prepared(value, None if i else layout) for i, value in enumerate(outputs))


def _prepare_outputs(module: nn.Module, mesh: DeviceMesh, layout: Placement | None, use_local_output: bool) -> None:
    """The first output; of others their parts where they are wanted."""
    module.register_forward_hook(partial(_output_hook, mesh, layout, use_local_output))


def _check_is_here(tensor: torch.Tensor, name: str, mesh: DeviceMesh) -> None:
    """Slices of a mesh that moved to themselves what is split over other axes would wait for each other."""
    names, own = tensor.device_mesh.mesh_dim_names or (), mesh.mesh_dim_names or ()
    if any(axis not in own and not p.is_replicate() for axis, p in zip(names, tensor.placements)):
        raise ValueError(
            f"parallelize_module: {name} is {tensor.placements} on {tensor.device_mesh} already, of which the ranks of "
            f"{mesh} have parts only; call parallelize_module first, then fully_shard"
        )


def _place_parameters(module: nn.Module, mesh: DeviceMesh, place: dict[str, Placement], source: int | None) -> None:
    def placed_(name: str, t: torch.Tensor) -> torch.Tensor:
        if _C.is_dtensor(t):
            _check_is_here(t, f"{name!r} of {type(module).__name__}", mesh)
        return distribute_tensor(t.detach(), mesh, [place.get(name, Replicate())], src_data_rank=source)

    for submodule in module.modules():
        replace_tensors(submodule, placed_, buffers=False)


class _SplitStyle(ParallelStyle):
    """Parameters that are split; one input and one output."""

    _default_input_layout: Placement  # regular inputs, unless told
    _default_output_layout: Placement  # outputs, unless told

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
        """Of parameters by name; others are replicated."""
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
    """``nn.Linear`` split by output features, ``nn.Embedding`` by the size of a row."""

    _default_input_layout, _default_output_layout = Replicate(), Shard(-1)

    def _split(self, module: nn.Module) -> dict[str, Placement]:
        return {"weight": Shard(1 if isinstance(module, nn.Embedding) else 0), "bias": Shard(0)}

    def _desired_input(self, module: nn.Module) -> Placement:
        return Replicate()


class RowwiseParallel(_SplitStyle):
    """``nn.Linear`` split by input features, ``nn.Embedding`` by rows; outputs are sums over the ranks."""

    _default_input_layout, _default_output_layout = Shard(-1), Replicate()

    def _split(self, module: nn.Module) -> dict[str, Placement]:
        return {"weight": Shard(0 if isinstance(module, nn.Embedding) else 1)}

    def _desired_input(self, module: nn.Module) -> Placement:
        return Replicate() if isinstance(module, nn.Embedding) else Shard(-1)


class SequenceParallel(ParallelStyle):
    """Parameters replicated, activations split along ``sequence_dim``: norms and dropout between parallel parts."""

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
    """Only inputs: regular tensors are parts with ``input_layouts``; all are brought to ``desired_input_layouts``.

    None stands for an input that stays as it is. ``use_local_output``: the module gets each rank's parts.
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
            f"{layouts} layouts (None for one that stays as it is)"
        )


class PrepareModuleOutput(ParallelStyle):
    """Only outputs: regular tensors are parts with ``output_layouts``; all are brought to ``desired_output_layouts``.

    None stands for an output that stays as it is. ``use_local_output``: each rank's parts go out.
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
            "layouts (None for one that stays as it is)"
        )
    for value, (layout, desired) in zip(values, pairs):
        if layout is not None and not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{name} returns a {type(value).__name__}, for which the layouts {layout} and {desired} say nothing: "
                "tensors, or tuples of them, are placed (None for one that stays as it is)"
            )
    results = tuple(_prepared(value, mesh, pair, local) for value, pair in zip(values, pairs))
    return results if isinstance(outputs, tuple) else results[0]


class PrepareModuleInputOutput(ParallelStyle):
    """Both."""

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        desired_input_layouts: Layouts = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_input: bool = False,
        output_layouts: Layouts,
        desired_output_layouts: Layouts,
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts, desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts, desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )  # fmt: skip
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts, desired_output_layouts=desired_output_layouts, use_local_output=use_local_output
        )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prepare_module_input}, {self.prepare_module_output})"
