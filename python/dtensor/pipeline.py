"""Pipelines: a model in stages along one mesh axis, a batch in microbatches, and a schedule that says who does what when.

Schedules are values: made by name, read from text, proved, simulated and drawn before anything is sent.
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
    """``schedule``, of computation only, with sends and receives, and with what fully sharded stages gather and reduce.

    ``unsharded_stages``: how many of a rank may be gathered at once; None: no such actions. ``rendezvous``: for
    transports whose sends wait for their receives.
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
    """Proves that a schedule is complete, in order and without deadlock; a RuntimeError names two actions otherwise.

    ``stages``, ``microbatches``: how many there must be; ``live_microbatches``: how many a stage may hold; 0: any.
    Returns ``in_order``, ``batched`` and ``rendezvous`` (the cycle that would wait there, if any), ``live_activations``.
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
    """``makespan``, the share that is ``bubble``, and a drawing (``svg``), for actions of these lengths in any unit."""
    return _C.simulate_schedule(schedule, forward, backward, backward_input, backward_weight, communication)


class StepResult(NamedTuple):
    """Of one step: the mean loss (float64, the same on all ranks); by stage of this rank, the microbatches held at most."""

    loss: torch.Tensor
    live_activations: list[int]


def _kind(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return type(value).__name__
    return f"{type(value).__name__} of {', '.join(type(entry).__name__ for entry in value)}"


def _list(tensors: Tensors, what: str) -> list[torch.Tensor]:
    """``what`` gave them: for the error where they are something else."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    if isinstance(tensors, (list, tuple)) and all(isinstance(entry, torch.Tensor) for entry in tensors):
        return list(tensors)
    fields = ": take the tensors out of it, in the order of the next function's arguments" if isinstance(tensors, dict) else ""
    raise TypeError(f"{what} must be a tensor or a list or tuple of tensors, got {_kind(tensors)}{fields}")


def _loss_of(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"the loss of a pipeline must be a tensor of one element, got {_kind(value)}")
    return value


def _microbatches(batch: Sequence[Tensors], what: str) -> list[list[torch.Tensor]]:
    return [_list(tensors, f"{what} of microbatch {number}") for number, tensors in enumerate(batch)]


class Pipeline:
    """Training steps over the ranks of ``mesh``, along whose ``axis`` ``schedule`` has a line for each rank.

    ``loss(outputs, targets)``: the mean over a microbatch, a number. ``weight(targets)``: what that mean is over; by
    default rows of the first target; ``ignore_index``: targets that are not that. Every rank makes it alike.
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
            raise ValueError("Pipeline: weight and ignore_index both say what a mean is over; give one of them")
        self._loss, self._weight = loss, weight
        self._forwards: dict[int, Callable[..., Tensors]] = {}  # of each stage
        own = weakref.ref(self)  # what C++ keeps no garbage collector sees, and these functions may belong to who keeps the pipeline
        counted = None if weight is None else lambda targets: float(own()._weight(*targets))  # type: ignore[union-attr,misc]
        if ignore_index is not None:
            counted = _C.valid_targets(ignore_index)
        mean: Any = lambda outs, targets: _loss_of(own()._loss(*outs, *targets))  # type: ignore[union-attr] # noqa: E731
        self._pipeline = _C.Pipeline(mesh, schedule, mean, axis, counted)
        self._modules: dict[int, tuple[torch.nn.Module, list[torch.Tensor]]] = {}  # stages that are modules, and what they had

    @property
    def stages(self) -> list[int]:
        """Those of this rank."""
        return self._pipeline.stages()

    @property
    def last_stage(self) -> int:
        """Of all."""
        return self._pipeline.last_stage()

    @property
    def schedule(self) -> Schedule:
        """With its communication."""
        return self._pipeline.schedule()

    def stage_mesh(self, stage: int) -> DeviceMesh | None:
        """The ranks on which a stage's parameters belong; None where they are plain tensors on one rank."""
        return self._pipeline.stage_mesh(stage)

    def set_stage(
        self, stage: int, forward: Callable[..., Tensors], parameters: Sequence[torch.Tensor] | None = None
    ) -> None:
        """What a stage of this rank computes, a function or module from tensors to a tensor or several.

        ``parameters``: the stage's; by default those that the module has at each step. Those of a function are not known
        without, which is an error where they are needed (:meth:`clip_grad_norm_`, stages under ``fully_shard``).
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
        """Parameters of modules may have been replaced (``fully_shard``) since they were told."""
        for stage, (module, known) in list(self._modules.items()):
            now = list(module.parameters())
            if len(now) != len(known) or any(a is not b for a, b in zip(now, known)):
                self.set_stage(stage, module)

    def tie(self, name: str, copies: Sequence[torch.Tensor]) -> None:
        """This rank's copies of a parameter that several stages use; gradients are summed. Collective."""
        self._pipeline.tie(name, list(copies))

    def step(self, inputs: Sequence[Tensors], targets: Sequence[Tensors], *, loss_scale: float = 1) -> StepResult:
        """Forward and backward of all microbatches; gradients of the mean loss are added to ``.grad``. Collective.

        ``inputs``: one entry a microbatch on the ranks of stage 0, ``targets``: on those of the last; elsewhere empty.
        """
        self._refresh_module_parameters()
        given = _microbatches(inputs, "the input"), _microbatches(targets, "the target")
        return StepResult(*self._pipeline.step(*given, loss_scale))

    def evaluate(self, inputs: Sequence[Tensors], targets: Sequence[Tensors]) -> torch.Tensor:
        """The mean loss alone. Collective."""
        return self._pipeline.evaluate(_microbatches(inputs, "the input"), _microbatches(targets, "the target"))

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Over the parameters of all stages; the total norm, float64. Collective."""
        self._refresh_module_parameters()
        return self._pipeline.clip_grad_norm_(max_norm)
