// Collects gradients of a unit, mostly Partial, until the last expected one arrives, then starts their reduction
// (reduction.cpp). Also decides when reductions are awaited.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "dtensor/hooks.h"
#include "internal/simulated.h"
#include "parallel/fsdp/gradients/reduction.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor {

NoReplicaSync::NoReplicaSync() : scope_(open_scope(Flag{}, Recompute::unchanged)) {}
bool NoReplicaSync::current() { return ScopedValue<Flag>::current() != nullptr; }

namespace fsdp {
namespace {

// Copies a sum that NoReplicaSync left in host memory back to the device, to be reduced.
at::Tensor on_mesh(const DeviceMesh& mesh, const DTensor& sum) {
  if (sum.mesh() == mesh) return sum;
  return DTensor::from_local(sum.to_local().to(mesh.device_type()), mesh, sum.placements(), sum.sizes(), sum.strides());
}

bool requires_all_reduce(const Unit& unit) { return unit.requires_all_reduce && !NoReplicaSync::current(); }

// Reduces one gradient as the engine does without a schedule: with a graph under create_graph, and to the parameter's
// current placements.
void reduce_alone(const DTensor& parameter, const DTensor& gradient) {
  TORCH_CHECK(!at::GradMode::is_enabled() || gradient.mesh() == parameter.mesh(),
              "fully_shard: create_graph is not supported for a parameter in host memory (", parameter.spec_str(),
              "), because the copy of its gradient to the host is not part of the graph");
  const auto goal = gradient_placements(parameter);
  UnsynchronizedGradient earlier;
  DTensor reduced = gradient;
  if (const auto& sum = parameter.grad(); is_dtensor(sum) && DTensor(sum).placements() != goal) {
    earlier = UnsynchronizedGradient(parameter);
    reduced = DTensor(earlier.sum().add(gradient));
  }
  reduced = reduced.redistribute(goal);
  earlier.done();
  if (!gradient.mesh().is_member()) return accumulate_gradient(parameter, reduced);
  // A copy, as autograd makes for gradients with graphs.
  if (reduced.requires_grad()) return accumulate_gradient(parameter, DTensor(reduced.clone()).redistribute(goal));
  const auto local = reduced.to_local().to(parameter.mesh().device_type());
  // Not a DTensor operator, because whether memory is shared may differ between ranks.
  accumulate_gradient(parameter, shares_storage(local, gradient.to_local()) ? local.clone() : local, goal);
}

}  // namespace

void Schedule::gradient(Unit& unit, std::size_t k, const DTensor& parameter, const at::Tensor& gradient) {
  const int pass = current_backward_id();
  enter_pass(pass);
  switch_pass_kind(kBackward);
  auto& p = unit.parameters[k];
  // The unit's collectives have no graph (create_graph), and include only parameters in their original layout.
  if (at::GradMode::is_enabled() || !p.has_original_layout(parameter)) {
    p.gradient_expected = false;
    return reduce_alone(parameter, DTensor(gradient));
  }
  const at::NoGradGuard no_grad;
  if (unit.pending_pass < 0) unit.pending_pass = pass;
  if (unit.arrivals == 0 && p.in_flat_buffer && !p.gradient_expected) {
    // The graph is older than the end of the previous pass: expects the gradients that the previous pass had.
    for (auto& other : unit.parameters) other.gradient_expected |= other.had_gradient;
  }
  add_pending(p, gradient);
  // A unit that spans several recomputed segments is complete after each of them.
  if (++unit.arrivals < unit.expected_arrivals || !unit.complete()) return;
  ++unit.reductions;
  reduce(unit, gradient);
  release(unit);
}

void Schedule::add_pending(Parameter& p, at::Tensor gradient) {
  if (gradient.requires_grad()) gradient = gradient.detach();
  if (p.pending_gradient.defined()) {  // from another segment
    count_unreduced(-local_bytes(p.pending_gradient));
    gradient = with_equivalent_placements(p, DTensor(p.pending_gradient))
                   .add(with_equivalent_placements(p, DTensor(gradient)));
  }
  p.pending_gradient = std::move(gradient);
  p.gradient_arrived = true;
  count_unreduced(local_bytes(p.pending_gradient));
}

// If collectives run in the background, at most two reductions are active: the reduce-scatter of the unit completed
// last, and the all-reduce over replicas of the one before.
void Schedule::reduce(Unit& unit, const at::Tensor& arriving) {
  advance_reductions();
  reduce_scattering_ = std::make_unique<GradientReduction>(unit, arriving);
  stats.reduce_scatters += static_cast<std::int64_t>(reduce_scattering_->scatters.size());
  if (!unit.reduce_scatter_comm.asynchronous()) finish_reductions();
}

void Schedule::advance_reductions() {
  if (const auto done = std::move(all_reducing_)) done->finish();
  if (!reduce_scattering_) return;
  auto next = std::move(reduce_scattering_);
  count_unreduced(-next->bytes);
  stats.all_reduces += next->start_all_reduces(requires_all_reduce(next->unit));
  all_reducing_ = std::move(next);
}

void Schedule::finish_reductions() {
  while (reduce_scattering_ || all_reducing_) advance_reductions();
}

// Returns whether there was an unreduced gradient to take.
bool Schedule::take_leftovers(const Unit& unit, Parameter& p) {
  const auto tensor = p.lock();
  if (!tensor.defined() || !is_dtensor(tensor.grad()) || !p.has_original_layout(DTensor(tensor))) return false;
  const DTensor sum(tensor.grad());
  const auto left = requires_all_reduce(unit) ? -1 : unit.axes.replicate;
  bool reduced = sum.mesh() == unit.storage_mesh;
  for (std::size_t axis = 0; reduced && axis < p.gradient_placements.size(); ++axis) {
    reduced = static_cast<std::int64_t>(axis) == left || sum.placements()[axis] == p.gradient_placements[axis];
  }
  if (reduced) return false;
  p.pending_gradient = on_mesh(unit.mesh, sum);
  p.earlier = UnsynchronizedGradient(DTensor(tensor));
  count_unreduced(local_bytes(p.pending_gradient));
  return true;
}

// Reduces gradients that an earlier pass left unreduced, of parameters without a gradient in this pass.
void Schedule::reduce_leftovers(Unit& unit) {
  forget_failed_passes();
  try {
    bool any = false;
    if (!unit.requires_gradient_sync) return;
    for (auto& p : unit.parameters) any |= take_leftovers(unit, p);
    if (any) reduce(unit);
  } catch (...) {  // an earlier reduction may have failed before the unit's own began
    abandon(unit);
    throw;
  }
}

}  // namespace fsdp

