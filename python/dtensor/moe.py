"""Mixture of experts as a module for one device; :func:`apply_expert_parallel` places experts on ranks."""

from __future__ import annotations

import operator
import weakref
from typing import Any, Iterable

import torch
from torch import nn

from . import _C
from ._api import as_parameter, replacement
from ._C import Communicator, DeviceMesh

__all__ = ["MixtureOfExperts", "RoutedExperts", "RoutingStrategy", "apply_expert_parallel", "update_load_balancers"]


class RoutingStrategy:
    """A custom choice of experts. Derive from it and implement :meth:`choose`."""

    def choose(self, scores: torch.Tensor, top_k: int, bias: torch.Tensor) -> torch.Tensor:
        """Returns the experts of each token, int64 [tokens, choices]; the number of experts means no expert.

        ``scores`` [tokens, experts]: of this rank's tokens; ``bias`` [experts]: added for the choice only (zero without a
        load balancer). No gradient is recorded. The tokens differ between ranks.
        """
        raise NotImplementedError


class MixtureOfExperts(nn.Module):
    """A router, its experts (feed-forward networks), and the dispatch of tokens.

    ``hidden``: features of a token; ``ffn``: hidden features of an expert. Each token uses ``top_k`` of ``experts``
    experts. ``choice``: "tokens", "experts" or "round_robin"; ``strategy``: a custom choice. ``score``: "softmax" or
    "sigmoid". ``aux_loss``, ``sequence_aux_loss``, ``z_loss``: coefficients of losses whose sum is :attr:`loss` after each
    pass; add it to the mean loss. ``batch_tokens``: tokens of a batch that is computed in parts (microbatches), so that the
    losses of all parts add up to the batch's; 0: each call has a batch of its own. ``shared_ffn``: hidden features of an additional expert for all tokens;
    ``shared_gate``: its result is multiplied by sigmoid(gate x), as in Qwen2-MoE.
    ``balance_rate``: update rate of a bias that balances the load (:func:`update_load_balancers`), the buffer ``balance``.
    ``activation``: "swiglu", "geglu", "glu", "gelu", "silu" or "relu".
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
        normalize: bool = False,
        scale: float = 1,
        groups: int = 1,
        top_groups: int = 1,
        jitter: float = 0,
        aux_loss: float = 0,
        sequence_aux_loss: float = 0,
        z_loss: float = 0,
        batch_tokens: int = 0,
        expert_capacity_factor: float = 1,
        activation: str = "swiglu",
        backend: str = "automatic",
        shared_ffn: int = 0,
        shared_gate: bool = False,
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
        own = weakref.ref(self)  # the C++ layer must not own an object that may own this module
        choose: Any = lambda *given: own()._arguments[1].choose(*given)  # type: ignore[union-attr] # noqa: E731
        return _C.MoeLayer(options, choose, type(strategy).__name__)

    def _adopt_parameters(self) -> None:
        """Registers the layer's tensors as parameters of submodules by their names: gate.weight, experts.w1, ..."""
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
        """No effect: the parameters are always the layer's own."""

    def __getstate__(self) -> dict[str, Any]:
        return {**_without_layer(self), "loss": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._layer = self._make("meta")  # the tensors exist already, so none are initialized
        if self._dispatch is not None:
            self._layer.set_dispatch(*self._dispatch)
        _restore_expert_parallel(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [tokens, hidden] or [batch, sequence, hidden]: a DTensor, or this rank's tokens. Returns the same."""
        result, self.loss = self._layer.run(x, self._tensors(), self.training)
        return result

    def set_dispatch(self, kind: str, *, factor: float = 0, drop: str = "position") -> None:
        """Sets the dispatch: "all_to_all", "padded" (segments of one size), "all_gather", "equal" or "capacity".

        With "capacity" each expert takes int(``factor`` * choices * tokens / experts) entries; 0: all. ``drop``: beyond
        that, drop entries that come later in the batch ("position"), or that have smaller weights ("probability").
        """
        self._layer.set_dispatch(kind, factor, drop)
        self._dispatch = kind, factor, drop

    @property
    def load(self) -> torch.Tensor:
        """Entries of each expert in the last pass, on this rank: [experts]."""
        return self._layer.stats()[0]

    @property
    def dropped(self) -> int:
        """Number of entries of the last pass that were dropped, on this rank."""
        return self._layer.stats()[1]


class RoutedExperts(nn.Module):
    """Modules of any kind as experts, with a router of your own.

    ``experts``: modules that map rows [n, D] to rows [n, D], each row independently; n may be 0. Their names are "0", "1",
    ... After :func:`apply_expert_parallel`, rows and parameters are DTensors on the ranks that store the expert, and a
    module is called on those ranks only.
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
        """Module and key of each expert's parameters; a parameter that is tied within an expert occurs once."""
        result = []
        for expert in (self.get_submodule(name) for name in self._expert_names):
            named = [name.rpartition(".") for name, _ in expert.named_parameters()]
            result.append([(expert.get_submodule(path), key) for path, _, key in named])
        return result

    def _make(self) -> Any:
        layer, own = _C.RoutedLayer(), weakref.ref(self)  # the C++ layer must not own the module that owns it

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
                        f"RoutedExperts: {key!r} of expert {name} is tied to a parameter of expert {other}, which may be on "
                        f"other ranks: untie them before apply_expert_parallel"
                    )

    def _adopt_parameters(self) -> None:
        for slots, tensors in zip(self._slots(), self._layer.parameters()):
            for (module, key), tensor in zip(slots, tensors):
                module._parameters[key] = replacement(tensor, module._parameters[key])

    def __getstate__(self) -> dict[str, Any]:
        return _without_layer(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._layer = self._make()
        _restore_expert_parallel(self)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The sum over j of ``weights[t, j]`` times expert ``ids[t, j]`` of ``x[t]``, with the shape of ``x``.

        ``x`` [tokens, D] or [batch, sequence, D]; ``ids`` (int64; the number of experts means no expert) and ``weights``
        with D replaced by the number of choices. Either all regular tensors (this rank's tokens) or all DTensors.
        """
        self._assign_parameters()
        return self._layer.run(x, ids, weights)

    @property
    def load(self) -> torch.Tensor:
        """Entries of each expert in the last pass, on this rank: [experts]."""
        return self._layer.load()


def _without_layer(module: nn.Module) -> dict[str, Any]:
    """The state that copies and pickles include; each copy creates its own C++ layer."""
    return {name: value for name, value in module.__dict__.items() if name != "_layer"}


def _restore_expert_parallel(layer: Any) -> None:
    """Applies expert parallelism to a new C++ layer whose experts are already on their mesh."""
    if layer._expert_parallel_args is not None:
        layer._assign_parameters()
        layer._layer.set_expert_parallel(*layer._expert_parallel_args)
        layer._adopt_parameters()


def _layers(model: nn.Module, kind: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def apply_expert_parallel(
    model: nn.Module, mesh: DeviceMesh, *, ep: str = "ep", edp: str = "edp", etp: str = "etp"
) -> int:
    """Moves the experts of every layer in ``model`` to ``mesh`` and returns the number of layers. Collective.

    Experts are split over ``ep``, the hidden features of each over ``etp``, and stored sharded over ``edp``. Experts of
    :class:`RoutedExperts` are split over ``ep`` and replicated over ``edp``. Call it before ``fully_shard`` of the other
    parameters and before creating optimizers.
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
    """Updates biases toward an even load over ``ranks``, the ranks with different tokens. Call it after a step.

    Collective, once for all layers.
    """
    layers = _layers(model, MixtureOfExperts)
    for layer in layers:
        layer._assign_parameters()
    _C.update_load_balancers([layer._layer for layer in layers], ranks)
