// The collectives of one reduction: a reduce-scatter over the shard axes, then an all-reduce for each further axis on
// which gradients are still Partial. The all-reduce over replicas comes last, in the background if possible.
#include "parallel/fsdp/gradients/reduction.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <map>
#include <optional>

#include "dtensor/events.h"
#include "dtensor/hooks.h"
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

std::vector<PendingReduction> take_pending(Unit& unit, const at::Tensor& arriving) {
  std::vector<PendingReduction> items;
  items.reserve(unit.parameters.size());
  for (auto& p : unit.parameters) {
    if (!p.pending_gradient.defined()) continue;
    DTensor gradient(std::exchange(p.pending_gradient, at::Tensor()));
    auto earlier = std::exchange(p.earlier, UnsynchronizedGradient());
    p.gradient_expected = false;
    const auto tensor = p.lock();
    if (!tensor.defined()) continue;
    const DTensor parameter(tensor);
    join_earlier(unit, p, parameter, gradient, earlier);
    auto wanted = before_reduction(unit, p, equivalent_placements(p, gradient));
    auto local = local_to_reduce(unit, p, gradient, wanted, arriving);
    items.push_back({&p, parameter, std::move(local), std::move(wanted), std::move(earlier)});
  }
  unit.pending_pass = -1;
  return items;
}

at::ScalarType reduce_dtype(const Unit& unit, const PendingReduction& item) {
  const auto own = item.local.scalar_type();
  return at::isFloatingType(own) ? unit.options.precision.reduce_dtype.value_or(own) : own;
}

at::Tensor in_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

// Dense views of one buffer, in each parameter's order of dimensions.
std::vector<at::Tensor> shard_buffers(const Unit& unit, const std::vector<PendingReduction*>& items,
                                      at::ScalarType dtype) {
  std::int64_t total = 0;
  for (const auto* item : items) total += item->p->shard.numel();
  const auto flat = unit.reduce_scatter_comm.empty({total}, at::TensorOptions(dtype).device(unit.mesh.device_type()));
  std::vector<at::Tensor> buffers;
  buffers.reserve(items.size());
  std::int64_t offset = 0;
  for (const auto* item : items) {
    const ParameterLayout& shard = item->p->shard;
    buffers.push_back(view_of(flat, dtype, shard.sizes, shard.strides, offset));
    offset += shard.numel();
  }
  return buffers;
}

ReduceScatter start_scatter(const Unit& unit, std::vector<PendingReduction*> items, const ReductionKind& kind) {
  ReduceScatter scatter{std::move(items), {}, {}, {}};
  scatter.outputs = shard_buffers(unit, scatter.items, kind.dtype);
  std::vector<at::Tensor> wide;
  wide.reserve(scatter.items.size());
  scatter.inputs.reserve(scatter.items.size() * static_cast<std::size_t>(unit.reduce_scatter_comm.size()));
  for (const auto* item : scatter.items) wide.push_back(in_dtype(item->local, kind.dtype));
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(unit.reduce_scatter_comm.size()); ++rank) {
    for (std::size_t k = 0; k < wide.size(); ++k) {
      scatter.inputs.push_back(scatter.items[k]->p->layout.shard_view(wide[k], rank));
    }
  }
  scatter.work = unit.reduce_scatter_comm.reduce_scatter_list(scatter.outputs, scatter.inputs, kind.op);
  return scatter;
}

