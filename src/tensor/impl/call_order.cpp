// Calls of a backward pass are in order on the thread that made its first call only.
#include "tensor/impl/call_order.h"

#include <torch/csrc/autograd/graph_task.h>

#include <array>
#include <atomic>
#include <thread>

namespace dtensor {
namespace {

struct Pass {
  std::atomic<int> number{-1};
  std::atomic<std::thread::id> thread{};
};

}  // namespace

bool is_call_order_deterministic() {
  static std::array<Pass, 256> passes;  // backward passes of all ranks of the process
  const int number = torch::autograd::get_current_graph_task_id();
  if (number < 0) return true;
  Pass& pass = passes[static_cast<std::size_t>(number) % passes.size()];
  const auto me = std::this_thread::get_id();
  if (pass.number.load(std::memory_order_acquire) == number) return pass.thread.load(std::memory_order_relaxed) == me;
  pass.thread.store(me, std::memory_order_relaxed);
  pass.number.store(number, std::memory_order_release);
  return true;
}

}  // namespace dtensor