void reduce_gradients(at::TensorList parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> owners;
  std::vector<DTensor> sums;
  std::vector<Placements> goals;
  std::vector<std::shared_ptr<fsdp::Schedule>> schedules;  // in one order on every rank
  for (const at::Tensor& parameter : parameters) {
    std::size_t k = 0;
    auto* unit = fsdp::unit_of(parameter, k);
    const bool in_unit = unit != nullptr && unit->parameters[k].has_original_layout(DTensor(parameter));
    if (in_unit && unit->mesh.is_member() && unit->has_work()) {
      unit->schedule->reduce_leftovers(*unit);
      const bool known = std::find(schedules.begin(), schedules.end(), unit->schedule) != schedules.end();
      if (!known) schedules.push_back(unit->schedule);
    } else if (is_dtensor(parameter) && is_dtensor(parameter.grad())) {
      const DTensor sum(parameter.grad());
      Placements goal = gradient_placements(DTensor(parameter));
      if (sum.placements() == goal) continue;
      owners.push_back(parameter);
      sums.push_back(sum);
      goals.push_back(std::move(goal));
    }
  }
  for (const auto& schedule : schedules) schedule->finish_reductions();
  const auto reduced = redistribute(sums, std::move(goals));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    owners[i].mutable_grad().reset();
    accumulate_gradient(DTensor(owners[i]), reduced[i]);
  }
}

}  // namespace dtensor
