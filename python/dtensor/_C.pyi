"""The C++ extension module. Users import the names of ``dtensor`` and its submodules instead."""

from typing import Any, Callable, Mapping, Sequence, overload

import torch

_Named = Sequence[tuple[str, torch.Tensor]]
_Value = bool | int | float | str

torch_version: str
version: str

class Placement:
    """How one mesh dimension distributes a tensor. A value: comparable, hashable."""

    def __init__(self, placement: Any) -> None: ...
    @staticmethod
    def replicate() -> Placement: ...
    @staticmethod
    def shard(dim: int) -> Placement: ...
    @staticmethod
    def strided_shard(dim: int, split_factor: int) -> Placement: ...
    @staticmethod
    def ragged_shard(dim: int, sizes: Sequence[int]) -> Placement: ...
    @staticmethod
    def zigzag_shard(dim: int, split_factor: int = 1) -> Placement: ...
    @staticmethod
    def block_shard(dim: int, size: int, block: int, ranks: int) -> Placement: ...
    @staticmethod
    def partial(reduce_op: str = "sum") -> Placement: ...
    @staticmethod
    def parse(text: str) -> Placement: ...
    def is_replicate(self) -> bool: ...
    def is_shard(self, dim: int | None = None) -> bool: ...
    def is_partial(self, reduce_op: str | None = None) -> bool: ...
    def is_strided(self) -> bool: ...
    def is_ragged(self) -> bool: ...
    def is_zigzag(self) -> bool: ...
    @property
    def dim(self) -> int: ...
    @property
    def split_factor(self) -> int: ...
    @property
    def ragged_sizes(self) -> list[int]: ...
    @property
    def reduce_op(self) -> str: ...
    @property
    def is_storage(self) -> bool: ...
    def as_storage(self, storage: bool = True) -> Placement: ...