void finish_scatter(const Unit& unit, ReduceScatter& scatter) {
  scatter.work.wait();
  for (std::size_t k = 0; k < scatter.items.size(); ++k) {
    auto* item = scatter.items[k];
    item->local = scatter.outputs[k];
    for (const auto axis : unit.axes.shard) {
      item->placements[static_cast<std::size_t>(axis)] = item->p->gradient_placements[static_cast<std::size_t>(axis)];
    }
  }
  scatter.inputs.clear();
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
void join_accumulated(const Unit& unit, PendingReduction& item, std::size_t axis) {
  const auto& grad = item.parameter.grad();
  if (!is_dtensor(grad) || !DTensor(grad).placements()[axis].is_partial()) return;
  const auto placements = equivalent_placements(*item.p, DTensor(grad));
  auto as_sum = item.placements;
  as_sum[axis] = placements[axis];
  if (placements != as_sum) return;
  const auto weight = weight_in(as_sum[axis], item.placements[axis], unit.all_reduce_comm);
  item.earlier = UnsynchronizedGradient(item.parameter);
  item.placements = as_sum;
  const auto sum = DTensor(item.earlier.sum()).to_local().to(item.local.device());
  item.local = sum.add(in_dtype(item.local, item.p->dtype), weight);
}

bool any_sum_on(std::size_t axis, const std::vector<PendingReduction>& items) {
  return std::any_of(items.begin(), items.end(),
                     [&](const PendingReduction& item) { return item.placements[axis].is_partial(); });
}

// The gradients that are Partial on the axis, by kind.
std::map<ReductionKind, std::vector<PendingReduction*>> sums_on(const Unit& unit, std::size_t axis,
                                                                std::vector<PendingReduction>& items) {
  std::map<ReductionKind, std::vector<PendingReduction*>> result;
  for (auto& item : items) {
    const auto& placement = item.placements[axis];
    if (placement.is_partial()) result[{reduce_dtype(unit, item), placement.reduce_op()}].push_back(&item);
  }
  return result;
}

std::vector<ReduceScatter> start_scatters(const Unit& unit, std::vector<PendingReduction>& items) {
  std::map<ReductionKind, std::vector<PendingReduction*>> by_kind;
  for (auto& item : items) {
    const auto op = item.p->sharded ? op_on_shards(unit, item.placements) : std::nullopt;
    if (op) by_kind[{reduce_dtype(unit, item), *op}].push_back(&item);
  }
  std::vector<ReduceScatter> scatters;
  for (auto& [kind, group] : by_kind) scatters.push_back(start_scatter(unit, std::move(group), kind));
  return scatters;
}

AllReduce start_sum(const Communicator& comm, std::size_t axis, std::vector<PendingReduction*> items,
                    const ReductionKind& kind) {
  AllReduce sum{std::move(items), {}, {}};
  for (auto* item : sum.items) {
    item->local = in_dtype(item->local, kind.dtype);
    item->placements[axis] = Replicate();
    sum.locals.push_back(item->local);
  }
  if (comm.size() > 1) sum.work = comm.all_reduce_list(sum.locals, kind.op);
  return sum;
}

std::vector<AllReduce> start_sums(const Unit& unit, const Communicator& comm, std::size_t axis,
                                  std::vector<PendingReduction>& items) {
  std::vector<AllReduce> sums;
  for (auto& [kind, group] : sums_on(unit, axis, items)) {
    sums.push_back(start_sum(comm, axis, std::move(group), kind));
  }
  return sums;
}

void accumulate(const PendingReduction& item, const DeviceMesh& home) {
  const auto& p = *item.p;
  auto local = in_dtype(item.local, p.dtype);
  if (local.device().type() != home.device_type()) local = local.to(home.device_type());
  accumulate_gradient(item.parameter, std::move(local), item.placements);
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

GradientReduction::GradientReduction(Unit& of, const at::Tensor& arriving) : unit(of) {
  for (const auto& p : unit.parameters) bytes += local_bytes(p.pending_gradient);
  const CollectiveTag tag([this] { return unit.local_parts(); });
  items = take_pending(unit, arriving);
  std::vector<const Parameter*> reduced;
  for (const auto& item : items) reduced.push_back(item.p);
  name = unit.name_reduction(reduced);
  const NamedCallScope named(name);
  const at::AutoDispatchBelowADInplaceOrView below;
  scatters = start_scatters(unit, items);
}

int GradientReduction::start_all_reduces(bool over_replicas) {
  const CollectiveTag tag([this] { return unit.local_parts(); });
  const NamedCallScope named(name);
  const at::AutoDispatchBelowADInplaceOrView below;
  for (auto& scatter : scatters) finish_scatter(unit, scatter);
  scatters.clear();
  int collectives = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(unit.mesh.ndim()); ++axis) {
    const auto index = static_cast<std::int64_t>(axis);
    if (index == unit.axes.replicate || !any_sum_on(axis, items)) continue;
    const auto comm = unit.mesh.communicator(index);
    auto sums = start_sums(unit, comm, axis, items);
    for (auto& sum : sums) sum.work.wait();
    collectives += comm.size() > 1 ? static_cast<int>(sums.size()) : 0;
  }
  if (unit.axes.replicate < 0) return collectives;
  const auto axis = static_cast<std::size_t>(unit.axes.replicate);
  for (auto& item : items) join_accumulated(unit, item, axis);
  if (!over_replicas) return collectives;
  replica_sums = start_sums(unit, unit.all_reduce_comm, axis, items);
  return collectives + (unit.all_reduce_comm.size() > 1 ? static_cast<int>(replica_sums.size()) : 0);
}

void GradientReduction::finish() {
  const NamedCallScope named(name);
  for (auto& sum : replica_sums) sum.work.wait();
  for (auto& item : items) {
    item.earlier.done();
    accumulate(item, unit.storage_mesh);
  }
}

void GradientReduction::discard() {
  for (auto& item : items) item.earlier.done();
  for (auto& scatter : scatters) scatter.work.wait();
  for (auto& sum : replica_sums) sum.work.wait();
}

}  // namespace dtensor::fsdp
