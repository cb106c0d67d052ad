"""The library's optimizers as ``torch.optim`` optimizers, with schedulers, ``param_groups`` and ``zero_grad``.

Steps are the same on every layout, for regular tensors and DTensors on any mixture of meshes. ``torch.optim`` also works on
DTensors. These optimizers use one fused operator for a group, or are missing in ``torch.optim`` (distributed Shampoo).
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import _C

__all__ = ["AdamW", "SGD", "Adagrad", "Muon", "Shampoo", "clip_grad_norm_", "get_total_norm"]


def _python_scalar(name: str, value: Any) -> bool | int | float | str:
    """Converts NumPy scalars and tensors of one element to Python numbers."""
    if isinstance(value, (bool, int, float, str)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"option {name}: expected a number, got {value!r}") from None


_compared: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # count of replacements at the last step


def _refuse_replaced_parameters(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Before a step of any optimizer: it would not train a model whose parameters were replaced after it was made."""
    swaps = _C.parameter_swap_count()
    if _compared.get(optimizer, 0) == swaps:
        return
    for group in optimizer.param_groups:
        names = group.get("param_names", range(len(group["params"])))
        for name, parameter in zip(names, group["params"]):
            if parameter.grad is None and _C.is_swapped_out(parameter):
                raise RuntimeError(
                    f"{type(optimizer).__name__}: parameter {name} of sizes {list(parameter.shape)} was replaced by a "
                    "DTensor in its model after the optimizer was created, so step() would not train the model; create "
                    "the optimizer after fully_shard, parallelize_module and distribute_module"
                )
    _compared[optimizer] = swaps


register_optimizer_step_pre_hook(_refuse_replaced_parameters)


def _or(result: Any, former: Any) -> Any:
    """The return value of a hook, or ``former`` if it returned None."""
    return former if result is None else result