class Communicator:
    """An ordered set of ranks and its collectives."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def backend(self) -> str: ...
    @property
    def ranks(self) -> list[int]: ...
    def barrier(self) -> None: ...
    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> None: ...
    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None: ...
    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]: ...
    def abort(self, reason: str) -> None: ...

class DeviceMesh:
    """An n-dimensional array of ranks with named dimensions. ``mesh``: world ranks, nested lists or an integer tensor."""

    @overload
    def __init__(self, device_type: str, mesh: Any, mesh_dim_names: Sequence[str] | None = None) -> None: ...
    @overload
    def __init__(self, mesh: Any) -> None: ...
    @staticmethod
    def from_group(
        group: Any, device_type: str, mesh: Any = None, *, mesh_dim_names: Sequence[str] | None = None
    ) -> DeviceMesh: ...
    @property
    def device_type(self) -> str: ...
    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None: ...
    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def mesh(self) -> torch.Tensor: ...
    def size(self, mesh_dim: int | str | None = None) -> int: ...
    def get_coordinate(self) -> list[int] | None: ...
    def get_local_rank(self, mesh_dim: int | str | None = None) -> int: ...
    def get_rank(self) -> int: ...
    def communicator(self, mesh_dim: int | str | None = None) -> Communicator: ...
    def get_group(self, mesh_dim: int | str | None = None) -> Any: ...
    def get_all_groups(self) -> list[Any]: ...
    def is_member(self) -> bool: ...
    def diagram(self) -> str: ...
    def __getitem__(self, names: str | tuple[str, ...] | list[str], /) -> DeviceMesh: ...
    def __enter__(self) -> DeviceMesh: ...
    def __exit__(self, *error: Any) -> None: ...
    def _flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh: ...
    def _get_root_mesh(self) -> DeviceMesh: ...
    def view(self, mesh_shape: Sequence[int], mesh_dim_names: Sequence[str] = ()) -> DeviceMesh: ...

def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    world: Communicator | None = None,
    comm: Any = None,
) -> DeviceMesh:
    """A mesh over the first prod(mesh_shape) ranks, in row-major order. Called by every rank.

    ``device_type`` "cuda": processes communicate over NCCL, and connect at their first such mesh. A rank's GPU is the
    current device if the program has used CUDA, else its number among the ranks of its host; it becomes the current
    device. RuntimeError without a GPU, or if dtensor was built without NCCL.
    ``world``: the communicator whose ranks it uses; by default all ranks of the program.
    """

class _Scope:
    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> None: ...

class MeshScope(_Scope):
    """While open, factory functions on this thread create DTensors on ``mesh``."""

    def __init__(self, mesh: DeviceMesh, placements: Sequence[Placement] | None = None) -> None: ...

class Strict(_Scope):
    """While open, operators without a sharding rule and regular tensors among DTensors are errors."""

    def __init__(self, strict: bool = True) -> None: ...

class ImplicitRedistributionScope(_Scope):
    """While open, operators that would redistribute operands implicitly are refused or warned about."""

    def __init__(self, policy: str = "error") -> None: ...

class Checked(_Scope):
    """While open, ranks must call the same operators ("calls"). "values" also compares replicas, and operators' results
    with those of unsharded operands.
    """

    def __init__(self, checks: str = "values") -> None: ...

class bit_identical(_Scope):
    """While open, results have the same bits on every mesh, whatever the placements and the number of threads; operators
    without such a form are errors. ``block``: contracted dimensions are summed in blocks of this many indices. Open it
    around forward, backward and the optimizer step.
    """

    def __init__(self, block: int = 64) -> None: ...
    @staticmethod
    def content_hash(tensor: torch.Tensor) -> str:
        """SHA-256 in hexadecimal digits of a tensor's elements in row-major order, whatever the mesh and the placements, in a
        scope or not. Gathers the full tensor on every rank of its mesh; empty on other ranks.
        """

class NoTimeout(_Scope):
    """While one is open in this process, waiting for other ranks has no time limit."""

    def __init__(self) -> None: ...

class EventListener(_Scope):
    """While open, ``fn(kind, name, axis, bytes, seconds)`` is called for each event of this rank."""

    def __init__(self, fn: Callable[[str, str, str, int, float], Any]) -> None: ...

class MemoryTimeline(_Scope):
    """While open, records the bytes that this rank allocates, and when it frees them. The record stays readable
    afterwards. A sample is kept where bytes differ from the last sample by at least ``resolution`` bytes.
    """

    def __init__(self, resolution: int = 0) -> None: ...
    def live(self) -> int: ...
    def reset_peak(self) -> None: ...
    def peak(self) -> tuple[int, str, str]: ...
    def holders_at_peak(self) -> list[tuple[str, str, int]]: ...
    def csv(self) -> str: ...
    def svg(self) -> str: ...

class attention_strategy(_Scope):
    """While open, attention on this thread uses "ring", "gather" or "ulysses" on every mesh axis that shards the sequence,
    instead of the cheapest strategy ("auto"). Backward uses the strategy of forward."""

    def __init__(self, name: str) -> None: ...

class ContextParallelScope(_Scope):
    """While open, regular tensors that attention receives on this thread are this rank's shards of the sequence."""

    def __init__(self, mesh: DeviceMesh, lengths: Sequence[int]) -> None: ...

def is_context_parallel() -> bool:
    """Whether a ContextParallelScope is open on this thread."""

class RestoredScopes(_Scope):
    """While open, the scopes of a ScopeSnapshot are current."""

class ScopeSnapshot:
    """The open scopes of this thread that decide what functions compute."""

    def __init__(self) -> None: ...
    def restore(self) -> RestoredScopes: ...

