// Phases, first uses, what is dropped when, and what is fetched ahead.
#include "parallel/fsdp/schedule.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "dtensor/hooks.h"

namespace dtensor::fsdp {
namespace {

// A model that computes in the parameters' own dtype has forgotten its ComputeScope.
void warn_of_dtype(Unit& unit, const Parameter& p, const DTensor& parameter, at::ScalarType dtype) {
  if (dtype != p.dtype || !at::GradMode::is_enabled() || !parameter.requires_grad()) return;
  if (std::exchange(unit.warned, true)) return;
  TORCH_WARN("fully_shard: parameter '", p.name, "' is computed with in ", dtype, ", although the param_dtype of its ",
             "unit is ", p.gather_dtype(), ". A param_dtype takes effect within a ComputeScope ",
             "(or an autocast of it): put the forward pass in one");
}

}  // namespace

void Schedule::join(const std::shared_ptr<Schedule>& schedule, Unit& unit) {
  const auto former = std::exchange(unit.schedule, schedule);
  if (former == schedule) return;
  schedule->units_.push_back(&unit);
  if (!former) return;
  schedule->count_gathered(unit.held_bytes());
  former->leave(unit);
  schedule->add_counts(*former);
  while (!former->units_.empty()) join(schedule, *former->units_.front());
}

// What the units of another schedule, which come to this one, have done. Gathered copies come with each.
void Schedule::add_counts(Schedule& former) {
  stats.all_gathers += std::exchange(former.stats.all_gathers, 0);
  stats.reduce_scatters += std::exchange(former.stats.reduce_scatters, 0);
  stats.all_reduces += std::exchange(former.stats.all_reduces, 0);
  stats.peak_gathered_bytes = std::max(stats.peak_gathered_bytes, former.stats.peak_gathered_bytes);
  stats.peak_unreduced_bytes = std::max(stats.peak_unreduced_bytes, former.stats.peak_unreduced_bytes);
  count_unreduced(std::exchange(former.stats.unreduced_bytes, 0));
}

void Schedule::leave(Unit& unit) {
  count_gathered(-unit.held_bytes());
  std::erase(units_, &unit);
  for (auto& order : order_) std::erase(order, &unit);
  std::erase(running_, &unit);
  if (current_ == &unit) current_ = nullptr;
  if (recomputed_ == &unit) recomputed_ = nullptr;
  if (kept_ == &unit || kept_at_ == &unit) kept_ = nullptr;
  if (scattering_ && &scattering_->unit == &unit) scattering_.reset();
  if (summing_ && &summing_->unit == &unit) summing_.reset();
}

at::Tensor Schedule::use(Unit& unit, std::size_t k, const DTensor& parameter, const Placements& gathered,
                         at::ScalarType dtype) {
  auto& p = unit.parameters[k];
  p.check_filled(parameter);
  if (!p.fetched || gathered != p.gathered || !p.is_where_put(parameter)) return {};
  if (!p.serves(dtype)) return warn_of_dtype(unit, p, parameter, dtype), at::Tensor();
  begin_use(unit);
  if (!unit.is_fresh(p, parameter)) gather(unit);
  finish_gather(unit);
  note_use(unit, p, parameter);
  return p.full;
}

// Which pass and phase this is; what is finished with, now that `unit` is used, is dropped.
void Schedule::begin_use(Unit& unit) {
  const int pass = current_backward();
  if (pass >= 0) {
    enter_pass(pass);
  } else if (!passes_.empty()) {
    abandon_passes();
  }
  const bool trains = at::GradMode::is_enabled() || RunsAgain::active();
  switch_phase(pass >= 0 ? kBackward : trains ? kForward : kInference);
  if (current_ != &unit) release_finished(unit);
  current_ = &unit;
}

void Schedule::note_use(Unit& unit, Parameter& p, const DTensor& parameter) {
  p.used = true;
  p.expected |= at::GradMode::is_enabled() && parameter.requires_grad();
  unit.prefetched = false;
  if (unit.uses++ > 0) return;
  running_.push_back(&unit);
  prefetch(unit);
}

void Schedule::gather(Unit& unit) {
  if (!unit.is_gathered()) count_gathered(unit.flat_bytes);
  const auto before = unit.kept_bytes();
  try {
    unit.drop();
    unit.start_gather();
  } catch (...) {
    unit.abandon_gather();
    count_gathered(-unit.flat_bytes);
    throw;
  }
  count_gathered(unit.kept_bytes() - before);
  ++stats.all_gathers;
}

void Schedule::finish_gather(Unit& unit) {
  try {
    unit.finish_gather();
  } catch (...) {
    count_gathered(-unit.flat_bytes);
    throw;
  }
}

// No gradient tells when an unsynchronised backward pass is through with a unit, nor does what was recorded, if this is
// the first pass: it goes when another is used, and may have to be gathered again.
bool Schedule::is_untold(const Unit& unit) const {
  return phase_ == kBackward && unit.recorded[kBackward].none() && NoGradientSync::active();
}

void Schedule::release(Unit& unit) {
  if (kept_ == &unit) kept_ = nullptr;
  if (!unit.is_gathered()) return;
  if (unit.uses > 0 && is_untold(unit)) {
    unit.untold_uses.push_back(unit.uses);
  } else if (unit.uses > 0) {
    unit.recorded[phase_].note(unit.uses);
  }
  unit.uses = 0;
  if (unit.held || unit.open > 0 || unit.kept_for_graph) return;
  count_gathered(-unit.flat_bytes);  // whatever comes of a gather that is under way still
  if (phase_ != kForward || !unit.wants_shrinking()) return unit.drop();
  const auto before = unit.kept_bytes();
  unit.shrink();
  count_gathered(unit.kept_bytes() - before);
}

void Schedule::hold(Unit& unit) {
  if (unit.flat_bytes == 0) return;
  if (!unit.is_gathered() || !unit.all_fresh()) gather(unit);
  unit.held = true;
}

void Schedule::let_go(Unit& unit) {
  unit.held = false;
  release(unit);
}

// A unit is through when it was used as often as one of the last times. The first time, in forward, when each of its
// parameters was used (what is used at the beginning and at the end of a model stays); in backward, when its gradients
// are reduced.
bool Schedule::is_finished(const Unit& unit) const {
  if (unit.prefetched || unit.uses == 0) return false;
  if (phase_ != kBackward && !unit.reshards) return false;
  if (is_untold(unit)) return true;
  if (!unit.recorded[phase_].none()) return unit.recorded[phase_].may_be_all(unit.uses);
  return phase_ == kBackward ? unit.frozen() : unit.all_used();
}

// Whether forward goes on with a unit that it has used before, which backward will use first and `unit` then: what
// forward ends with is not gathered again, and no more is there than before. The first time any second use is taken for
// the end.
bool Schedule::begins_backward(const Unit& unit, const Unit& next) const {
  if (phase_ != kForward || next.uses == 0) return false;
  const auto& order = order_[kBackward];
  const auto first = std::find_if(order.begin(), order.end(), [&](const Unit* other) { return other != &next; });
  return order.empty() || (first != order.end() && *first == &unit);
}

void Schedule::keep_for_backward(Unit& unit, const Unit& next) {
  unit.recorded[phase_].note(std::exchange(unit.uses, 0));
  kept_ = &unit;
  kept_at_ = &next;
}

// Forward goes on after all, or again: at most two units are there.
void Schedule::drop_kept(const Unit& next) {
  if (kept_ == nullptr || phase_ == kBackward || (phase_ == kForward && &next == kept_at_)) return;
  kept_ == &next ? static_cast<void>(kept_ = nullptr) : release(*kept_);
}

void Schedule::release_finished(const Unit& next) {
  drop_kept(next);
  for (auto* unit : units_) {
    if (unit == &next || !unit->is_gathered() || !is_finished(*unit)) continue;
    begins_backward(*unit, next) ? keep_for_backward(*unit, next) : release(*unit);
  }
  if (phase_ == kInference) limit_inference();
}

// Outside training anything may read parameters, a norm of each for a log perhaps: units of which a part was used must
// not pile up.
void Schedule::limit_inference() {
  int others = 0;
  for (auto* unit : units_) others += unit->is_gathered() && unit->reshards;
  for (auto* unit : units_) {
    if (others <= 2) return;
    if (!unit->is_gathered() || !unit->reshards || unit == current_) continue;
    release(*unit);
    --others;
  }
}

void Schedule::switch_phase(Phase phase) {
  if (phase == phase_) return;
  for (auto* unit : units_) {
    if (unit->uses > 0) unit->recorded[phase_].note(unit->uses);
    unit->uses = 0;
    for (auto& p : unit->parameters) p.used = false;
  }
  if (!running_.empty()) order_[phase_] = std::exchange(running_, {});
  phase_ = phase;
  if (phase == kBackward) kept_ = nullptr;
  if (phase == kBackward && order_[kBackward].empty()) {
    order_[kBackward].assign(order_[kForward].rbegin(), order_[kForward].rend());
  }
}

bool Schedule::may_prefetch(const Unit& by, const Unit& next) const {
  std::int64_t waiting = 0;
  for (const auto* unit : units_) waiting += unit->prefetched ? unit->flat_bytes : 0;
  if (by.options.prefetch_bytes) return waiting + next.flat_bytes <= *by.options.prefetch_bytes;
  return by.gathers.asynchronous() && waiting == 0;
}

// As long as this phase goes as the last one of its kind did.
void Schedule::prefetch(const Unit& unit) {
  const auto& order = order_[phase_];
  const auto next = running_.size();
  if (next > order.size() || order[next - 1] != &unit) return;
  for (auto i = next; i < order.size(); ++i) {
    if (order[i]->is_gathered()) continue;
    if (!may_prefetch(unit, *order[i])) return;
    gather(*order[i]);
    order[i]->prefetched = true;
  }
}

void Schedule::enter_pass(int pass) {
  forget_failed_passes();
  if (std::any_of(passes_.begin(), passes_.end(), [&](const Pass& open) { return open.id == pass; })) return;
  const auto end = std::make_shared<PassEnd>(*this, pass);
  for (const auto* unit : units_) {
    for (const auto& p : unit->parameters) end->parameters.push_back(p.lock());
  }
  passes_.push_back({pass, end});
  at_backward_end([this, pass, end] { end_pass(pass); });
}

// Dropped once: those were all.
void Schedule::learn_untold(Unit& unit) {
  const auto uses = std::exchange(unit.untold_uses, {});
  if (uses.size() == 1) unit.recorded[kBackward].note(uses[0]);
}

void Schedule::forget_expected(Unit& unit) {
  for (auto& p : unit.parameters) {
    p.expected = false;
    if (unit.arrivals > 0) p.came = std::exchange(p.arrived, false);
  }
}

void Schedule::learn_segments(Unit& unit) {
  if (unit.arrivals > 0 && (unit.awaited > 0 || unit.reductions > 1)) unit.awaited = unit.arrivals;
  unit.arrivals = unit.reductions = 0;
}

void Schedule::end_pass(int pass) {
  const at::NoGradGuard no_grad;
  keep_for_graph(pass);
  leave_calls(pass);
  for (auto* unit : units_) {
    if (unit->pending_pass == pass) reduce(*unit);
  }
  std::erase_if(passes_, [&](const Pass& open) { return open.id == pass || open.lives.expired(); });
  if (!passes_.empty()) return;  // an inner one: a recomputation
  if (!NoGradientSync::active()) {
    for (auto* unit : units_) reduce_leftovers(*unit);
  }
  finish_reductions();
  for (auto* unit : units_) {
    release(*unit);
    learn_untold(*unit);
    count_gathered(-unit->kept_bytes());
    unit->share.reset();
    if (!NoGradientSync::active()) forget_expected(*unit);  // else a later microbatch may have its graph already
    learn_segments(*unit);
  }
  switch_phase(kForward);
  current_ = recomputed_ = nullptr;
}

// A pass that threw never ended. What it left is of no use, least of all to a later pass over a graph that was there
// before it.
void Schedule::forget_failed_passes() {
  const auto failed = [](const Pass& open) { return open.lives.expired(); };
  if (C10_LIKELY(std::none_of(passes_.begin(), passes_.end(), failed))) return;
  std::erase_if(passes_, failed);
  if (passes_.empty()) return abandon_passes();
  for (auto* unit : units_) {  // one within another, which goes on
    const auto its = [&](const Pass& open) { return open.id == unit->pending_pass; };
    if (std::none_of(passes_.begin(), passes_.end(), its)) abandon(*unit);
  }
}

void Schedule::abandon(Unit& unit) {
  unit.kept_for_graph = false;
  unit.pending_pass = -1;
  unit.arrivals = unit.reductions = 0;
  unit.untold_uses.clear();
  for (auto& p : unit.parameters) {
    p.expected = p.arrived = p.came = false;
    count_unreduced(-local_bytes(p.pending));
    p.pending.reset();
    const auto goes_back = std::exchange(p.earlier, EarlierGradient());  // into .grad, now
  }
}

void Schedule::abandon_passes() {
  const at::NoGradGuard no_grad;
  passes_.clear();
  for (auto* under_way : {&summing_, &scattering_}) {
    if (const auto reduction = std::move(*under_way)) reduction->discard();
  }
  for (auto* unit : units_) {
    release(*unit);
    abandon(*unit);
  }
  stats.unreduced_bytes = 0;
  switch_phase(kForward);
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
