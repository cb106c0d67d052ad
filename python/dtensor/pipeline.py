"""Pipeline parallelism: a model in stages along one mesh axis, a batch in microbatches, and a schedule of actions.

Schedules are values: they are created by name, parsed, checked, simulated and plotted before any communication.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, NamedTuple, Sequence

import torch

from . import _C
from ._C import DeviceMesh, Schedule, live_activations, make_schedule, microbatches, schedule_names

__all__ = [
    "Pipeline", "Schedule", "StepResult", "check", "live_activations", "make_schedule", "microbatches", "schedule_names",
    "simulate", "with_communication",
]  # fmt: skip

Tensors = torch.Tensor | Sequence[torch.Tensor]


def with_communication(
    schedule: Schedule, *, unsharded_stages: int | None = 1, reduce_grad: bool = True, rendezvous: bool = False
) -> Schedule:
    """Adds sends and receives to a ``schedule`` of computation, and the gathers and reductions of fully sharded stages.

    ``unsharded_stages``: how many stages of a rank may be gathered at once; None: adds no such actions. ``rendezvous``: for
    transports whose sends block until they are received.
    """
    return _C.schedule_with_communication(schedule, unsharded_stages, reduce_grad, rendezvous)


def check(
    schedule: Schedule,
    *,
    stages: int = 0,
    microbatches: int = 0,
    live_microbatches: int = 0,
    forward_only: bool = False,
) -> dict[str, Any]:
    """Checks that a schedule is complete, in order and free of deadlocks; otherwise a RuntimeError names two actions.

    ``stages``, ``microbatches``: the required numbers; ``live_microbatches``: how many a stage may store; 0: any.
    Returns ``in_order``, ``batched`` and ``rendezvous`` (the cycle that would deadlock in that mode, if any), and
    ``live_activations``.
    """
    return _C.check_schedule(schedule, stages, microbatches, live_microbatches, forward_only)


def simulate(
    schedule: Schedule,
    *,
    forward: float = 1,
    backward: float = 2,
    backward_input: float = 1,
    backward_weight: float = 1,
    communication: float = 0,
) -> dict[str, Any]:
    """``makespan``, idle share ``bubble`` and plot ``svg``, for actions of these durations in any unit."""
    return _C.simulate_schedule(schedule, forward, backward, backward_input, backward_weight, communication)


class StepResult(NamedTuple):
    """``loss``: the mean, float64, equal on all ranks. ``live_activations``: most microbatches stored, by stage."""

    loss: torch.Tensor
    live_activations: list[int]


def _kind(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return type(value).__name__
    return f"{type(value).__name__} of {', '.join(type(entry).__name__ for entry in value)}"


def _list(tensors: Tensors, what: str) -> list[torch.Tensor]:
    """The tensors as a list; ``what`` names their source in the error for other types."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    if isinstance(tensors, (list, tuple)) and all(isinstance(entry, torch.Tensor) for entry in tensors):
        return list(tensors)
    fields = ": pass the tensors in it, in the order of the next function's arguments" if isinstance(tensors, dict) else ""
    raise TypeError(f"{what} must be a tensor or a list or tuple of tensors, got {_kind(tensors)}{fields}")


def _loss_of(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"the loss of a pipeline must be a tensor of one element, got {_kind(value)}")
    return value


def _microbatches(batch: Sequence[Tensors], what: str) -> list[list[torch.Tensor]]:
    return [_list(tensors, f"{what} of microbatch {number}") for number, tensors in enumerate(batch)]