def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    window: int = 0,
    documents: Sequence[int] = [],
    sinks: torch.Tensor | None = None,
    row_cu_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q k^T scale + mask) v, of shape [B, H, L, F] and the dtype of q.

    Shapes: q [B, H, L, E], k [B, G, S, E], v [B, G, S, F]. ``window``: query i attends to keys j with
    ``|i - j| < window``; 0: all keys. ``documents``: first position of each document. ``sinks``: [H].
    ``row_cu_seqlens``: int64 [B, D], the document boundaries of each row of the batch, padded with S. They replace
    ``documents``, and no mask tensor is created for them.
    """

class GraphHalo:
    """Which rows each rank sends to which, for graphs whose nodes are distributed over ranks.

    ``owned``: the number of rows of this rank; 0 is valid. ``send_lists``: for each rank of ``ranks``, the rows (int32 or
    int64 [n]) of this rank that it receives; empty lists, repeated rows and rows for this rank itself are valid.
    ``receive_counts``: if given, the number of rows that this rank expects from each rank. Collective. Invalid lists, and
    lists that do not match the expected counts, raise the same error on every rank.
    """

    def __init__(
        self,
        ranks: Communicator,
        owned: int,
        send_lists: Sequence[torch.Tensor],
        receive_counts: Sequence[int] = (),
    ) -> None: ...
    @property
    def owned(self) -> int: ...
    @property
    def ghosts(self) -> int: ...
    @property
    def send_counts(self) -> list[int]: ...
    @property
    def receive_counts(self) -> list[int]: ...
    @property
    def ranks(self) -> Communicator: ...
    def exchange(self, rows: torch.Tensor) -> torch.Tensor:
        """``rows`` [owned, ...] followed by the ghosts: [owned + ghosts, ...]. Collective.

        Ghosts are ordered by the rank that sends them, then as in its list. Differentiable any number of times: the
        backward pass adds the gradients of ghosts to those of their owners.
        """

    def reduce(self, rows: torch.Tensor) -> torch.Tensor:
        """The adjoint of :meth:`exchange`, for ``rows`` [owned + ghosts, ...]. Collective.

        Returns [owned, ...]: the owned rows plus their copies on other ranks.
        """

class GraphPart:
    """The part of a graph that one rank computes: its nodes, and the edges to them."""

    @property
    def nodes(self) -> torch.Tensor:
        """int64 [owned]: owned nodes of the graph, ascending."""

    @property
    def ghosts(self) -> torch.Tensor:
        """int64 [ghosts]: nodes of other ranks, in the order of :meth:`GraphHalo.exchange`."""

    @property
    def edges(self) -> torch.Tensor:
        """int64 [edges of the part]: their positions in the graph."""

    @property
    def source(self) -> torch.Tensor:
        """int64 [edges of the part]: rows of their sources, owned nodes before ghosts."""

    @property
    def target(self) -> torch.Tensor:
        """int64 [edges of the part]: rows of their targets, which this rank owns."""

    @property
    def send_lists(self) -> list[torch.Tensor]:
        """The send lists for :class:`GraphHalo`."""

def graph_part(
    source: torch.Tensor, target: torch.Tensor, owner: torch.Tensor, rank: int, ranks: int
) -> GraphPart:
    """The part of ``rank``, one of ``ranks``, of a graph that every rank has.

    Edge i goes from node ``source[i]`` to node ``target[i]`` (int64 [edges]) and belongs to the rank of its target.
    ``owner`` (int64 [nodes]): the rank of each node. Does not communicate.
    """

def partition_graph(
    source: torch.Tensor, target: torch.Tensor, nodes: int, ranks: Communicator
) -> torch.Tensor:
    """The rank of each node, int64 [nodes], for :func:`graph_part`: few edges between ranks, similar numbers of nodes.

    The first rank of ``ranks`` partitions its graph with METIS; the arguments of the others are not used. Collective. An
    error on every rank if the library was built without METIS (:func:`is_metis_available`).
    """

def is_metis_available() -> bool:
    """Whether this build of the library has METIS."""

class PendingSave:
    """An asynchronous save. The saved tensors may be modified while it runs."""

    def done(self) -> bool: ...
    def wait(self) -> None: ...

def visualize_sharding_text(sizes: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]) -> str:
    """A text diagram of the ranks that store each part."""

def visualize_sharding_svg(sizes: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]) -> str:
    """An SVG diagram of the ranks that store each part."""

def cache_stats() -> dict[str, int]: ...
def clear_cache() -> None: ...
def memory_pool_stats() -> dict[str, int]:
    """The pool of memory for results of collectives in this process: cached_bytes, limit_bytes, hits, misses."""
def set_memory_pool_limit(bytes: int) -> None:
    """Sets the most unused bytes that the pool keeps; 0: none."""
def empty_memory_pool() -> None:
    """Returns the pool's unused memory to the system."""

