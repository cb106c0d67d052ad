// The gradient hooks of leaves, and the hooks that schedules hang on tensors.
#include "autograd/leaf_hook.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "autograd/leaf_reduction.h"
#include "autograd/local_autograd.h"
#include "dtensor/pass_flags.h"

namespace dtensor {
namespace {

DTensor handle_of(DTensorImpl& impl) {
  return DTensor(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&impl)));
}

Placements reduced_placements(const TensorSpec& leaf) {
  auto placements = leaf.placements;
  for (auto& p : placements) p = p.is_partial() ? Replicate() : p.as_storage(false);
  return placements;
}

bool taken_over(const DTensorImpl& impl) { return !NoGradientSync::active() && impl.hooks && impl.hooks->reduce; }

// What was accumulated without synchronisation and is not reduced yet: new gradients join it, then all is reduced once.
bool has_unreduced_gradient(const DTensor& leaf, const Placements& wanted) {
  return is_dtensor(leaf.grad()) && DTensor(leaf.grad()).placements() != wanted;
}

// Autograd is to accumulate into nothing, so that the schedule sees what is new. autograd::grad runs this hook too, but
// never accumulates: then the end of the pass puts the gradient back.
void set_aside_gradient(const DTensor& leaf, DTensorImpl& impl) {
  impl.hooks->kept = std::exchange(leaf.mutable_grad(), at::Tensor());
  at_backward_end([leaf, hooks = impl.hooks] {
    if (hooks->kept.defined()) leaf.mutable_grad() = std::exchange(hooks->kept, at::Tensor());
  });
}

// autograd::grad hands the gradient out when this hook returns: it is reduced by then.
bool is_captured(const at::Tensor& leaf) {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) return false;
  const auto found = info->find(torch::autograd::impl::grad_accumulator(leaf).get());
  return found != info->end() && found->second.captures_ != nullptr;
}

// A gradient with a graph of its own is reduced by itself, so that the reduction is part of that graph.
std::optional<Placements> may_wait(const DTensor& leaf, const at::Tensor& grad, const Placements& wanted) {
  if (at::GradMode::is_enabled() || is_captured(leaf)) return std::nullopt;
  return waiting_placements(DTensor(grad), wanted);
}

// Gradients of what is kept in host memory end there.
at::Tensor brought_home(const DTensor& gradient, const DTensor& leaf) {
  if (gradient.mesh() == leaf.mesh()) return gradient;
  TORCH_CHECK(!at::GradMode::is_enabled(), "the gradient of a parameter in host memory (", leaf.spec_str(),
              ") cannot have a graph (create_graph): its copy to the host would not be part of it");
  const auto& spec = *dtensor_or_null(gradient)->spec();
  const auto local = dtensor_or_null(gradient)->local().to(at::Device(leaf.mesh().device_type()));
  const auto& home = dtensor_or_null(leaf)->spec()->mesh;
  return make_dtensor(intern_spec(home, spec.placements, spec.sizes, spec.strides, spec.dtype), local);
}

at::Tensor before_accumulation(DTensorImpl& impl, const at::Tensor& grad) {
  if (!grad.defined() || NoGradientSync::active()) return grad;
  const auto leaf = handle_of(impl);
  const auto wanted = reduced_placements(*impl.spec());
  if (taken_over(impl) && leaf.grad().defined()) set_aside_gradient(leaf, impl);
  // Some second-order gradients come as plain tensors, equal on every rank.
  if (!is_dtensor(grad)) {
    const Placements replicated(wanted.size());
    auto spec = infer_spec(grad, leaf.mesh().impl(), replicated, grad.sizes(), grad.strides());
    return redistribute_tensor(wrap_local(grad, std::move(spec)), wanted);
  }
  if (taken_over(impl)) return grad;
  if (impl.spec()->mesh->computes() != nullptr) return brought_home(DTensor(grad).redistribute(wanted), leaf);
  if (const auto waits = may_wait(leaf, grad, wanted)) {
    expect_gradient(leaf);
    return DTensor(grad).redistribute(*waits);
  }
  return has_unreduced_gradient(leaf, wanted) ? grad : DTensor(grad).redistribute(wanted);
}

struct AfterAccumulation final : torch::autograd::PostAccumulateGradHook {
  explicit AfterAccumulation(DTensorImpl& i) : impl(i) {}
  void operator()(const at::Tensor& tensor) override {
    const DTensor leaf(tensor);
    if (taken_over(impl)) {
      const auto gradient = std::exchange(leaf.mutable_grad(), std::exchange(impl.hooks->kept, at::Tensor()));
      return impl.hooks->reduce(leaf, gradient);
    }
    const auto wanted = reduced_placements(*impl.spec());
    if (take_gradient(leaf, wanted)) return;
    if (!NoGradientSync::active() && has_unreduced_gradient(leaf, wanted)) {
      leaf.mutable_grad() = DTensor(leaf.grad()).redistribute(wanted);
    }
    if (impl.hooks && impl.hooks->gradient) impl.hooks->gradient(leaf);
  }
  DTensorImpl& impl;
};