class Pipeline:
    """Training steps over the ranks of ``mesh``; ``schedule`` has a line for each rank of its ``axis``.

    ``loss(outputs, targets)``: the mean over a microbatch, a scalar tensor. ``weight(targets)``: the number of elements of
    that mean, by default the rows of the first target; ``ignore_index``: counts targets with other values. Every rank
    creates the pipeline with the same arguments.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        schedule: Schedule,
        loss: Callable[..., torch.Tensor],
        *,
        axis: str = "pp",
        weight: Callable[..., float] | None = None,
        ignore_index: int | None = None,
    ) -> None:
        if weight is not None and ignore_index is not None:
            raise ValueError("Pipeline: weight and ignore_index both define the weight of a mean; pass only one of them")
        self._loss, self._weight = loss, weight
        self._forwards: dict[int, Callable[..., Tensors]] = {}  # by stage
        own = weakref.ref(self)  # the garbage collector cannot break reference cycles through C++ objects
        counted = None if weight is None else lambda targets: float(own()._weight(*targets))  # type: ignore[union-attr,misc]
        if ignore_index is not None:
            counted = _C.valid_targets(ignore_index)
        mean: Any = lambda outs, targets: _loss_of(own()._loss(*outs, *targets))  # type: ignore[union-attr] # noqa: E731
        self._pipeline = _C.Pipeline(mesh, schedule, mean, axis, counted)
        self._modules: dict[int, tuple[torch.nn.Module, list[torch.Tensor]]] = {}  # stages that are modules

    @property
    def stages(self) -> list[int]:
        """Stages of this rank."""
        return self._pipeline.stages()

    @property
    def last_stage(self) -> int:
        """The last stage of the pipeline."""
        return self._pipeline.last_stage()

    @property
    def schedule(self) -> Schedule:
        """The schedule with its communication."""
        return self._pipeline.schedule()

    def stage_mesh(self, stage: int) -> DeviceMesh | None:
        """The mesh of a stage's parameters; None if they are regular tensors on one rank."""
        return self._pipeline.stage_mesh(stage)

    def set_stage(
        self, stage: int, forward: Callable[..., Tensors], parameters: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Sets what a stage of this rank computes: a function or module from tensors to a tensor or several tensors.

        ``parameters``: the stage's; by default those that the module has at each step. For a function they must be given
        where they are needed (:meth:`clip_grad_norm_`, stages under ``fully_shard``); otherwise that is an error.
        """
        given = None if parameters is None else list(parameters)
        if given is None and isinstance(forward, torch.nn.Module):
            given = list(forward.parameters())
        own, what = weakref.ref(self), f"what stage {stage} returns"
        self._pipeline.set_stage(stage, lambda inputs: _list(own()._forwards[stage](*inputs), what), given)  # type: ignore[union-attr]
        self._forwards[stage] = forward
        self._modules.pop(stage, None)
        if parameters is None and isinstance(forward, torch.nn.Module):
            self._modules[stage] = forward, given or []

    def _refresh_module_parameters(self) -> None:
        """Updates the parameters of modules that were replaced (``fully_shard``) since :meth:`set_stage`."""
        for stage, (module, known) in list(self._modules.items()):
            now = list(module.parameters())
            if len(now) != len(known) or any(a is not b for a, b in zip(now, known)):
                self.set_stage(stage, module)

    def tie(self, name: str, copies: Sequence[torch.Tensor]) -> None:
        """Ties this rank's copies of a parameter that several stages use; their gradients are summed. Collective."""
        self._pipeline.tie(name, list(copies))

    def step(self, inputs: Sequence[Tensors], targets: Sequence[Tensors], *, loss_scale: float = 1) -> StepResult:
        """Runs forward and backward of all microbatches and adds gradients of the mean loss to ``.grad``. Collective.

        ``inputs``: one entry for each microbatch on the ranks of stage 0; ``targets``: on the ranks of the last stage.
        Elsewhere they are empty.
        """
        self._refresh_module_parameters()
        given = _microbatches(inputs, "the input"), _microbatches(targets, "the target")
        return StepResult(*self._pipeline.step(*given, loss_scale))

    def evaluate(self, inputs: Sequence[Tensors], targets: Sequence[Tensors]) -> torch.Tensor:
        """The mean loss (float64) without backward. Collective."""
        return self._pipeline.evaluate(_microbatches(inputs, "the input"), _microbatches(targets, "the target"))

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clips gradients of the parameters of all stages; returns the former total norm, float64. Collective."""
        self._refresh_module_parameters()
        return self._pipeline.clip_grad_norm_(max_norm)