def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str: ...

class CommCounts:
    def __init__(self) -> None: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def rows(self) -> list[tuple[str, str, str, str, int, int]]: ...
    def table(self) -> str: ...

class CommError(RuntimeError):
    """A collective that could not complete: a peer failed, exited, called another collective or timed out."""

class PeerError(RuntimeError):
    """Another rank's exception, raised on this rank so that all ranks end the same call (such as a pipeline step).
    The ranks can continue. If it leaves run(), run() raises the original exception instead."""

def run(ranks: int, fn: Callable[[], Any], timeout: float) -> list[Any]: ...
def simulate(ranks: int, fn: Callable[[], Any], rank: int, number: float | None, hardware: HardwareModel | None, staging: bool) -> DryRunReport: ...

class HardwareModel:
    """Rates and links of one rank, from a JSON table (`plan calibrate` measures one)."""

    @staticmethod
    def read(path: str) -> HardwareModel:
        """The table of a file."""

    @staticmethod
    def parse(json: str) -> HardwareModel: ...
    @property
    def name(self) -> str: ...
    @property
    def memory_bytes(self) -> float:
        """Of one rank; 0: unknown."""

    @property
    def memory_reserve(self) -> float:
        """Bytes of those that a step does not get."""

    def json(self) -> str: ...

class StepEstimate:
    """Estimated seconds of one rank's step."""

    @property
    def seconds(self) -> float:
        """Of the step: compute + exposed."""

    @property
    def compute(self) -> float:
        """Of operators."""

    @property
    def communication(self) -> float:
        """Of collectives, whether or not they are hidden."""

    @property
    def exposed(self) -> float:
        """While the rank waits for collectives."""

    def shares(self) -> str:
        """Where the time goes, as text."""

    @property
    def compute_by_kind(self) -> dict[str, float]:
        """By product, attention, norm and elementwise."""

    @property
    def communication_by_axis(self) -> dict[str, float]:
        """By mesh axis."""

    @property
    def exposed_by_axis(self) -> dict[str, float]:
        """By mesh axis."""

class DryRunReport:
    """What one rank of a program needs since the last begin_step(), or since the start."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def peak_bytes(self) -> int:
        """Highest sum of live tensors."""

    @property
    def peak_bytes_before(self) -> int:
        """The peak before that step."""

    @property
    def peak_by_kind(self) -> dict[str, int]:
        """Bytes at the peak by kind of memory."""

    @property
    def collectives(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(calls, bytes received) by (kind, mesh axis)."""

    @property
    def operators(self) -> dict[str, tuple[int, int, int]]:
        """(calls, FLOPs, bytes read and written) by name."""

    @property
    def peers(self) -> list[DryRunReport]:
        """Reports of the other ranks of this rank's pipelines."""

    def fits(self, bytes: int) -> bool: ...
    def table(self, limit: int | None = None) -> str: ...
    def json(self) -> str: ...
    def estimate(self, hardware: HardwareModel) -> StepEstimate:
        """The step's time on that hardware, of this rank by itself: without waits for a pipeline's messages."""

    def chrome_trace(self, hardware: HardwareModel) -> str:
        """The estimated step as JSON for Perfetto."""

    def memory_svg(self, hardware: HardwareModel) -> str:
        """A plot of the memory over the estimated step."""

def begin_step() -> None: ...
def set_memory_kind(tensor: torch.Tensor, kind: str) -> None: ...
def is_dry_run() -> bool: ...
def world() -> Communicator: ...
def is_thread_rank() -> bool: ...
def report_interrupt(program: str) -> None: ...
def close_world(failure: str) -> int: ...
def exception_hook(hook: Callable[..., None]) -> Callable[..., None]: ...
def set_timeout(seconds: float) -> None: ...
def record_parameter_swap(former: torch.Tensor, /) -> None: ...
def is_swapped_out(parameter: torch.Tensor, /) -> bool: ...
def parameter_swap_count() -> int: ...

