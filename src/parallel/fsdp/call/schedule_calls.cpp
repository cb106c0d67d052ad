// What the schedule does when a call with local semantics is entered and left, in forward and backward.
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "internal/nested_backward.h"
#include "parallel/fsdp/call/local_module_call.h"
#include "parallel/fsdp/schedule.h"

namespace dtensor::fsdp {

void Schedule::enter_forward(Unit& unit) {
  TORCH_CHECK(unit.mesh.is_member(), "fully_shard: expected a call of the module on a rank of ", unit.mesh.str(),
              " only");
  begin_use(unit);
  if (recomputed_ != nullptr && recomputed_ != &unit) reshard_if_unused(*std::exchange(recomputed_, nullptr));
  if (unit.gathers()) {
    if (!unit.is_gathered() || !unit.all_fresh()) gather(unit);
    finish_gather(unit);
  }
  ++unit.active_calls;
  unit.unsharded_in_module = true;
  unit.prefetched = false;
  if (std::find(running_.begin(), running_.end(), &unit) != running_.end()) return;
  running_.push_back(&unit);
  prefetch(unit);
}

// Whether the last backward pass began with this unit, not counting units whose calls enclose it.
bool Schedule::is_first_in_backward(const Unit& unit) const {
  const auto& order = order_[kBackward];
  const auto first =
      std::find_if(order.begin(), order.end(), [](const Unit* other) { return other->active_calls == 0; });
  return first != order.end() && *first == &unit;
}

// Keeps the unit with which backward begins; in backward, the unit that was recomputed last.
void Schedule::leave_forward(Unit& unit, bool keep) {
  if (--unit.active_calls > 0 || !unit.reshards) return;
  if (!at::GradMode::is_enabled() && !RecomputeGuard::current()) return reshard_if_unused(unit);
  if (current_backward_id() >= 0) {
    recomputed_ = &unit;
  } else if (!keep && is_first_in_backward(unit)) {
    kept_after_forward_ = &unit;
    first_used_after_kept_ = nullptr;
  } else if (!keep) {
    reshard_if_unused(unit);
  }
}

void Schedule::enter_backward(Unit& unit) {
  enter_forward(unit);
  for (auto& pass : passes_) pass.makes_graph |= pass.id == current_backward_id() && at::GradMode::is_enabled();
}

void Schedule::leave_backward(Unit& unit) {
  if (--unit.active_calls == 0) reshard_if_unused(unit);
}

void Schedule::leave_calls(int pass) {
  for (auto* unit : units_) {
    const auto calls = unit->calls_in_backward;
    for (const auto& call : calls) {
      if (call->pass() == pass) call->leave_backward();
    }
  }
}

// Backward of the graph that a pass created reads the parameters before it reaches any hook on module outputs.
void Schedule::keep_for_graph(int pass) {
  const auto makes_graph = [&](const Pass& open) { return open.id == pass && open.makes_graph; };
  const bool keep = std::any_of(passes_.begin(), passes_.end(), makes_graph);
  for (auto* unit : units_) {
    if (keep && !unit->calls_in_backward.empty()) unit->kept_for_graph = true;
    if (!keep && (unit->arrivals > 0 || unit->frozen())) unit->kept_for_graph = false;
  }
}

Schedule::PassEnd::~PassEnd() {
  try {
    schedule.leave_calls(pass);
  } catch (...) {  // a failed gather; the pass has failed already
  }
}

}  // namespace dtensor::fsdp
