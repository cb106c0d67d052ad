// The collectives of one reduction: a reduce-scatter over the shard axes, then an all-reduce for each further axis on
// which gradients are still Partial. The all-reduce over replicas comes last, in the background if possible.
#include "parallel/fsdp/gradients/reduction.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>

#include "dtensor/events.h"
#include "dtensor/hooks.h"
#include "internal/host_work.h"
#include "internal/simulated.h"

namespace dtensor::fsdp {
namespace {

using Unit = FsdpUnit::Impl;

// Whether the unit's collectives reduce a placement: sums and averages.
bool is_reducible(const Placement& placement) {
  return placement.is_partial(ReduceOp::sum) || placement.is_partial(ReduceOp::avg);
}

// How the shard axes reduce a gradient of these placements; no value: they do not.
std::optional<ReduceOp> op_on_shards(const Unit& unit, const Placements& placements) {
  for (const auto axis : unit.axes.shard) {
    const auto& placement = placements[static_cast<std::size_t>(axis)];
    if (is_reducible(placement)) return placement.reduce_op();
  }
  return std::nullopt;
}

// The placements before the unit's collectives: axes that they reduce stay Partial, other axes get their final
// placements by a separate redistribution. The collective runs over all shard axes, so a Partial on one of them makes
// the others Partial too.
Placements before_reduction(const Unit& unit, const Parameter& p, const Placements& given) {
  auto result = p.gradient_placements;
  const auto scattered = p.sharded ? op_on_shards(unit, given) : std::nullopt;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto axis = static_cast<std::int64_t>(i);
    if (scattered && unit.axes.splits(axis)) {
      if (unit.mesh.size(axis) > 1) result[i] = Partial(*scattered);
    } else if (is_reducible(given[i]) && result[i].is_replicate()) {
      result[i] = given[i];
    }
  }
  return result;
}

// Whether an earlier gradient was not reduced over the shard axes, or is not on the unit's storage mesh. One that lacks
// only the sum over replicas is added later, before that sum.
bool is_unreduced(const Unit& unit, const Parameter& p, const DTensor& earlier) {
  if (unit.is_offloaded()) return earlier.mesh() == unit.mesh;
  const auto placements = equivalent_placements(p, earlier);
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (static_cast<std::int64_t>(axis) != unit.axes.replicate && placements[axis] != p.gradient_placements[axis])
      return true;
  }
  return false;
}

// Adds two gradients. On axes where either is Partial, both become Partial.
DTensor added(const Parameter& p, const DTensor& earlier, const DTensor& gradient) {
  auto sum = with_equivalent_placements(p, earlier), own = with_equivalent_placements(p, gradient);
  if (sum.placements() == own.placements()) return DTensor(sum.add(own));
  sum = as_sums(sum), own = as_sums(own);
  Placements both = own.placements();
  for (std::size_t axis = 0; axis < both.size(); ++axis) {
    if (sum.placements()[axis].is_partial()) both[axis] = sum.placements()[axis];
  }
  return DTensor(sum.redistribute(both).add(own.redistribute(both)));
}

// Adds what NoGradientSync left only now, so that a pass that throws earlier leaves it unchanged.
void join_earlier(const Unit& unit, const Parameter& p, const DTensor& parameter, DTensor& gradient,
                  UnsynchronizedGradient& earlier) {
  if (!is_dtensor(parameter.grad()) || !is_unreduced(unit, p, DTensor(parameter.grad()))) return;
  earlier = UnsynchronizedGradient(parameter);
  gradient = added(p, DTensor(earlier.sum()), gradient);
}

