// Module scopes: a stack of names, and for each closed scope the range of autograd sequence numbers that it covered. A
// node belongs to the smallest range that holds its number.
#include "debug/module_scope.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <vector>

namespace dtensor {
namespace {

struct Range {
  std::uint64_t begin, end;
  std::string path;
};

struct OpenScope {
  const std::string* name;
  int pass;  // the backward pass that it was opened in (recomputation), or -1
};

struct ThreadState {
  std::vector<OpenScope> open;
  std::vector<Range> ranges;
  int recorders = 0;
  int last_pass = -1;
  std::string last_module;
};

ThreadState& state() {
  static thread_local ThreadState value;
  return value;
}

// In a backward pass only the scopes that were opened in it: a part of the model runs again.
std::string path_of(const std::vector<OpenScope>& scopes, int pass) {
  std::string path;
  for (const OpenScope& scope : scopes) {
    if (pass >= 0 && scope.pass != pass) continue;
    if (!path.empty()) path += '.';
    path += *scope.name;
  }
  return path;
}

// The latest among equals: a scope closes before the one around it.
const Range* smallest_range(const std::vector<Range>& ranges, std::uint64_t number) {
  const Range* best = nullptr;
  for (const Range& range : ranges) {
    if (number < range.begin || number >= range.end) continue;
    if (best == nullptr || range.end - range.begin < best->end - best->begin) best = &range;
  }
  return best;
}

std::string module_of_node(ThreadState& s, int pass) {
  if (std::exchange(s.last_pass, pass) != pass) s.last_module.clear();
  const auto node = torch::autograd::get_current_node();
  if (!node || node->sequence_nr() == UINT64_MAX) return s.last_module;
  const Range* range = smallest_range(s.ranges, node->sequence_nr());
  return s.last_module = range == nullptr ? "" : range->path;
}

}  // namespace

ModuleScope::ModuleScope(const std::string& name) : name_(name.empty() ? nullptr : &name) {
  if (name_ == nullptr) return;
  ThreadState& s = state();
  s.open.push_back({name_, torch::autograd::get_current_graph_task_id()});
  if (s.recorders > 0) first_node_ = at::sequence_number::peek();
}

ModuleScope::~ModuleScope() {
  if (name_ == nullptr) return;
  ThreadState& s = state();
  if (s.recorders > 0 && at::sequence_number::peek() > first_node_) {
    s.ranges.push_back({first_node_, at::sequence_number::peek(), path_of(s.open, s.open.back().pass)});
  }
  s.open.pop_back();
}

std::string ModuleScope::path() { return path_of(state().open, torch::autograd::get_current_graph_task_id()); }

NodeRecorder::NodeRecorder() { ++state().recorders; }

NodeRecorder::~NodeRecorder() {
  ThreadState& s = state();
  if (--s.recorders == 0) s.ranges.clear();
}

Place current_place() {
  ThreadState& s = state();
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass < 0) return {path_of(s.open, pass), Phase::forward};
  const bool recomputes = !s.open.empty() && s.open.back().pass == pass;
  return {recomputes ? path_of(s.open, pass) : module_of_node(s, pass), Phase::backward};
}

}  // namespace dtensor
