"""Random numbers that depend only on the seed, the count of random operators and an element's global index."""

from __future__ import annotations

from . import _C
from ._C import DeviceMesh
from ._mesh import as_mesh

__all__ = ["manual_seed", "get_rng_state", "set_rng_state"]


def manual_seed(seed: int, device_mesh: DeviceMesh | None = None) -> None:
    """Seeds random operators on DTensors of this world and resets their count to 0. Called by every rank.

    Regular tensors use torch's generator: ``torch.manual_seed``.
    """
    _C.manual_seed(as_mesh(device_mesh), seed)


def get_rng_state(device_mesh: DeviceMesh | None = None) -> tuple[int, int]:
    """The seed, and the number of random operators since it was set."""
    return _C.get_rng_state(as_mesh(device_mesh))


def set_rng_state(state: tuple[int, int], device_mesh: DeviceMesh | None = None) -> None:
    """Restores a state of :func:`get_rng_state`. Called by every rank."""
    _C.set_rng_state(as_mesh(device_mesh), state)
