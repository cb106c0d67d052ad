// Phases, order of first uses, and which units are freed and prefetched.
#include "parallel/fsdp/schedule.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "dtensor/hooks.h"
#include "internal/fsdp_call.h"

namespace dtensor::fsdp {
namespace {

// Warns if a model computes in the parameters' own dtype, which suggests a forward pass outside calls and
// ComputeScopes.
void warn_of_dtype(Unit& unit, const Parameter& p, const DTensor& parameter, at::ScalarType dtype) {
  if (dtype != p.dtype || !at::GradMode::is_enabled() || !parameter.requires_grad()) return;
  if (std::exchange(unit.warned, true)) return;
  TORCH_WARN("fully_shard: parameter '", p.name, "' is used in ", dtype, ", although the param_dtype of its ",
             "unit is ", p.gather_dtype(), ". param_dtype takes effect only in calls of a module ",
             "that fully_shard was given, in a ComputeScope or an autocast to it: run the forward pass in one");
}

}  // namespace

void Schedule::join(const std::shared_ptr<Schedule>& schedule, Unit& unit) {
  const auto former = std::exchange(unit.schedule, schedule);
  if (former == schedule) return;
  schedule->units_.push_back(&unit);
  if (!former) return;
  schedule->count_gathered(unit.held_bytes());
  former->remove_unit(unit);
  schedule->add_counts(*former);
  while (!former->units_.empty()) join(schedule, *former->units_.front());
}

// Adds the counters of another schedule whose units join this one. Gathered bytes are counted by unit.
void Schedule::add_counts(Schedule& former) {
  stats.all_gathers += std::exchange(former.stats.all_gathers, 0);
  stats.reduce_scatters += std::exchange(former.stats.reduce_scatters, 0);
  stats.all_reduces += std::exchange(former.stats.all_reduces, 0);
  stats.peak_gathered_bytes = std::max(stats.peak_gathered_bytes, former.stats.peak_gathered_bytes);
  stats.peak_unreduced_bytes = std::max(stats.peak_unreduced_bytes, former.stats.peak_unreduced_bytes);
  count_unreduced(std::exchange(former.stats.unreduced_bytes, 0));
}

void Schedule::remove_unit(Unit& unit) {
  count_gathered(-unit.held_bytes());
  std::erase(units_, &unit);
  for (auto& order : order_) std::erase(order, &unit);
  std::erase(running_, &unit);
  if (current_ == &unit) current_ = nullptr;
  if (recomputed_ == &unit) recomputed_ = nullptr;
  if (kept_after_forward_ == &unit || first_used_after_kept_ == &unit) kept_after_forward_ = nullptr;
  if (reduce_scattering_ && &reduce_scattering_->unit == &unit) reduce_scattering_.reset();
  if (all_reducing_ && &all_reducing_->unit == &unit) all_reducing_.reset();
}

at::Tensor Schedule::use(Unit& unit, std::size_t k, const DTensor& parameter, const Placements& gathered,
                         at::ScalarType dtype) {
  auto& p = unit.parameters[k];
  p.check_initialized(parameter);
  p.used_globally |= at::GradMode::is_enabled() && parameter.requires_grad();
  if (!p.in_flat_buffer || gathered != p.unsharded_placements || !p.has_original_layout(parameter)) return {};
  if (!p.serves(dtype)) return warn_of_dtype(unit, p, parameter, dtype), at::Tensor();
  begin_use(unit);
  if (!unit.is_fresh(p, parameter)) gather(unit);
  finish_gather(unit);
  note_use(unit, p, parameter);
  return p.full;
}

// Determines the pass and phase, and frees units that are finished now that `unit` is used.
void Schedule::begin_use(Unit& unit) {
  const int pass = current_backward_id();
  if (pass >= 0) {
    enter_pass(pass);
  } else if (!passes_.empty()) {
    abandon_passes();
  }
  const bool trains = at::GradMode::is_enabled() || RecomputeGuard::current() || in_training_call();
  switch_pass_kind(pass >= 0 ? kBackward : trains ? kForward : kInference);
  if (current_ != &unit) reshard_finished(unit);
  current_ = &unit;
}

void Schedule::note_use(Unit& unit, Parameter& p, const DTensor& parameter) {
  p.used = true;
  p.gradient_expected |= at::GradMode::is_enabled() && parameter.requires_grad();
  unit.prefetched = false;
  if (unit.uses++ > 0) return;
  running_.push_back(&unit);
  prefetch(unit);
}

void Schedule::gather(Unit& unit) {
  unit.prepare_gather();
  if (!unit.is_gathered()) count_gathered(unit.gathered_bytes());
  const auto before = unit.kept_shard_bytes();
  try {
    unit.reshard();
    unit.start_gather();
  } catch (...) {
    unit.reshard_after_failed_gather();
    count_gathered(-unit.gathered_bytes());
    throw;
  }
  count_gathered(unit.kept_shard_bytes() - before);
  ++stats.all_gathers;
}

void Schedule::finish_gather(Unit& unit) {
  try {
    unit.finish_gather();
  } catch (...) {
    count_gathered(-unit.gathered_bytes());
    throw;
  }
}

// In an unsynchronized backward pass, neither gradients nor, if this is the first pass, recorded uses show that a unit
// is finished. It is freed when another unit is used, and may have to be gathered again.
bool Schedule::ends_implicitly(const Unit& unit) const {
  return pass_kind_ == kBackward && unit.recorded[kBackward].none() && NoGradientSync::current();
}

void Schedule::force_reshard(Unit& unit) {
  if (!unit.is_gathered()) return;
  count_gathered(-unit.gathered_bytes());
  unit.reshard();
}

void Schedule::reshard_if_unused(Unit& unit) {
  if (kept_after_forward_ == &unit) kept_after_forward_ = nullptr;
  if (!unit.is_gathered()) return;
  if (unit.uses > 0 && ends_implicitly(unit)) {
    unit.implicit_reshard_uses.push_back(unit.uses);
  } else if (unit.uses > 0) {
    unit.recorded[pass_kind_].note(unit.uses);
  }
  unit.uses = 0;
  if (unit.pinned || unit.active_calls > 0 || unit.kept_for_graph) return;
  if (pass_kind_ == kBackward && !unit.reshards_after_backward) return;
  count_gathered(-unit.gathered_bytes());  // also if an active gather fails
  if (pass_kind_ != kForward || !unit.has_post_forward_mesh()) return unit.reshard();
  const auto before = unit.kept_shard_bytes();
  unit.reshard_to_post_forward_mesh();
  count_gathered(unit.kept_shard_bytes() - before);
}

void Schedule::pin(Unit& unit) {
  if (!unit.gathers()) return;
  if (!unit.is_gathered() || !unit.all_fresh()) gather(unit);
  unit.pinned = true;
}

void Schedule::unpin(Unit& unit) {
  unit.pinned = false;
  reshard_if_unused(unit);
}

// A unit is finished when it has been used as often as in a recent pass. In the first pass: in forward, when each of
// its parameters was used (so a unit used at the beginning and at the end of a model is kept); in backward, when its
// gradients are reduced.
bool Schedule::is_finished(const Unit& unit) const {
  if (unit.prefetched || unit.uses == 0) return false;
  if (pass_kind_ != kBackward && !unit.reshards) return false;
  if (ends_implicitly(unit)) return true;
  if (!unit.recorded[pass_kind_].none()) return unit.recorded[pass_kind_].may_be_all(unit.uses);
  return pass_kind_ == kBackward ? unit.frozen() : unit.all_used();
}

// Whether forward returns to a unit `next` that it has used before, and backward uses `next` first and `unit` second.
// Then `unit` is kept instead of gathered again, which does not raise the peak. In the first pass, any second use
// counts as the end of forward.
bool Schedule::begins_backward(const Unit& unit, const Unit& next) const {
  if (pass_kind_ != kForward || next.uses == 0) return false;
  const auto& order = order_[kBackward];
  const auto first = std::find_if(order.begin(), order.end(), [&](const Unit* other) { return other != &next; });
  return order.empty() || (first != order.end() && *first == &unit);
}

void Schedule::keep_for_backward(Unit& unit, const Unit& next) {
  unit.recorded[pass_kind_].note(std::exchange(unit.uses, 0));
  kept_after_forward_ = &unit;
  first_used_after_kept_ = &next;
}

// If forward continues or starts again, frees the kept unit, so that at most two units are gathered.
void Schedule::reshard_kept_after_forward(const Unit& next) {
  if (kept_after_forward_ == nullptr || pass_kind_ == kBackward ||
      (pass_kind_ == kForward && &next == first_used_after_kept_))
    return;
  kept_after_forward_ == &next ? static_cast<void>(kept_after_forward_ = nullptr)
                               : reshard_if_unused(*kept_after_forward_);
}

void Schedule::reshard_finished(const Unit& next) {
  reshard_kept_after_forward(next);
  for (auto* unit : units_) {
    if (unit == &next || !unit->is_gathered() || !is_finished(*unit)) continue;
    begins_backward(*unit, next) ? keep_for_backward(*unit, next) : reshard_if_unused(*unit);
  }
  if (pass_kind_ == kInference) limit_inference();
}

// Outside training, any code may read parameters (to log their norms, for instance). Limits the number of partly used
// units that stay gathered.
void Schedule::limit_inference() {
  int others = 0;
  for (auto* unit : units_) others += unit->is_gathered() && unit->reshards;
  for (auto* unit : units_) {
    if (others <= 2) return;
    if (!unit->is_gathered() || !unit->reshards || unit == current_) continue;
    reshard_if_unused(*unit);
    --others;
  }
}

void Schedule::switch_pass_kind(PassKind pass_kind) {
  if (pass_kind == pass_kind_) return;
  for (auto* unit : units_) {
    if (unit->uses > 0) unit->recorded[pass_kind_].note(unit->uses);
    unit->uses = 0;
    for (auto& p : unit->parameters) p.used = false;
  }
  if (!running_.empty()) order_[pass_kind_] = std::exchange(running_, {});
  pass_kind_ = pass_kind;
  if (pass_kind == kBackward) kept_after_forward_ = nullptr;
  if (pass_kind == kBackward && order_[kBackward].empty()) {
    order_[kBackward].assign(order_[kForward].rbegin(), order_[kForward].rend());
  }
}

bool Schedule::may_prefetch(const Unit& by, const Unit& next) const {
  std::int64_t waiting = 0;
  for (const auto* unit : units_) waiting += unit->prefetched ? unit->gathered_bytes() : 0;
  if (by.options.prefetch_bytes) return waiting + next.gathered_bytes() <= *by.options.prefetch_bytes;
  return by.all_gather_comm.asynchronous() && waiting == 0;
}

// Prefetches as long as this phase follows the order of the last one of its kind.
void Schedule::prefetch(const Unit& unit) {
  const auto& order = order_[pass_kind_];
  const auto next = running_.size();
  if (next > order.size() || order[next - 1] != &unit) return;
  for (auto i = next; i < order.size(); ++i) {
    if (order[i]->is_gathered()) continue;
    if (!may_prefetch(unit, *order[i])) return;
    gather(*order[i]);
    order[i]->prefetched = true;
  }
}

void Schedule::count_gathered(std::int64_t bytes) {
  stats.gathered_bytes += bytes;
  stats.peak_gathered_bytes = std::max(stats.peak_gathered_bytes, stats.gathered_bytes);
}

void Schedule::count_unreduced(std::int64_t bytes) {
  stats.unreduced_bytes += bytes;
  stats.peak_unreduced_bytes = std::max(stats.peak_unreduced_bytes, stats.unreduced_bytes);
}

}  // namespace dtensor::fsdp
