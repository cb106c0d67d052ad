// One autograd node a segment: forward runs without grad mode, backward runs the segment again with it, differentiates
// that, and hands the inputs' gradients on. Captured parameters accumulate in the inner pass, by their own hooks.
#include "dtensor/checkpoint_activations.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "dtensor/debug.h"
#include "dtensor/hooks.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "internal/gradient_hooks.h"
#include "internal/scope_snapshot.h"
#include "internal/selective_checkpoint_cache.h"

namespace dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Autocast is a setting of the thread.
struct AutocastState {
  bool on[2];
  at::ScalarType dtype[2];
  static constexpr c10::DeviceType kDevices[2] = {at::kCPU, at::kCUDA};

  static AutocastState current() {
    AutocastState a{};
    for (int i = 0; i < 2; ++i) {
      a.on[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      a.dtype[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
    return a;
  }
  void set() const {
    for (int i = 0; i < 2; ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], on[i]);
      at::autocast::set_autocast_dtype(kDevices[i], dtype[i]);
    }
  }
};

struct CheckpointedCall {
  CheckpointedFunction fn;
  std::string module;  // path of the ModuleScopes around it
  ScopeSnapshot scopes = ScopeSnapshot::current();
  AutocastState autocast = AutocastState::current();
  RandomDraws random;
  SelectiveCheckpointCache kept;
  std::vector<std::string> results;  // what fn gave
};

std::string described(const at::Tensor& t) {
  return t.defined() ? c10::str(t.scalar_type(), t.sizes()) : "an undefined tensor";
}

struct Holder : torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<CheckpointedCall> c) : call(std::move(c)) {}
  std::shared_ptr<CheckpointedCall> call;
};

// Both runs make casts of their own: those that autocast keeps of weights would be without a graph after the first run,
// which has none, and those of the second, which nobody clears, would serve the next step with weights of this one.
class AutocastCacheDisabled {
 public:
  AutocastCacheDisabled() : kept_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastCacheDisabled() { at::autocast::set_autocast_cache_enabled(kept_); }
  AutocastCacheDisabled(const AutocastCacheDisabled&) = delete;
  AutocastCacheDisabled& operator=(const AutocastCacheDisabled&) = delete;

 private:
  bool kept_;
};

// The surroundings of the first run, while it lives.
class RestoredForwardState {
 public:
  explicit RestoredForwardState(CheckpointedCall& call)
      : autocast_(AutocastState::current()),
        module_(call.module),
        scopes_(call.scopes),
        kept_(call.kept),
        random_(call.random) {
    call.autocast.set();
  }
  ~RestoredForwardState() { autocast_.set(); }
  RestoredForwardState(const RestoredForwardState&) = delete;
  RestoredForwardState& operator=(const RestoredForwardState&) = delete;

 private:
  AutocastState autocast_;
  AutocastCacheDisabled casts_;
  ModuleScope module_;
  ScopeSnapshot::Restore scopes_;
  SelectiveCheckpointCache::Replay kept_;
  RandomDraws::Replay random_;
};

variable_list detached(const variable_list& saved) {
  variable_list inputs;
  for (const at::Tensor& t : saved) {
    inputs.push_back(t.defined() ? t.detach() : t);
    if (t.defined() && t.requires_grad()) inputs.back().requires_grad_();
  }
  return inputs;
}

using ExecInfoMap = std::unordered_map<torch::autograd::Node*, torch::autograd::GraphTask::ExecInfo>;
// What the pass around a segment's own one was told, for segments within it.
struct RequestedGradients {
  const ExecInfoMap* asked;
};

// Null: every leaf's gradient is accumulated. Else the pass was told which gradients it is for (autograd::grad,
// backward with inputs).
const ExecInfoMap* requested_by_name() {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  return asked != nullptr && !asked->empty() ? asked : nullptr;
}

bool wants(const ExecInfoMap& asked, torch::autograd::Node* node) {
  const auto found = asked.find(node);
  return found != asked.end() && (found->second.needed_ || found->second.captures_);
}

// By the pass that runs, or by one around it: segments nest.
bool is_requested(const ExecInfoMap& asked, torch::autograd::Node* node) {
  bool is = wants(asked, node);
  ScopedValue<RequestedGradients>::for_each(
      [&](const RequestedGradients& around) { is = is || wants(*around.asked, node); });
  return is;
}

// The pass does not know that a captured parameter is part of its graph: it would find no gradient of it.
void refuse_captured(const variable_list& outputs, const ExecInfoMap& asked) {
  std::vector<torch::autograd::Node*> open;
  std::unordered_set<torch::autograd::Node*> seen;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& t : outputs) visit(t.defined() ? t.grad_fn().get() : nullptr);
  while (!open.empty()) {
    auto* node = open.back();
    open.pop_back();
    TORCH_CHECK(!is_requested(asked, node),
                "checkpoint: autograd::grad, or backward with inputs, asks for the gradient of a parameter that a "
                "recomputed segment captures. The segment's graph is made anew in backward, where the pass does not "
                "look for it: give the parameter to the segment as an input, or call backward without inputs");
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
}

