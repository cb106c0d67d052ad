"""The library's optimizers as ``torch.optim`` optimizers: schedulers, ``param_groups`` and ``zero_grad`` as ever.

Steps are the same on every layout, for plain tensors and DTensors on any mixture of meshes. All of ``torch.optim`` works
on DTensors too; these use one fused operator for a group, or what ``torch.optim`` lacks (distributed Shampoo).
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch

from . import _C

__all__ = ["AdamW", "SGD", "Adagrad", "Muon", "Shampoo", "clip_grad_norm_", "get_total_norm"]


def _python_scalar(name: str, value: Any) -> bool | int | float | str:
    """Numbers of NumPy and tensors of one element are numbers, too."""
    if isinstance(value, (bool, int, float, str)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"option {name} is a number, not {value!r}") from None


def _or(result: Any, former: Any) -> Any:
    """What a hook returned, if it did."""
    return former if result is None else result


def _to_save(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options, and what schedulers keep there, as a checkpoint takes them."""

    def plain(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(plain(item) for item in value)
        try:
            return _python_scalar("", value)
        except TypeError:  # a note of the program's own
            return value

    return {name: plain(value) for name, value in group.items() if name not in ("params", "param_names")}


class _Optimizer(torch.optim.Optimizer):
    _kind: str  # what C++ calls it
    _made: Any = None
    _kept: dict[str, Any] | None = None  # the state of the one that this is a copy of
    _given: list[dict[str, Any] | None]  # options that the groups of the one in C++ have

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, defaults)

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        options = {key: group[key] for key in self.defaults if key != "differentiable"}  # which torch adds to a copy's
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
            except BaseException:  # the next call is not to go on without what was kept
                self._made = None
                raise
            self._kept = None
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        kept = self._kept if self._made is None else self._state()
        return {**super().__getstate__(), "_kept": kept}

    def _load(self, state: dict[str, Any]) -> None:
        self._core().load_state_dict(list(state["tensors"].items()), list(state["scalars"].items()))
        self._given = [None] * len(self.param_groups)  # the state's rates are in force there

    def _sync_options(self) -> None:
        """What a scheduler, or the program, has changed in a group counts from the next step on."""
        core = self._core()
        for index, group in enumerate(self.param_groups):
            options = self._options(group)
            if options != self._given[index]:
                core.set_options(index, options)
                self._given[index] = options

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._made is not None:
            raise RuntimeError("parameter groups are added before the first step")
        super().add_param_group(param_group)
        try:  # options that are out of their range are told where they are given, as torch.optim does
            _C.make_optimizer(self._kind, [([], self._options(self.param_groups[-1]), [])])
        except BaseException:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update of every parameter that has a gradient. The groups' options are read at every step."""
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
        """Takes a state of the same parameters, saved on any layout, and the groups' options with it. Collective."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = _or(before(self, state_dict), state_dict)
        self._restore_state(state_dict)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _restore_state(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("param_groups") or [{} for _ in self.param_groups]  # states of before have rates alone
        if not len(saved) == len(state_dict["lr"]) == len(self.param_groups):
            raise ValueError(f"the state is one of {len(saved)} parameter groups; there are {len(self.param_groups)}")
        former = [dict(group) for group in self.param_groups]
        try:  # the options first: they say what a parameter's state is made of
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
    """Adam with decoupled weight decay. ``fused=False`` gives the same bits on every layout."""

    _kind = "AdamW"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        fused: bool = True,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)


class SGD(_Optimizer):
    """Gradient descent with momentum."""

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
    """Muon for matrices ``[m, n]`` and stacks of matrices ``[k, m, n]``, each matrix by itself; give the rest to AdamW."""

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
    """Distributed Shampoo: blocks of parameters are preconditioned by the ranks that own them."""

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
    """The norm of all elements of plain tensors and DTensors on any meshes, plain, with one collective at most."""
    return _C.get_total_norm(_list(tensors), float(norm_type), error_if_nonfinite)


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales gradients so that their total norm is at most ``max_norm``; the norm before, with one collective at most."""
    return _C.clip_grad_norm_(_list(parameters), max_norm, float(norm_type), error_if_nonfinite)
