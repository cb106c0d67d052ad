"""dtensor: sharded tensors on meshes of ranks, under PyTorch's dispatcher.

A model written for one device trains on any mesh. You give tensors placements; operators decide what each rank computes
and communicates. Names are those of ``torch.distributed.tensor`` where it has them. Ranks are processes (``mpirun -n 4
python train.py``) or threads of this process (:func:`run`).
"""

import torch as _torch


def _check_torch() -> None:
    from ._version import built_with

    if _torch.__version__.split("+")[0] != built_with:
        raise ImportError(
            f"dtensor was built with torch {built_with}, but torch {_torch.__version__} is installed: C++ extensions need "
            f"the torch that they were built with. Install torch=={built_with}, or rebuild dtensor: pip install ."
        )


_check_torch()
from . import _C, _distributions, _flops, _mesh, _recompute, _tensor, _tensor_protocols, _torch_distributed, _tracing  # noqa: E402

for _module in (_tensor, _tensor_protocols, _mesh, _tracing, _distributions, _flops, _recompute, _torch_distributed):
    _module.install()

from ._api import DTensor, distribute_module, distribute_tensor, redistribute  # noqa: E402
from ._factories import arange, empty, full, linspace, logspace, ones, rand, randn, zeros  # noqa: E402
from ._C import Checked, Communicator, DeviceMesh, ImplicitRedistributionScope, MeshScope, NoTimeout, Strict  # noqa: E402
from ._C import CommError, DryRunReport, HardwareModel, PeerError, StepEstimate  # noqa: E402
from ._C import GraphHalo, GraphPart, graph_part, is_metis_available, partition_graph  # noqa: E402
from ._C import attention, attention_strategy, bit_identical, init_device_mesh, visualize_sharding_svg, visualize_sharding_text  # noqa: E402
from ._local_map import local_map  # noqa: E402
from ._random import get_rng_state, manual_seed, set_rng_state  # noqa: E402
from ._world import barrier, begin_step, is_dry_run, is_thread_rank, rank, run, set_timeout, simulate  # noqa: E402
from ._world import world, world_size  # noqa: E402
from .debug import CommDebugMode, EventListener, MemoryTimeline, explain, visualize_sharding  # noqa: E402
from .experimental import context_parallel, implicit_replication  # noqa: E402
from .placement_types import (  # noqa: E402
    BlockShard, Partial, Placement, RaggedShard, Replicate, Shard, StridedShard, ZigzagShard,
)  # fmt: skip

from . import checkpoint, fsdp, moe, optim, parallel, pipeline  # noqa: E402
from .checkpoint import load, save  # noqa: E402
from .fsdp import fully_shard  # noqa: E402
from .moe import MixtureOfExperts, RoutedExperts, RoutingStrategy, apply_expert_parallel  # noqa: E402
from .parallel import parallelize_module  # noqa: E402

__version__ = _C.version
__all__ = [name for name in dir() if not name.startswith("_")]