// The local tensor to reduce. If it is not scattered, it becomes .grad or is summed in place, so it must not share
// memory: autograd passes one tensor to several parameters, and hooks may keep it.
at::Tensor local_to_reduce(const Unit& unit, const Parameter& p, const DTensor& gradient, const Placements& wanted,
                           const at::Tensor& arriving) {
  constexpr std::size_t kHandlesOfHook = 2;  // of autograd's hook to an arriving gradient: its argument and a copy
  const bool as_is = wanted == equivalent_placements(p, gradient);
  auto local = (as_is ? gradient : with_equivalent_placements(p, gradient).redistribute(wanted)).to_local();
  if (C10_UNLIKELY(local.is_conj() || local.is_neg())) return local.resolve_conj().resolve_neg();
  if (p.sharded && op_on_shards(unit, wanted)) return local;
  if (!shares_storage(local, gradient.to_local())) return local;
  local = gradient.to_local();
  const std::size_t handles = 1 + (gradient.is_same(arriving) ? kHandlesOfHook : 0);
  return owns_memory_alone(gradient, handles, local, 2) ? local : local.clone();
}

at::ScalarType reduce_dtype(const Unit& unit, const at::Tensor& local) {
  const auto own = local.scalar_type();
  return at::isFloatingType(own) ? unit.options.precision.reduce_dtype.value_or(own) : own;
}

// Factor of this rank's local tensor when a gradient of placement `from` becomes part of one that is Partial, on an
// axis of `comm`.
double weight_in(const Placement& partial, const Placement& from, const Communicator& comm) {
  const bool average = partial.reduce_op() == ReduceOp::avg;
  if (!from.is_partial()) return average || comm.rank() == 0 ? 1 : 0;
  if (from.reduce_op() == partial.reduce_op()) return 1;
  return average ? comm.size() : 1.0 / comm.size();
}

// Adds what earlier passes left reduced over the shard axis only, before the all-reduce over replicas.
void join_accumulated(const Unit& unit, const Parameter& p, UnreducedGradient& gradient, std::size_t axis) {
  const auto& grad = gradient.leaf.grad();
  if (!is_dtensor(grad) || !DTensor(grad).placements()[axis].is_partial()) return;
  const auto placements = equivalent_placements(p, DTensor(grad));
  auto as_sum = gradient.placements;
  as_sum[axis] = placements[axis];
  if (placements != as_sum) return;
  const auto weight = weight_in(as_sum[axis], gradient.placements[axis], unit.all_reduce_comm);
  gradient.earlier = UnsynchronizedGradient(gradient.leaf);
  gradient.placements = as_sum;
  auto sum = DTensor(gradient.earlier.sum()).to_local();
  if (unit.is_offloaded()) sum = copy_to_device(sum, gradient.local.device());
  gradient.local = sum.add(in_dtype(gradient.local, p.dtype), weight);
}

}  // namespace

Placements equivalent_placements(const Parameter& p, const DTensor& gradient) {
  Placements placements = gradient.placements();
  const DeviceMesh mesh = gradient.mesh();
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (mesh.shape()[axis] == 1) placements[axis] = p.gradient_placements[axis];
  }
  return placements;
}

DTensor with_equivalent_placements(const Parameter& p, const DTensor& gradient) {
  const Placements placements = equivalent_placements(p, gradient);
  if (placements == gradient.placements()) return gradient;
  return DTensor::from_local(gradient.to_local(), gradient.mesh(), placements, gradient.sizes(), gradient.strides());
}

DTensor as_sums(const DTensor& gradient) {
  Placements placements = gradient.placements();
  double weight = 1;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_partial(ReduceOp::avg)) continue;
    placements[axis] = Partial();
    weight /= static_cast<double>(gradient.mesh().shape()[axis]);
  }
  if (placements == gradient.placements()) return gradient;
  return DTensor::from_local(gradient.to_local().mul(weight), gradient.mesh(), placements, gradient.sizes(),
                             gradient.strides());
}

