// Gradients of a unit: they wait as they come, Partial mostly, until the last expected one is there; then one
// reduce-scatter over the shard axis, and one all-reduce for each further axis on which they are sums yet.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <map>

#include "dtensor/hooks.h"
#include "parallel/fsdp/reduction.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor {
namespace {

thread_local bool replica_sync_off = false;

}  // namespace

NoReplicaSync::NoReplicaSync() : previous_(replica_sync_off) { replica_sync_off = true; }
NoReplicaSync::~NoReplicaSync() { replica_sync_off = previous_; }
bool NoReplicaSync::active() { return replica_sync_off; }

namespace fsdp {
namespace {

// Sums that one collective of the unit reduces stay sums; whatever else is not as it should be is put right alone.
Placements before_reduction(const Unit& unit, const Parameter& p, const Placements& given) {
  auto result = p.reduced;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const bool shard = static_cast<std::int64_t>(i) == unit.axes.shard && p.sharded;
    if (given[i].is_partial(ReduceOp::sum) && (shard || result[i].is_replicate())) result[i] = given[i];
  }
  return result;
}

std::vector<Item> take_pending(Unit& unit) {
  std::vector<Item> items;
  for (auto& p : unit.parameters) {
    if (!p.pending.defined()) continue;
    const DTensor gradient(std::exchange(p.pending, at::Tensor()));
    p.expected = false;
    const auto tensor = p.lock();
    if (!tensor.defined()) continue;
    auto wanted = before_reduction(unit, p, gradient.placements());
    auto local = gradient.redistribute(wanted).to_local();
    items.push_back({&p, DTensor(tensor), std::move(local), std::move(wanted)});
  }
  unit.pending_pass = -1;
  return items;
}

at::ScalarType reduce_dtype(const Unit& unit, const Item& item) {
  const auto own = item.local.scalar_type();
  return at::isFloatingType(own) ? unit.options.precision.reduce_dtype.value_or(own) : own;
}

at::Tensor in_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

// Dense, in the parameter's order of dimensions: views of one buffer.
std::vector<at::Tensor> shard_buffers(const Unit& unit, const std::vector<Item*>& items, at::ScalarType dtype) {
  const auto me = static_cast<std::size_t>(unit.reduces.rank());
  std::vector<Layout> layouts;
  std::int64_t total = 0;
  for (const auto* item : items) {
    auto sizes = item->p->layout.sizes;
    sizes[static_cast<std::size_t>(item->p->layout.dim)] = item->p->layout.pieces[me].length;
    layouts.push_back(make_layout(sizes, item->p->layout.strides, 0, 1));
    total += layouts.back().numel();
  }
  const auto flat = unit.reduces.empty({total}, at::TensorOptions(dtype).device(unit.mesh.device_type()));
  std::vector<at::Tensor> buffers;
  std::int64_t offset = 0;
  for (const auto& layout : layouts) {
    buffers.push_back(view_of(flat, dtype, layout.sizes, layout.strides, offset));
    offset += layout.numel();
  }
  return buffers;
}

Scatter start_scatter(const Unit& unit, std::vector<Item*> items, at::ScalarType dtype) {
  Scatter scatter{std::move(items), {}, {}, {}};
  scatter.outputs = shard_buffers(unit, scatter.items, dtype);
  std::vector<at::Tensor> wide;
  for (const auto* item : scatter.items) wide.push_back(in_dtype(item->local, dtype));
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(unit.reduces.size()); ++rank) {
    for (std::size_t k = 0; k < wide.size(); ++k) {
      scatter.inputs.push_back(scatter.items[k]->p->layout.piece(wide[k], rank));
    }
  }
  scatter.work = unit.reduces.reduce_scatter_list(scatter.outputs, scatter.inputs, ReduceOp::sum);
  return scatter;
}

void finish_scatter(const Unit& unit, Scatter& scatter) {
  scatter.work.wait();
  const auto axis = static_cast<std::size_t>(unit.axes.shard);
  for (std::size_t k = 0; k < scatter.items.size(); ++k) {
    auto* item = scatter.items[k];
    item->local = scatter.outputs[k];
    item->placements[axis] = item->p->reduced[axis];
  }
  scatter.inputs.clear();
}

// What earlier passes left reduced over the shard axis only joins before the sum over replicas.
void join_accumulated(Item& item, std::size_t axis) {
  if (!item.placements[axis].is_partial()) return;
  const auto sum = item.parameter.grad();
  if (!is_dtensor(sum) || DTensor(sum).placements() != item.placements) return;
  item.local = in_dtype(item.local, item.p->dtype) + DTensor(sum).to_local();
  item.parameter.mutable_grad().reset();
}

void all_reduce(const Unit& unit, std::size_t axis, const std::vector<Item*>& items, at::ScalarType dtype) {
  std::vector<at::Tensor> locals;
  for (auto* item : items) {
    item->local = in_dtype(item->local, dtype);
    locals.push_back(item->local);
    item->placements[axis] = Replicate();
  }
  unit.mesh.communicator(static_cast<std::int64_t>(axis)).all_reduce_list(locals, ReduceOp::sum).wait();
}