# DTensors.
def is_dtensor(value: object, /) -> bool: ...
def install_data_ptr() -> None: ...
def local_segments(tensor: torch.Tensor, /) -> list[list[tuple[int, int]]] | None: ...
def placements_of(tensor: torch.Tensor, /) -> tuple[Placement, ...]: ...
def mesh_of(tensor: torch.Tensor, /) -> DeviceMesh: ...
def spec_of(tensor: torch.Tensor, /) -> str: ...
def generation_of(tensor: torch.Tensor, /) -> int: ...
def from_local(
    local: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    shape: Sequence[int] | None,
    stride: Sequence[int] | None,
    /,
) -> torch.Tensor: ...
def to_local(tensor: torch.Tensor, grad_placements: Sequence[Placement], /) -> torch.Tensor: ...
def full_tensor(tensor: torch.Tensor, grad_placements: Sequence[Placement], /) -> torch.Tensor: ...
def redistribute(
    tensor: torch.Tensor, mesh: DeviceMesh | None, placements: Sequence[Placement] | None, /
) -> torch.Tensor: ...
def gather_activation(tensor: torch.Tensor, placements: Sequence[Placement], /) -> torch.Tensor: ...
def redistribute_in_place(tensor: torch.Tensor, placements: Sequence[Placement], /) -> None: ...
def redistribute_list(
    tensors: Sequence[torch.Tensor], placements: Sequence[Sequence[Placement]], mesh: DeviceMesh | None, /
) -> list[torch.Tensor]: ...
def distribute_tensor(
    tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement] | None, source: int | None, /
) -> torch.Tensor: ...
def local_map(
    fn: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    out_placements: Sequence[Sequence[Placement]],
    in_placements: Sequence[Sequence[Placement]],
    in_grad_placements: Sequence[Sequence[Placement]],
    /,
) -> list[torch.Tensor]: ...
def manual_seed(mesh: DeviceMesh, seed: int, /) -> None: ...
def get_rng_state(mesh: DeviceMesh, /) -> tuple[int, int]: ...
def set_rng_state(mesh: DeviceMesh, state: tuple[int, int], /) -> None: ...
def zeros(
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> torch.Tensor: ...
def ones(
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> torch.Tensor: ...
def empty(
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> torch.Tensor: ...
def rand(
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> torch.Tensor: ...
def randn(
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> torch.Tensor: ...
def full(
    size: Sequence[int],
    value: bool | int | float | complex,
    mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    dtype: torch.dtype | None,
    requires_grad: bool,
    /,
) -> torch.Tensor: ...
def arange(
    end: int | float, mesh: DeviceMesh, placements: Sequence[Placement] | None, dtype: torch.dtype | None, /
) -> torch.Tensor: ...

# fully_shard and losses.
class MixedPrecision:
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    param_dtype_of: Sequence[tuple[str, torch.dtype]]
    def __init__(self) -> None: ...

class FsdpOptions:
    reshard_after_forward: bool | int
    precision: MixedPrecision
    shard_axes: list[str]
    replicate_axis: str
    cpu_offload: bool
    def __init__(self) -> None: ...
    def set_shard_dims(self, dims: Mapping[str, int], /) -> None: ...

class FsdpUnit:
    def unshard(self) -> None: ...
    def reshard(self) -> None: ...
    def set_requires_gradient_sync(self, on: bool, /) -> None: ...
    def set_requires_all_reduce(self, on: bool, /) -> None: ...
    def set_reshard_after_forward(self, on: bool, /) -> None: ...
    def set_reshard_after_backward(self, on: bool, /) -> None: ...
    def set_gradient_divide_factor(self, factor: float, /) -> None: ...
    def set_reduce_scatter_unused_params(self, on: bool, /) -> None: ...
    def stats(self) -> dict[str, int]: ...

class FsdpCall:
    def __init__(
        self, parameters: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], on_backward: Callable[[bool], None], /
    ) -> None: ...
    def tensors(self) -> list[torch.Tensor]: ...
    def watch(self, outputs: Sequence[torch.Tensor], /) -> None: ...
    def finish(self, outputs: Sequence[torch.Tensor], keep: bool, /) -> None: ...

class Casts:
    def __init__(self, named: _Named, /) -> None: ...
    def tensors(self) -> list[torch.Tensor]: ...
    def close(self) -> None: ...

def fully_shard(named: _Named, mesh: DeviceMesh, options: FsdpOptions, /) -> tuple[FsdpUnit, list[torch.Tensor]]: ...
def set_gather_extension(
    parameter: torch.Tensor,
    contribute: Callable[[torch.Tensor], list[torch.Tensor]],
    unshard: Callable[[list[torch.Tensor], torch.dtype], tuple[torch.Tensor, list[torch.Tensor]]],
    refill: Callable[[list[torch.Tensor], torch.dtype, torch.Tensor], None],
    /,
) -> None: ...
def units_of(parameters: Sequence[torch.Tensor], /) -> list[FsdpUnit]: ...
def reduce_gradients(tensors: Sequence[torch.Tensor], /) -> None:
    """Reduces gradients that ``NoGradientSync`` left unreduced. Collective."""

class NoGradientSync(_Scope):
    def __init__(self) -> None: ...

class NoReplicaSync(_Scope):
    def __init__(self) -> None: ...

def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    chunk: int,
    /,
) -> torch.Tensor: ...

# Optimizers.
class Optimizer:
    def step(self) -> None: ...
    def set_options(self, group: int, options: Mapping[str, _Value], /) -> None: ...
    def state_dict(self) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, float]]]: ...
    def load_state_dict(self, tensors: _Named, values: Sequence[tuple[str, float]], /) -> None: ...