// While it lives, reduces the gradients of a segment's inputs at once: those of other leaves may wait, as sums, for the
// end of the outer pass, which goes on with these before. A segment may keep its inputs for longer.
class StashedGradients {
 public:
  StashedGradients(const variable_list& inputs, variable_list& taken) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!is_dtensor(inputs[i]) || !inputs[i].requires_grad()) continue;
      inputs_.emplace_back(inputs[i]);
      set_reduce_hook(inputs_.back(), [&gradient = taken[i]](const DTensor& input, const at::Tensor& given) {
        gradient = DTensor(given).redistribute(gradient_placements(input));
      });
    }
  }
  ~StashedGradients() {
    for (const DTensor& input : inputs_) set_reduce_hook(input, {});
  }
  StashedGradients(const StashedGradients&) = delete;
  StashedGradients& operator=(const StashedGradients&) = delete;

 private:
  std::vector<DTensor> inputs_;
};

// Differentiates what the second run gave, as far as the first run's results were used; the inputs' gradients.
variable_list run_backward(const variable_list& outputs, const variable_list& grads, const variable_list& inputs) {
  variable_list roots, root_grads;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad() || !grads[i].defined()) continue;
    roots.push_back(outputs[i]);
    root_grads.push_back(grads[i]);
  }
  variable_list result(inputs.size());
  if (roots.empty()) return result;
  const auto* asked = requested_by_name();
  if (asked != nullptr) refuse_captured(outputs, *asked);
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].requires_grad()) wanted.push_back(i);
  }
  const NestedBackwardGuard part;
  if (asked == nullptr) {
    const StashedGradients taken(inputs, result);
    torch::autograd::backward(roots, root_grads);
    for (const auto i : wanted) {
      if (!result[i].defined()) result[i] = inputs[i].grad();  // plain tensors; DTensors under NoGradientSync
    }
  } else if (!wanted.empty()) {
    variable_list leaves;
    for (const auto i : wanted) leaves.push_back(inputs[i]);
    const ScopedValue<RequestedGradients> around({asked}, Recompute::unchanged);
    const auto found = torch::autograd::grad(roots, leaves, root_grads, {}, false, /*allow_unused=*/true);
    for (std::size_t k = 0; k < wanted.size(); ++k) result[wanted[k]] = found[k];
  }
  return result;
}

// A result that somebody else holds (a parameter, a constant that the segment captures) would itself become part of the
// graph, for good: its next use would lead into this pass's. A handle of its own does so in its place.
void copy_handles(variable_list& results, at::TensorList inputs) {
  for (at::Tensor& t : results) {
    const auto is_this = [&](const at::Tensor& input) { return input.is_same(t); };
    if (t.defined() && t.use_count() > 1 && std::none_of(inputs.begin(), inputs.end(), is_this)) t = t.detach();
  }
}

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, std::shared_ptr<CheckpointedCall> call,
                               const at::Tensor& /*always*/, at::TensorList inputs) {
    ctx->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(call));
    ctx->save_for_backward(inputs.vec());
    ctx->set_materialize_grads(false);  // results that nobody used give no gradients, not even zeros
    const SelectiveCheckpointCache::Record record(call->kept);
    const RandomDraws::Record draws(call->random);
    const RecomputeGuard again;
    const AutocastCacheDisabled casts;
    auto results = call->fn(inputs.vec());
    copy_handles(results, inputs);
    for (const at::Tensor& t : results) call->results.push_back(described(t));
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "checkpoint: no gradient of a gradient (create_graph): a recomputed segment is differentiated in a "
                "pass of its own, inside of backward, and the graph of that ends there. Run the segment without "
                "checkpoint where its gradient is differentiated");
    const variable_list inputs = detached(ctx->get_saved_variables());
    auto& kept_call = static_cast<Holder*>(ctx->saved_data["call"].toCapsule().get())->call;
    CheckpointedCall& call = *kept_call;
    variable_list outputs;
    {
      const RestoredForwardState as_before(call);
      const at::AutoGradMode with_grad(true);
      outputs = call.fn(inputs);
      call.kept.check_all_replayed();
    }
    TORCH_CHECK(outputs.size() == grads.size(), "checkpoint: the segment gave ", grads.size(),
                " tensors in forward and ", outputs.size(), " in backward");
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      TORCH_CHECK(described(outputs[i]) == call.results[i], "checkpoint: the segment gave ", call.results[i],
                  " in forward and ", described(outputs[i]), " in backward, as result ", i,
                  "; a function that runs again must make the same calls as before");
    }
    variable_list result(2);
    for (auto& gradient : run_backward(outputs, grads, inputs)) result.push_back(std::move(gradient));
    // With the saved inputs goes what was kept, or it would stay as long as somebody holds the loss.
    if (!torch::autograd::get_current_graph_task_keep_graph()) kept_call.reset();
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint(const CheckpointedFunction& fn, const std::vector<at::Tensor>& inputs,
                                   const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return fn(inputs);
  auto call = std::make_shared<CheckpointedCall>();
  call->fn = fn;
  call->module = ModuleScope::path();
  call->kept = SelectiveCheckpointCache(options.keep);
  // Results must require grad even where only captured parameters do.
  const at::Tensor always = at::empty({0}).requires_grad_();
  return Checkpoint::apply(call, always, at::TensorList(inputs));
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& input,
                      const CheckpointOptions& options) {
  return checkpoint([fn](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{fn(x[0])}; },
                    std::vector<at::Tensor>{input}, options)[0];
}

}  // namespace dtensor