def _to_save(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options, and what schedulers add to them, as a checkpoint stores them."""

    def to_scalars(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(to_scalars(item) for item in value)
        try:
            return _python_scalar("", value)
        except TypeError:  # an entry that the program added
            return value

    return {name: to_scalars(value) for name, value in group.items() if name not in ("params", "param_names")}


class _Optimizer(torch.optim.Optimizer):
    _kind: str  # name in C++
    _made: Any = None
    _kept: dict[str, Any] | None = None  # the state of the optimizer that was copied or pickled
    _given: list[dict[str, Any] | None]  # options of the groups of the C++ optimizer

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, defaults)

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        options = {key: group[key] for key in self.defaults if key != "differentiable"}  # torch adds it to copies
        if "betas" in options:
            options["beta1"], options["beta2"] = options.pop("betas")
        return {key: _python_scalar(key, value) for key, value in options.items()}

    def _core(self) -> Any:
        if self._made is None:
            options = [self._options(group) for group in self.param_groups]
            groups = [(g["params"], o, g.get("param_names", [])) for g, o in zip(self.param_groups, options)]
            self._made, self._given = _C.make_optimizer(self._kind, groups), list(options)
            try:
                if self._kept is not None:
                    self._load(self._kept)
            except BaseException:  # the next call must not continue without the kept state
                self._made = None
                raise
            self._kept = None
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        kept = self._kept if self._made is None else self._state()
        return {**super().__getstate__(), "_kept": kept}

    def _load(self, state: dict[str, Any]) -> None:
        self._core().load_state_dict(list(state["tensors"].items()), list(state["scalars"].items()))
        self._given = [None] * len(self.param_groups)  # the loaded state set the options in C++

    def _sync_options(self) -> None:
        """Passes option changes by a scheduler or the program to C++; they apply from the next step on."""
        core = self._core()
        for index, group in enumerate(self.param_groups):
            options = self._options(group)
            if options != self._given[index]:
                core.set_options(index, options)
                self._given[index] = options

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._made is not None:
            raise RuntimeError("add parameter groups before the first step")
        super().add_param_group(param_group)
        try:  # report invalid options here, as torch.optim does
            _C.make_optimizer(self._kind, [([], self._options(self.param_groups[-1]), [])])
        except BaseException:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Updates every parameter that has a gradient. The groups' options are read at every step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._sync_options()
        self._made.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """``{"tensors": {name: tensor}, "scalars": {name: number}, "lr": [of each group], "param_groups": [options of
        each group]}``. Collective.
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state = self._state()
        for after in self._optimizer_state_dict_post_hooks.values():
            state = _or(after(self, state), state)
        return state

    def _state(self) -> dict[str, Any]:
        tensors, scalars = self._core().state_dict()
        return {
            "tensors": dict(tensors),
            "scalars": dict(scalars),
            "lr": [float(group["lr"]) for group in self.param_groups],
            "param_groups": [_to_save(group) for group in self.param_groups],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of the same parameters, saved on any layout, and the groups' options. Collective."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = _or(before(self, state_dict), state_dict)
        self._restore_state(state_dict)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _restore_state(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("param_groups") or [{} for _ in self.param_groups]  # older states have learning rates only
        if not len(saved) == len(state_dict["lr"]) == len(self.param_groups):
            raise ValueError(f"the state has {len(saved)} parameter groups, but the optimizer has {len(self.param_groups)}")
        former = [dict(group) for group in self.param_groups]
        try:  # options first: they determine the tensors of a parameter's state
            for group, options, lr in zip(self.param_groups, saved, state_dict["lr"]):
                group.update(options, lr=lr)
            self._sync_options()
            self._load(state_dict)
        except BaseException:
            for group, options in zip(self.param_groups, former):
                group.clear()
                group.update(options)
            raise


class AdamW(_Optimizer):
    """Adam with decoupled weight decay. With ``fused=False`` results are bitwise equal on every layout. ``amsgrad``
    divides by the largest second moment so far."""

    _kind = "AdamW"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        *,
        fused: bool = True,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused
        )  # fmt: skip


class SGD(_Optimizer):
    """Stochastic gradient descent with momentum."""

    _kind = "SGD"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        fused: bool = True,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=float(momentum), dampening=float(dampening), weight_decay=float(weight_decay),
            nesterov=nesterov, fused=fused,
        )  # fmt: skip


class Adagrad(_Optimizer):
    """Adagrad."""

    _kind = "Adagrad"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(
            params, lr=lr, lr_decay=float(lr_decay), weight_decay=float(weight_decay),
            initial_accumulator_value=float(initial_accumulator_value), eps=eps,
        )  # fmt: skip


class Muon(_Optimizer):
    """Muon for matrices ``[m, n]`` and stacks of matrices ``[k, m, n]``; use AdamW for other parameters."""

    _kind = "Muon"

    def __init__(
        self,
        params: Any,
        lr: float = 0.02,
        weight_decay: float = 0,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        *,
        bfloat16: bool = True,
        match_adamw_rms: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, weight_decay=float(weight_decay), momentum=momentum, nesterov=nesterov, ns_steps=ns_steps,
            bfloat16=bfloat16, match_adamw_rms=match_adamw_rms,
        )  # fmt: skip


class Shampoo(_Optimizer):
    """Distributed Shampoo: each rank preconditions the blocks of parameters that it owns."""

    _kind = "Shampoo"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-12,
        weight_decay: float = 0,
        *,
        grafting: bool = True,
        graft_beta2: float = 0.999,
        graft_eps: float = 1e-8,
        frequency: int = 10,
        start: int = 10,
        block_size: int = 1024,
        merge_to: int = 2,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=float(weight_decay), grafting=grafting,
            graft_beta2=graft_beta2, graft_eps=graft_eps, frequency=frequency, start=start, block_size=block_size,
            merge_to=merge_to,
        )  # fmt: skip


def _list(tensors: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def get_total_norm(
    tensors: torch.Tensor | Iterable[torch.Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """The norm of all elements of regular tensors and DTensors on any meshes, a regular tensor. At most one collective."""
    return _C.get_total_norm(_list(tensors), float(norm_type), error_if_nonfinite)


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales gradients so that their total norm is at most ``max_norm``; returns the former norm. At most one collective."""
    return _C.clip_grad_norm_(_list(parameters), max_norm, float(norm_type), error_if_nonfinite)