def make_optimizer(
    name: str, groups: Sequence[tuple[Sequence[torch.Tensor], Mapping[str, _Value], Sequence[str]]], /
) -> Optimizer: ...
def clip_grad_norm_(
    tensors: Sequence[torch.Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool, /
) -> torch.Tensor: ...
def get_total_norm(tensors: Sequence[torch.Tensor], norm_type: float, error_if_nonfinite: bool, /) -> torch.Tensor: ...

# Checkpoints.
def save_state(
    directory: str, tensors: _Named, values: Mapping[str, _Value], sync: bool, keep_foreign: bool, /
) -> None: ...
def save_state_async(
    directory: str, tensors: _Named, values: Mapping[str, _Value], sync: bool, keep_foreign: bool, /
) -> PendingSave: ...
def load_state(
    path: str,
    tensors: _Named,
    values: Mapping[str, _Value],
    open: set[str],
    verify: bool,
    allow_missing: bool,
    allow_unexpected: bool,
    allow_cast: bool,
    /,
) -> dict[str, _Value]: ...
def broadcast_state(full: _Named, targets: _Named, source: int, /) -> None: ...
def read_checkpoint_index(path: str, /) -> dict[str, Any]: ...
def load_newest(
    root: str, tensors: _Named, values: Mapping[str, _Value], open: set[str], allow_cast: bool, /
) -> tuple[str, list[str], dict[str, _Value]]: ...
def checkpoint_steps(root: str) -> list[int]: ...

class CheckpointSeries:
    def __init__(self, root: str, keep: int, /) -> None: ...
    def save(
        self, tensors: _Named, values: Mapping[str, _Value], step: int, sync: bool, background: bool, /
    ) -> None: ...
    def finish(self) -> None: ...
    def load_newest(
        self, tensors: _Named, values: Mapping[str, _Value], open: set[str], allow_cast: bool, /
    ) -> tuple[str, list[str], dict[str, _Value]]: ...

# Pipelines.
class Schedule:
    """The actions of each pipeline rank in one step, in order."""

    @staticmethod
    def parse(text: str) -> Schedule: ...
    @property
    def stages(self) -> int: ...
    @property
    def microbatches(self) -> int: ...
    @property
    def actions(self) -> list[list[str]]: ...
    def rank_of(self, stage: int) -> int: ...

def schedule_names() -> list[str]:
    """Names that ``make_schedule`` accepts."""

def make_schedule(name: str, ranks: int, microbatches: int, chunks: int = 0) -> Schedule:
    """A schedule by its name. ``chunks``: stages of each rank; 0: the schedule's default."""

def schedule_with_communication(
    schedule: Schedule, unsharded_stages: int | None = 1, reduce_grad: bool = True, rendezvous: bool = False
) -> Schedule: ...
def check_schedule(
    schedule: Schedule,
    stages: int = 0,
    microbatches: int = 0,
    live_microbatches: int = 0,
    forward_only: bool = False,
) -> dict[str, Any]: ...
def live_activations(schedule: Schedule) -> list[int]:
    """The most microbatch activations that each rank of a valid schedule stores at once."""

def simulate_schedule(
    schedule: Schedule,
    forward: float,
    backward: float,
    backward_input: float,
    backward_weight: float,
    communication: float,
) -> dict[str, Any]: ...
def valid_targets(ignore_index: int = -100) -> Callable[[list[torch.Tensor]], float]: ...
def microbatches(batch: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Splits the batch into ``count`` parts along dimension 0; their sizes differ by at most one."""

class Pipeline:
    def __init__(
        self,
        mesh: DeviceMesh,
        schedule: Schedule,
        loss: Callable[[list[torch.Tensor], list[torch.Tensor]], torch.Tensor],
        axis: str,
        weight: Callable[[list[torch.Tensor]], float] | None,
    ) -> None: ...
    def stages(self) -> list[int]: ...
    def last_stage(self) -> int: ...
    def stage_mesh(self, stage: int, /) -> DeviceMesh | None: ...
    def schedule(self) -> Schedule: ...
    def set_stage(
        self,
        stage: int,
        forward: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        parameters: Sequence[torch.Tensor] | None,
        /,
    ) -> None: ...
    def tie(self, name: str, copies: Sequence[torch.Tensor], /) -> None: ...
    def step(
        self,
        inputs: Sequence[Sequence[torch.Tensor]],
        targets: Sequence[Sequence[torch.Tensor]],
        loss_scale: float,
        /,
    ) -> tuple[torch.Tensor, list[int]]: ...
    def evaluate(
        self, inputs: Sequence[Sequence[torch.Tensor]], targets: Sequence[Sequence[torch.Tensor]], /
    ) -> torch.Tensor: ...
    def clip_grad_norm_(self, max_norm: float, /) -> torch.Tensor: ...

# Mixture of experts.
class MoeLayer:
    def __init__(
        self,
        options: dict[str, Any],
        choose: Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor] | None,
        name: str,
        /,
    ) -> None: ...
    def parameters(self) -> list[tuple[str, torch.Tensor]]: ...
    def buffers(self) -> list[tuple[str, torch.Tensor]]: ...
    def assign(self, tensors: Sequence[torch.Tensor], /) -> None: ...
    def run(
        self, x: torch.Tensor, tensors: Sequence[torch.Tensor], training: bool, /
    ) -> tuple[torch.Tensor, torch.Tensor | None]: ...
    def set_dispatch(self, kind: str, factor: float, drop: str, /) -> None: ...
    def stats(self) -> tuple[torch.Tensor, int]: ...
    def set_expert_parallel(self, mesh: DeviceMesh, ep: str, edp: str, etp: str, /) -> None: ...

def update_load_balancers(layers: Sequence[MoeLayer], ranks: Communicator, /) -> None: ...

class RoutedLayer:
    def __init__(self) -> None: ...
    def add(
        self, parameters: _Named, forward: Callable[[torch.Tensor], torch.Tensor], /
    ) -> None: ...
    def parameters(self) -> list[list[torch.Tensor]]: ...
    def assign(self, tensors: Sequence[Sequence[torch.Tensor]], /) -> None: ...
    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, /) -> torch.Tensor: ...
    def load(self) -> torch.Tensor: ...
    def set_expert_parallel(self, mesh: DeviceMesh, ep: str, edp: str, etp: str, /) -> None: ...
def register_sharding(
    op: str, arguments: Sequence[str], rule: Callable[..., Any], outputs: Callable[..., Any]
) -> None: ...
