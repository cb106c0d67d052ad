"""Tensor and sequence parallelism by the names of ``torch.distributed.tensor.parallel``.

A plan says for names of submodules (``*`` stands for one part of a name) how their parameters are split over a 1-D mesh
and how their inputs and outputs are placed. Modules need no plan to be right, only to communicate what their author
wants: with split parameters alone, operators choose by price.
"""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
from typing import Any, Iterator, Sequence

import torch
from torch import nn

from . import _C
from ._api import Ties, distribute_tensor, note_replaced, replace_tensors
from ._border import placed
from ._C import DeviceMesh, Placement
from .placement_types import Replicate, Shard

__all__ = [
    "parallelize_module", "ParallelStyle", "ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput",
    "PrepareModuleOutput", "PrepareModuleInputOutput", "loss_parallel", "linear_cross_entropy",
]  # fmt: skip

Layouts = Placement | Sequence[Placement | None] | None


class ParallelStyle:
    """How one module is parallel: its parameters, then its first inputs and its outputs."""

    src_data_rank: int | None = 0  # whose values count where ranks differ; parallelize_module() sets it

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        raise NotImplementedError


def _arrive(value: Any, mesh: DeviceMesh, layout: Placement | None, desired: Placement | None) -> Any:
    """A plain tensor is this rank's part of one with ``layout``; a DTensor knows its own."""
    if not isinstance(value, torch.Tensor):
        return value
    if not _C.is_dtensor(value):
        if layout is None:
            return value
        value = _C.from_local(value, mesh, [layout], None, None)
    return value if desired is None else placed(value, mesh, desired)


def _as_list(layouts: Layouts) -> list[Placement | None]:
    return [layouts] if layouts is None or isinstance(layouts, Placement) else list(layouts)


def _parameter_names(fn: Any) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # of C, which has no names
        return []


class _Border:
    """Hooks that bring inputs and outputs to where a style wants them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._came_plain = False

    def inputs(self, module: nn.Module, layouts: Layouts, desired: Layouts) -> None:
        """The first inputs, which may come by their names, too."""
        pairs = list(zip(_as_list(layouts), _as_list(desired)))
        by_name = dict(zip(_parameter_names(module.forward), pairs))

        def arrive(m: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            self._came_plain = not any(_C.is_dtensor(t) for t in tensors)
            whole = pairs + [(None, None)] * (len(args) - len(pairs))
            placed_ = tuple(_arrive(a, self._mesh, *pair) for a, pair in zip(args, whole))
            named = {key: _arrive(a, self._mesh, *by_name.get(key, (None, None))) for key, a in kwargs.items()}
            return placed_, named

        module.register_forward_pre_hook(arrive, with_kwargs=True)

    def keyword_inputs(self, module: nn.Module, layouts: dict[str, Placement], desired: dict[str, Placement]) -> None:
        def arrive(m: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            placed_ = {
                key: _arrive(value, self._mesh, layouts.get(key), desired.get(key)) for key, value in kwargs.items()
            }
            return args, placed_

        module.register_forward_pre_hook(arrive, with_kwargs=True)

    def outputs(self, module: nn.Module, layouts: Layouts, use_local_output: bool) -> None:
        wanted = _as_list(layouts)

        def leave_one(value: Any, layout: Placement | None) -> Any:
            if not _C.is_dtensor(value):
                return value
            value = value if layout is None else placed(value, self._mesh, layout)
            return value.to_local() if use_local_output and self._came_plain else value

        def leave(m: nn.Module, args: Any, outputs: Any) -> Any:
            if not isinstance(outputs, tuple):
                return leave_one(outputs, wanted[0])
            layouts_ = wanted + [None] * (len(outputs) - len(wanted))
            return tuple(leave_one(o, layout) for o, layout in zip(outputs, layouts_))

        module.register_forward_hook(leave)


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


class ColwiseParallel(ParallelStyle):
    """``nn.Linear`` split by output features, ``nn.Embedding`` by the size of a row."""

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = input_layouts or Replicate()
        self.output_layouts = output_layouts or Shard(-1)
        self.use_local_output = use_local_output

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        dim = 1 if isinstance(module, nn.Embedding) else 0
        _place_parameters(module, mesh, {"weight": Shard(dim), "bias": Shard(0)}, self.src_data_rank)
        border = _Border(mesh)
        border.inputs(module, self.input_layouts, Replicate())
        border.outputs(module, self.output_layouts, self.use_local_output)
        return module


class RowwiseParallel(ParallelStyle):
    """``nn.Linear`` split by input features, ``nn.Embedding`` by rows; outputs are sums over the ranks."""

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = input_layouts or Shard(-1)
        self.output_layouts = output_layouts or Replicate()
        self.use_local_output = use_local_output

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        embedding = isinstance(module, nn.Embedding)
        _place_parameters(module, mesh, {"weight": Shard(0 if embedding else 1)}, self.src_data_rank)
        border = _Border(mesh)
        border.inputs(module, self.input_layouts, Replicate() if embedding else Shard(-1))
        border.outputs(module, self.output_layouts, self.use_local_output)
        return module


class SequenceParallel(ParallelStyle):
    """Parameters replicated, activations split along ``sequence_dim``: norms and dropout between parallel parts."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_dim = sequence_dim
        self.use_local_output = use_local_output

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        _place_parameters(module, mesh, {}, self.src_data_rank)
        border = _Border(mesh)
        border.inputs(module, Shard(self.sequence_dim), Shard(self.sequence_dim))
        border.outputs(module, None, self.use_local_output)
        return module


