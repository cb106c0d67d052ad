"""Random numbers that depend on the seed, the number of the random operator and an element's global index only."""

from __future__ import annotations

from . import _C
from ._C import DeviceMesh
from ._mesh import as_mesh

__all__ = ["manual_seed", "get_rng_state", "set_rng_state"]


def manual_seed(seed: int, device_mesh: DeviceMesh | None = None) -> None:
    """Seeds random operators on DTensors of this world and sets the count of such operators to 0. On every rank.

    Plain tensors have torch's generator: ``torch.manual_seed``.
    """
    _C.manual_seed(as_mesh(device_mesh), seed)


def get_rng_state(device_mesh: DeviceMesh | None = None) -> tuple[int, int]:
    """Seed, and how many random operators have run since."""
    return _C.get_rng_state(as_mesh(device_mesh))


def set_rng_state(state: tuple[int, int], device_mesh: DeviceMesh | None = None) -> None:
    """Goes on as from there, on every rank."""
    _C.set_rng_state(as_mesh(device_mesh), state)