void UnitReduction::take_pending(const at::Tensor& arriving) {
  gradients.reserve(unit.parameters.size());
  for (auto& p : unit.parameters) {
    if (!p.pending_gradient.defined()) continue;
    bytes += local_bytes(p.pending_gradient);
    DTensor gradient(std::exchange(p.pending_gradient, at::Tensor()));
    auto earlier = std::exchange(p.earlier, UnsynchronizedGradient());
    p.gradient_expected = false;
    const auto tensor = p.lock();
    if (!tensor.defined()) continue;
    const DTensor parameter(tensor);
    join_earlier(unit, p, parameter, gradient, earlier);
    auto wanted = before_reduction(unit, p, equivalent_placements(p, gradient));
    auto local = local_to_reduce(unit, p, gradient, wanted, arriving);
    gradients.push_back({parameter, std::move(local), std::move(wanted), std::move(earlier)});
    parameters_.push_back(&p);
  }
  unit.pending_pass = -1;
}

// The outputs are dense views of one buffer, in each parameter's order of dimensions.
void UnitReduction::start_scatter(Collective& scatter) const {
  std::int64_t total = 0, offset = 0;
  for (const auto* gradient : scatter.gradients) total += parameter_of(*gradient).shard.numel();
  const auto flat = scatter.comm.empty({total}, at::TensorOptions(scatter.dtype).device(unit.mesh.device_type()));
  std::vector<at::Tensor> wide, inputs;
  for (const auto* gradient : scatter.gradients) {
    const auto& shard = parameter_of(*gradient).shard;
    scatter.outputs.push_back(view_of(flat, scatter.dtype, shard.sizes, shard.strides, offset));
    offset += shard.numel();
    wide.push_back(in_dtype(gradient->local, scatter.dtype));
  }
  const auto ranks = static_cast<std::size_t>(scatter.comm.size());
  inputs.reserve(ranks * wide.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t k = 0; k < wide.size(); ++k) {
      inputs.push_back(parameter_of(*scatter.gradients[k]).layout.shard_view(wide[k], rank));
    }
  }
  scatter.work = scatter.comm.reduce_scatter_list(scatter.outputs, inputs, scatter.op);
}

void UnitReduction::start_scatters() {
  for (auto& gradient : gradients) {
    const auto& p = parameter_of(gradient);
    const auto op = p.sharded ? op_on_shards(unit, gradient.placements) : std::nullopt;
    if (!op) continue;
    for (const auto axis : unit.axes.shard) {
      gradient.placements[static_cast<std::size_t>(axis)] = p.gradient_placements[static_cast<std::size_t>(axis)];
    }
    add(gradient, unit.reduce_scatter_comm, reduce_dtype(unit, gradient.local), *op);
  }
  for (auto& scatter : collectives) start_scatter(scatter);
}

int UnitReduction::start_sums_over(std::int64_t axis) {
  for (auto& gradient : gradients) {
    if (!gradient.placements[static_cast<std::size_t>(axis)].is_partial()) continue;
    const auto comm = axis == unit.axes.replicate ? unit.all_reduce_comm : unit.mesh.communicator(axis);
    add_sum(gradient, axis, comm, reduce_dtype(unit, gradient.local));
  }
  return start_sums();
}

UnitReduction::UnitReduction(Unit& of, const at::Tensor& arriving) : unit(of) {
  const CollectiveTag tag([this] { return unit.local_parts(); });
  take_pending(arriving);
  name = unit.name_reduction(parameters_);
  const NamedCallScope named(name);
  const at::AutoDispatchBelowADInplaceOrView below;
  start_scatters();
}

int UnitReduction::start_all_reduces(bool over_replicas) {
  const CollectiveTag tag([this] { return unit.local_parts(); });
  const NamedCallScope named(name);
  const at::AutoDispatchBelowADInplaceOrView below;
  wait();
  int collectives = 0;
  for (std::int64_t axis = 0; axis < unit.mesh.ndim(); ++axis) {
    if (axis == unit.axes.replicate) continue;
    collectives += start_sums_over(axis);
    wait();
  }
  if (unit.axes.replicate < 0) return collectives;
  for (auto& gradient : gradients) {
    join_accumulated(unit, parameter_of(gradient), gradient, static_cast<std::size_t>(unit.axes.replicate));
  }
  return over_replicas ? collectives + start_sums_over(unit.axes.replicate) : collectives;
}

}  // namespace dtensor::fsdp