class PrepareModuleInput(ParallelStyle):
    """Only inputs: plain ones are parts with ``input_layouts``; all are brought to ``desired_input_layouts``."""

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        desired_input_layouts: Layouts = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        if use_local_output:
            raise NotImplementedError("PrepareModuleInput(use_local_output=True): inputs stay DTensors; use local_map")
        self.layouts, self.desired = input_layouts, desired_input_layouts
        if len(_as_list(self.layouts)) != len(_as_list(self.desired)):
            raise ValueError("input_layouts and desired_input_layouts should have the same length")
        self.kwarg_layouts, self.desired_kwargs = input_kwarg_layouts or {}, desired_input_kwarg_layouts or {}

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        border = _Border(mesh)
        if self.layouts is not None:
            border.inputs(module, self.layouts, self.desired)
        if self.kwarg_layouts or self.desired_kwargs:
            border.keyword_inputs(module, self.kwarg_layouts, self.desired_kwargs)
        return module


class PrepareModuleOutput(ParallelStyle):
    """Only outputs: plain ones are parts with ``output_layouts``; all are brought to ``desired_output_layouts``."""

    def __init__(
        self, *, output_layouts: Layouts, desired_output_layouts: Layouts, use_local_output: bool = True
    ) -> None:
        self.layouts, self.desired = _as_list(output_layouts), _as_list(desired_output_layouts)
        if len(self.layouts) != len(self.desired):
            raise ValueError("output_layouts and desired_output_layouts should have the same length")
        self.use_local_output = use_local_output

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def leave(m: nn.Module, args: Any, outputs: Any) -> Any:
            several = isinstance(outputs, tuple)
            values, results = outputs if several else (outputs,), []
            if len(values) != len(self.layouts):
                raise ValueError(
                    f"module outputs and output_layouts should have the same length: {len(values)} outputs of "
                    f"{type(m).__name__}, {len(self.layouts)} layouts (None for one that stays as it is)"
                )
            for value, layout, desired in zip(values, self.layouts, self.desired):
                if not isinstance(value, torch.Tensor) and (layout, desired) != (None, None):
                    raise TypeError(
                        f"{type(m).__name__} returns a {type(value).__name__}, for which the layouts {layout} and {desired} say "
                        "nothing: tensors, or tuples of them, are placed (None for one that stays as it is)"
                    )
                value = _arrive(value, mesh, layout, desired)
                results.append(value.to_local() if self.use_local_output and _C.is_dtensor(value) else value)
            return tuple(results) if several else results[0]

        module.register_forward_hook(leave)
        return module


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
        self._before = PrepareModuleInput(
            input_layouts=input_layouts, desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts, desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )  # fmt: skip
        self._after = PrepareModuleOutput(
            output_layouts=output_layouts, desired_output_layouts=desired_output_layouts, use_local_output=use_local_output
        )

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return self._after.apply(self._before.apply(module, mesh), mesh)


def _matches(pattern: str, name: str) -> bool:
    parts, names = pattern.split("."), name.split(".")
    return len(parts) == len(names) and all(fnmatch.fnmatchcase(n, p) for n, p in zip(names, parts))


def parallelize_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | dict[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """Applies a style to ``module``, or styles to the submodules that a plan names, over a 1-D ``device_mesh``.

    Parameters are replaced: make the optimizer afterwards. An entry that matches no submodule is an error. Where ranks'
    values differ, those of ``src_data_rank`` of the mesh count. What is tied stays so: an entry for one of its names
    counts for all, and entries that contradict each other are an error.
    """
    mesh = _C.init_device_mesh("cpu", [_C.world().size]) if device_mesh is None else device_mesh
    if mesh.ndim != 1:
        raise ValueError(f"parallelize_module needs a mesh of one dimension, such as mesh['tp'], not {mesh}")
    ties, former, result = Ties(module), list(module.parameters()), module
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan.src_data_rank = src_data_rank
        result, parallelize_plan = parallelize_plan.apply(module, mesh), None
    for pattern, style in (parallelize_plan or {}).items():
        found = [m for name, m in module.named_modules() if _matches(pattern, name)]
        if not found:
            raise ValueError(f"parallelize_module: {pattern!r} matches no submodule of {type(module).__name__}")
        style.src_data_rank = src_data_rank
        for submodule in found:
            style.apply(submodule, mesh)
    ties.restore()
    note_replaced(former, module)
    return result


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """Changes nothing: losses keep logits split by class wherever they are called."""
    yield


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk: int = 1024,
) -> torch.Tensor:
    """Mean cross entropy of ``linear(hidden, weight)`` in pieces: never more than ``chunk`` tokens' logits at once.

    ``hidden`` [..., features], ``weight`` [classes, features], ``targets`` [...]; plain or DTensors. Differentiable.
    """
    return _C.linear_cross_entropy(hidden, weight, targets, ignore_index, label_smoothing, z_loss, chunk)
