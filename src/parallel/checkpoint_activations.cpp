// One autograd node per segment. Forward runs without grad mode. Backward runs the segment again with grad mode,
// differentiates it in an inner pass and returns the gradients of the inputs. Gradients of captured parameters are
// accumulated by the inner pass and its hooks.
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
#include "dtensor/tensor.h"
#include "internal/gradient_hooks.h"
#include "internal/random_draws.h"
#include "internal/selective_checkpoint_cache.h"
#include "scope/scope_snapshot.h"

namespace dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Autocast is thread-local state.
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
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> fn;
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

// Disables the cache of autocast in both runs. Casts that it keeps of weights have no graph after the first run, which
// runs without grad mode. Those of the second run are never cleared, so the next step would use outdated weights.
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

// Restores the thread-local state of the first run during its lifetime.
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
// The gradients that an enclosing pass requests, for segments nested in it.
struct RequestedGradients {
  const ExecInfoMap* asked;
};

// Null: the pass accumulates every leaf's gradient. Otherwise: the requested gradients of autograd::grad, or of
// backward with inputs.
const ExecInfoMap* requested_by_name() {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  return asked != nullptr && !asked->empty() ? asked : nullptr;
}

bool wants(const ExecInfoMap& asked, torch::autograd::Node* node) {
  const auto found = asked.find(node);
  return found != asked.end() && (found->second.needed_ || found->second.captures_);
}

// Whether the current pass or an enclosing one requests the gradient: segments may be nested.
bool is_requested(const ExecInfoMap& asked, torch::autograd::Node* node) {
  bool is = wants(asked, node);
  ScopedValue<RequestedGradients>::for_each(
      [&](const RequestedGradients& around) { is = is || wants(*around.asked, node); });
  return is;
}

// Throws if a captured parameter's gradient is requested: the outer pass does not have it in its graph and would not
// find the gradient.
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
                "checkpoint: autograd::grad, or backward with inputs, requests the gradient of a parameter that a "
                "recomputed segment captures. The segment's graph is built in backward, where the pass does not find "
                "it: pass the parameter to the segment as an input, or call backward without inputs");
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
}

// During its lifetime, reduces the gradients of a segment's inputs at once, because the outer pass continues with them.
// (Gradients of other leaves may stay Partial until the outer pass ends.) They are taken out of the inputs, which the
// segment may keep longer.
class StashedGradients {
 public:
  StashedGradients(const variable_list& inputs, variable_list& taken) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!is_dtensor(inputs[i]) || !inputs[i].requires_grad()) continue;
      inputs_.emplace_back(inputs[i]);
      set_reduce_stage(inputs_.back(), [&gradient = taken[i]](const DTensor& input, const at::Tensor& given) {
        gradient = DTensor(given).redistribute(gradient_placements(input));
        return true;
      });
    }
  }
  ~StashedGradients() {
    for (const DTensor& input : inputs_) set_reduce_stage(input, {});
  }
  StashedGradients(const StashedGradients&) = delete;
  StashedGradients& operator=(const StashedGradients&) = delete;

 private:
  std::vector<DTensor> inputs_;
};

// Differentiates the results of the second run with respect to the inputs, for those results of the first run that were
// used.
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
      if (!result[i].defined()) result[i] = inputs[i].grad();  // regular tensors; DTensors under NoGradientSync
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

// Replaces results that another handle refers to (a parameter or a constant that the segment captures) by handles of
// their own. Otherwise they would become part of the graph permanently, and their next use would lead into this pass.
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
    ctx->set_materialize_grads(false);  // unused results have undefined gradients instead of zeros
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
    TORCH_CHECK(
        !at::GradMode::is_enabled(),
        "checkpoint: double backward (create_graph) is not supported: a recomputed segment is differentiated in "
        "an inner pass of backward, whose graph is not kept. Run the segment without checkpoint if its "
        "gradient is differentiated");
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
    TORCH_CHECK(outputs.size() == grads.size(), "checkpoint: expected as many tensors in recomputation as in forward, ",
                grads.size(), ", got ", outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      TORCH_CHECK(described(outputs[i]) == call.results[i], "checkpoint: expected result ", i, " to be ",
                  call.results[i], " as in forward, got ", described(outputs[i]),
                  " in recomputation; the function must make the same calls each time");
    }
    variable_list result(2);
    for (auto& gradient : run_backward(outputs, grads, inputs)) result.push_back(std::move(gradient));
    // Frees kept results together with the saved inputs; otherwise they would live as long as the loss.
    if (!torch::autograd::get_current_graph_task_keep_graph()) kept_call.reset();
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& fn,
                                   const std::vector<at::Tensor>& inputs, const RecomputeOptions& options) {
  if (!at::GradMode::is_enabled()) return fn(inputs);
  auto call = std::make_shared<CheckpointedCall>();
  call->fn = fn;
  call->module = ModuleScope::path();
  call->kept = SelectiveCheckpointCache(options.keep);
  // A dummy input, so that results require grad even if only captured parameters do.
  const at::Tensor always = at::empty({0}).requires_grad_();
  return Checkpoint::apply(call, always, at::TensorList(inputs));
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& input,
                      const RecomputeOptions& options) {
  return checkpoint([fn](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{fn(x[0])}; },
                    std::vector<at::Tensor>{input}, options)[0];
}

}  // namespace dtensor
