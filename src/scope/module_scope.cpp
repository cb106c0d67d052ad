// Module scopes. The scopes of a thread are a list in its CallContext. While a NodeRecorder is active, each closed
// scope records its range of autograd sequence numbers. A node belongs to the smallest range that contains its number.
// Autograd propagates the ranges to the threads of a backward pass.
#include "scope/module_scope.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "scope/thread_state.h"

namespace dtensor {
namespace {

struct Range {
  std::uint64_t begin, end;
  std::string path;
};

// Number of active recorders. If it is 0, a scope records nothing and costs only this test.
std::atomic<int> recorders = 0;

// The backward pass and module of the node that ran last on this thread.
struct LastExecutedNode {
  int pass = -1;
  std::string module;
};

}  // namespace

struct NodeRecorder::Ranges {
  std::mutex mutex;
  std::vector<Range> list;

  void add(Range range) {
    const std::lock_guard lock(mutex);
    list.push_back(std::move(range));
  }
  // The path of the smallest range, or "". Among equal ranges the first one wins: an inner scope closes before the
  // outer one.
  std::string smallest(std::uint64_t number) {
    const std::lock_guard lock(mutex);
    const Range* best = nullptr;
    for (const Range& range : list) {
      if (number < range.begin || number >= range.end) continue;
      if (best == nullptr || range.end - range.begin < best->end - best->begin) best = &range;
    }
    return best == nullptr ? "" : best->path;
  }
};

NodeRecorder::RangesPtr NodeRecorder::current() {
  if (recorders == 0) return nullptr;
  const auto* ranges = ScopedValue<RangesPtr>::current();
  return ranges == nullptr ? nullptr : *ranges;
}

// An inner recorder sees what an outer one has recorded.
NodeRecorder::NodeRecorder() : scope_(current() ? current() : std::make_shared<Ranges>(), Recompute::unchanged) {
  ++recorders;
}
NodeRecorder::~NodeRecorder() { --recorders; }

std::string NodeRecorder::module_of_node(int pass) {
  static thread_local LastExecutedNode last;
  if (std::exchange(last.pass, pass) != pass) last.module.clear();
  const auto node = torch::autograd::get_current_node();
  if (!node || node->sequence_nr() == UINT64_MAX) return last.module;
  const auto ranges = current();
  return last.module = ranges ? ranges->smallest(node->sequence_nr()) : "";
}

ModuleScope::ModuleScope(const std::string& name) : name_(name.empty() ? nullptr : &name) {
  if (name_ == nullptr) return;
  outer_ = std::exchange(thread_state().call.module, this);
  pass_ = torch::autograd::get_current_graph_task_id();
  if (recorders > 0) first_node_ = at::sequence_number::peek();
}

ModuleScope::~ModuleScope() {
  if (name_ == nullptr) return;
  if (const auto ranges = NodeRecorder::current(); ranges && at::sequence_number::peek() > first_node_) {
    ranges->add({first_node_, at::sequence_number::peek(), path_in(pass_)});
  }
  thread_state().call.module = outer_;
}

// In a backward pass, only scopes that were opened in it count: recomputation runs a part of the model again.
std::string ModuleScope::path_in(int pass) {
  std::string path;
  for (const auto* scope = thread_state().call.module; scope != nullptr; scope = scope->outer_) {
    if (pass < 0 || scope->pass_ == pass) path.insert(0, path.empty() ? *scope->name_ : *scope->name_ + '.');
  }
  return path;
}

std::string ModuleScope::path() { return path_in(torch::autograd::get_current_graph_task_id()); }

ModuleAndPhase current_module_and_phase() {
  const int pass = torch::autograd::get_current_graph_task_id();
  std::string path = ModuleScope::path();
  if (pass < 0) return {std::move(path), Phase::forward};
  return {path.empty() ? NodeRecorder::module_of_node(pass) : std::move(path), Phase::backward};
}

}  // namespace dtensor