// Those that are sums on the axis, by the dtype in which they are summed.
std::map<at::ScalarType, std::vector<Item*>> sums_on(const Unit& unit, std::size_t axis, std::vector<Item>& items) {
  std::map<at::ScalarType, std::vector<Item*>> result;
  for (auto& item : items) {
    if (item.placements[axis].is_partial()) result[reduce_dtype(unit, item)].push_back(&item);
  }
  return result;
}

void reduce_axis(const Unit& unit, std::size_t axis, std::vector<Item>& items, FsdpStats& stats) {
  const auto index = static_cast<std::int64_t>(axis);
  if (index == unit.axes.replicate) {
    for (auto& item : items) join_accumulated(item, axis);
    if (NoReplicaSync::active()) return;
  }
  const bool nobody_else = unit.mesh.size(index) == 1;
  for (auto& [dtype, group] : sums_on(unit, axis, items)) {
    if (nobody_else) {
      for (auto* item : group) item->placements[axis] = Replicate();
      continue;
    }
    all_reduce(unit, axis, group, dtype);
    ++stats.all_reduces;
  }
}

std::vector<Scatter> start_scatters(const Unit& unit, std::vector<Item>& items) {
  std::vector<Scatter> scatters;
  for (auto& [dtype, group] : sums_on(unit, static_cast<std::size_t>(unit.axes.shard), items)) {
    std::vector<Item*> sharded;
    std::copy_if(group.begin(), group.end(), std::back_inserter(sharded), [](auto* i) { return i->p->sharded; });
    if (!sharded.empty()) scatters.push_back(start_scatter(unit, std::move(sharded), dtype));
  }
  return scatters;
}

void accumulate(const Item& item, const DeviceMesh& mesh) {
  const auto& p = *item.p;
  accumulate_gradient(item.parameter,
                      DTensor::from_local(in_dtype(item.local, p.dtype), mesh, item.placements, p.sizes, p.strides));
}

std::int64_t bytes_of(const at::Tensor& gradient) {
  return static_cast<std::int64_t>(DTensor(gradient).to_local().nbytes());
}

}  // namespace

void Schedule::gradient(Unit& unit, std::size_t k, const DTensor& parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const int pass = current_backward();
  enter_pass(pass);
  switch_phase(kBackward);
  auto& p = unit.parameters[k];
  p.pending = gradient.detach();
  // What NoGradientSync left joins it.
  const auto earlier = parameter.grad();
  if (is_dtensor(earlier) && DTensor(earlier).placements() == DTensor(gradient).placements() &&
      DTensor(earlier).placements() != p.reduced) {
    p.pending = earlier.add(p.pending);
    parameter.mutable_grad().reset();
  }
  count_unreduced(bytes_of(p.pending));
  if (unit.pending_pass < 0) unit.pending_pass = pass;
  if (!unit.complete()) return;
  reduce(unit);
  release(unit);
}

// One reduction is under way at a time, where collectives run in the background: it ends when the next one starts.
void Schedule::reduce(Unit& unit) {
  finish_reduction();
  std::int64_t bytes = 0;
  for (const auto& p : unit.parameters) bytes += p.pending.defined() ? bytes_of(p.pending) : 0;
  reduction_ = std::make_unique<Reduction>();
  reduction_->unit = &unit;
  reduction_->bytes = bytes;
  reduction_->items = take_pending(unit);
  const at::AutoDispatchBelowADInplaceOrView below;
  reduction_->scatters = start_scatters(unit, reduction_->items);
  stats.reduce_scatters += static_cast<std::int64_t>(reduction_->scatters.size());
  if (!unit.reduces.asynchronous()) finish_reduction();
}

void Schedule::finish_reduction() {
  if (!reduction_) return;
  const auto done = std::move(reduction_);
  const auto& unit = *done->unit;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (auto& scatter : done->scatters) finish_scatter(unit, scatter);
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(unit.mesh.ndim()); ++axis) {
      reduce_axis(unit, axis, done->items, stats);
    }
  }
  for (const auto& item : done->items) accumulate(item, unit.mesh);
  count_unreduced(-done->bytes);
}

// Gradients that an earlier pass left unreduced, of parameters that had none in this one.
void Schedule::reduce_leftovers() {
  for (auto* unit : units_) {
    bool any = false;
    for (auto& p : unit->parameters) {
      const auto tensor = p.lock();
      if (!tensor.defined() || !is_dtensor(tensor.grad())) continue;
      const DTensor sum(tensor.grad());
      auto goal = p.reduced;
      if (NoReplicaSync::active() && unit->axes.replicate >= 0) {
        const auto axis = static_cast<std::size_t>(unit->axes.replicate);
        goal[axis] = sum.placements()[axis];
      }
      if (sum.placements() == goal) continue;
      p.pending = std::exchange(tensor.mutable_grad(), at::Tensor());
      count_unreduced(bytes_of(p.pending));
      any = true;
    }
    if (any) reduce(*unit);
  }
}

}  // namespace fsdp
}  // namespace dtensor
