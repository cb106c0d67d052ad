// When gradients of a unit are reduced. The Schedule collects them, mostly Partial, until the last expected one
// arrives, then starts their reduction (reduction.cpp), and decides when reductions are awaited. NoReplicaSync defers
// the all-reduce over replicas; reduce_gradients() reduces what such passes left.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/graph_task.h>

#include "dtensor/hooks.h"
#include "internal/host_work.h"
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
  const auto local = copy_to_device(sum.to_local(), at::Device(mesh.device_type()));
  return DTensor::from_local(local, mesh, sum.placements(), sum.sizes(), sum.strides());
}

bool requires_all_reduce(const Unit& unit) { return unit.requires_all_reduce && !NoReplicaSync::current(); }

}  // namespace

// Whether the current pass runs inside another one.
bool Schedule::is_recomputing() const {
  return passes_.size() > 1 || torch::autograd::get_current_graph_task_id() != current_backward_id();
}

bool Schedule::gradient(Unit& unit, std::size_t k, const DTensor& parameter, const at::Tensor& gradient) {
  const int pass = current_backward_id();
  enter_pass(pass);
  switch_pass_kind(kBackward);
  auto& p = unit.parameters[k];
  // The unit's collectives have no graph (create_graph), and include only parameters in their original layout.
  if (at::GradMode::is_enabled() || !p.has_original_layout(parameter)) {
    p.gradient_expected = false;
    return false;
  }
  const at::NoGradGuard no_grad;
  // Ranks that use different layers recompute different segments, so a unit with zeros waits for the end of the outer
  // pass.
  const bool waits = unit.reduces_unused && is_recomputing();
  if (unit.pending_pass < 0) unit.pending_pass = waits ? passes_.front().id : pass;
  if (unit.arrivals == 0 && p.is_gathered() && !p.gradient_expected) {
    // The graph is older than the end of the previous pass: expects the gradients that the previous pass had.
    for (auto& other : unit.parameters) other.gradient_expected |= other.had_gradient;
  }
  add_pending(p, gradient);
  // A unit that spans several recomputed segments is complete after each of them.
  if (++unit.arrivals < unit.expected_arrivals || waits || !unit.complete()) return true;
  ++unit.reductions;
  reduce(unit, gradient);
  reshard_if_unused(unit);
  return true;
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
  add_missing(unit);
  unit.reduced_in_pass = true;
  advance_reductions();
  reduce_scattering_ = std::make_unique<UnitReduction>(unit, arriving);
  stats.reduce_scatters += static_cast<std::int64_t>(reduce_scattering_->collectives.size());
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

// Adds what is to be reduced of parameters without a gradient in this pass. Other ranks may have one, of their local
// data. Returns whether there is anything.
bool Schedule::add_missing(Unit& unit) {
  bool any = false;
  for (auto& p : unit.parameters) {
    const auto tensor = p.lock();
    if (p.pending_gradient.defined() || !tensor.defined() || !p.has_original_layout(DTensor(tensor))) continue;
    const bool zero = unit.reduces_unused && !unit.reduced_in_pass && tensor.requires_grad();
    any |= take_leftovers(unit, p) || (zero && take_zeros(unit, p));
  }
  return any;
}

// Returns whether there was an unreduced gradient to take.
bool Schedule::take_leftovers(const Unit& unit, Parameter& p) {
  const DTensor parameter(p.lock());
  if (!is_dtensor(parameter.grad())) return false;
  const DTensor sum(parameter.grad());
  const auto placements = equivalent_placements(p, sum);  // on axes of one rank
  const auto differs = [&](std::size_t axis) { return placements[axis] != p.gradient_placements[axis]; };
  bool over_shards = sum.mesh() != unit.storage_mesh, over_replicas = false;
  for (std::size_t axis = 0; axis < p.gradient_placements.size(); ++axis) {
    (static_cast<std::int64_t>(axis) == unit.axes.replicate ? over_replicas : over_shards) |= differs(axis);
  }
  if (!over_shards && !(over_replicas && requires_all_reduce(unit))) {
    const at::NoGradGuard no_grad;
    if (placements != sum.placements()) parameter.mutable_grad() = with_equivalent_placements(p, sum);
    return false;
  }
  // A rank that has a gradient adds what lacks only the sum over replicas after its reduce-scatter.
  if (!over_shards && unit.unsharded_in_module && unit.pending_pass >= 0) return take_zeros(unit, p);
  p.pending_gradient = on_mesh(unit.mesh, sum);
  p.earlier = UnsynchronizedGradient(parameter);
  count_unreduced(local_bytes(p.pending_gradient));
  return true;
}

// Takes zeros as this rank's contribution.
bool Schedule::take_zeros(const Unit& unit, Parameter& p) {
  const auto placements = unit.contribution_placements(p.unsharded_placements);
  p.pending_gradient = zeros(p.sizes, unit.mesh, placements, at::TensorOptions(p.dtype));
  count_unreduced(local_bytes(p.pending_gradient));
  return true;
}

// Reduces what earlier passes left unreduced, in units whose gradients this pass does not reduce.
void Schedule::reduce_leftovers(Unit& unit) {
  forget_failed_passes();
  try {
    if (unit.requires_gradient_sync && add_missing(unit)) reduce(unit);
  } catch (...) {  // an earlier reduction may have failed before the unit's own began
    discard_pending_gradients(unit);
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