TensorHooks& hooks_of(const DTensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  TORCH_CHECK(impl != nullptr, "hooks belong to DTensors; this one is undefined");
  if (!impl->hooks) impl->hooks = impl->source = std::make_shared<TensorHooks>(tensor.getIntrusivePtr());
  return *impl->hooks;
}

}  // namespace

void watch_leaf_slow(DTensorImpl& impl) {
  if (!impl.requires_grad()) return;
  impl.leaf_checked = true;
  const at::Tensor tensor = handle_of(impl);
  if (!tensor.is_leaf()) return;
  // Both hooks live in the leaf's own autograd metadata, so the leaf outlives them.
  tensor.register_hook([leaf = &impl](const at::Tensor& grad) { return before_accumulation(*leaf, grad); });
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<AfterAccumulation>(impl));
}

void set_use_hook(const DTensor& parameter, UseHook hook) { hooks_of(parameter).use = std::move(hook); }
void set_gradient_hook(const DTensor& parameter, GradientHook hook) { hooks_of(parameter).gradient = std::move(hook); }
void set_reduce_hook(const DTensor& parameter, ReduceHook hook) { hooks_of(parameter).reduce = std::move(hook); }

const UseHook* use_hook(const DTensor& parameter) {
  auto* impl = dtensor_or_null(parameter);
  return impl != nullptr && impl->hooks && impl->hooks->use ? &impl->hooks->use : nullptr;
}

Placements gradient_placements(const DTensor& parameter) {
  return reduced_placements(*dtensor_or_null(parameter)->spec());
}

void accumulate_gradient(const DTensor& parameter, const DTensor& gradient) {
  const at::NoGradGuard no_grad;
  auto& sum = parameter.mutable_grad();
  if (sum.defined()) {
    sum.add_(gradient);
  } else {
    sum = gradient;
  }
  auto* impl = dtensor_or_null(parameter);
  if (impl->hooks && impl->hooks->gradient) impl->hooks->gradient(parameter);
}

namespace {

// Passes that are part of another one (recomputation), and what they asked to be done at the end of that one.
thread_local int inner_passes = 0;
thread_local int outer_pass = -1;

std::vector<std::function<void()>>& waiting_for_outer_end() {
  static thread_local std::vector<std::function<void()>> callbacks;
  return callbacks;
}

}  // namespace

PartOfBackward::PartOfBackward() {
  if (inner_passes++ == 0) outer_pass = torch::autograd::get_current_graph_task_id();
}

PartOfBackward::~PartOfBackward() {
  if (--inner_passes > 0) return;
  // The autograd engine takes a callback for the pass that runs now, which is the outer one again.
  for (auto& callback : std::exchange(waiting_for_outer_end(), {})) {
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
  }
}

int current_backward() { return inner_passes > 0 ? outer_pass : torch::autograd::get_current_graph_task_id(); }

void at_backward_end(std::function<void()> callback) {
  TORCH_CHECK(current_backward() >= 0, "at_backward_end: no backward pass runs on this thread");
  if (inner_passes > 0) return waiting_for_outer_end().push_back(std::move(callback));
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

NoGradientSync::NoGradientSync() : previous_(active()) { push_pass_flag(PassFlag::no_gradient_sync); }
NoGradientSync::~NoGradientSync() { pop_pass_flag(); }
bool NoGradientSync::active() { return pass_flag(PassFlag::no_gradient_sync); }

struct BackwardStartListener::State {
  std::function<void()> callback;
  State* outer;
  int last_pass = -1;
};

namespace {

// BackwardStartListener::State of this thread, innermost first; opaque here because the type is private.
thread_local void* listeners = nullptr;

}  // namespace

bool backward_listeners_on() { return listeners != nullptr; }

BackwardStartListener::BackwardStartListener(std::function<void()> callback)
    : state_(std::make_unique<State>(State{std::move(callback), static_cast<State*>(listeners)})) {
  listeners = state_.get();
}

BackwardStartListener::~BackwardStartListener() { listeners = state_->outer; }

void BackwardStartListener::notify() {
  const int pass = current_backward();
  if (pass < 0) return;
  for (auto* state = static_cast<State*>(listeners); state != nullptr; state = state->outer) {
    if (std::exchange(state->last_pass, pass) != pass) state->callback();
  }
}

void notify_backward_start() { BackwardStartListener::notify(); }

}  // namespace dtensor
