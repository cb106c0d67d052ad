// Begin and end of backward passes, and what failed passes leave behind.
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "dtensor/hooks.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor::fsdp {

void Schedule::begin_pass(Unit& unit) {
  unit.reduced_in_pass = false;
  for (auto& p : unit.parameters) p.has_global_parts = p.has_global_parts && unit.unreduced_gradient(p).defined();
}

void Schedule::enter_pass(int pass) {
  forget_failed_passes();
  if (std::any_of(passes_.begin(), passes_.end(), [&](const Pass& open) { return open.id == pass; })) return;
  const auto end = std::make_shared<PassEnd>(*this, pass);
  for (auto* unit : units_) {
    if (passes_.empty()) begin_pass(*unit);
    for (const auto& p : unit->parameters) end->parameters.push_back(p.lock());
  }
  passes_.push_back({pass, end});
  queue_backward_callback([this, pass, end] { end_pass(pass); });
}

// Records the uses if the unit was freed only once.
void Schedule::learn_implicit_reshards(Unit& unit) {
  const auto uses = std::exchange(unit.implicit_reshard_uses, {});
  if (uses.size() == 1) unit.recorded[kBackward].note(uses[0]);
}

void Schedule::forget_expected(Unit& unit) {
  for (auto& p : unit.parameters) {
    p.gradient_expected = false;
    p.has_global_parts |= std::exchange(p.used_globally, false);
    if (unit.arrivals > 0) p.had_gradient = std::exchange(p.gradient_arrived, false);
  }
}

void Schedule::learn_segments(Unit& unit) {
  if (unit.arrivals > 0 && (unit.expected_arrivals > 0 || unit.reductions > 1)) unit.expected_arrivals = unit.arrivals;
  unit.arrivals = unit.reductions = 0;
}

void Schedule::end_pass(int pass) {
  const at::NoGradGuard no_grad;
  keep_for_graph(pass);
  leave_calls(pass);
  for (auto* unit : units_) {
    if (unit->pending_pass == pass) reduce(*unit);
  }
  std::erase_if(passes_, [&](const Pass& open) { return open.id == pass || open.owner_alive.expired(); });
  if (!passes_.empty()) return;  // this was an inner pass of a recomputation
  if (!NoGradientSync::current()) {
    for (auto* unit : units_) reduce_leftovers(*unit);
  }
  finish_reductions();
  for (auto* unit : units_) {
    reshard_if_unused(*unit);
    learn_implicit_reshards(*unit);
    count_gathered(-unit->kept_shard_bytes());
    unit->post_forward_shard.reset();
    if (!NoGradientSync::current()) forget_expected(*unit);  // otherwise a later microbatch may already have its graph
    learn_segments(*unit);
  }
  switch_pass_kind(kForward);
  current_ = recomputed_ = nullptr;
}

// A pass that threw never reached its end callback. Discards its pending gradients, which a later pass over an older
// graph must not use.
void Schedule::forget_failed_passes() {
  const auto failed = [](const Pass& open) { return open.owner_alive.expired(); };
  if (C10_LIKELY(std::none_of(passes_.begin(), passes_.end(), failed))) return;
  std::erase_if(passes_, failed);
  if (passes_.empty()) return abandon_passes();
  for (auto* unit : units_) {  // an inner pass failed, the outer one continues
    const auto its = [&](const Pass& open) { return open.id == unit->pending_pass; };
    if (std::none_of(passes_.begin(), passes_.end(), its)) discard_pending_gradients(*unit);
  }
}

void Schedule::discard_pending_gradients(Unit& unit) {
  unit.kept_for_graph = false;
  unit.pending_pass = -1;
  unit.arrivals = unit.reductions = 0;
  unit.implicit_reshard_uses.clear();
  for (auto& p : unit.parameters) {
    p.gradient_expected = p.gradient_arrived = p.had_gradient = false;
    count_unreduced(-local_bytes(p.pending_gradient));
    p.pending_gradient.reset();
    const auto goes_back = std::exchange(p.earlier, UnsynchronizedGradient());  // its destructor restores .grad
  }
}

void Schedule::abandon_passes() {
  const at::NoGradGuard no_grad;
  passes_.clear();
  for (auto* under_way : {&all_reducing_, &reduce_scattering_}) {
    if (const auto reduction = std::move(*under_way)) reduction->discard();
  }
  for (auto* unit : units_) {
    reshard_if_unused(*unit);
    discard_pending_gradients(*unit);
  }
  stats.unreduced_bytes = 0;
  switch_pass_kind(kForward);
}

}  // namespace dtensor::fsdp
