// Backward passes inside another one, and callbacks for the end of the outer one (internal/nested_backward.h).
#include "internal/nested_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace dtensor {

namespace {

// Backward passes nested in another one (recomputation), and the callbacks that they queued for the end of the outer
// pass.
thread_local int inner_passes = 0;
thread_local int outer_pass = -1;

std::vector<std::function<void()>>& waiting_for_outer_end() {
  static thread_local std::vector<std::function<void()>> callbacks;
  return callbacks;
}

}  // namespace

NestedBackwardGuard::NestedBackwardGuard() {
  if (inner_passes++ == 0) outer_pass = torch::autograd::get_current_graph_task_id();
}

NestedBackwardGuard::~NestedBackwardGuard() {
  if (--inner_passes > 0) return;
  // The autograd engine queues a callback for the running pass, which is the outer one again.
  for (auto& callback : std::exchange(waiting_for_outer_end(), {})) {
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
  }
}

int current_backward_id() { return inner_passes > 0 ? outer_pass : torch::autograd::get_current_graph_task_id(); }

void queue_backward_callback(std::function<void()> callback) {
  TORCH_CHECK(current_backward_id() >= 0, "queue_backward_callback: no backward pass runs on this thread");
  if (inner_passes > 0) return waiting_for_outer_end().push_back(std::move(callback));
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

RecomputeGuard::RecomputeGuard() : scope_({}, Recompute::unchanged) {}
bool RecomputeGuard::current() { return ScopedValue<Flag>::current() != nullptr; }

}  // namespace dtensor
