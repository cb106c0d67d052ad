"""Mixture of experts as a module for one device; :func:`apply_expert_parallel` says which ranks hold which experts."""

from __future__ import annotations

import operator
import weakref
from typing import Any, Iterable

import torch
from torch import nn

from . import _C
from ._api import as_parameter
from ._C import Communicator, DeviceMesh

__all__ = ["MixtureOfExperts", "RoutedExperts", "RoutingStrategy", "apply_expert_parallel", "update_load_balancers"]


class RoutingStrategy:
    """Who chooses experts. Derive from it, and write :meth:`choose`."""

    def choose(self, scores: torch.Tensor, top_k: int, bias: torch.Tensor) -> torch.Tensor:
        """The experts of each token, [tokens, choices] int64; the number of experts stands for none.

        ``scores`` [tokens, experts]: of this rank's tokens; ``bias`` [experts]: to be added for the choice only (zero
        without a balancer). No gradient is recorded; not called for the same tokens on every rank.
        """
        raise NotImplementedError


class MixtureOfExperts(nn.Module):
    """A router, its experts (feed-forward networks), and the way between them.

    ``hidden``: features of a token; ``ffn``: inside an expert. Each token visits ``top_k`` of ``experts``; ``choice``:
    "tokens", "experts" or "round_robin", or a ``strategy`` of one's own. ``score``: "softmax" or "sigmoid".
    ``aux_loss``, ``sequence_aux_loss``, ``z_loss``: coefficients of losses, which :attr:`loss` has after each pass, to be
    added to the mean loss. ``shared_ffn``: a further expert that sees all. ``balance_rate``: of a bias that evens the
    load (:func:`update_load_balancers`), the buffer ``balance``. ``activation``: "swiglu", "geglu", "glu", "gelu", "silu", "relu".
    """

    def __init__(
        self,
        hidden: int,
        ffn: int,
        *,
        experts: int = 8,
        top_k: int = 2,
        score: str = "softmax",
        choice: str = "tokens",
        strategy: RoutingStrategy | None = None,
        normalise: bool = False,
        scale: float = 1,
        groups: int = 1,
        top_groups: int = 1,
        jitter: float = 0,
        aux_loss: float = 0,
        sequence_aux_loss: float = 0,
        z_loss: float = 0,
        expert_capacity_factor: float = 1,
        activation: str = "swiglu",
        backend: str = "automatic",
        shared_ffn: int = 0,
        balance_rate: float = 0,
        score_before_experts: bool = False,
        scale_expert_gradients: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        options = {name: value for name, value in locals().items() if name not in ("self", "strategy", "__class__")}
        options["dtype"] = dtype or torch.get_default_dtype()
        self._arguments = options, strategy
        self._dispatch: tuple[Any, ...] | None = None
        self._expert_parallel_args: tuple[Any, ...] | None = None
        self._layer = self._make()
        self.loss: torch.Tensor | None = None
        for name, tensor in self._layer.buffers():
            self.register_buffer(name, tensor)
        self._adopt_parameters()

    def _make(self, device: str = "cpu") -> Any:
        options, strategy = {**self._arguments[0], "device": device}, self._arguments[1]
        if strategy is None:
            return _C.MoeLayer(options, None, "")
        own = weakref.ref(self)  # the layer must not keep what may keep this module
        choose: Any = lambda *given: own()._arguments[1].choose(*given)  # type: ignore[union-attr] # noqa: E731
        return _C.MoeLayer(options, choose, type(strategy).__name__)

    def _adopt_parameters(self) -> None:
        """The layer's tensors become parameters of modules by their names: gate.weight, experts.w1, ..."""
        self._names = []
        for name, tensor in self._layer.parameters():
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module._modules[part]  # type: ignore[assignment]
            former = module._parameters.get(last)
            module._parameters[last] = as_parameter(tensor, former is None or former.requires_grad)
            self._names.append(name)
        self._names += [name for name, _ in self._layer.buffers()]

    def _tensors(self) -> list[torch.Tensor]:
        return [operator.attrgetter(name)(self) for name in self._names]

    def _assign_parameters(self) -> None:
        self._layer.assign(self._tensors())

    def _check_expert_parallel(self) -> None:
        """Each parameter is one of the layer's."""

    def __getstate__(self) -> dict[str, Any]:
        return {**_without_layer(self), "loss": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._layer = self._make("meta")  # its tensors are here: none are drawn anew
        if self._dispatch is not None:
            self._layer.set_dispatch(*self._dispatch)
        _restore_expert_parallel(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [tokens, hidden] or [batch, sequence, hidden]: a DTensor, or this rank's own tokens."""
        result, self.loss = self._layer.run(x, self._tensors(), self.training)
        return result

    def set_dispatch(self, kind: str, *, factor: float = 0, drop: str = "position") -> None:
        """How tokens travel: "all_to_all", "all_gather", "equal", or "capacity", with ``factor`` and whom it drops."""
        self._layer.set_dispatch(kind, factor, drop)
        self._dispatch = kind, factor, drop

    @property
    def load(self) -> torch.Tensor:
        """[experts] entries of the last pass, on this rank."""
        return self._layer.stats()[0]

    @property
    def dropped(self) -> int:
        """Entries of the last pass that no expert took, on this rank."""
        return self._layer.stats()[1]


class RoutedExperts(nn.Module):
    """Modules of any kind, of which each token visits those that a router of one's own chose.

    ``experts``: modules that turn rows [n, D] into rows [n, D], n perhaps 0, each row for itself; their names are "0",
    "1", ... Once :func:`apply_expert_parallel` has spread them, rows and parameters are DTensors on the ranks that hold
    the expert, and a module is called on those ranks only.
    """

    def __init__(self, experts: Iterable[nn.Module]) -> None:
        super().__init__()
        self._expert_names: list[str] = []
        for number, expert in enumerate(experts):
            self.add_module(str(number), expert)
            self._expert_names.append(str(number))
        self._expert_parallel_args: tuple[Any, ...] | None = None
        self._layer = self._make()

    def _slots(self) -> list[list[tuple[nn.Module, str]]]:
        """Where the parameters of each expert hang; one that is tied within it once."""
        result = []
        for expert in (self.get_submodule(name) for name in self._expert_names):
            named = [name.rpartition(".") for name, _ in expert.named_parameters()]
            result.append([(expert.get_submodule(path), key) for path, _, key in named])
        return result

    def _make(self) -> Any:
        layer, own = _C.RoutedLayer(), weakref.ref(self)  # the layer must not keep the module that keeps it

        def forward(name: str) -> Any:
            return lambda rows: own()._modules[name](rows)  # type: ignore[union-attr,misc]

        for name in self._expert_names:
            layer.add(list(self.get_submodule(name).named_parameters()), forward(name))
        return layer

    def _assign_parameters(self) -> None:
        self._layer.assign([[module._parameters[key] for module, key in slots] for slots in self._slots()])

    def _check_expert_parallel(self) -> None:
        owners: dict[torch.Tensor, str] = {}
        for name in self._expert_names:
            for key, parameter in self.get_submodule(name).named_parameters():
                other = owners.setdefault(parameter, name)
                if other != name:
                    raise ValueError(
                        f"RoutedExperts: {key!r} of expert {name} is one tensor with a parameter of expert {other}, which "
                        f"may be on other ranks: untie them before apply_expert_parallel"
                    )

    def _adopt_parameters(self) -> None:
        for slots, tensors in zip(self._slots(), self._layer.parameters()):
            for (module, key), tensor in zip(slots, tensors):
                module._parameters[key] = as_parameter(tensor, module._parameters[key].requires_grad)

    def __getstate__(self) -> dict[str, Any]:
        return _without_layer(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._layer = self._make()
        _restore_expert_parallel(self)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The sum of ``weights[t, j]`` times expert ``ids[t, j]`` of ``x[t]``, as ``x``.

        ``x`` [tokens, D] or [batch, sequence, D]; ``ids`` (int64; the number of experts stands for none) and
        ``weights`` with D replaced by the number of choices. All plain (each rank its own tokens), or all DTensors.
        """
        self._assign_parameters()
        return self._layer.run(x, ids, weights)

    @property
    def load(self) -> torch.Tensor:
        """[experts] entries of the last pass, on this rank."""
        return self._layer.load()


def _without_layer(module: nn.Module) -> dict[str, Any]:
    """What copies and pickles take along; they make a layer in C++ of their own."""
    return {name: value for name, value in module.__dict__.items() if name != "_layer"}


def _restore_expert_parallel(layer: Any) -> None:
    """What a layer in C++ is told of experts that lie on their mesh already."""
    if layer._expert_parallel_args is not None:
        layer._assign_parameters()
        layer._layer.set_expert_parallel(*layer._expert_parallel_args)
        layer._adopt_parameters()


def _layers(model: nn.Module, kind: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def apply_expert_parallel(
    model: nn.Module, mesh: DeviceMesh, *, ep: str = "ep", edp: str = "edp", etp: str = "etp"
) -> int:
    """Moves the experts of every layer in ``model`` to ``mesh``: split by expert over ``ep``, each along its hidden
    features over ``etp``, stored split over ``edp``; those of :class:`RoutedExperts` by expert over ``ep``, with
    replicas over ``edp``. Before ``fully_shard`` of the rest and before optimizers are made.

    The number of layers. Collective.
    """
    layers = _layers(model, (MixtureOfExperts, RoutedExperts))
    for layer in layers:
        layer._check_expert_parallel()
    for layer in layers:
        layer._assign_parameters()
        layer._layer.set_expert_parallel(mesh, ep, edp, etp)
        layer._expert_parallel_args = mesh, ep, edp, etp
        layer._adopt_parameters()
    return len(layers)


def update_load_balancers(model: nn.Module, ranks: Communicator) -> None:
    """After an optimizer step: biases move towards an even load over ``ranks``, those with different tokens.

    Collective, once for all layers.
    """
    layers = _layers(model, MixtureOfExperts)
    for layer in layers:
        layer._assign_parameters()
    _C.update_load_balancers([layer._layer for layer in layers], ranks)
