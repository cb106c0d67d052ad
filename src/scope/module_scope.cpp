// Module scopes. Each thread has a stack of names. While a NodeRecorder is active, each closed scope records its range
// of autograd sequence numbers. A node belongs to the smallest range that contains its number. Autograd propagates the
// ranges to the threads of a backward pass.
#include "scope/module_scope.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace dtensor {
namespace {

struct Range {
  std::uint64_t begin, end;
  std::string path;
};

struct OpenScope {
  const std::string* name;
  int pass;  // the backward pass in which it was opened (recomputation), or -1
};

// Number of active recorders. If it is 0, a scope records nothing and costs only this test.
std::atomic<int> recorders = 0;

// The backward pass and module of the node that ran last on this thread.
struct LastExecutedNode {
  int pass = -1;
  std::string module;
};

std::vector<OpenScope>& open_scopes() {
  static thread_local std::vector<OpenScope> scopes;
  return scopes;
}

// In a backward pass, only scopes that were opened in it count: recomputation runs a part of the model again.
std::string path_of(const std::vector<OpenScope>& scopes, int pass) {
  std::string path;
  for (const OpenScope& scope : scopes) {
    if (pass >= 0 && scope.pass != pass) continue;
    if (!path.empty()) path += '.';
    path += *scope.name;
  }
  return path;
}

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
  open_scopes().push_back({name_, torch::autograd::get_current_graph_task_id()});
  if (recorders > 0) first_node_ = at::sequence_number::peek();
}

ModuleScope::~ModuleScope() {
  if (name_ == nullptr) return;
  auto& open = open_scopes();
  if (const auto ranges = NodeRecorder::current(); ranges && at::sequence_number::peek() > first_node_) {
    ranges->add({first_node_, at::sequence_number::peek(), path_of(open, open.back().pass)});
  }
  open.pop_back();
}

std::string ModuleScope::path() { return path_of(open_scopes(), torch::autograd::get_current_graph_task_id()); }

ModuleAndPhase current_module_and_phase() {
  const auto& open = open_scopes();
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass < 0) return {path_of(open, pass), Phase::forward};
  const bool recomputes = !open.empty() && open.back().pass == pass;
  return {recomputes ? path_of(open, pass) : NodeRecorder::module_of_node(pass), Phase::backward};
}

}  // namespace dtensor
