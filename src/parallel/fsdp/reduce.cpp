// Gradients of a unit wait as they come, Partial mostly, until the last expected one is there; then they are reduced
// (reduction.cpp). When reductions are waited for.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "dtensor/hooks.h"
#include "parallel/fsdp/reduction.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor {

NoReplicaSync::NoReplicaSync() : scope_({}) {}
bool NoReplicaSync::active() { return ScopedValue<Flag>::current() != nullptr; }

namespace fsdp {
namespace {

// What NoReplicaSync left in host memory goes back to be summed.
at::Tensor on_mesh(const DeviceMesh& mesh, const DTensor& sum) {
  if (sum.mesh() == mesh) return sum;
  return DTensor::from_local(sum.to_local().to(mesh.device_type()), mesh, sum.placements(), sum.sizes(), sum.strides());
}

bool sums_replicas(const Unit& unit) { return unit.sums_replicas && !NoReplicaSync::active(); }

// As the engine reduces what has no schedule: in a graph where the backward pass makes one, and to where the parameter
// is now.
void reduce_alone(const DTensor& parameter, const DTensor& gradient) {
  TORCH_CHECK(!at::GradMode::is_enabled() || gradient.mesh() == parameter.mesh(),
              "fully_shard: the gradient of a parameter in host memory (", parameter.spec_str(),
              ") cannot have a graph (create_graph): its copy to the host would not be part of it");
  const auto goal = gradient_placements(parameter);
  EarlierGradient earlier;
  DTensor reduced = gradient;
  if (const auto& sum = parameter.grad(); is_dtensor(sum) && DTensor(sum).placements() != goal) {
    earlier = EarlierGradient(parameter);
    reduced = DTensor(earlier.sum().add(gradient));
  }
  reduced = reduced.redistribute(goal);
  earlier.done();
  if (!gradient.mesh().is_member()) return accumulate_gradient(parameter, reduced);
  // A copy, as autograd makes where gradients have graphs.
  if (reduced.requires_grad()) return accumulate_gradient(parameter, DTensor(reduced.clone()).redistribute(goal));
  const auto local = reduced.to_local().to(parameter.mesh().device_type());
  // No operator, since whether memory is shared is each rank's own matter.
  accumulate_gradient(parameter, local.is_alias_of(gradient.to_local()) ? local.clone() : local, goal);
}

}  // namespace

void Schedule::gradient(Unit& unit, std::size_t k, const DTensor& parameter, const at::Tensor& gradient) {
  const int pass = current_backward();
  enter_pass(pass);
  switch_phase(kBackward);
  auto& p = unit.parameters[k];
  // The unit's collectives have no graph (create_graph), and know only what is where the unit put it.
  if (at::GradMode::is_enabled() || !p.is_where_put(parameter)) {
    p.expected = false;
    return reduce_alone(parameter, DTensor(gradient));
  }
  const at::NoGradGuard no_grad;
  if (unit.pending_pass < 0) unit.pending_pass = pass;
  if (unit.arrivals == 0 && p.fetched && !p.expected) {
    // Of a graph that is older than the end of the pass before: like that one's, as far as is known.
    for (auto& other : unit.parameters) other.expected |= other.came;
  }
  add_pending(p, gradient);
  // A unit over several recomputed segments is complete after each of them.
  if (++unit.arrivals < unit.awaited || !unit.complete()) return;
  ++unit.reductions;
  reduce(unit, gradient);
  release(unit);
}

void Schedule::add_pending(Parameter& p, at::Tensor gradient) {
  if (gradient.requires_grad()) gradient = gradient.detach();
  if (p.pending.defined()) {  // of another segment
    count_unreduced(-local_bytes(p.pending));
    gradient = named_alike(p, DTensor(p.pending)).add(named_alike(p, DTensor(gradient)));
  }
  p.pending = std::move(gradient);
  p.arrived = true;
  count_unreduced(local_bytes(p.pending));
}

// Where collectives run in the background, two reductions are under way at most: the reduce-scatter of the unit that
// was completed last, and the sum over replicas of the one before.
void Schedule::reduce(Unit& unit, const at::Tensor& arriving) {
  advance_reductions();
  scattering_ = std::make_unique<Reduction>(unit, arriving);
  stats.reduce_scatters += static_cast<std::int64_t>(scattering_->scatters.size());
  if (!unit.reduces.asynchronous()) finish_reductions();
}

void Schedule::advance_reductions() {
  if (const auto done = std::move(summing_)) done->finish();
  if (!scattering_) return;
  auto next = std::move(scattering_);
  count_unreduced(-next->bytes);
  stats.all_reduces += next->sum_up(sums_replicas(next->unit));
  summing_ = std::move(next);
}

void Schedule::finish_reductions() {
  while (scattering_ || summing_) advance_reductions();
}

// Whether there was something to take.
bool Schedule::take_leftovers(const Unit& unit, Parameter& p) {
  const auto tensor = p.lock();
  if (!tensor.defined() || !is_dtensor(tensor.grad()) || !p.is_where_put(DTensor(tensor))) return false;
  const DTensor sum(tensor.grad());
  const auto left = sums_replicas(unit) ? -1 : unit.axes.replicate;
  bool reduced = sum.mesh() == unit.home;
  for (std::size_t axis = 0; reduced && axis < p.reduced.size(); ++axis) {
    reduced = static_cast<std::int64_t>(axis) == left || sum.placements()[axis] == p.reduced[axis];
  }
  if (reduced) return false;
  p.pending = on_mesh(unit.mesh, sum);
  p.earlier = EarlierGradient(DTensor(tensor));
  count_unreduced(local_bytes(p.pending));
  return true;
}

// Gradients that an earlier pass left unreduced, of parameters that had none in this one.
void Schedule::reduce_leftovers(Unit& unit) {
  forget_failed_passes();
  try {
    bool any = false;
    if (!unit.syncs) return;
    for (auto& p : unit.parameters) any |= take_leftovers(unit, p);
    if (any) reduce(unit);
  } catch (...) {  // the unit's own reduction may not have begun: one before it failed
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
    const bool in_unit = unit != nullptr && unit->parameters[k].is_where_put(DTensor(parameter));
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
